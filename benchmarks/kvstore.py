"""One iteration of push and pull of all keys, ours against dist_sync: ``python -m benchmarks.kvstore``.

Both jobs live through the whole run and take turns, so that what else the machine does hits both. An iteration ends
when every pulled value lies in its array. Threads: OMP_NUM_THREADS=1 on both sides.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.common import SCRIPTS, finish, keys, machine, median, table
from benchmarks.jobs import ElasticJob, NativeJob
from benchmarks.turns import Conductor, Failed, Member, turn

ITERATIONS = {"small": 20, "tiny": 5, "big": 3, "resnet50": 3, "vgg16": 1}
SIDES = ("elastic", "pslite")


def measure(options: argparse.Namespace) -> Dict[str, Any]:
    """Run both jobs and return the medians."""
    here = machine()
    script = Path(SCRIPTS) / "kvstore.py"
    sizes = dict(workers=options.workers, servers=options.servers)
    iterations = options.iterations or ITERATIONS[options.keys]
    with Conductor() as conductor:
        env = dict(KEYS=options.keys, OPTIMIZER=options.optimizer, **conductor.env)
        with ElasticJob(script, transport=options.transport, **sizes, **env):
            members = {"elastic": conductor.gather(options.workers)}
            with NativeJob(script, **sizes, **env):
                members["pslite"] = conductor.gather(options.workers)
                times = alternate(members, options.rounds, iterations, options.workers, options.optimizer)
    ours, theirs = (median(times[side]) for side in SIDES)
    shapes = keys(options.keys)
    return {
        "benchmark": "kvstore",
        "machine": here,
        "keys": options.keys,
        "key_count": len(shapes),
        "transport": options.transport,
        "optimizer": options.optimizer,
        **sizes,
        "rounds": options.rounds,
        "iterations": iterations,
        "elastic_ms": ours,
        "pslite_ms": theirs,
        "elastic_rounds_ms": times["elastic"],
        "pslite_rounds_ms": times["pslite"],
        "speedup": theirs / ours,
    }


def alternate(
    members: Dict[str, List[Member]], rounds: int, iterations: int, workers: int, optimizer: str
) -> Dict[str, List[float]]:
    """Give the sides their turns, after one that does not count; who goes first alternates too."""
    times: Dict[str, List[float]] = {side: [] for side in SIDES}
    for number in range(-1, rounds):
        values = {}
        for side in SIDES if number % 2 else SIDES[::-1]:
            reports = turn(members[side], "round", iterations=iterations)
            values[side] = [report["values"] for report in reports]
            if number >= 0:
                times[side].append(max(report["ms"] for report in reports))
        check(values, workers, iterations, optimizer)
    return times


def check(values: Dict[str, List[List[float]]], workers: int, iterations: int, optimizer: str) -> None:
    """What was timed must also be right: without an optimizer, sums of ones; with one, the same on all workers.

    Under dist_sync a pull also writes into the array that was pushed, so that the sums of a turn multiply there.

    Raises:
        Failed: it is not.
    """
    sums = {"elastic": float(workers), "pslite": float(workers) ** iterations}
    for side, found in values.items():
        expected = [sums[side]] * 2 if optimizer == "none" else found[0]
        if any(value != expected or not all(map(math.isfinite, value)) for value in found):
            raise Failed(f"after a turn the workers of {side} have {found}, not {expected}")


def show(result: Dict[str, Any]) -> None:
    print(result["machine"])
    print(
        f"push and pull of {result['key_count']} keys ({result['keys']}), optimizer {result['optimizer']}, "
        f"{result['workers']} workers, {result['servers']} servers; medians of {result['rounds']} rounds"
    )
    rows = [
        (label, f"{result[f'{side}_ms']:.1f}", f"{min(times):.1f}", f"{max(times):.1f}")
        for label, side in ((f"dist_elastic ({result['transport']})", "elastic"), ("dist_sync", "pslite"))
        for times in [result[f"{side}_rounds_ms"]]
    ]
    print(table(("store", "ms an iteration", "least", "most"), rows))
    print(f"speedup {result['speedup']:.2f}", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kvstore", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--keys", choices=sorted(ITERATIONS), default="resnet50")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    parser.add_argument("--optimizer", choices=("none", "sgd", "adam"), default="none", help="sgd has momentum 0.9")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side (default 7)")
    parser.add_argument("--iterations", type=int, default=0, help="iterations in a round (default: by the keys)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(arguments)
    if min(options.workers, options.servers, options.rounds) < 1:
        parser.error("--workers, --servers and --rounds must be at least 1")
    result = measure(options)
    show(result)
    finish(result, options.json)


if __name__ == "__main__":
    main()
