"""Compares the learned policies with all others: loads, misjudged jobs, unseen job types, time of a decision.

``python -m benchmarks.policies [--json] [--quick]``. Traces are drawn by the workload's rules from a stream that no
agent was trained or validated on. Times are in slots; the decision's is in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from scheduler.core import Policy
from scheduler.evaluate import no_contention
from scheduler.learn.scenario import TEST, Scenario
from scheduler.policies import make
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.traces.files import open_workload
from scheduler.workload import Workload, make_trace

HEURISTICS = ("fifo", "srtf", "tetris", "drf", "optimus", "tiresias", "afs", "greedy", "greedy-fit")
LEARNED = ("dl2", "dl2x")
PEAKS = (1, 2, 3)
SEED = 20261  # of the traces; agents are trained with other seeds, and on other streams
HELD_OUT = ("vgg-16", "seq2seq", "dssm")  # types that the agent below has never seen
HELD_OUT_AGENT = Path(__file__).resolve().parent / "agents" / "dl2x-held-out.pt"
ERRORS: Tuple[Tuple[str, Dict[str, float]], ...] = (
    ("as estimated", {}),
    ("epochs ±20 %", {"epoch_error": 0.2}),
    ("speeds ±20 %", {"speed_error": 0.2}),
    ("both", {"epoch_error": 0.2, "speed_error": 0.2}),
)
RIVALS = ("drf", "optimus", "greedy", "greedy-fit", "dl2x")
Row = Dict[str, Any]


def shared_data() -> Optional[Path]:
    """The directory of public measurements beside the project, or where ELASTIC_MX_SHARED says; None if absent."""
    given = os.environ.get("ELASTIC_MX_SHARED")
    places = [Path(given)] if given else [parent / "shared" for parent in Path(__file__).resolve().parents]
    for place in places:
        if (place / "data" / "dl2_small_workload.json").is_file():
            return place / "data"
    return None


def workloads() -> List[Workload]:
    """DL2's small simulation, where its data are at hand, and the workload that ships."""
    found = [open_workload(None, None)]
    data = shared_data()
    if data is not None:
        dl2 = open_workload(str(data / "dl2_small_workload.json"), str(data / "dl2_testbed_speeds.txt"))
        found.insert(0, dl2)
    return found


def jcts(policy: Policy, scenario: Scenario, traces: int) -> float:
    return scenario.mean_jct(policy, traces, TEST)


def bound(scenario: Scenario, traces: int) -> float:
    """Mean JCT without contention: what no policy can pass."""
    held = scenario.held_out(traces, TEST)
    return float(np.mean([no_contention(s.workload, s.trace).mean() for s in held]))


def loads(workload: Workload, names: Sequence[str], traces: int) -> Row:
    """Point 2: by policy the mean JCT at each peak, and what follows from it."""
    scenarios = [Scenario(workload, peaks=(peak,), seed=SEED + peak) for peak in PEAKS]
    bounds = [bound(scenario, traces) for scenario in scenarios]
    by_policy = {name: [jcts(make(name), scenario, traces) for scenario in scenarios] for name in names}
    table = {"bound": _figures(bounds, by_policy, bounds)}
    table.update({name: _figures(by_policy[name], by_policy, bounds) for name in names})
    return {"workload": workload.name, "traces": traces, "peaks": list(PEAKS), "policies": table}


def _figures(jct: List[float], by_policy: Dict[str, List[float]], bounds: List[float]) -> Row:
    """Each figure is a mean over loads; shares are of each load's own DRF and Optimus."""
    drf, optimus, low, mine = (np.array(x) for x in (by_policy["drf"], by_policy["optimus"], bounds, jct))
    return {
        "jct": [float(x) for x in jct],
        "mean_jct": float(mine.mean()),
        "below_drf": float((1 - mine / drf).mean()),
        "below_optimus": float((1 - mine / optimus).mean()),
        "way": float(((drf - mine) / (drf - low)).mean()),
    }


def robustness(workload: Workload, traces: int) -> List[Row]:
    """Point 3: the shipped dl2x where epochs and speeds are misjudged, and an agent that lacks some job types."""
    rows = []
    for label, errors in ERRORS:
        scenario = Scenario(workload, peaks=PEAKS, seed=SEED, **errors)  # type: ignore[arg-type]
        rows.append(_compare(label, scenario, traces, {}))
    names = [kind.name for kind in workload.types]
    if HELD_OUT_AGENT.is_file() and set(HELD_OUT) <= set(names):
        agent = str(HELD_OUT_AGENT)
        unseen = tuple(names.index(name) for name in HELD_OUT)
        everything = Scenario(workload, peaks=PEAKS, seed=SEED)
        rows.append(_compare("3 of 8 types unseen", everything, traces, {"dl2x": agent}))
        only = Scenario(workload, peaks=PEAKS, types=unseen, seed=SEED)
        rows.append(_compare("only unseen types", only, traces, {"dl2x": agent}))
    return rows


def _compare(label: str, scenario: Scenario, traces: int, agents: Dict[str, str]) -> Row:
    row: Row = {name: jcts(make(name, agent=agents.get(name)), scenario, traces) for name in RIVALS}
    row["bound"] = bound(scenario, traces)
    row["below_optimus"] = 1 - row["dl2x"] / row["optimus"]
    row["way"] = (row["drf"] - row["dl2x"]) / (row["drf"] - row["bound"])
    return {"workload": scenario.workload.name, "case": label, **row}


