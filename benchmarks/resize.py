"""What a resize costs a job that trains, beside checkpoint and restart: ``python -m benchmarks.resize``.

Stall: by how much the slowest step of any worker around the change was longer than the median step before it or after
it, whichever is longer (with more workers all steps take longer on shared cores), from the time on when the new
processes were ready; what their start-up costs the others is told apart. Memory of the new processes, migration and
everything else that the change brings lies within that window. `noise_ms` is the same measure over as many steps in
which nothing changed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from benchmarks.common import SCRIPTS, finish, machine, median, table
from benchmarks.jobs import ElasticJob
from benchmarks.turns import wait_until
from elastic_mx import messages as m

# Each change, made in this order, with the processes beyond the first ones that it leads to: (workers, servers).
CHANGES: Dict[str, Tuple[int, int]] = {
    "+server": (0, 1),
    "-server": (0, 0),
    "+worker": (1, 0),
    "-worker": (0, 0),
    "+server +worker": (1, 1),
    "-server -worker": (0, 0),
}
QUIET_STEPS = 12  # before each change, for the median step and the noise
STEPS_BEFORE = 2  # of the first step of the new generation: those that a worker may have waited in for the commit
STEPS_AFTER = 3  # the last of the changed window, counted from in force


class Step(NamedTuple):
    """One step of one worker; times in seconds."""

    number: int
    began: float
    ended: float
    value: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Log:
    """The steps of all workers so far, as they write them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> Dict[str, List[Step]]:
        found = {}
        for path in self.folder.iterdir():
            lines = path.read_text().split("\n")[:-1]
            found[path.name] = [Step(int(n), *map(float, rest)) for n, *rest in map(str.split, lines)]
        return found

    def furthest(self) -> int:
        return max((steps[-1].number for steps in self.steps().values() if steps), default=-1)

    def wait_for(self, step: int, timeout: float = 60) -> None:
        wait_until(lambda: self.furthest() >= step, timeout, f"step {step}")


def change(job: ElasticJob, log: Log, number: int, kind: str, size: Tuple[int, int]) -> Dict[str, Any]:
    """Train undisturbed, bring one change about, and return what it cost; durations in milliseconds."""
    first = log.furthest() + 1
    log.wait_for(first + QUIET_STEPS)
    asked = time.monotonic()
    quiet = _within(log, first, first + QUIET_STEPS)
    reply = job.request(m.Scale(request=number, workers=size[0], servers=size[1]), timeout=120)
    if reply.error:
        raise RuntimeError(f"{kind}: {reply.error}")
    report = reply.body
    log.wait_for(log.furthest() + STEPS_AFTER)
    at = report["step"]
    begun = min(s.began for s in _within(log, at - STEPS_BEFORE, at))
    over = begun + report["seconds"]
    last = max([at, *(s.number for s in _within(log, at, 1 << 60) if s.began <= over)]) + STEPS_AFTER
    around = _within(log, at - STEPS_BEFORE, last)
    log.wait_for(last + QUIET_STEPS)
    after = _within(log, last + 1, last + QUIET_STEPS)
    before_ms, after_ms = (1000 * median([s.seconds for s in steps]) for steps in (quiet, after))
    starting = [s.seconds for s in _within(log, 0, at - STEPS_BEFORE - 1) if s.ended > asked]
    return {
        "kind": kind,
        "stall_ms": max(0.0, 1000 * max(s.seconds for s in around) - max(before_ms, after_ms)),
        "median_step_ms": before_ms,
        "median_step_after_ms": after_ms,
        "noise_ms": 1000 * max(s.seconds for s in quiet) - before_ms,
        "startup_stall_ms": max(0.0, 1000 * max(starting, default=0.0) - before_ms),
        "startup_ms": 1000 * report["startup_seconds"],
        "in_force_ms": 1000 * (report["startup_seconds"] + report["seconds"]),
        "plan_to_force_ms": 1000 * report["seconds"],
        "migration_ms": 1000 * report["migration_seconds"],
        "bytes_moved": report["bytes_moved"],
        "reported_stall_ms": 1000 * report["longest_stall_seconds"],
        "window_steps": [at - STEPS_BEFORE, at, last],
    }


def _within(log: Log, first: int, last: int) -> List[Step]:
    """The steps `first` to `last` of all workers."""
    return [s for steps in log.steps().values() for s in steps if first <= s.number <= last]


