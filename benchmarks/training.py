"""Images and words a second of real training, ours against dist_sync: ``python -m benchmarks.training``.

Both jobs live through the whole run and take turns. On both sides communication overlaps with computation through
MXNet's engine. In a third kind of turn the workers compute without a Trainer's step: the share of a step that is spent
waiting for communication is what a step takes longer than that.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.common import SCRIPTS, finish, machine, median, table
from benchmarks.jobs import ElasticJob, NativeJob
from benchmarks.turns import Conductor, Failed, Member, turn

MODELS = ("resnet18", "lstm")
SIDES = ("elastic", "pslite")


def measure(model: str, options: argparse.Namespace) -> Dict[str, Any]:
    """Train one model on both sides; medians over the rounds."""
    sizes = dict(workers=options.workers, servers=options.servers)
    with Conductor(timeout=180) as conductor:
        env = dict(MODEL=model, BATCH=options.batch, **conductor.env)
        script = Path(SCRIPTS) / "training.py"
        with ElasticJob(script, transport=options.transport, **sizes, **env):
            members = {"elastic": conductor.gather(options.workers)}
            with NativeJob(script, **sizes, **env):
                members["pslite"] = conductor.gather(options.workers)
                times = alternate(members, options)
    ours, theirs, alone = (median(times[side]) for side in (*SIDES, "alone"))
    samples = 1000 * options.batch * options.workers
    return {
        "model": model,
        "elastic_ms": ours,
        "pslite_ms": theirs,
        "alone_ms": alone,
        "elastic_per_second": samples / ours,
        "pslite_per_second": samples / theirs,
        "elastic_waiting": max(0.0, 1 - alone / ours),
        "pslite_waiting": max(0.0, 1 - alone / theirs),
        "elastic_rounds_ms": times["elastic"],
        "pslite_rounds_ms": times["pslite"],
        "speedup": theirs / ours,
    }


def alternate(members: Dict[str, List[Member]], options: argparse.Namespace) -> Dict[str, List[float]]:
    """Give the sides their turns, after one each that does not count; who goes first alternates too."""
    times: Dict[str, List[float]] = {name: [] for name in (*SIDES, "alone")}
    for number in range(-1, options.rounds):
        order = SIDES if number % 2 else SIDES[::-1]
        for name, side, command in [*((s, s, "train") for s in order), ("alone", order[0], "alone")]:
            reports = turn(members[side], command, steps=options.steps)
            if not all(math.isfinite(report["loss"]) for report in reports):
                raise Failed(f"the loss of {side} is {[report['loss'] for report in reports]}")
            if number >= 0:
                times[name].append(max(report["ms"] for report in reports))
    return times


def show(result: Dict[str, Any]) -> None:
    print(result["machine"])
    print(
        f"{result['workers']} workers with {result['batch']} samples a step each, {result['servers']} servers with "
        f"momentum SGD, transport {result['transport']}; medians of {result['rounds']} rounds of {result['steps']}"
    )
    rows = []
    for run in result["models"]:
        for side, label in zip(SIDES, ("dist_elastic", "dist_sync")):
            waiting = f"{run[f'{side}_waiting']:.0%}"
            rows.append((run["model"], label, f"{run[f'{side}_per_second']:.1f}", f"{run[f'{side}_ms']:.0f}", waiting))
    print(table(("model", "store", "samples a second", "ms a step", "waiting for communication"), rows))
    for run in result["models"]:
        print(f"{run['model']}: speedup {run['speedup']:.2f}", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="images, or sentences of 16 words, of a worker in a step")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="steps in a round (default 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(arguments)
    if min(options.workers, options.servers, options.batch, options.rounds, options.steps) < 1:
        parser.error("--workers, --servers, --batch, --rounds and --steps must be at least 1")
    here = machine()
    result = {
        "benchmark": "training",
        "machine": here,
        **{name: getattr(options, name) for name in ("workers", "servers", "batch", "transport", "rounds", "steps")},
        "models": [measure(model, options) for model in options.models],
    }
    result["speedup"] = min(run["speedup"] for run in result["models"])
    show(result)
    finish(result, options.json)


if __name__ == "__main__":
    main()
