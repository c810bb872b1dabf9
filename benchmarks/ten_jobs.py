"""Ten jobs at random within two minutes on two nodes, each real training, resized while the service is killed twice.

Checks that all finish, that each used every sample once per epoch, and that nothing is left running.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from benchmarks.common import finish, machine, median, table
from benchmarks.served import Served, arrivals


def measure(
    count: int, within: float, epochs: Sequence[int], kills: Sequence[float], policy: str, cpus: float
) -> Dict[str, Any]:
    """What came of it; ``problems`` is empty if all is as it should be."""
    jobs = arrivals(count, within, epochs[0], epochs[1], seed=0)
    with tempfile.TemporaryDirectory(prefix="elastic-mx-") as folder:
        with Served(Path(folder), policy, 2.0, cpus) as served:
            rows = served.run(jobs, kills)
            resizes = served.resizes()
            accuracy = {row["name"]: served.accuracy(row["name"]) for row in rows}
        left = served.left()
        problems = [line for job in jobs for line in served.misused(job)]
    problems += [f"{row['name']} was started {row['attempt']} times" for row in rows if row["attempt"] != 1]
    problems += [f"process {pid} is left" for pid in left]
    numbers = {row["id"]: row["name"] for row in rows}
    stalls = [one["stall_seconds"] or 0.0 for one in resizes]
    return {
        "jobs": [
            {"name": row["name"], "epochs": row["epochs"], "jct_s": round(row["jct_s"], 1)}
            | {"accuracy": accuracy[row["name"]]}
            | {"resizes": sum(numbers[one["job"]] == row["name"] for one in resizes)}
            for row in rows
        ],
        "finished": sum(row["state"] == "finished" for row in rows),
        "resizes": len(resizes),
        "median_stall_s": round(median(stalls), 3) if stalls else 0.0,
        "longest_stall_s": round(max(stalls, default=0.0), 3),
        "kills": len(kills),
        "left": len(left),
        "problems": problems,
    }


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ten_jobs", description=(__doc__ or "").strip())
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--within", type=float, default=120.0, help="seconds in which they arrive")
    parser.add_argument("--epochs", type=int, nargs=2, default=[60, 160], help="of the shortest and the longest job")
    parser.add_argument("--kills", type=float, nargs="*", default=[35.0, 90.0], help="when the service is killed")
    parser.add_argument("--policy", default="drf")
    parser.add_argument("--cpus", type=float, default=4.0, help="that each node promises")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    where = machine()
    result = measure(options.jobs, options.within, options.epochs, options.kills, options.policy, options.cpus)
    print(where + "\n")
    print(table(list(result["jobs"][0]), [list(job.values()) for job in result["jobs"]]))
    print(f"\n{result['finished']} of {options.jobs} jobs finished through {result['resizes']} resizes and", end=" ")
    print(f"{result['kills']} kills of the service; longest stall {result['longest_stall_s']:g} s")
    print("\n".join(result["problems"]) or "every sample was used once per epoch, and nothing is left running")
    finish({"machine": where, **result}, options.json)
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