def restart(job: ElasticJob, log: Log, folder: Path, size: Tuple[int, int], **env: Any) -> float:
    """The alternative: save, stop everything, start with the new size and restore; seconds to where it stood."""
    saved, again = folder / "saved", folder / "again"
    saved.mkdir()
    again.mkdir()
    began = time.monotonic()
    reply = job.request(m.Checkpoint(request=1_000_000, folder=str(saved)), timeout=120)
    if reply.error:
        raise RuntimeError(f"checkpoint: {reply.error}")
    job.request(m.Stop(request=1_000_001))
    job.__exit__()
    stood = log.furthest()
    with ElasticJob(Path(SCRIPTS) / "steps.py", *size, out=again, restore=saved, **env):
        resumed = Log(again)
        resumed.wait_for(stood, timeout=120)
        ended = min(s.ended for s in _within(resumed, stood, 1 << 60))
    return ended - began


def measure(options: argparse.Namespace) -> Dict[str, Any]:
    here = machine()
    env = dict(KEYS=options.keys, COMPUTE_MS=options.compute_ms, transport=options.transport)
    changes = [kind for kind in CHANGES if " " in kind or not options.together]
    runs: Dict[str, List[Dict[str, Any]]] = {kind: [] for kind in changes}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "steps"
        out.mkdir()
        log = Log(out)
        first = options.workers, options.servers
        with ElasticJob(Path(SCRIPTS) / "steps.py", *first, out=out, **env) as job:
            log.wait_for(2)
            for number in range(options.rounds):
                for i, kind in enumerate(changes):
                    more = CHANGES[kind]
                    size = first[0] + more[0], first[1] + more[1]
                    runs[kind].append(change(job, log, 1 + number * len(CHANGES) + i, kind, size))
            seconds = restart(job, log, folder, (first[0] + 1, first[1] + 1), **env)
    events = [summary(kind, found) for kind, found in runs.items()]
    worst = max(event["stall_ms"] for event in events)
    return {
        "benchmark": "resize",
        "machine": here,
        **{name: getattr(options, name) for name in ("workers", "servers", "keys", "transport")},
        "compute_ms": options.compute_ms,
        "rounds": options.rounds,
        "events": events,
        "checkpoint_restart_s": seconds,
        "speedup": 1000 * seconds / max(worst, 1e-3),
    }


def summary(kind: str, found: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """One kind of change over all rounds: the median of each figure, and the longest stall."""
    figures = [name for name, value in found[0].items() if isinstance(value, (int, float))]
    event: Dict[str, Any] = {"kind": kind, **{name: median([run[name] for run in found]) for name in figures}}
    event["longest_stall_ms"] = max(run["stall_ms"] for run in found)
    event["stalls_ms"] = [run["stall_ms"] for run in found]
    seconds = event["migration_ms"] / 1000
    travelled = 2 * event["bytes_moved"]  # values, as reported, and as many bytes of momentum
    event["gigabytes_per_second"] = travelled / 1e9 / seconds if travelled and seconds else None
    return event


def show(result: Dict[str, Any]) -> None:
    print(result["machine"])
    print(
        f"{result['workers']} workers, {result['servers']} servers with momentum SGD, {result['keys']} keys, transport "
        f"{result['transport']}, a step computes for {result['compute_ms']:g} ms; medians of {result['rounds']}, in ms"
    )
    rows = []
    for e in result["events"]:
        times = (
            "stall",
            "longest_stall",
            "noise",
            "median_step",
            "median_step_after",
            "startup",
            "startup_stall",
            "in_force",
            "migration",
        )
        rate = e["gigabytes_per_second"]
        cells = [f"{e[name + '_ms']:.0f}" for name in times]
        rows.append((e["kind"], *cells, f"{e['bytes_moved'] / 1e6:.0f}", f"{rate:.2f}" if rate else "-"))
    header = ("change", *times, "MB", "GB/s")
    print(table([name.replace("_", " ") for name in header], rows))
    print(f"checkpoint, stop, restart, restore: {result['checkpoint_restart_s']:.1f} s")
    print(f"that over the worst stall: {result['speedup']:.0f}", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resize", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="before each change")
    parser.add_argument("--servers", type=int, default=2, help="before each change")
    parser.add_argument("--keys", choices=("resnet50", "vgg16", "small", "tiny"), default="resnet50")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    parser.add_argument("--compute-ms", type=float, default=100, help="computation in each step (default 100)")
    parser.add_argument("--together", action="store_true", help="only the changes of servers and workers at once")
    parser.add_argument("--rounds", type=int, default=7, help="how often each change is made (default 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.workers, options.servers) < 1 or options.compute_ms < 0:
        parser.error("--rounds, --workers and --servers must be at least 1 and --compute-ms not negative")
    result = measure(options)
    show(result)
    finish(result, options.json)


if __name__ == "__main__":
    main()
