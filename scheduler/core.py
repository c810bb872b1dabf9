"""The nouns that policies, simulator and backends share: job types, views, allocations, Policy and Cluster.

Nothing here decides, places, simulates or reads files. Arrays over jobs are aligned: index i is the same job in
every array of one ``JobsView`` and in the ``Allocation`` that answers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple, Union, runtime_checkable

import numpy as np
from numpy.typing import NDArray

SERVER, WORKER = 0, 1
Array = NDArray[Any]  # shapes and dtypes are in the docstrings


@dataclass(frozen=True)
class JobType:
    """A kind of training job.

    Attributes:
        name: as in workload files.
        worker, server: demand of one task, one number per resource of the workload.
        samples_per_epoch: samples; with a speed in samples/s this gives epochs per second.
        epochs: how long a job of this type usually trains, in epochs.
        model_size_mb: parameters, MB; feeds the resize cost and the physical speed model.
        compute_seconds: forward and backward of one step on one worker, s; feeds the physical speed model.
        speed: a speed model of ``scheduler.speeds`` (or None where it is unknown, as on a live cluster).
        weight: relative share of arrivals in generated traces.
    """

    name: str
    worker: Tuple[float, ...]
    server: Tuple[float, ...]
    samples_per_epoch: float = 1.0
    epochs: float = 1.0
    model_size_mb: float = 0.0
    compute_seconds: float = 0.0
    speed: Optional[Any] = None
    weight: float = 1.0
    pair: Tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pair", tuple(w + s for w, s in zip(self.worker, self.server)))


class Demands:
    """The demands of some job types as arrays, and numbered so that equal ones share a number.

    Attributes:
        worker, server: float64 [T, R].
        terms: by number, the (resource, amount) pairs above zero.
        of_worker, of_server, of_pair: the number of each type's demand, lists of length T.
    """

    def __init__(self, types: Sequence[JobType]) -> None:
        self.worker = np.array([kind.worker for kind in types], dtype=float).reshape(len(types), -1)
        self.server = np.array([kind.server for kind in types], dtype=float).reshape(len(types), -1)
        self.terms: List[Tuple[Tuple[int, float], ...]] = []
        known: Dict[Tuple[float, ...], int] = {}
        self.of_worker = [self._number(known, kind.worker) for kind in types]
        self.of_server = [self._number(known, kind.server) for kind in types]
        self.of_pair = [self._number(known, kind.pair) for kind in types]
        self._amounts = np.array(list(known), dtype=float)
        self._capacity: Optional[Array] = None
        self._holders: List[Optional[List[int]]] = []

    def holders(self, capacity: Array) -> List[Optional[List[int]]]:
        """By demand number, the nodes large enough for it when empty; None if all are. Kept while asked for the same
        array. ``capacity``: float64 [N, R]."""
        if self._capacity is not capacity:
            self._capacity = capacity
            enough = (self._amounts[:, None] <= capacity[None] + 1e-9).all(axis=2) if self.terms else np.ones((0, 0))
            self._holders = [None if row.all() else np.flatnonzero(row).tolist() for row in enough]
        return self._holders

    def _number(self, known: Dict[Tuple[float, ...], int], demand: Tuple[float, ...]) -> int:
        if demand not in known:
            known[demand] = len(self.terms)
            self.terms.append(tuple((r, need) for r, need in enumerate(demand) if need))
        return known[demand]


class ResizeCost(Protocol):
    """Training seconds that a job loses when its size changes."""

    def seconds(self, size_mb: Array, old: Tuple[Array, Array], new: Tuple[Array, Array]) -> Array:
        """Seconds lost per job, float64 [n]; ``old`` and ``new`` are (servers, workers), int [n] each."""
        ...


@dataclass(frozen=True)
class ClusterView:
    """The cluster as a policy sees it at the start of a slot.

    Attributes:
        slot: index of the slot that is about to begin.
        slot_seconds: its length.
        resources: names, length R.
        capacity: float64 [N, R]; the rows of dead nodes count as zero in ``totals``.
        alive: bool [N].
        max_servers, max_workers: the most tasks of a role that one job may have.
        resize_cost: what a resize costs, or None if nothing.
    """

    slot: int
    slot_seconds: float
    resources: Tuple[str, ...]
    capacity: Array
    alive: Array
    max_servers: int
    max_workers: int
    resize_cost: Optional[ResizeCost] = None

    @property
    def nodes(self) -> int:
        return len(self.capacity)

    @property
    def inverse_capacity(self) -> Array:
        """1 / capacity, zero where a node has none of a resource, float64 [N, R]."""
        return np.divide(1.0, self.capacity, out=np.zeros_like(self.capacity), where=self.capacity > 0)

    @property
    def totals(self) -> Array:
        """Capacity of all nodes that are alive, float64 [R]."""
        if self.alive.all():
            return np.asarray(self.capacity.sum(axis=0))
        return np.asarray(self.capacity[self.alive].sum(axis=0))


@dataclass(frozen=True)
class JobsView:
    """The unfinished jobs as a policy sees them, by arrival, then id. All arrays have length n.

    Attributes:
        ids: int64, unique.
        types: the distinct job types; ``type_index`` (int64) points into it.
        arrival: float64, slot of arrival.
        epochs: float64, total epochs as estimated; the truth may differ.
        done: float64, epochs trained so far.
        servers, workers: int64, what the job had in the slot before.
        service: float64, attained service: dominant share of the cluster times slots.
        rates: float64 [M, max_servers + 1, max_workers + 1], estimated epochs per slot at (servers, workers), zero
            where either is zero; ``rate_index`` (int64) says which row is a job's own. M = 0 where nothing is known.
        demand: the demands of ``types``; worked out here unless a backend that asks often brings it along.
        measured: float64, epochs per slot seen in the slot before (without what a resize cost); NaN if it did not run.
    """

    ids: Array
    types: Tuple[JobType, ...]
    type_index: Array
    arrival: Array
    epochs: Array
    done: Array
    servers: Array
    workers: Array
    service: Array
    rates: Array
    rate_index: Array
    measured: Array
    demand: Demands = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.demand is None:
            object.__setattr__(self, "demand", Demands(self.types))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def remaining(self) -> Array:
        """Estimated epochs left, float64 [n]; a job that outlives its estimate keeps 1 % of it."""
        return np.maximum(self.epochs - self.done, 0.01 * self.epochs)

    def type(self, i: int) -> JobType:
        return self.types[int(self.type_index[i])]

    def table(self, i: int) -> Array:
        """Estimated epochs per slot of job i, float64 [max_servers + 1, max_workers + 1]."""
        return np.asarray(self.rates[self.rate_index[i]])

    def rate(self, servers: Union[int, Array], workers: Union[int, Array]) -> Array:
        """Estimated epochs per slot of every job at the given sizes (int [n], or one for all), float64 [n]."""
        return np.asarray(self.rates[self.rate_index, servers, workers])

    def demands(self) -> Tuple[Array, Array]:
        """Demand of one worker and of one server of every job, float64 [n, R] each."""
        return self.demand.worker[self.type_index], self.demand.server[self.type_index]


@dataclass(frozen=True)
class Placement:
    """Where tasks run: parallel int64 arrays, one entry per task. ``job`` is the index in the JobsView."""

    job: Array
    role: Array
    node: Array


@dataclass(frozen=True)
class Allocation:
    """What each job gets in the slot: int64 [n] servers and workers, and where, if the policy placed them."""

    servers: Array
    workers: Array
    placement: Optional[Placement] = None


class Policy:
    """Base of every policy. ``allocate`` answers what each job gets; it must not change what it is given."""

    name = "policy"

    def reset(self, seed: int = 0) -> None:
        """Forgets what was learnt from one run, before another begins."""

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        raise NotImplementedError


@runtime_checkable
class Cluster(Protocol):
    """A backend: Simulated, Local or Kubernetes. A policy cannot tell which it is driving."""

    def observe(self) -> Tuple[ClusterView, JobsView]:
        """The cluster and its unfinished jobs as of now."""
        ...

    def enact(self, allocation: Allocation) -> None:
        """Applies the answer to the latest ``observe``."""
        ...

    def wait(self) -> bool:
        """Lets the slot pass (a simulated cluster computes it); False when nothing is left to schedule."""
        ...
