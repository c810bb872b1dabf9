"""Runs the settings of experiments and keeps what came of them in a file, so that a run goes on where it was ended."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import numpy as np

from benchmarks.paper.agents import drawn_jct, made
from benchmarks.paper.settings import Budget, Experiment, Recipe, Row, Setting, Table
from scheduler.learn.dl2 import Dl2
from scheduler.learn.rollout import mean_jcts
from scheduler.learn.scenario import TEST, Scenario
from scheduler.policies import make
from scheduler.workload import Workload

SEED = 20271  # of the test traces; the agents that ship were trained with other seeds, on other streams
SEEDS = 3  # the first seed of trainings
PEAKS = (1, 2, 3)


class Store:
    """A file for each experiment: by setting a row, and a digest of what was run for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._rows: Dict[str, Table] = {}

    def table(self, experiment: str) -> Table:
        path = self.directory / f"{experiment}.json"
        if experiment not in self._rows and path.is_file():
            self._rows[experiment] = json.loads(path.read_text(encoding="utf-8"))
        return self._rows.setdefault(experiment, {})

    def get(self, experiment: str, setting: str, digest: str) -> Optional[Row]:
        row = self.table(experiment).get(setting)
        return row if row is not None and row["digest"] == digest else None

    def put(self, experiment: str, setting: str, row: Row) -> None:
        table = self.table(experiment)
        table[setting] = row
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self.directory / f"{experiment}.json.partial"
        partial.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, self.directory / f"{experiment}.json")


@dataclass(frozen=True)
class Runner:
    """Runs what is not in the store yet.

    Attributes:
        agents: directory of the agents that are trained on the way; settings that need the same one share it.
        say: is told of each setting that was run.
    """

    workload: Workload
    budget: Budget
    store: Store
    agents: Path
    say: Callable[[str], None] = lambda text: None

    def run(self, experiment: Experiment) -> Table:
        table: Table = {}
        for setting in experiment.settings:
            digest = self._digest(setting)
            row = self.store.get(experiment.name, setting.name, digest)
            if row is None:
                began = time.process_time()
                row = {**self._judge(setting), "digest": digest, "cpu_s": round(time.process_time() - began, 1)}
                self.store.put(experiment.name, setting.name, row)
                self.say(f"{experiment.name} {setting.name}: {row['jct']:.2f} slots, {row['cpu_s']:.0f} CPU seconds")
            table[setting.name] = row
        return table

    def finished(self, experiment: Experiment) -> Optional[Table]:
        """Its table if all of its settings have been run."""
        table: Table = {}
        for setting in experiment.settings:
            row = self.store.get(experiment.name, setting.name, self._digest(setting))
            if row is None:
                return None
            table[setting.name] = row
        return table

    def _digest(self, setting: Setting) -> str:
        return f"{setting.digest(self.budget)} {self.workload.name}"

    def _judge(self, setting: Setting) -> Row:
        workload = self.workload
        if setting.limit:
            workload = replace(workload, max_servers=setting.limit, max_workers=setting.limit)
        scenario = Scenario(workload, peaks=_peaks(workload), seed=SEED, **dict(setting.scenario))
        if isinstance(setting.who, Recipe):
            return self._trained(setting.who, scenario)
        policy = make(setting.who)
        if isinstance(policy, Dl2):
            each = mean_jcts(policy.agent, scenario.held_out(self.budget.traces, TEST))  # as below, but in lockstep
            return {"jct": round(float(np.mean(each)), 4)}
        return {"jct": round(scenario.mean_jct(policy, self.budget.traces, TEST), 4)}

    def _trained(self, recipe: Recipe, scenario: Scenario) -> Row:
        jcts, curves = [], []
        for seed in range(SEEDS, SEEDS + self.budget.repeats):
            agent, curve = made(recipe, scenario.workload, scenario.peaks, self.budget, self.agents, seed)
            jcts.append(drawn_jct(agent, scenario.held_out(self.budget.traces, TEST)))
            curves.append(curve)
        return {"jct": round(float(np.mean(jcts)), 4), "each": jcts, "curve": np.mean(curves, axis=0).round(4).tolist()}


def _peaks(workload: Workload) -> Any:
    return tuple(peak for peak in PEAKS if peak in workload.arrivals) or ()
