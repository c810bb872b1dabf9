"""What a service's record teaches: the decisions that were taken, and a simulated cluster with its nodes and jobs.

The decisions are for the warm-up; the cluster is where agents are validated and go on learning. How a record is kept
is in scheduler/service/store.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.learn.scenario import TRAINING, VALIDATION, Held
from scheduler.policies import LEARNED
from scheduler.service import tables as t
from scheduler.service.decider import policy_of
from scheduler.service.hindsight import MOST_SLOTS, Known, fits, gaps, workload_of
from scheduler.service.slot import Seen
from scheduler.service.snapshot import capacity_of, unpack, views_of
from scheduler.service.store import JobRow, Store
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.workload import Trace, Workload, make_trace

LATEST = 8192  # decisions that are read
TRACE = (8, 40)  # jobs of a trace that is drawn, at least and at most
Lesson = Tuple[ClusterView, JobsView, Allocation]


@dataclass(frozen=True)
class Recorded(Held):
    """A record, read.

    Attributes:
        lessons: what was seen and decided, oldest first.
        policies: who decided, how often.
        decider: the policy whose the lessons are, or most of them; None where it is a learned one.
        workload: nodes as of the last decision; types with the speeds last reckoned.
        kinds, epochs, gaps: by job, in order of arrival: its type, its length, slots since the arrival before it.
        seed: of all streams.
    """

    lessons: Sequence[Lesson]
    policies: Dict[str, int]
    decider: Optional[Policy]
    workload: Workload
    kinds: Array
    epochs: Array
    gaps: Array
    seed: int = 0

    def simulator(self, rng: np.random.Generator) -> Simulator:
        """A cluster with jobs and gaps drawn from the record's, with replacement."""
        count = int(np.clip(len(self.kinds), *TRACE))
        at = rng.integers(len(self.kinds), size=count)
        between = self.gaps[rng.integers(len(self.gaps), size=count)]
        arrival = np.floor(np.cumsum(between) - between[0])
        trace = make_trace("record", np.arange(count), self.kinds[at], arrival, self.epochs[at])
        settings = SimulatorSettings(check=False, max_slots=self._patience(trace))
        return Simulator(self.workload, trace, settings, seed=int(rng.integers(2**31)))

    def _patience(self, trace: Trace) -> int:
        """Slots after which a policy starves jobs: twice what they take one after another, with a task of each role."""
        alone = trace.epochs / self.workload.speed_tables()[trace.type_index, 1, 1]
        return int(min(trace.arrival[-1] + 2 * np.ceil(alone).sum() + 1, MOST_SLOTS))

    def held_out(self, count: int, stream: int = VALIDATION) -> List[Simulator]:
        return [self.simulator(np.random.default_rng([self.seed, stream, k])) for k in range(count)]

    def training_rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, TRAINING])

    def type_names(self) -> List[str]:
        return list(dict.fromkeys(kind.name for kind in self.workload.types))


def read(where: Union[str, Path], teacher: Optional[str] = None, seed: int = 0) -> Recorded:
    """Reads a record; only the decisions of one policy, if ``teacher`` names it.

    Raises:
        StoreError: there is no record, or one of another version.
        ValueError: it holds no such decision, or no job to learn from; one line.
    """
    store = Store(where, as_it_is=True)
    try:
        return from_store(store, teacher, seed)
    finally:
        store.close()


def from_store(store: Store, teacher: Optional[str] = None, seed: int = 0, latest: int = LATEST) -> Recorded:
    """As ``read``, of the latest decisions of a record that is open."""
    lessons: List[Lesson] = []
    policies: Dict[str, int] = {}
    tables: Dict[str, Array] = {}
    last: Optional[Dict[str, Any]] = None
    newest = store.last_decision()
    since = max(0, newest.id - latest) if newest is not None else 0
    while rows := store.decisions(since, 256):
        since = rows[-1].id
        for row in rows:
            data = unpack(row.snapshot)
            if not data["jobs"]["ids"]:
                continue
            last = data
            tables.update((kind[0], np.array(kind[4], dtype=float)) for kind in data["types"])
            policies[row.policy] = policies.get(row.policy, 0) + 1
            if teacher in (None, row.policy):
                lessons.append(views_of(data))
    if last is None:
        raise ValueError(f"{store.shown}: the record holds no decision: run jobs under elastic-mx serve first")
    if not lessons:
        there = ", ".join(f"{name} {count}" for name, count in policies.items())
        raise ValueError(f"{store.shown}: the record holds no decision of {teacher!r}: it has {there}")
    name = teacher or max(policies, key=lambda name: policies[name])
    began, seconds = float(store.setting("began", 0.0)), float(last["slot_seconds"])
    nodes = capacity_of(last)
    every = [job for row in store.jobs() if (job := _known(row, began, seconds))]
    jobs = [job for job in every if job.spec.kind in tables and fits(job.spec, nodes)]
    if not jobs:
        raise ValueError(f"{store.shown}: the record holds no job that ran: run jobs under elastic-mx serve first")
    jobs.sort(key=lambda job: (job.arrival, job.id))
    workload, kinds = workload_of(nodes, jobs, tables, seconds)
    return Recorded(
        lessons=lessons,
        policies=policies,
        decider=None if name in LEARNED else policy_of(name),
        workload=workload,
        kinds=np.array(kinds),
        epochs=np.array([job.epochs for job in jobs]),
        gaps=gaps([job.arrival for job in jobs]),
        seed=seed,
    )


def _known(row: JobRow, began: float, slot_seconds: float) -> Optional[Known]:
    """A job that tells of what comes to this cluster: its owner says how long it is, or it has shown it."""
    told = row.spec.epochs or row.spec.steps
    epochs = Seen(row.id, row.spec, 0.0).epochs if told else row.done if row.state == t.FINISHED else 0.0
    if row.started_at is None or not epochs:
        return None
    return Known(row.id, row.spec, (row.submitted_at - began) / slot_seconds, float(epochs))
