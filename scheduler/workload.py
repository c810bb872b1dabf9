"""A workload (cluster and job types) and a trace (which jobs arrive when). Reading and drawing them is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

import numpy as np

from scheduler.core import Array, JobType

PROCESSES = ("dl2", "poisson", "diurnal", "google")


@dataclass(frozen=True)
class Arrivals:
    """How jobs arrive in drawn traces (``scheduler.traces.generate``).

    Attributes:
        process: ``dl2`` repeats the workload's arrivals by peak; the others need no such pattern.
        rate: mean arrivals per slot, for poisson, diurnal and google.
        amplitude: of the daily swing, as a fraction of the rate.
        period_slots: length of a day.
        peak: most arrivals in a slot.
        jobs: jobs in a trace.
        epoch_spread: a job's epochs are uniform within this fraction around its type's.
    """

    process: str = "dl2"
    rate: float = 1.5
    amplitude: float = 0.5
    period_slots: int = 72
    peak: int = 3
    jobs: int = 60
    epoch_spread: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A cluster and the kinds of jobs that come to it.

    Attributes:
        resources: names, length R.
        capacity: float64 [N, R], units per node.
        types: the job types; traces refer to them by index.
        max_servers, max_workers: the most tasks of a role that one job may have.
        arrivals: arrivals per slot by peak, as in DL2's files; empty where unknown.
        process: how jobs arrive in drawn traces.
    """

    name: str
    slot_seconds: float
    resources: Tuple[str, ...]
    capacity: Array
    types: Tuple[JobType, ...]
    max_servers: int
    max_workers: int
    arrivals: Dict[int, Tuple[int, ...]] = field(default_factory=dict)
    process: Arrivals = field(default_factory=Arrivals)

    def __post_init__(self) -> None:
        if not len(self.capacity) or not self.types:
            missing = "nodes" if not len(self.capacity) else "job types"
            raise ValueError(f"workload {self.name!r} is empty: it has no {missing}")

    @property
    def nodes(self) -> int:
        return len(self.capacity)

    def type_named(self, name: str) -> int:
        """Index of a job type by its name; KeyError if there is none."""
        for index, kind in enumerate(self.types):
            if kind.name == name:
                return index
        raise KeyError(name)

    def speed_tables(self) -> Array:
        """Epochs per slot at (servers, workers) by type, float64 [T, max_servers + 1, max_workers + 1]; cached."""
        cached: Optional[Array] = self.__dict__.get("_tables")
        if cached is None:
            tables = []
            for kind in self.types:
                if kind.speed is None:
                    raise ValueError(f"job type {kind.name!r} has no speed model: give one in the workload or --speeds")
                table = kind.speed.table(self.max_servers, self.max_workers)
                tables.append(table * self.slot_seconds / kind.samples_per_epoch)
            cached = np.stack(tables)
            cached.setflags(write=False)
            object.__setattr__(self, "_tables", cached)
        return cached


@dataclass(frozen=True)
class Trace:
    """Jobs in order of arrival, then id; all arrays have length n.

    Attributes:
        ids: int64, unique.
        type_index: int64, into the workload's types.
        arrival: int64, slot of arrival.
        epochs: float64, what the job's owner says it will train.
    """

    name: str
    ids: Array
    type_index: Array
    arrival: Array
    epochs: Array

    def __len__(self) -> int:
        return len(self.ids)


def make_trace(name: str, ids: Array, type_index: Array, arrival: Array, epochs: Array) -> Trace:
    """Sorts by arrival, then id, and gives the arrays their types."""
    order = np.lexsort((ids, arrival))
    return Trace(
        name=name,
        ids=np.asarray(ids, dtype=np.int64)[order],
        type_index=np.asarray(type_index, dtype=np.int64)[order],
        arrival=np.asarray(arrival, dtype=np.int64)[order],
        epochs=np.asarray(epochs, dtype=float)[order],
    )
