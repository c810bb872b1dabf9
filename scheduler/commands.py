"""The scheduler's commands: ``simulate`` and ``convert-trace``. Reads options, prints results; others do the work."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

import click
import numpy as np
from rich.console import Console

from scheduler.core import Policy
from scheduler.costs import parse_cost
from scheduler.evaluate import RunResult, no_contention, run, summary
from scheduler.policies import make, names
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.traces.files import holds_traces, open_traces, open_workload
from scheduler.traces.generate import draw_trace
from scheduler.workload import PROCESSES, Trace, Workload

DEFAULT_POLICIES = "fifo,srtf,drf,tetris,optimus,tiresias,afs,greedy,greedy-fit"
COLUMNS = (  # field of a summary, heading, digits
    ("mean_jct", "mean JCT", 2),
    ("median_jct", "median", 2),
    ("p90_jct", "p90", 2),
    ("bound", "bound", 2),
    ("way", "DRF→bound", 1),
    ("makespan", "makespan", 1),
    ("utilisation", "utilisation", 1),
    ("fairness", "fairness", 3),
    ("resizes", "resizes", 0),
    ("decision_ms", "decision ms", 2),
    ("seconds", "seconds", 2),
)
PERCENT = ("way", "utilisation")
F = TypeVar("F", bound=Callable[..., Any])


def one_line_errors(function: F) -> F:
    """Turns the errors that a user can cause into one line and exit code 1."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, RuntimeError, OSError) as error:
            raise click.ClickException(" ".join(str(error).split())) from error

    return wrapped  # type: ignore[return-value]


FILE = click.Path(dir_okay=False)


@click.command()
@click.option(
    "--policies",
    default=DEFAULT_POLICIES,
    show_default=True,
    help=f"Names, separated by commas, among {', '.join(names())}.",
)
@click.option("--workload", type=FILE, help="Cluster and job types, ours or DL2's.  [default: the shipped workload]")
@click.option("--traces", type=FILE, help="Jobs, ours or DL2's.  [default: those in the workload, else drawn]")
@click.option("--speeds", type=FILE, help="DL2's testbed measurements, instead of the workload's speeds.")
@click.option(
    "--agent", "agents", type=FILE, multiple=True, help="Trained agent; once per learned policy.  [default: shipped]"
)
@click.option("--slots", default=100_000, show_default=True, help="Give up on a trace after so many slots.")
@click.option("--first", type=int, help="Only the first so many traces.")
@click.option("--draw", default=3, show_default=True, help="Without traces: draw so many.")
@click.option("--jobs", type=int, help="Jobs per drawn trace.  [default: as the workload says]")
@click.option("--process", type=click.Choice(PROCESSES), help="Arrivals of drawn traces.  [default: as the workload]")
@click.option("--peak", type=int, help="Most arrivals per slot in drawn traces.  [default: as the workload says]")
@click.option("--rate", type=float, help="Mean arrivals per slot in drawn traces.  [default: as the workload says]")
@click.option("--seed", default=0, show_default=True, help="Fixes every random draw.")
@click.option("--epoch-error", default=0.0, help="True epochs differ from the estimate by up to this fraction.")
@click.option("--speed-error", default=0.0, help="Estimated speeds differ from the true by up to this fraction.")
@click.option("--speed-variation", default=0.0, help="Speeds vary from slot to slot by up to this fraction.")
@click.option("--resize-cost", default="none", help="none, restart, seconds, or a JSON file of benchmarks.resize.")
@click.option("--node-mtbf", default=0.0, help="Mean slots between failures of one node; 0 for no failures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--report", type=click.Path(file_okay=False), help="Write an HTML page into this directory.")
@one_line_errors
def simulate(
    policies: str,
    workload: Optional[str],
    traces: Optional[str],
    speeds: Optional[str],
    agents: Sequence[str],
    slots: int,
    first: Optional[int],
    as_json: bool,
    report: Optional[str],
    seed: int,
    resize_cost: str,
    **options: Any,
) -> None:
    """Compare scheduling policies in the simulator.

    Times are in slots. "DRF→bound" is how far a policy gets from DRF's mean JCT to that of jobs without contention.

    \b
    Examples:
      elastic-mx simulate --policies drf,optimus,dl2x --report runs/report
      elastic-mx simulate --policies drf,dl2x --epoch-error 0.2 --speed-error 0.2 --seed 7
      elastic-mx simulate --workload openb.yaml --policies drf,afs,dl2x --json
      elastic-mx simulate --policies dl2x --agent dl2x.pt --draw 10
    """
    chosen = _policies(_split(policies), agents)
    opened = open_workload(workload, speeds)
    runs = _traces(opened, workload, traces, first, seed, options)
    for trace in runs:
        no_contention(opened, trace)  # refuses jobs that can never fit before any time is spent
    settings = SimulatorSettings(
        epoch_error=options["epoch_error"],
        speed_error=options["speed_error"],
        speed_variation=options["speed_variation"],
        node_mtbf=options["node_mtbf"],
        resize_cost=parse_cost(resize_cost),
        record=report is not None,
        max_slots=slots,
    )
    results: Dict[str, List[RunResult]] = {}
    with Console(stderr=True).status("") as status:  # shown on a terminal only
        for policy in chosen:
            results[policy.name] = []
            for trace in runs:
                status.update(f"{policy.name} on trace {len(results[policy.name]) + 1} of {len(runs)}")
                results[policy.name].append(run(policy, Simulator(opened, trace, settings, seed)))
    table = summaries(results)
    if report is not None:
        from scheduler.report import write_report

        page = write_report(Path(report), opened, results, table, COLUMNS, PERCENT)
        click.echo(f"wrote {page}", err=True)
    click.echo(json.dumps({"policies": table}, indent=2)) if as_json else _print(table, opened, runs)