def decision(workload: Workload, names: Sequence[str], jobs: int = 180, nodes: int = 500, slots: int = 5) -> Row:
    """Point 5: by policy the median and the longest time to decide a slot for so many jobs on so many nodes, ms."""
    times = -(-nodes // len(workload.capacity))
    wide = replace(workload, capacity=np.tile(workload.capacity, (times, 1))[:nodes])
    rng = np.random.default_rng(SEED)
    kinds = rng.integers(len(workload.types), size=jobs)
    epochs = np.array([kind.epochs for kind in workload.types])[kinds] * rng.uniform(0.5, 1.5, jobs)
    trace = make_trace("wide", np.arange(1, jobs + 1), kinds, np.zeros(jobs, dtype=np.int64), epochs)
    table = {}
    for name in names:
        policy, simulator = make(name), Simulator(wide, trace, SimulatorSettings(check=False))
        spent = []
        policy.reset()
        for _ in range(slots + 1):
            cluster, view = simulator.observe()
            began = time.perf_counter()
            allocation = policy.allocate(cluster, view)
            spent.append(1000.0 * (time.perf_counter() - began))
            simulator.step(allocation)
        table[name] = {"median_ms": float(np.median(spent[1:])), "longest_ms": max(spent[1:])}
    return {"workload": workload.name, "jobs": jobs, "nodes": nodes, "policies": table}


# -- printing ---------------------------------------------------------------------------------------------------


def show_loads(result: Row) -> None:
    peaks = "".join(f"{f'peak {peak}':>9}" for peak in result["peaks"])
    print(f"\n{result['workload']}: mean JCT in slots, {result['traces']} drawn traces at each load")
    print(f"{'policy':<12}{peaks}{'mean':>9}{'below DRF':>11}{'below Optimus':>15}{'DRF→bound':>11}")
    for name, row in result["policies"].items():
        cells = "".join(f"{x:>9.2f}" for x in row["jct"])
        shares = f"{row['below_drf']:>11.1%}{row['below_optimus']:>15.1%}{row['way']:>11.1%}"
        print(f"{name:<12}{cells}{row['mean_jct']:>9.2f}{shares}")
    for text, standing in claims(result):
        print(f"{standing:<18}{text}")


def claims(result: Row) -> List[Tuple[str, str]]:
    """What the learned policies must show on a workload, and whether they do."""

    def share(policy: str, rival: str, least: float) -> Tuple[str, str]:
        got, most = table[policy][f"below_{rival}"], table["bound"][f"below_{rival}"]
        standing = "met" if got >= least else "NOT MET" if most >= least else "beyond the bound"
        title = {"drf": "DRF", "optimus": "Optimus"}[rival]
        return f"{policy} at least {least:.1%} below {title}: {got:.1%} (the bound: {most:.1%})", standing

    table = result["policies"]
    mine, others = table["dl2x"], {name: row for name, row in table.items() if name not in ("dl2x", "bound")}
    best = min(others, key=lambda name: others[name]["mean_jct"])
    every = all(x < min(row["jct"][k] for row in others.values()) for k, x in enumerate(mine["jct"]))
    every_text = f"dl2x below every other policy at every load; the next is {best}, {others[best]['mean_jct']:.2f}"
    return [
        share("dl2", "optimus", 0.175),
        (every_text, "met" if every else "NOT MET"),
        share("dl2x", "drf", 0.441),
        share("dl2x", "optimus", 0.175),
    ]


def show_robustness(rows: Sequence[Row], traces: int) -> None:
    print(f"\nMisjudged jobs and unseen types: mean JCT in slots, {traces} drawn traces, loads in turn")
    names = "".join(f"{name:>12}" for name in (*RIVALS, "bound"))
    print(f"{'workload':<20}{'case':<22}{names}{'below Optimus':>15}{'DRF→bound':>11}")
    for row in rows:
        cells = "".join(f"{row[name]:>12.2f}" for name in (*RIVALS, "bound"))
        print(f"{row['workload']:<20}{row['case']:<22}{cells}{row['below_optimus']:>15.1%}{row['way']:>11.1%}")


def show_decisions(results: Sequence[Row]) -> None:
    for result in results:
        print(f"\nOne decision, {result['jobs']} jobs on {result['nodes']} nodes like those of {result['workload']}")
        for name, row in result["policies"].items():
            print(f"{name:<12}{row['median_ms']:>8.1f} ms in the median, {row['longest_ms']:.1f} ms at most")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="two traces at each load and five policies")
    parser.add_argument("--traces", type=int, help="traces at each load (default 10, with --quick 2)")
    options = parser.parse_args(arguments)
    traces = options.traces or (2 if options.quick else 10)
    if traces < 1:
        parser.error(f"--traces is {traces}, must be at least 1")
    names = (*(("drf", "optimus", "greedy", "greedy-fit") if options.quick else HEURISTICS), *LEARNED)
    result: Row = {"loads": [], "robustness": [], "decisions": []}
    say = (lambda show, *what: None) if options.json else (lambda show, *what: (show(*what), sys.stdout.flush()))
    found = workloads()
    for workload in found:
        result["loads"].append(loads(workload, names, traces))
        say(show_loads, result["loads"][-1])
    for workload in found:
        result["robustness"] += robustness(workload, 3 * max(1, traces // 2))
    say(show_robustness, result["robustness"], 3 * max(1, traces // 2))
    result["decisions"] = [decision(workload, names) for workload in found]
    say(show_decisions, result["decisions"])
    if options.json:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
