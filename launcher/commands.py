"""The commands about a running job: scale, status and stop. They print; the job's coordinator does the work."""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TypeVar

import click

from elastic_mx.client import ControlClient
from elastic_mx.link import JobError
from launcher.registry import JobEntry, Registry, RegistryError
from launcher.room import check_room

F = TypeVar("F", bound=Callable[..., Any])
STATUS_PATIENCE = 3.0
WIDTH = 200


def plain_errors(function: F) -> F:
    """Turn what a user can cause into an error that the command prints as one line."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (JobError, RegistryError) as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            raise  # nobody reads on, which is no error
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"the system does not allow what this needs: {what}{error.strerror}") from error

    return wrapped  # type: ignore[return-value]


class Size(click.ParamType):
    """A number of workers, servers or threads, at least 1."""

    name = "number"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> int:
        number = int(click.INT.convert(value, param, ctx))
        if number < 1:
            self.fail(f"{number} is too few: a job needs at least 1", param, ctx)
        return number


# ------------------------------------------------------------------------------------------------------- scale


@click.command()
@click.argument("job")
@click.option("-n", "--workers", type=Size(), help="How many workers the job shall have.")
@click.option("-s", "--servers", type=Size(), help="How many servers the job shall have.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Give up waiting after so many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the cost as JSON.")
@plain_errors
def scale(job: str, workers: Optional[int], servers: Optional[int], timeout: Optional[float], as_json: bool) -> None:
    """Give JOB another size while it trains, and print what that cost.

    Returns when the new size is in force. A number that is not given stays as it is.

    \b
    Examples:
      elastic-mx scale digits --workers 4 --servers 2
      elastic-mx scale digits --workers 1 --json
    """
    if workers is None and servers is None:
        raise click.UsageError("say a size: --workers, --servers or both")
    check_room(workers or 0, servers or 0)
    entry = Registry().find(job)
    with ControlClient(entry.coordinator, job) as client:
        body = client.scale(workers, servers, timeout)
    click.echo(json.dumps(body, indent=2) if as_json else describe_resize(job, body))


# -------------------------------------------------------------------------------------------------- checkpoint


@click.command()
@click.argument("job")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Give up waiting after so many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plain_errors
def checkpoint(job: str, folder: Path, timeout: Optional[float], as_json: bool) -> None:
    """Write a checkpoint of JOB into FOLDER while it trains.

    It holds weights, optimizer states and the place in the data; one that FOLDER holds already is replaced when the
    new one is whole. A job of any size goes on from it with elastic-mx launch --restore.

    \b
    Examples:
      elastic-mx checkpoint digits saved
      elastic-mx launch -n 3 -s 2 --restore saved -- python examples/digits.py
    """
    entry = Registry().find(job)
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise JobError(f"{folder} cannot be written to")
    with ControlClient(entry.coordinator, job) as client:
        body = client.checkpoint(str(folder), timeout)
    click.echo(json.dumps(body, indent=2) if as_json else f"{job} is saved in {folder}, up to step {body['step']}")


# ---------------------------------------------------------------------------------------------- numbers as text


def describe_resize(job: str, body: Dict[str, Any]) -> str:
    """What a resize cost, as a line of text."""
    size = f"{plural(body['workers'], 'worker')} and {plural(body['servers'], 'server')}"
    if "step" not in body:
        return f"{job} has {size}: no resize was needed"
    return (
        f"{job} has {size} from step {body['step']} on ({body['kind']}): "
        f"{amount(body['bytes_moved'])} moved, in force {body['seconds']:.2f} s after the plan was made, "
        f"longest stall {milliseconds(body['longest_stall_seconds'])} "
        f"beside a median step of {milliseconds(body['median_step_seconds'])}"
    )


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def amount(number: float) -> str:
    """Bytes as text, with three digits: ``0 B``, ``5.12 kB``, ``102 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def milliseconds(seconds: Optional[float]) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


# ------------------------------------------------------------------------------------------------------ status


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plain_errors
def status(job: Optional[str], as_json: bool) -> None:
    """Show the jobs of this machine, or all about JOB.

    \b
    Examples:
      elastic-mx status
      elastic-mx status digits
      elastic-mx status digits --json
    """
    registry = Registry()
    if job is not None:
        body = _about(registry.find(job))
        if "error" in body:
            raise JobError(body["error"])
        click.echo(json.dumps(body, indent=2)) if as_json else _print_job(body)
        return
    bodies = [_about(entry) for entry in registry.jobs()]
    if as_json:
        click.echo(json.dumps({"jobs": bodies}, indent=2))
    elif bodies:
        _print_jobs(bodies)
    else:
        click.echo("no job is running on this machine")


