"""How long the service's slot takes with many jobs on many nodes, and how its record grows.

The service's own functions decide, settle and record; nodes and jobs are made up, so that what asking live jobs and
resizing them takes is not in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from scheduler.service.service import policy_of
from scheduler.service.slot import Node, Seen, Speeds, ask, moves, settle, views
from scheduler.service.snapshot import pack
from scheduler.service.spec import parse_spec
from scheduler.service.store import Store

DAY_SECONDS = 86400.0
SLOT_SECONDS = 30.0


def jobs_of(count: int) -> List[Seen]:
    rng = np.random.RandomState(0)
    found = []
    for number in range(count):
        tasks = {"workers": {"max": 8, "cpus": float(rng.randint(1, 5))}, "servers": {"max": 4, "cpus": 1.0}}
        kind = f"type-{rng.randint(8)}"
        fields = {"name": f"job-{number}", "type": kind, "command": "python train.py", "epochs": 50.0, **tasks}
        found.append(Seen(number + 1, parse_spec(fields), number * 0.1))
    return found


def size_of(store: Store) -> int:
    """Bytes of the record once its log is worked into it: the log is reused and tells of no growth."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store.size()


def measure(policy_name: str, count: int, nodes_count: int, slots: int) -> Dict[str, Any]:
    """Seconds per slot (median and longest), bytes of the record a day, and this process's memory."""
    nodes = [Node(f"n{k}", (4.0, 16.0, 0.0)) for k in range(nodes_count)]
    jobs, speeds = jobs_of(count), Speeds()
    policy, safe = policy_of(policy_name), policy_of("drf")
    seconds, changed = [], 0
    with tempfile.TemporaryDirectory(prefix="elastic-mx-") as folder:
        store = Store(folder)
        for job in jobs:
            store.submit(job.spec, None, 0.0)
        empty = size_of(store)
        for slot in range(slots):
            began = time.perf_counter()
            cluster, view = views(nodes, jobs, slot, SLOT_SECONDS, speeds)
            answer, fallback = ask(policy, safe, cluster, view)
            sizes = settle(nodes, jobs, answer)
            wanted = moves(jobs, sizes)
            common = {"slot": slot, "slot_seconds": SLOT_SECONDS, "policy": policy.name, "fallback": fallback}
            times = {"at": slot * SLOT_SECONDS, "observe_ms": 0.0, "decide_ms": 0.0}
            snapshot = pack(cluster, view, answer, sizes)
            decision = store.add_decision(**common, **times, jobs=len(jobs), snapshot=snapshot)
            row = {"at": slot * SLOT_SECONDS, "decision": decision, "servers_before": 0, "workers_before": 0}
            size = [{"job": m.job, "kind": m.kind, "servers": m.size[0], "workers": m.size[1]} for m in wanted]
            store.add_changes([{**row, **one} for one in size])
            new = {job.id: job for job in jobs}
            now = {m.job: m.size for m in wanted}
            for number, job in new.items():
                servers, workers = now.get(number, job.size)
                new[number] = Seen(
                    number, job.spec, job.arrival, job.done + 0.1 * workers, 0.0, servers, workers, rate=0.1 * workers
                )
            store.change_jobs([{"id": number, "done": job.done} for number, job in new.items()])
            jobs = list(new.values())
            seconds.append(time.perf_counter() - began)
            changed += len(wanted)
        grown = size_of(store) - empty
        store.close()
    return {
        "policy": policy_name,
        "jobs": count,
        "nodes": nodes_count,
        "slots": slots,
        "median_slot_s": round(float(np.median(seconds)), 3),
        "longest_slot_s": round(max(seconds), 3),
        "changes": changed,
        "fallback": fallback,
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "record_mb_a_day": round(grown / slots * DAY_SECONDS / SLOT_SECONDS / 1e6, 1),
    }


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_scale", description=(__doc__ or "").strip())
    parser.add_argument("--policies", nargs="+", default=["drf", "dl2x"])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results = [measure(name, options.jobs, options.nodes, options.slots) for name in options.policies]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        print("  ".join(f"{name} {value}" for name, value in result.items() if value != ""))


if __name__ == "__main__":
    main()
