"""The ``elastic-mx`` command: names its subcommands and imports one only when it is called. Their work is elsewhere."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Dict, List, Optional, Sequence, Tuple

import click

from launcher.output import open_standard_streams

# name: module, attribute, one line of help. Importing nothing here keeps --help fast.
COMMANDS: Dict[str, Tuple[str, str, str]] = {
    "convert-trace": ("scheduler.commands", "convert_trace", "Turn a public cluster trace into a workload file."),
    "cancel": ("scheduler.service.commands", "cancel", "End a job of the service."),
    "describe": ("scheduler.service.commands", "describe", "Show all about a job of the service."),
    "jobs": ("scheduler.service.commands", "jobs", "List the service's jobs."),
    "logs": ("scheduler.service.commands", "logs", "Print what a job's tasks printed."),
    "nodes": ("scheduler.service.commands", "nodes", "Show the service's nodes."),
    "policy": ("scheduler.service.commands", "policy", "Show or set the service's policy."),
    "serve": ("scheduler.service.commands", "serve", "Run the scheduler's service."),
    "submit": ("scheduler.service.commands", "submit", "Submit a job to the service."),
    "checkpoint": ("launcher.commands", "checkpoint", "Save a job while it trains."),
    "demo": ("launcher.demo.cluster", "demo", "Run the service with three real jobs that share this machine."),
    "demo-resize": ("launcher.demo.command", "demo", "Train on real data and resize the job meanwhile."),
    "launch": ("launcher.launch", "launch", "Run a script as the workers of an elastic job."),
    "scale": ("launcher.commands", "scale", "Give a job another size while it trains."),
    "simulate": ("scheduler.commands", "simulate", "Compare scheduling policies in the simulator."),
    "status": ("launcher.commands", "status", "Show the jobs of this machine, or all about one."),
    "stop": ("launcher.commands", "stop", "End a job."),
    "train-policy": ("scheduler.learn.commands", "train_policy", "Train a learned scheduling policy."),
}
OUR_PACKAGES = ("elastic_mx", "scheduler", "launcher")


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and help, imports one when it is used, and errs in one line."""

    def list_commands(self, ctx: click.Context) -> List[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in OUR_PACKAGES:
                raise
            extra = "service" if module.startswith("scheduler.service") else "scheduler"
            raise click.ClickException(
                f"{cmd_name} needs the package {error.name!r}, which is missing: pip install elastic-mx[{extra}]"
            ) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def main(  # type: ignore[override]
        self,
        args: Optional[Sequence[str]] = None,
        prog_name: Optional[str] = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command; what a user did wrong is told in one line on stderr, without click's usage lines."""
        open_standard_streams()
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.ClickException as error:
            if (
                type(error).__name__ == "NoArgsIsHelpError"
            ):  # its message is the help; older releases have no such class
                error.show()
                sys.exit(error.exit_code)
            message = " ".join(error.format_message().split())
            if isinstance(error, click.UsageError) and error.ctx is not None:
                message += f" ({error.ctx.command_path} --help tells more)"
            click.echo(f"Error: {message}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(130)
        sys.exit(status if isinstance(status, int) else 0)


@click.group(cls=LazyGroup)
@click.version_option(package_name="elastic-mx")
def main() -> None:
    """Elastic training for Apache MXNet, and the scheduler of its cluster."""


if __name__ == "__main__":
    main(prog_name="elastic-mx")
