"""The ``elastic-mx`` command: names its subcommands and imports one only when it is called. Their work is elsewhere."""

from __future__ import annotations

from importlib import import_module
from typing import Dict, List, Optional, Tuple

import click

# name: module, attribute, one line of help. Importing nothing here keeps --help fast.
COMMANDS: Dict[str, Tuple[str, str, str]] = {
    "simulate": ("scheduler.commands", "simulate", "Compare scheduling policies in the simulator."),
}


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and help, and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> List[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup)
@click.version_option(package_name="elastic-mx")
def main() -> None:
    """Elastic training for Apache MXNet, and the scheduler of its cluster."""


if __name__ == "__main__":
    main()
