"""The service's commands: serve starts it; the others are thin clients of its HTTP API that print what it answers."""

from __future__ import annotations

import functools
import json
import signal
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Optional, TypeVar
from urllib.parse import quote

import click

from scheduler.service.http import DEFAULT_ADDRESS, Refused, ServiceClient, ServiceError
from scheduler.service.shown import deciding, decisions, show, table, task_as_text
from scheduler.service.spec import SpecError, locate, parse_duration, read_spec, read_yaml

F = TypeVar("F", bound=Callable[..., Any])
HOME = Path.home() / ".elastic-mx" / "service"
POLL_SECONDS = 0.5
RESTART_SECONDS = 120.0  # that a client which waits for a job lets a service be away
LIVE = ("waiting", "starting", "running", "ending")


def plain_errors(function: F) -> F:
    """Turn what a user can cause into an error of one line."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ServiceError, SpecError) as error:
            raise click.ClickException(str(error)) from error

    return wrapped  # type: ignore[return-value]


def client_command(function: F) -> F:
    """The options that all clients have."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    service = click.option(
        "--service", metavar="URL", help=f"The service, or several on one record: A,B. [default: {DEFAULT_ADDRESS}]"
    )
    return as_json(service(plain_errors(function)))


# ------------------------------------------------------------------------------------------------------- serve


