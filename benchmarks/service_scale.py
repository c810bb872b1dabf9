"""How long the service's slot takes with many jobs on many nodes, and how its record grows.

The service itself drives a simulated cluster (scheduler/service/simulated.py): it observes, decides, enacts and records
by the code that drives real jobs. What asking live jobs over a network takes is not in it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from benchmarks.common import finish, machine, table
from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster, Timings
from scheduler.service.slot import Node, Size, curve
from scheduler.service.spec import JobSpec, parse_spec
from scheduler.service.store import Store

DAY_SECONDS = 86400.0
SLOT_SECONDS = 30.0
WARM_SLOTS = 2  # in which all jobs start: not counted for the record's growth
PARTS = ("observe_ms", "decide_ms", "enact_ms")
COLUMNS = ("policy", "jobs", "nodes", "slots", "median_slot_s", "longest_slot_s", "longest_slot_cpu_s", *PARTS)
COLUMNS += ("changes", "memory_mb", "record_mb_a_day")


def specs(count: int) -> List[JobSpec]:
    rng = np.random.RandomState(0)
    found = []
    for number in range(count):
        tasks = {"workers": {"max": 8, "cpus": float(rng.randint(1, 5))}, "servers": {"max": 4, "cpus": 1.0}}
        fields = {"name": f"job-{number}", "type": f"type-{rng.randint(8)}", "command": "python train.py"}
        found.append(parse_spec({**fields, "epochs": 200.0, **tasks}))
    return found


def speed(spec: JobSpec, size: Size) -> float:
    """Epochs per second: types differ, and no type has the curve that the service assumes."""
    return 1 / (200 + 20 * int(spec.kind[-1])) * float(curve(size[0], size[1])) ** 0.9


def size_of(store: Store) -> int:
    """Bytes of the record once its log is worked into it: the log is reused and tells of no growth."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.size()


def measure(policy_name: str, count: int, nodes_count: int, slots: int) -> Dict[str, Any]:
    """Seconds per slot (median and longest, and of computing), bytes of the record a day, and this process's memory."""
    nodes = [Node(f"n{k}", (4.0, 16.0, 0.0)) for k in range(nodes_count)]
    cluster = SimulatedCluster(nodes, speed, Timings(starting=10, growing=10, shrinking=1, stall=0.1, ending=1), 1e6)
    seconds: List[float] = []
    computing: List[float] = []
    before = 0
    with tempfile.TemporaryDirectory(prefix="elastic-mx-") as folder:
        store = Store(folder)
        service = Service(store, cluster, SLOT_SECONDS, policy_name)
        for spec in specs(count):
            service.submit(spec, None)
        for slot in range(slots):
            before = size_of(store) if slot == min(WARM_SLOTS, slots - 1) else before
            began, computed = time.perf_counter(), time.process_time()
            service.slot(cluster.now())
            seconds.append(time.perf_counter() - began)
            computing.append(time.process_time() - computed)
            cluster.wait((), SLOT_SECONDS, threading.Event())
        grown = size_of(store) - before
        decisions, changes = store.decisions(limit=slots), store.changes(limit=1 << 30)
        store.close()
    return {
        "policy": policy_name,
        "jobs": count,
        "nodes": nodes_count,
        "slots": slots,
        "median_slot_s": round(float(np.median(seconds)), 3),
        "longest_slot_s": round(max(seconds), 3),
        "longest_slot_cpu_s": round(max(computing), 3),
        **{name: round(float(np.median([getattr(d, name) for d in decisions])), 1) for name in PARTS},
        "changes": len(changes),
        "fallback": next((d.fallback for d in decisions if d.fallback), ""),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "record_mb_a_day": round(grown / max(1, slots - WARM_SLOTS) * DAY_SECONDS / SLOT_SECONDS / 1e6, 1),
    }


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_scale", description=(__doc__ or "").strip())
    parser.add_argument("--policies", nargs="+", default=["drf", "dl2x"])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    print(f"Slots of {SLOT_SECONDS:g} s. {machine()}\n")
    results = [measure(name, options.jobs, options.nodes, options.slots) for name in options.policies]
    print(table(COLUMNS, [[result[name] for name in COLUMNS] for result in results]))
    for result in results:
        if result["fallback"]:
            print(result["fallback"])
    finish({"machine": machine(), "results": results}, options.json)


if __name__ == "__main__":
    main()
