"""The ``launch`` command: reads options, checks what can be checked before anything starts, and runs the job."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import click

from elastic_mx.link import JobError
from elastic_mx.settings import MIB, TRANSPORTS, JobSettings
from launcher.commands import Size, plain_errors
from launcher.local import LaunchSettings, LocalJob
from launcher.registry import Registry
from launcher.room import check_room

INTERPRETERS = ("python", "python3")
OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--workers", type=Size(), default=1, show_default=True, help="Workers to start with.")
@click.option("-s", "--servers", type=Size(), default=1, show_default=True, help="Servers to start with.")
@click.option("--name", help="The job's name.  [default: the script's, numbered if that is in use]")
@click.option("--drop-in", is_flag=True, help="Run a script that says dist_sync, dist_async or dist_device_sync.")
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="auto",
    show_default=True,
    help="How tensors travel: auto takes shared memory on one host.",
)
@click.option("--slice-mib", type=click.FloatRange(0.001), default=2.0, show_default=True, help="Size of a slice.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The coordinator's port.  [default: any free]")
@click.option(
    "--threads", type=Size(), help="Compute threads of each process.  [default: OMP_NUM_THREADS if it is set, else 1]"
)
@click.option(
    "--restore", type=click.Path(file_okay=False), help="Go on from the checkpoint in this folder, with any size."
)
@click.option(
    "--optimizer",
    "optimizers",
    multiple=True,
    metavar="MODULE:CLASS",
    help="An optimizer of your own that the servers may import; may be given several times.",
)
@click.option("--trace", is_flag=True, help="Print every message of the protocol on stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@plain_errors
def launch(
    workers: int,
    servers: int,
    name: Optional[str],
    drop_in: bool,
    transport: str,
    slice_mib: float,
    port: int,
    threads: Optional[int],
    restore: Optional[str],
    optimizers: Tuple[str, ...],
    trace: bool,
    command: Tuple[str, ...],
) -> int:
    """Run COMMAND as the workers of an elastic job on this machine.

    Prints what the processes print with their names in front, passes SIGINT and SIGTERM on to the workers, and ends
    with the script's exit status. ``python`` means the interpreter that elastic-mx is installed for.

    \b
    Examples:
      elastic-mx launch -n 2 -s 1 -- python train.py --epochs 10
      elastic-mx launch -n 1 -s 1 --name digits -- python examples/digits.py
      elastic-mx launch -n 3 -s 2 --restore saved -- python examples/digits.py
      elastic-mx launch -n 2 -s 2 --drop-in -- python old_script.py --kv-store dist_sync
    """
    check_room(workers, servers)
    resolved = resolve(command)
    if restore is not None and not os.path.isdir(restore):
        raise JobError(f"--restore {restore!r} is no folder: give one that elastic-mx checkpoint has written")
    for path in optimizers:
        if not all(part.isidentifier() for part in path.replace(":", ".", 1).split(".")) or ":" not in path:
            raise JobError(f"--optimizer {path!r} is no MODULE:CLASS, as in my_package.optimizers:Mine")
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = 1  # processes that share cores lose more by waiting for each other's threads than they gain
    registry = Registry()
    entry = registry.claim(
        default_name(command) if name is None else name, list(command), drop_in, numbered=name is None
    )
    try:
        restored = os.path.abspath(restore) if restore else ""
        job = JobSettings(
            name=entry.name,
            workers=workers,
            servers=servers,
            slice_bytes=int(slice_mib * MIB),
            transport=transport,
            drop_in=drop_in,
            restore=restored,
        )
        folder = os.path.dirname(os.path.abspath(script_of(command) or "script"))
        settings = LaunchSettings(job, resolved, port, threads, trace, optimizers, folder, dict(os.environ))
        return LocalJob(settings, entry, registry).run()
    except ValueError as error:
        raise JobError(str(error)) from error
    finally:
        registry.remove(entry)


def resolve(command: Sequence[str]) -> List[str]:
    """Return the command with its program found.

    Raises:
        JobError: there is no such program, or no such script.
    """
    program = sys.executable if command[0] in INTERPRETERS else shutil.which(command[0])
    if program is None:
        if Path(command[0]).is_file():
            hint = f": write python {command[0]}" if command[0].endswith(".py") else ""
            raise JobError(f"{command[0]!r} is not executable{hint}")
        raise JobError(f"there is no program {command[0]!r}: write the script as in  -- python train.py")
    script = script_of(command)
    if script is not None and not os.path.exists(script):
        raise JobError(f"script {script!r} does not exist in {os.getcwd()}")
    return [program, *command[1:]]


def script_of(command: Sequence[str]) -> Optional[str]:
    """The script that a Python command line runs; None for another program, ``-c`` and ``-m``."""
    if not os.path.basename(command[0]).startswith("python"):
        return None
    arguments = iter(command[1:])
    for argument in arguments:
        if argument in OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif not argument.startswith("-"):
            return argument
        elif argument[:2] in ("-c", "-m") or argument == "-":
            return None
    return None


def default_name(command: Sequence[str]) -> str:
    """A job's name by its script: ``train`` for ``python train.py``."""
    script = script_of(command)
    module = command[command.index("-m") + 1 :][:1] if "-m" in command else []
    stem = Path(script or (module[0] if module else command[0])).stem
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in stem).lstrip("-_.")
    return kept[:58] or "job"