@click.command()
@click.option("--policy", default="drf", show_default=True, help="Who decides: see elastic-mx simulate --help.")
@click.option("--agent", type=click.Path(dir_okay=False), help="A trained agent, for dl2 and dl2x.")
@click.option("--learn", is_flag=True, help="Fine-tune the agent meanwhile (dl2x, unless --policy is dl2).")
@click.option(
    "--fallback",
    metavar="POLICY",
    default="drf",
    show_default=True,
    help="Decides where --policy fails or is too slow.",
)
@click.option("--shadow", metavar="POLICY", help="Record besides what another policy would have done.")
@click.option("--slot", default="30s", show_default=True, help="How long a slot lasts, as in 30s or 5m.")
@click.option("--nodes", type=click.Path(dir_okay=False, path_type=Path), help="YAML of nodes. [default: this machine]")
@click.option(
    "--state",
    metavar="DIR|URL",
    envvar="ELASTIC_MX_STATE",
    default=str(HOME),
    help="A folder for the record and the jobs' folders, or the URL of a PostgreSQL database, which several services "
    "may share. [env var: ELASTIC_MX_STATE; default: ~/.elastic-mx/service]",
)
@click.option(
    "--jobs",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the jobs' folders are. [default: jobs in --state, or with a URL ~/.elastic-mx/service/jobs]",
)
@click.option(
    "--keep", default="7d", show_default=True, help="How long logs and checkpoints of jobs that have ended are kept."
)
@click.option(
    "--keep-record", default="90d", show_default=True, help="How long what was decided and told is kept in the record."
)
@click.option(
    "--listen", default=DEFAULT_ADDRESS, show_default=True, help="HOST:PORT; others than loopback need a token."
)
@plain_errors
def serve(
    policy: str,
    agent: Optional[str],
    learn: bool,
    fallback: str,
    shadow: Optional[str],
    slot: str,
    nodes: Optional[Path],
    state: str,
    folder: Optional[Path],
    keep: str,
    keep_record: str,
    listen: str,
) -> None:
    """Run the scheduler's service: it starts the jobs that are submitted and resizes them while they train.

    Jobs go on when the service ends, however it does; started again with the same --state, it finds them.

    \b
    Examples:
      elastic-mx serve --policy drf --slot 10s --state runs/service
      elastic-mx serve --policy dl2x --shadow drf --nodes nodes.yaml
      elastic-mx serve --policy dl2x --agent dl2x.pt --learn --fallback drf
      elastic-mx serve --state postgresql://scheduler@db/elastic --listen 127.0.0.1:8643
    """
    from scheduler.service.keeping import Keep
    from scheduler.service.lead import Alone, Lease
    from scheduler.service.learning import Learning
    from scheduler.service.listen import address_of, bind, serve_api
    from scheduler.service.local import LocalCluster
    from scheduler.service.nodes import read_nodes, this_machine
    from scheduler.service.service import Service
    from scheduler.service.store import Store, StoreError

    host, port, token = address_of(listen)
    listener = bind(host, port)
    seconds = _seconds("--slot", slot)
    kept = Keep(_seconds("--keep", keep), _seconds("--keep-record", keep_record))
    try:
        shared = "://" in state
        store = Store(state)
        folder = (folder or (HOME if shared else Path(state)) / "jobs").resolve()
        if shared:
            _claim(store, folder)
        name = f"{socket.gethostname()} {listen} {uuid.uuid4().hex[:8]}"
        lead = Lease(store, name) if shared else Alone(store, Path(state))
        cluster = LocalCluster(folder, read_nodes(nodes) if nodes else this_machine())
        learnt = "dl2" if policy == "dl2" else "dl2x"
        agents = (HOME if shared else Path(state)) / "agents"
        learning = Learning(state, agents, learnt, agent, fallback) if learn else None
        service = Service(store, cluster, seconds, policy, agent, shadow, lead, kept, fallback, learning)
    except (StoreError, SpecError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    server = serve_api(service, listener, token)
    count = len(cluster.nodes())
    there = f"{count} node{'' if count == 1 else 's'}, state in {store.shown}"
    click.echo(f"http://{host}:{port}: policy {policy}, slots of {seconds:g} s, {there}")
    sys.stdout.flush()
    service.run()
    server.should_exit = True
    store.close()


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
        if seconds <= 0:
            raise ValueError("must be more than nothing")
    except ValueError as error:
        raise click.UsageError(f"{option}: {text!r}: {error}") from error
    return seconds


def _claim(store: Any, folder: Path) -> None:
    """Sees to it that all services of a record find its jobs' folders: with a local cluster, on one machine."""
    place = f"{socket.gethostname()}:{folder}"
    known = store.setting("jobs", place)
    if known != place and store.jobs(live=True):
        raise click.ClickException(f"--jobs: this record's jobs run in {known}, not in {place}: serve them there")
    store.set("jobs", place)


# ----------------------------------------------------------------------------------------------------- clients


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--wait", is_flag=True, help="Return when the job has ended, with its exit status.")
@click.option("--key", help="A key of yours: the same submission under it is the same job. [default: a new one]")
@client_command
def submit(file: Path, wait: bool, key: Optional[str], service: Optional[str], as_json: bool) -> None:
    """Submit the job that FILE (YAML) describes; its schema is docs/job.schema.json.

    \b
    Examples:
      elastic-mx submit job.yaml
      elastic-mx submit job.yaml --wait --json
    """
    client = ServiceClient(service)
    spec = read_spec(file)
    try:
        body = client.ask("POST", "/jobs", {"spec": spec.plain(), "key": key or uuid.uuid4().hex})
    except Refused as error:
        raise ServiceError(locate(read_yaml(file), file, str(error))) from error
    while wait and body["state"] in LIVE:
        time.sleep(POLL_SECONDS)
        body = client.ask("GET", f"/jobs/{quote(spec.name)}", patience=RESTART_SECONDS)
    show(body, as_json, f"{body['name']} is {body['state']}{': ' + body['reason'] if body['reason'] else ''}")
    if wait and body["state"] != "finished":
        sys.exit(body["ended_status"] or 1)


@click.command()
@click.option("--all", "every", is_flag=True, help="Those that have ended too.")
@client_command
def jobs(every: bool, service: Optional[str], as_json: bool) -> None:
    """List the service's jobs.

    \b
    Example:
      elastic-mx jobs --all --json
    """
    rows = ServiceClient(service).ask("GET", "/jobs" if every else "/jobs?live=true")
    columns = ("name", "state", "servers", "workers", "done", "epochs", "priority", "jct_s", "reason")
    show(rows, as_json, table(rows, columns) if rows else "there is no job")


@click.command()
@click.argument("job")
@client_command
def describe(job: str, service: Optional[str], as_json: bool) -> None:
    """Show all about JOB: what it is, its tasks, and what became of it.

    \b
    Example:
      elastic-mx describe digits
    """
    body = ServiceClient(service).ask("GET", f"/jobs/{quote(job)}")
    parts = [table([body], ("name", "state", "servers", "workers", "done", "jct_s", "reason"))]
    tasks = [{"task": name, **task_as_text(task)} for name, task in body["tasks"].items()]
    if tasks:
        parts.append(table(tasks, ("task", "node", "pid", "memory", "state")))
    if body["changes"]:
        columns = ("kind", "servers", "workers", "outcome", "seconds", "stall_seconds", "detail")
        parts.append(table(body["changes"], columns))
    parts.append(table(body["events"], ("kind", "text")))
    parts.append(deciding(body["policy"]))
    show(body, as_json, "\n\n".join(parts))


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@client_command
def logs(job: str, follow: bool, service: Optional[str], as_json: bool) -> None:
    """Print what the tasks of JOB printed.

    \b
    Example:
      elastic-mx logs -f digits
    """
    client = ServiceClient(service)
    offsets: Dict[str, int] = {}
    while True:
        have = ",".join(f"{name}:{offset}" for name, offset in offsets.items())
        path = f"/jobs/{quote(job)}/logs?offsets={quote(have)}"
        body = client.ask("GET", path, patience=RESTART_SECONDS if offsets else 0.0)
        more = False
        for name, piece in body["logs"].items():
            more = more or offsets.get(name) != piece["next"]
            offsets[name] = piece["next"]
            for line in piece["text"].splitlines():
                click.echo(json.dumps({"task": name, "line": line}) if as_json else f"[{name}] {line}")
        if not more and not (follow and body["live"]):
            if body["dropped_at"]:
                raise ServiceError(
                    f"job {job!r} ended long ago: what it printed was deleted (--keep of elastic-mx serve)"
                )
            return
        if not more:
            time.sleep(POLL_SECONDS)


@click.command()
@click.argument("job")
@client_command
def cancel(job: str, service: Optional[str], as_json: bool) -> None:
    """End JOB.

    \b
    Example:
      elastic-mx cancel digits
    """
    body = ServiceClient(service).ask("POST", f"/jobs/{quote(job)}/cancel")
    show(body, as_json, f"{job} is told to end")


@click.command()
@client_command
def nodes(service: Optional[str], as_json: bool) -> None:
    """Show the service's nodes and what is used of them.

    \b
    Example:
      elastic-mx nodes --json
    """
    client = ServiceClient(service)
    rows, who = client.ask("GET", "/nodes"), deciding(client.ask("GET", "/policy"))
    flat = [{k: f"{v['used']:g} of {v['all']:g}" if isinstance(v, dict) else v for k, v in row.items()} for row in rows]
    show(rows, as_json, table(flat, ("name", "alive", "tasks", "cpus", "memory_gib", "gpus")) + f"\n\n{who}")


@click.group()
def policy() -> None:
    """Show the service's policy, or set another while it runs.

    \b
    Examples:
      elastic-mx policy show
      elastic-mx policy set dl2x
    """


@policy.command("show")
@client_command
def policy_show(service: Optional[str], as_json: bool) -> None:
    """Show who decides.

    \b
    Example:
      elastic-mx policy show
    """
    body = ServiceClient(service).ask("GET", "/policy")
    show(body, as_json, deciding(body))


@policy.command("log")
@click.option("-n", "--latest", default=10, show_default=True, help="How many decisions.")
@client_command
def policy_log(latest: int, service: Optional[str], as_json: bool) -> None:
    """Show the latest decisions beside what the --shadow policy would have done; sizes are servers+workers.

    \b
    Example:
      elastic-mx policy log -n 3
    """
    body = ServiceClient(service).ask("GET", f"/decisions?limit={latest}")
    show(body, as_json, decisions(body))


@policy.command("set")
@click.argument("name")
@client_command
def policy_set(name: str, service: Optional[str], as_json: bool) -> None:
    """Have the policy NAME decide from the next slot on, also one that has fallen back to another.

    \b
    Example:
      elastic-mx policy set dl2x
    """
    body = ServiceClient(service).ask("PUT", "/policy", {"policy": name})
    show(body, as_json, f"{body['policy']} decides from now on")
