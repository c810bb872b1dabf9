"""``python -m benchmarks.paper [--only NAME…] [--json] [--quick] [--repeats N] [--out DIR]``.

Every setting that is done is kept in DIR/NAME.json, and every round of a training beside it, so a run that was ended
goes on where it was; runs of different experiments may share DIR. DIR/README.md has a row for each finished experiment
beside the paper's, and its figure. Times are in slots.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.common import table as in_columns
from benchmarks.paper.experiments import named
from benchmarks.paper.figure import draw
from benchmarks.paper.page import write_page
from benchmarks.paper.runner import Runner, Store
from benchmarks.paper.settings import QUICK, Budget
from benchmarks.policies import workloads


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description="The experiments of the DL2 paper, in simulation."
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these experiments only")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="a budget that shows that it runs, not what comes out")
    parser.add_argument("--repeats", type=int, help="agents made by each recipe  (default 1)")
    parser.add_argument("--out", type=Path, help="results and figures  (default runs/paper, with --quick runs/quick)")
    parser.add_argument("--agents", type=Path, help="agents trained on the way  (default OUT/agents)")
    options = parser.parse_args(arguments)
    out = options.out or Path("runs") / ("quick" if options.quick else "paper")
    try:
        chosen = named(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}, must be at least 1")
    budget = QUICK if options.quick else Budget()
    say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    runner = Runner(
        workload=workloads()[0],
        budget=replace(budget, repeats=options.repeats or budget.repeats),
        store=Store(out),
        agents=options.agents or out / "agents",
        say=say,
    )
    result: Dict[str, Any] = {}
    rows: List[List[str]] = []
    try:
        for experiment in chosen:
            table = runner.run(experiment)
            draw(experiment, table, out / f"{experiment.name}.png")
            outcome = experiment.outcome(table)
            result[experiment.name] = {"settings": table, "paper": experiment.paper, "ours": outcome}
            rows.append([experiment.name, experiment.paper, outcome])
            write_page(out / "README.md", runner)
    except KeyboardInterrupt:
        sys.exit(f"stopped: what was finished is in {out}; the same command goes on from there")
    print(in_columns(("experiment", "the paper", "here"), rows))
    if options.json:
        print(json.dumps({"workload": runner.workload.name, "experiments": result}))


if __name__ == "__main__":
    main()