def _about(entry: JobEntry) -> Dict[str, Any]:
    """What the registry and the coordinator know of a job; `error` where it does not answer."""
    known: Dict[str, Any] = {
        "name": entry.name,
        "state": "starting",
        "pid": entry.pid,
        "coordinator": entry.coordinator,
        "command": entry.command,
        "started": entry.started,
        "drop_in": entry.drop_in,
    }
    if not entry.coordinator:
        return known
    try:
        with ControlClient(entry.coordinator, entry.name, patience=STATUS_PATIENCE) as client:
            return {**known, **client.status()}
    except JobError as error:
        return {**known, "state": "silent", "error": str(error)}


def _table(*columns: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = column not in ("job", "state", "command", "worker", "server", "resize")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    return table


def show(*parts: Any) -> None:
    """Print text and rich tables on stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)  # for grep and the like: nothing is folded
    for part in parts:
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)


def _print_jobs(bodies: List[Dict[str, Any]]) -> None:
    table = _table("job", "state", "workers", "servers", "step", "running for", "pid", "command")
    for body in bodies:
        table.add_row(
            body["name"],
            body["state"],
            str(len(body.get("workers", ()))),
            str(len(body.get("servers", ()))),
            str(_step(body)),
            _duration(time.time() - body["started"]),
            str(body["pid"]),
            " ".join(body["command"]),
        )
    show(table)


def _print_job(body: Dict[str, Any]) -> None:
    target = body.get("target", {})
    show(
        f"{body['name']}: {body['state']}, step {_step(body)}, generation {body.get('generation', 0)}, "
        f"{plural(len(body.get('workers', ())), 'worker')} and {plural(len(body.get('servers', ())), 'server')}"
        f" (target {target.get('workers', '-')} and {target.get('servers', '-')})",
        f"running for {_duration(time.time() - body['started'])}, pid {body['pid']}, "
        f"coordinator {body['coordinator'] or '-'}: {' '.join(body['command'])}",
    )
    if body["drop_in"]:
        show("a drop-in job: its script deals out the samples, so no promise about them holds through a resize")
    workers = _table("worker", "step", "step time", "epochs")
    for worker in body.get("workers", ()):
        workers.add_row(
            worker["name"], str(worker["step"]), milliseconds(worker["step_seconds"]), f"{worker['epochs']:.2f}"
        )
    servers = _table("server", "slices", "size")
    for server in body.get("servers", ()):
        servers.add_row(server["name"], str(server["slices"]), amount(server["bytes"]))
    show(*(table for table in (workers, servers) if table.row_count))
    if body.get("resizes"):
        show(resize_table(body["resizes"]))


def resize_table(resizes: List[Dict[str, Any]]) -> Any:
    """The resizes of a job with what each cost, as a rich table."""
    table = _table("resize", "step", "workers", "servers", "moved", "in force after", "longest stall", "median step")
    for resize in resizes:
        table.add_row(
            resize["kind"],
            str(resize["step"]),
            str(resize["workers"]),
            str(resize["servers"]),
            amount(resize["bytes_moved"]),
            f"{resize['seconds']:.2f} s",
            milliseconds(resize["longest_stall_seconds"]),
            milliseconds(resize["median_step_seconds"]),
        )
    return table


def _step(body: Dict[str, Any]) -> int:
    return max((worker["step"] for worker in body.get("workers", ())), default=0)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# -------------------------------------------------------------------------------------------------------- stop


@click.command()
@click.argument("job")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds to wait."
)
@plain_errors
def stop(job: str, timeout: float) -> None:
    """End JOB: its workers get SIGTERM; returns when nothing of it runs any more.

    \b
    Example:
      elastic-mx stop digits
    """
    registry = Registry()
    entry = registry.find(job)
    deadline = time.monotonic() + timeout
    with ControlClient(entry.coordinator, job) as client:
        client.stop(min(timeout, client.patience))
    while any((found.pid, found.born) == (entry.pid, entry.born) for found in registry.jobs()):
        if time.monotonic() >= deadline:
            raise JobError(f"job {job!r} was told to end but still runs after {timeout:g} s (launcher pid {entry.pid})")
        time.sleep(0.05)
    click.echo(f"{job} has stopped")
