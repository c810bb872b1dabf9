"""Writes the page of results: a row for each finished experiment beside the paper's, and the figures."""

from __future__ import annotations

from pathlib import Path
from typing import List

from benchmarks.common import table as in_columns
from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.runner import Runner
from benchmarks.paper.settings import Experiment, Table

TOP = """# The paper's experiments, in simulation

Written by `python -m benchmarks.paper --out DIR`, as it came out. The paper is
[DL2](https://arxiv.org/abs/1909.06040), section 6; its figures are of a simulated cluster of 500 servers and of a
testbed, ours of the workload named below, so shares are to be compared, not slots. Where the paper shows a figure and
no number, the table says so. Mean JCTs are in slots, over test traces that no agent was trained on or chosen by. The
agents that are trained here are judged as the authors do it, with actions drawn by their probabilities. In short
trainings the paper's own update finds no direction: the second phase takes three times its step size, with a value
network that learns first and credits each step, and a smaller entropy bonus.
"""


def write_page(path: Path, runner: Runner) -> None:
    budget = runner.budget
    finished = [(experiment, table) for experiment in EXPERIMENTS if (table := runner.finished(experiment)) is not None]
    seconds = sum(row["cpu_s"] for _, table in finished for row in table.values())
    rows = [[f"[{e.name}](#{e.name})", e.paper, e.outcome(table)] for e, table in finished]
    seeds = "each is made once" if budget.repeats == 1 else f"each is made {budget.repeats} times, for the mean"
    parts: List[str] = [
        TOP,
        f"Workload {runner.workload.name}, {budget.traces} test traces, peaks in turn. Every agent that is trained "
        f"here gets {budget.warm} rounds of imitation ({budget.watched} traces, {budget.updates} updates each) and "
        f"then {budget.online} rounds of {budget.slots} slots of actor-critic; {seeds}; "
        f"how much of their differences is chance has not been measured. `dl2`, `dl2x` and `offline-rl` are the agents "
        f"that ship. All of it took {seconds / 60:.0f} CPU minutes.\n",
        in_columns(("experiment", "the paper", "here"), rows) + "\n",
        *(_section(experiment, table) for experiment, table in finished),
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


def _section(experiment: Experiment, table: Table) -> str:
    series, points = experiment.series(), experiment.points()
    rows = [
        [name, *(f"{table[f'{name}/{at}']['jct']:.2f}" if f"{name}/{at}" in table else "" for at in points)]
        for name in series
    ]
    text = f"## {experiment.name}\n\n{experiment.title}. {experiment.note}".rstrip()
    return f"{text}\n\n![{experiment.title}]({experiment.name}.png)\n\n{in_columns(('mean JCT', *points), rows)}\n"