def summaries(results: Dict[str, List[RunResult]]) -> Dict[str, Dict[str, float]]:
    """By policy the means of ``evaluate.summary``, and ``way`` where DRF is among them."""
    table = {name: summary(runs) for name, runs in results.items()}
    if "drf" in table:
        drf = table["drf"]
        for row in table.values():
            room = drf["mean_jct"] - row["bound"]
            row["way"] = (drf["mean_jct"] - row["mean_jct"]) / room if room > 0 else 0.0
    return table


def _split(policies: str) -> List[str]:
    chosen = [name.strip() for name in policies.split(",") if name.strip()]
    if not chosen:
        raise ValueError(f"--policies names none: choose among {', '.join(names())}")
    for name in chosen:
        if chosen.count(name) > 1:
            raise ValueError(f"--policies names {name!r} more than once")
    return chosen


def _policies(chosen: Sequence[str], agents: Sequence[str]) -> List[Policy]:
    """The policies by name, each learned one with the agent among the files that is its own."""
    for name in chosen:
        if name not in names():
            make(name)  # says which there are
    own: Dict[str, str] = {}
    if agents:
        from scheduler.learn import checkpoint  # only now: it needs torch

        for path in agents:
            policy = str(checkpoint.load(path).get("policy"))
            if policy not in chosen:
                raise ValueError(f"agent {path} is for policy {policy!r}, which --policies does not name: name it")
            if policy in own:
                raise ValueError(f"agents {own[policy]} and {path} are both for policy {policy!r}: give one")
            own[policy] = path
    return [make(name, agent=own.get(name)) for name in chosen]


def _traces(
    workload: Workload,
    workload_path: Optional[str],
    path: Optional[str],
    first: Optional[int],
    seed: int,
    options: Dict[str, Any],
) -> List[Trace]:
    if path is None and workload_path is not None and holds_traces(workload_path):
        path = workload_path
    if path is not None:
        traces = open_traces(path, workload)
    else:
        if options["draw"] < 1:
            raise ValueError(f"--draw is {options['draw']}, must be at least 1")
        rngs = [np.random.default_rng([seed, k]) for k in range(options["draw"])]
        how = {name: options[name] for name in ("jobs", "peak", "process", "rate")}
        traces = [draw_trace(workload, rng, name=f"drawn {k}", **how) for k, rng in enumerate(rngs)]
    if first is not None and first < 1:
        raise ValueError(f"--first is {first}, must be at least 1")
    return traces[:first]


