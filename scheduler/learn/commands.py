"""The command ``train-policy``: reads options, shows progress, logs figures. The training itself is in ``train.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, Type

import click

from scheduler.commands import FILE, one_line_errors
from scheduler.costs import parse_cost
from scheduler.learn.scenario import Held, Mixture, Scenario
from scheduler.traces.files import open_workload

if TYPE_CHECKING:
    from scheduler.learn.recorded import Recorded

RIVALS = ("drf", "optimus", "greedy", "greedy-fit")
ROUNDS = {"dl2": (60, 0), "dl2x": (8, 48), "offline-rl": (0, 16)}
RECORDED_ROUNDS = {"dl2": (40, 0), "dl2x": (20, 0)}  # imitation only: serve --learn goes on from there
TEACHER = "greedy-fit"


@click.command("train-policy")
@click.option("--policy", type=click.Choice(sorted(ROUNDS)), default="dl2x", show_default=True)
@click.option(
    "--teacher", help=f"The scheduler to imitate first.  [default: {TEACHER}; of a record, whoever decided in it]"
)
@click.option(
    "--from-record",
    "record",
    metavar="STATE|URL",
    help="Imitate the decisions in a service's record, and train for its nodes and jobs.",
)
@click.option("--out", type=FILE, required=True, help="The agent's file, written again at every validation.")
@click.option(
    "--workload",
    "workloads",
    type=FILE,
    multiple=True,
    help="Cluster and job types, or 'shipped'; given twice, it trains on both in turn.  [default: shipped]",
)
@click.option(
    "--speeds",
    type=FILE,
    help="DL2's testbed measurements, instead of the workload's; not the shipped's among several.",
)
@click.option("--peaks", help="Most arrivals per slot of drawn traces, e.g. 1,2,3.  [default: as the workload says]")
@click.option("--types", help="Train on these job types only, by name, separated by commas.")
@click.option("--epoch-error", default=0.0, help="True epochs differ from the estimate by up to this fraction.")
@click.option("--speed-error", default=0.0, help="Estimated speeds differ from the true by up to this fraction.")
@click.option("--resize-cost", default="none", help="none, restart, seconds, or a JSON file of benchmarks.resize.")
@click.option(
    "--warmup", type=int, help="Rounds of imitation.  [default: 60 for dl2, 8 for dl2x; of a record, 40 and 20]"
)
@click.option(
    "--online",
    type=int,
    help="Rounds of reinforcement.  [default: 0 for dl2 and of a record, 48 for dl2x, 16 for offline-rl]",
)
@click.option("--every", type=int, help="Rounds between validations.  [default: 5; of a record, 2]")
@click.option("--validation", default=6, show_default=True, help="Traces to validate on.")
@click.option("--seed", default=0, show_default=True, help="Fixes every random draw.")
@click.option("--threads", default=1, show_default=True, help="Threads of each tensor operation.")
@click.option("--logs", type=click.Path(file_okay=False), help="Write TensorBoard logs into this directory.")
@click.option("--resume", is_flag=True, help="Go on with the training in --out.")
@click.option("--final", is_flag=True, help="Write a small agent at the end, without what --resume needs.")
@one_line_errors
def train_policy(
    policy: str,
    teacher: Optional[str],
    record: Optional[str],
    out: str,
    workloads: Sequence[str],
    speeds: Optional[str],
    warmup: Optional[int],
    online: Optional[int],
    every: Optional[int],
    validation: int,
    logs: Optional[str],
    resume: bool,
    final: bool,
    threads: int,
    **options: Any,
) -> None:
    """Train an agent: first to imitate a scheduler, then by reinforcement in the simulator.

    Ctrl-C saves what has been learnt; --resume goes on from there. Times are in slots.

    \b
    Examples:
      elastic-mx train-policy --out dl2x.pt --teacher greedy-fit --logs runs/train
      elastic-mx train-policy --from-record runs/service --teacher drf --out dl2x.pt
      elastic-mx train-policy --from-record postgresql://user@host/elastic --out dl2x.pt --online 8
    """
    import torch

    from scheduler.learn.train import SESSIONS, Training
    from scheduler.policies import make

    torch.set_num_threads(threads)
    every = (5 if record is None else 2) if every is None else every
    if every < 1 or validation < 1:
        raise ValueError(f"--every is {every} and --validation {validation}: both must be 1 or more")
    made: Dict[str, Any] = {"teacher": teacher or TEACHER, "seed": options["seed"]}
    scenario: Held
    if record is not None:
        if policy not in RECORDED_ROUNDS:
            raise ValueError(f"--from-record is given with --policy {policy}, which imitates nobody: leave it out")
        scenario = recorded = _recorded(record, teacher, workloads, speeds, options)
        made.update(workload="a service's record", teacher=", ".join(recorded.policies))
        session = SESSIONS[policy](scenario, make(TEACHER), lessons=recorded.lessons, decider=recorded.decider)
    else:
        scenario = mixture = _scenario(workloads or ("shipped",), speeds, options)
        if policy == "offline-rl":
            from scheduler.learn.offline import analytical

            if warmup:
                raise ValueError(f"--warmup is {warmup}, but {policy} imitates nobody: leave it out")
            made["teacher"] = ""
            parts = [replace(part, workload=analytical(part.workload)) for part in mixture.scenarios]
            scenario = mixture = Mixture(parts)
        made["workload"] = ", ".join(part.workload.name for part in mixture.scenarios)
        session = SESSIONS[policy](scenario, make(teacher or TEACHER))
    usual = (RECORDED_ROUNDS if record is not None else ROUNDS)[policy]
    rounds = (usual[0] if warmup is None else warmup, usual[1] if online is None else online)
    training = Training(session, out, *rounds, every=every, validation=validation, made=made)
    if resume:
        training.resume()
    rivals = scenario.rivals(RIVALS, validation)
    click.echo("validation: " + ", ".join(f"{name} {jct:.2f}" for name, jct in rivals.items()))
    try:
        with Show(rounds, rivals, logs) as show:
            progress = training.run(show)
    except KeyboardInterrupt:
        click.echo(f"saved {out}: go on with --resume", err=True)
        raise click.Abort from None
    if progress.latest == progress.best == float("inf"):
        raise ValueError(f"{out}: this agent leaves jobs unfinished, it has learnt too little: raise --warmup")
    if final:
        training.save(final=True)
    click.echo(f"{out}: mean JCT {progress.best:.2f} on validation, {progress.cpu_seconds:.0f} CPU seconds")
    better = [f"{name} {jct:.2f}" for name, jct in rivals.items() if jct < progress.best]
    if better:
        click.echo(f"better than it there: {', '.join(better)}; serve one of those, or train on: --resume --online N")


def _recorded(
    where: str, teacher: Optional[str], workloads: Sequence[str], speeds: Optional[str], options: Dict[str, Any]
) -> Recorded:
    from scheduler.learn.recorded import read

    given = {"--workload": workloads, "--speeds": speeds, **{f"--{name}": options[name] for name in ("peaks", "types")}}
    for name, value in given.items():
        if value:
            raise ValueError(f"{name} is given with --from-record: nodes, jobs, speeds are the record's: leave it out")
    recorded = read(where, teacher, options["seed"])
    decided = ", ".join(f"{name} {count}" for name, count in recorded.policies.items())
    click.echo(
        f"record: {len(recorded.lessons)} decisions to imitate (of {decided}), {len(recorded.kinds)} jobs of "
        f"{len(recorded.workload.types)} types, {recorded.workload.nodes} nodes"
    )
    return recorded


def _scenario(workloads: Sequence[str], speeds: Optional[str], options: Dict[str, Any]) -> Mixture:
    parts = []
    for path in workloads:
        shipped = path == "shipped"
        opened = (
            open_workload(None, speeds if len(workloads) == 1 else None) if shipped else open_workload(path, speeds)
        )
        part = Scenario(
            workload=opened,
            peaks=_peaks(options["peaks"]),
            types=_types(options["types"], [kind.name for kind in opened.types]),
            epoch_error=options["epoch_error"],
            speed_error=options["speed_error"],
            resize_cost=parse_cost(options["resize_cost"]),
            seed=options["seed"],
        )
        parts.append(part)
    return Mixture(parts)


def _peaks(text: Optional[str]) -> Tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--peaks is {text!r}: give whole numbers separated by commas, such as 1,2,3") from error


def _types(text: Optional[str], names: list) -> Optional[Tuple[int, ...]]:
    if not text:
        return None
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in names:
            raise ValueError(f"--types names {name!r}, the workload has {', '.join(names)}")
    return tuple(names.index(name) for name in chosen)


class Show:
    """Progress on the terminal, the rivals beside it, and TensorBoard logs.

    Args:
        rounds: of warm-up and of online learning.
        rivals: mean JCT by policy on the validation traces.
        logs: directory for TensorBoard, or None.
    """

    def __init__(self, rounds: Tuple[int, int], rivals: Dict[str, float], logs: Optional[str]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        text = " · ".join(f"{name} {jct:.2f}" for name, jct in rivals.items())
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("JCT {task.fields[jct]} · " + text),
        )
        names = ("warm-up", "online")
        self._tasks = {
            name: self._bar.add_task(name, total=total, jct="–", start=name == "warm-up")
            for name, total in zip(names, rounds)
        }
        self._terminal = self._bar.console.is_terminal
        self._logs: Any = None
        if logs is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._logs = SummaryWriter(str(Path(logs)))
            for name, jct in rivals.items():
                self._logs.add_scalar(f"rivals/{name}", jct, 0)

    def __enter__(self) -> Show:
        if self._terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._terminal:
            self._bar.stop()
        if self._logs is not None:
            self._logs.close()

    def round(self, phase: str, progress: Any, figures: Dict[str, float]) -> None:
        done = progress.warm if phase == "warm-up" else progress.online
        self._bar.start_task(self._tasks[phase])
        self._bar.update(self._tasks[phase], completed=done)
        if self._logs is not None:
            for name, value in figures.items():
                self._logs.add_scalar(f"{phase}/{name}", value, done)

    def validated(self, phase: str, progress: Any) -> None:
        done = progress.warm if phase == "warm-up" else progress.online
        self._bar.update(self._tasks[phase], jct=f"{progress.latest:.2f}")
        if not self._terminal:
            click.echo(
                f"{phase} {done}: mean JCT {progress.latest:.2f}, best {progress.best:.2f}, "
                f"{progress.cpu_seconds:.0f} CPU seconds"
            )
        if self._logs is not None:
            self._logs.add_scalar(f"{phase}/validation_jct", progress.latest, done)
            self._logs.flush()
