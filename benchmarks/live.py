"""Does simulation agree with reality? The same jobs live and on the simulated cluster, with what was measured live.

Real jobs train under the service; from its record come the speed at each size, and how long starts, resizes and ends
took. With these the same service then drives a simulated cluster with the same nodes, jobs, arrivals and slots.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.common import finish, machine, table
from benchmarks.served import SERVERS, WORKERS, Arrival, Served, arrivals
from scheduler.service.nodes import read_nodes
from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster, Timings
from scheduler.service.slot import Node, Size, curve
from scheduler.service.snapshot import unpack
from scheduler.service.spec import JobSpec, parse_spec
from scheduler.service.store import Store


@dataclass
class Story:
    """What the record tells of one job: when it began, was of another size, and had trained so much; times in s."""

    began: float = 0.0
    ended: float = 0.0
    epochs: float = 0.0
    sizes: List[Tuple[float, Size]] = field(default_factory=list)
    seen: List[Tuple[float, float]] = field(default_factory=list)

    def size(self, at: float) -> Size:
        return [size for since, size in self.sizes if since <= at][-1]

    def steady(self) -> List[Tuple[Size, float, float]]:
        """The stretches between two looks in which it trained at one size: size, seconds, epochs."""
        found = []
        for (t0, d0), (t1, d1) in zip(self.seen, self.seen[1:]):
            if d0 > 0 and not any(t0 < since <= t1 for since, _ in self.sizes):
                found.append((self.size(t0), t1 - t0, d1 - d0))
        return found


def stories(store: Store) -> Dict[int, Story]:
    found: Dict[int, Story] = defaultdict(Story)
    for change in store.changes(limit=1 << 30):
        story, size = found[change["job"]], (change["servers"], change["workers"])
        if change["kind"] == "start":
            story.began = change["at"]
            story.sizes.append((change["at"], size))
        elif change["outcome"] == "done":
            story.sizes.append((change["at"] + change["seconds"], size))
    for row in store.jobs():
        found[row.id].ended, found[row.id].epochs = row.ended_at or 0.0, row.spec.epochs or 0.0
    for decision in store.decisions(limit=1 << 30):
        jobs = unpack(decision.snapshot)["jobs"]
        for job, done in zip(jobs["ids"], jobs["done"]):
            if done > 0:
                found[job].seen.append((decision.at, done))
    return dict(found)


class Measured:
    """Speeds and times as they were live."""

    def __init__(self, store: Store) -> None:
        found = [story for story in stories(store).values() if story.seen]
        stretches = [stretch for story in found for stretch in story.steady()]
        self.seconds: Dict[Size, float] = defaultdict(float)
        epochs: Dict[Size, float] = defaultdict(float)
        for size, seconds, gained in stretches:
            self.seconds[size] += seconds
            epochs[size] += gained
        self.speeds = {size: epochs[size] / self.seconds[size] for size in self.seconds if epochs[size] > 0}
        ideal = sum(seconds * float(curve(*size)) for size, seconds in self.seconds.items())
        self._scale = sum(epochs.values()) / ideal
        changes = [c for c in store.changes(limit=1 << 30) if c["kind"] == "resize" and c["outcome"] == "done"]
        grow = [c["seconds"] for c in changes if _grows(c)]
        shrink = [c["seconds"] for c in changes if not _grows(c)]
        starts, ends = [], []
        for story in found:
            (first, done), (last, most) = story.seen[0], story.seen[-1]
            starts.append(first - done / self.speed(story.size(first)) - story.began)
            ends.append(story.ended - last - (story.epochs - most) / self.speed(story.size(last)))
        stalls = [c["stall_seconds"] or 0.0 for c in changes]
        self.timings = Timings(*(max(0.0, _mean(values)) for values in (starts, grow, shrink, stalls, ends)))

    def speed(self, size: Size) -> float:
        """Epochs per second; of a size that no job had, by the assumed curve."""
        return self.speeds.get(size) or self._scale * float(curve(*size))


def _grows(change: Dict[str, Any]) -> bool:
    return bool(change["servers"] > change["servers_before"] or change["workers"] > change["workers_before"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def simulate(
    jobs: Sequence[Arrival], nodes: Sequence[Node], measured: Measured, policy: str, slot: float
) -> Tuple[List[float], int]:
    """Each job's JCT in s, and the number of resizes."""
    cluster = SimulatedCluster(nodes, lambda _, size: measured.speed(size), measured.timings, start=1e6)
    with tempfile.TemporaryDirectory(prefix="elastic-mx-") as folder:
        store = Store(folder)
        service = Service(store, cluster, slot, policy)
        for job in jobs:
            cluster.call(1e6 + job.at, partial(service.submit, _spec(job), None))
        cluster.idle = service.stop
        service.run()
        rows, changes = store.jobs(), store.changes(limit=1 << 30)
        store.close()
    resizes = sum(c["kind"] == "resize" and c["outcome"] == "done" for c in changes)
    return [(row.ended_at or float("nan")) - row.submitted_at for row in rows], resizes