def _print(table: Dict[str, Dict[str, float]], workload: Workload, traces: Sequence[Trace]) -> None:
    from rich.table import Table

    shown = [column for column in COLUMNS if any(column[0] in row for row in table.values())]
    title = (
        f"{workload.name}: {workload.nodes} nodes, {len(traces)} trace{'s' if len(traces) > 1 else ''} of "
        f"{sum(map(len, traces)) / len(traces):g} jobs, slots of {workload.slot_seconds:g} s"
    )
    grid = Table(title=title, title_justify="left")
    grid.add_column("policy")
    for _, heading, _ in shown:
        grid.add_column(heading, justify="right")
    best = min(row["mean_jct"] for row in table.values())
    for name, row in table.items():
        cells = [
            f"{row[field] * 100:.{digits}f} %" if field in PERCENT else f"{row[field]:.{digits}f}"
            for field, _, digits in shown
        ]
        grid.add_row(name, *cells, style="bold" if row["mean_jct"] == best else None)
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(grid)


@click.command("convert-trace")
@click.argument("source", type=FILE)
@click.option(
    "--from",
    "origin",
    type=click.Choice(["dl2", "openb", "pai", "philly"]),
    required=True,
    help="DL2's traces, Alibaba's openb_pod_list (2023), Alibaba's pai_task_table (2020), Philly's cluster_job_log.",
)
@click.option("--out", type=FILE, required=True, help="Workload file to write, YAML.")
@click.option("--nodes", type=FILE, help="Alibaba's openb_node_list: the cluster.  [default: made up by --load]")
@click.option("--load", default=0.8, show_default=True, help="How busy the jobs would keep a made-up cluster.")
@click.option("--slot-seconds", default=300.0, show_default=True, help="Length of a slot.")
@click.option("--jobs", default=1000, show_default=True, help="At most so many jobs.")
@click.option("--start", default=0.0, help="Begin so many seconds after the first submission.")
@click.option("--least-seconds", default=60.0, show_default=True, help="Leave out jobs that ran for less.")
@click.option("--most-seconds", default=604_800.0, show_default=True, help="Leave out jobs that ran for longer.")
@click.option("--seed", default=0, show_default=True, help="Fixes the models that the jobs are given.")
@click.option("--workload", type=FILE, help="Models for the jobs; for dl2, DL2's workload.  [default: shipped]")
@click.option("--speeds", type=FILE, help="DL2's testbed measurements, instead of the workload's speeds.")
@one_line_errors
def convert_trace(
    source: str, origin: str, out: str, nodes: Optional[str], workload: Optional[str], speeds: Optional[str], **how: Any
) -> None:
    """Turn a public cluster trace into a workload file.

    Public traces tell what jobs held and for how long, not how they scale: each job is given the speed model of a
    shipped job type, and as many epochs as it would train in its time at the size it had.

    \b
    Examples:
      elastic-mx convert-trace openb_pod_list.csv --from openb --nodes openb_node_list.csv --jobs 200 --out openb.yaml
      elastic-mx convert-trace cluster_job_log --from philly --jobs 500 --load 0.9 --out philly.yaml
      elastic-mx convert-trace dl2_traces.json --from dl2 --workload dl2_workload.json --out dl2.yaml
    """
    from scheduler.traces import native
    from scheduler.traces.convert import ConvertSettings, convert
    from scheduler.traces.public import READERS, read_openb_nodes

    models = open_workload(workload, speeds)
    if origin == "dl2":
        if workload is None:
            raise ValueError("DL2's traces name models of DL2's workload: give it with --workload")
        traces = open_traces(source, models)
        native.write(out, models, traces, header=[f"Converted from {Path(source).name}."])
        click.echo(f"wrote {out}: {len(traces)} traces, {sum(map(len, traces))} jobs, {models.nodes} nodes", err=True)
        return
    capacity = read_openb_nodes(nodes) if nodes is not None else None
    name = Path(source).stem
    result = convert(name, READERS[origin](source), models, ConvertSettings(**how), capacity)
    native.write(out, result.workload, [result.trace], header=[f"Converted from {Path(source).name} ({origin})."])
    left = f"; {result.too_large} jobs fit no node and were left out" if result.too_large else ""
    size = f"{len(result.trace)} jobs of {len(result.workload.types)} types, {result.workload.nodes} nodes"
    click.echo(f"wrote {out}: {size}{left}", err=True)