def _spec(job: Arrival) -> JobSpec:
    tasks = {"workers": WORKERS, "servers": SERVERS}
    return parse_spec({"name": job.name, "command": "python train.py", "epochs": job.epochs, **tasks})


def measure(count: int, within: float, epochs: Sequence[int], policy: str, slot: float) -> Dict[str, Any]:
    jobs = arrivals(count, within, epochs[0], epochs[1], seed=1)
    with tempfile.TemporaryDirectory(prefix="elastic-mx-") as folder:
        with Served(Path(folder), policy, slot) as served:
            rows, resizes = served.run(jobs), len(served.resizes())
        nodes = read_nodes(Path(folder) / "nodes.yaml")
        store = Store(served.state)
        measured = Measured(store)
        store.close()
    live = [row["jct_s"] for row in rows]
    simulated, simulated_resizes = simulate(jobs, nodes, measured, policy, slot)
    return {
        "live_mean_jct_s": round(_mean(live), 2),
        "simulated_mean_jct_s": round(_mean(simulated), 2),
        "difference": round(_mean(simulated) / _mean(live) - 1, 4),
        "jobs": count,
        "resizes": resizes,
        "simulated_resizes": simulated_resizes,
        "each": [
            {"name": job.name, "epochs": job.epochs, "live_jct_s": round(a, 1), "simulated_jct_s": round(b, 1)}
            for job, a, b in zip(jobs, live, simulated)
        ],
        "timings_s": {name: round(value, 3) for name, value in asdict(measured.timings).items()},
        "epochs_per_s": [
            {"servers": s, "workers": w, "speed": round(speed, 3), "measured_s": round(measured.seconds[s, w], 1)}
            for (s, w), speed in sorted(measured.speeds.items())
        ],
    }


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=(__doc__ or "").strip())
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--within", type=float, default=45.0, help="seconds in which they arrive")
    parser.add_argument("--epochs", type=int, nargs=2, default=[60, 160], help="of the shortest and the longest job")
    parser.add_argument("--policy", default="drf")
    parser.add_argument("--slot", type=float, default=2.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    where = machine()
    result = measure(options.jobs, options.within, options.epochs, options.policy, options.slot)
    print(where + "\n")
    print(table(list(result["each"][0]), [list(job.values()) for job in result["each"]]))
    print()
    speeds = result["epochs_per_s"]
    print(table(list(speeds[0]), [list(row.values()) for row in speeds]))
    print("\nmeasured, s: " + ", ".join(f"{name} {value:g}" for name, value in result["timings_s"].items()))
    print(f"mean JCT {result['live_mean_jct_s']:g} s live, {result['simulated_mean_jct_s']:g} s", end=" ")
    print(f"simulated ({result['difference']:+.1%}); {result['resizes']} and {result['simulated_resizes']} resizes")
    finish({"machine": where, **result}, options.json)


if __name__ == "__main__":
    main()
