"""A cluster in arrays: advances jobs slot by slot under any policy. Policies, traces and reports are elsewhere.

Rules of the DL2 authors' simulator: every slot each job's allocation is decided afresh; a job advances by
rate(servers, workers) epochs if it has at least one of each; one that finishes a fraction f into slot t ends at t + f
and its JCT is t + f - arrival, in slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, Demands, JobsView, ResizeCost
from scheduler.physical import PlacedSpeeds
from scheduler.placement import check_allocation, place_counts
from scheduler.workload import Trace, Workload


@dataclass(frozen=True)
class SimulatorSettings:
    """What may go wrong, and what is recorded.

    Attributes:
        epoch_error: true epochs differ from the estimate by up to this fraction, uniformly, per job.
        speed_error: estimated speeds differ from the true ones by up to this fraction, smoothly over sizes, per job.
        speed_variation: the true speed varies by up to this fraction from slot to slot (interference), per job.
        resize_cost: training seconds lost when a job's size changes; None for none.
        node_mtbf: mean slots between failures of one node; 0 for none. A job with a task on it stops for the slot.
        node_repair: slots that a failed node stays down after the slot in which it failed.
        failure_seconds: training seconds that a failure takes from a job it hits (work since its last checkpoint).
        check: refuse allocations that exceed a node or a limit; costs some 50 microseconds a slot.
        record: keep each slot's allocation, for reports.
        max_slots: give up after so many: some job never finishes under this policy.

    Raises:
        ValueError: a number out of its range.
    """

    epoch_error: float = 0.0
    speed_error: float = 0.0
    speed_variation: float = 0.0
    resize_cost: Optional[ResizeCost] = None
    node_mtbf: float = 0.0
    node_repair: int = 1
    failure_seconds: float = 0.0
    check: bool = True
    record: bool = False
    max_slots: int = 100_000

    def __post_init__(self) -> None:
        for name in ("epoch_error", "speed_error", "speed_variation"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}, must be a fraction of 0 or more, below 1")
        for name in ("node_mtbf", "node_repair", "failure_seconds"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}, must be 0 or more")
        if self.max_slots < 1:
            raise ValueError(f"max_slots is {self.max_slots}, must be at least 1")


@dataclass(frozen=True)
class SlotResult:
    """What happened in one slot, aligned with the JobsView that was observed.

    Attributes:
        epochs: float64 [n], epochs trained.
        fraction: float64 [n], the same as a fraction of the job's estimated total: DL2's reward is its sum.
        finished: bool [n].
        resized: bool [n], running jobs whose size changed.
        failed: bool [n], jobs that lost a task to a node failure.
        lost_seconds: float64 [n], what the resizes cost.
        spent: float64 [n], the part of the slot that passed until the job finished, else 1.
        used: float64 [R], units in use.
    """

    epochs: Array
    fraction: Array
    finished: Array
    resized: Array
    failed: Array
    lost_seconds: Array
    spent: Array
    used: Array


class Simulator:
    """A simulated Cluster, and a reinforcement-learning environment: ``reset``, then ``observe`` and ``step``.

    Args:
        workload: cluster and job types with speed models.
        trace: the jobs; can be replaced by ``reset``.
        seed: fixes every random draw.
    """

    def __init__(
        self,
        workload: Workload,
        trace: Trace,
        settings: Optional[SimulatorSettings] = None,
        seed: int = 0,
    ) -> None:
        self.workload = workload
        self.settings = settings or SimulatorSettings()
        self.rates = workload.speed_tables()
        self._demand = Demands(workload.types)
        self._samples = np.array([kind.samples_per_epoch for kind in workload.types])
        self.model_size = np.array([kind.model_size_mb for kind in workload.types])
        self.capacity = workload.capacity
        self._totals = self.capacity.sum(axis=0)
        self._placed = PlacedSpeeds(workload.types)
        self.reset(trace, seed)

    def reset(self, trace: Optional[Trace] = None, seed: int = 0) -> None:
        """Back to slot 0, with another trace and seed if given."""
        if trace is not None:
            self.trace = trace
        trace, n = self.trace, len(self.trace)
        streams = np.random.SeedSequence(seed).spawn(3)  # so that one kind of noise does not shift another
        self._rng, self._speed_rng, self._failure_rng = (np.random.default_rng(stream) for stream in streams)
        self.slot = 0
        error = self.settings.epoch_error
        self.true_epochs = trace.epochs * (1.0 + error * self._rng.uniform(-1, 1, n)) if error else trace.epochs
        self._estimate_speeds(n)
        self.done = np.zeros(n)
        self.servers = np.zeros(n, dtype=np.int64)
        self.workers = np.zeros(n, dtype=np.int64)
        self.service = np.zeros(n)
        self.measured = np.full(n, np.nan)
        self.end = np.full(n, np.nan)  # slots, fractional
        self.resizes = 0
        self.failures = 0
        self.alive = np.ones(len(self.capacity), dtype=bool)
        self._up_again = np.zeros(len(self.capacity), dtype=np.int64)  # the slot from which a node is alive
        self.used_history: List[Array] = []
        self.history: List[Tuple[Array, Array, Array]] = []  # trace index, servers, workers
        self._next = 0  # trace index of the next arrival
        self._active = np.zeros(0, dtype=np.int64)
        self._pending: Optional[Allocation] = None
        self._seen: Optional[Tuple[ClusterView, JobsView]] = None
        self._checked: Optional[Allocation] = None  # holds for the present jobs and nodes
        self._arrive()

    @property
    def finished(self) -> bool:
        """All jobs of the trace are done."""
        return self._next == len(self.trace) and len(self._active) == 0

    @property
    def unfinished(self) -> int:
        """Jobs that have arrived and are not done."""
        return len(self._active)

    # -- the Cluster interface --------------------------------------------------------------------------------------

    def observe(self) -> Tuple[ClusterView, JobsView]:
        workload, trace, at = self.workload, self.trace, self._active
        cluster = ClusterView(
            slot=self.slot,
            slot_seconds=workload.slot_seconds,
            resources=workload.resources,
            capacity=self.capacity,
            alive=self.alive,
            max_servers=workload.max_servers,
            max_workers=workload.max_workers,
            resize_cost=self.settings.resize_cost,
        )
        jobs = JobsView(
            ids=trace.ids[at],
            types=workload.types,
            type_index=trace.type_index[at],
            arrival=trace.arrival[at].astype(float),
            epochs=trace.epochs[at],
            done=self.done[at],
            servers=self.servers[at],
            workers=self.workers[at],
            service=self.service[at],
            rates=self.estimated_rates,
            rate_index=self._rate_index[at],
            measured=self.measured[at],
            demand=self._demand,
        )
        self._seen = cluster, jobs
        return cluster, jobs

    def enact(self, allocation: Allocation) -> None:
        cluster, jobs = self._seen if self._seen is not None else self.observe()
        if allocation.placement is None:
            allocation = place_counts(cluster, jobs, allocation.servers, allocation.workers)
        if self.settings.check and allocation is not self._checked:
            check_allocation(cluster, jobs, allocation)
            self._checked = allocation
        self._pending = allocation

    def wait(self) -> bool:
        if self._pending is None:
            raise RuntimeError("wait() before enact(): give the simulator an allocation for the slot first")
        self._advance()
        return not self.finished

    def step(self, allocation: Allocation) -> SlotResult:
        """``enact`` and ``wait`` in one, with what happened in the slot."""
        self.enact(allocation)
        return self._advance()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        last = int(np.searchsorted(self.trace.arrival, self.slot, side="right"))
        if last > self._next:
            self._active = np.concatenate([self._active, np.arange(self._next, last)])
            self._next = last

    def _advance(self) -> SlotResult:
        assert self._pending is not None
        at, allocation = self._active, self._pending
        kinds = self.trace.type_index[at]
        servers, workers = allocation.servers, allocation.workers
        rate = self._true_rates(kinds, allocation)
        resized, lost = self._resize_losses(kinds, servers, workers)
        failed, until = self._failures(allocation)
        productive = np.maximum(until - lost, 0.0)  # as a part of the slot
        need = self.true_epochs[at] - self.done[at]
        possible = rate * productive
        finished = (possible >= need) & (rate > 0)
        trained = np.where(finished, need, possible)
        used = self._demand.worker[kinds] * workers[:, None] + self._demand.server[kinds] * servers[:, None]
        self.done[at] += trained
        self.servers[at], self.workers[at] = servers, workers
        self.service[at] += (used / self._totals).max(axis=1, initial=0.0)
        self.measured[at] = np.where(rate > 0, rate, np.nan)
        if finished.any():
            self.end[at[finished]] = self.slot + lost[finished] + need[finished] / rate[finished]
        self.resizes += int(resized.sum())
        total = used.sum(axis=0)
        self.used_history.append(total)
        if self.settings.record:
            self.history.append((at, servers, workers))
        self._active = at[~finished]
        self._pending = self._seen = None
        self.slot += 1
        self._arrive()
        alive = self._up_again <= self.slot
        if len(self._active) != len(at) or finished.any() or not np.array_equal(alive, self.alive):
            self._checked = None
        self.alive = alive
        return SlotResult(
            epochs=trained,
            fraction=trained / self.trace.epochs[at],
            finished=finished,
            resized=resized,
            failed=failed,
            lost_seconds=lost * self.workload.slot_seconds,
            spent=np.where(finished, self.end[at] - (self.slot - 1), 1.0),
            used=total,
        )

    def _true_rates(self, kinds: Array, allocation: Allocation) -> Array:
        """Epochs per slot of every job in this slot, float64 [n]."""
        rate = self.rates[kinds, allocation.servers, allocation.workers]
        if self._placed and allocation.placement is not None:
            speed = self._placed.speeds(kinds, allocation.placement, len(self.capacity))
            placed = speed * self.workload.slot_seconds / self._samples[kinds]
            rate = np.where(self._placed.is_physical[kinds], placed, rate)
        variation = self.settings.speed_variation
        return rate * (1.0 + variation * self._speed_rng.uniform(-1, 1, len(kinds))) if variation else rate

    def _resize_losses(self, kinds: Array, servers: Array, workers: Array) -> Tuple[Array, Array]:
        """Which running jobs change size, bool [n], and the part of the slot that it costs each, float64 [n]."""
        old_s, old_w = self.servers[self._active], self.workers[self._active]
        resized = ((old_s != servers) | (old_w != workers)) & (old_w > 0) & (workers > 0)
        cost = self.settings.resize_cost
        if cost is None or not resized.any():
            return resized, np.zeros(len(kinds))
        seconds = cost.seconds(self.model_size[kinds], (old_s, old_w), (servers, workers))
        return resized, np.where(resized, np.minimum(seconds / self.workload.slot_seconds, 1.0), 0.0)

    def _failures(self, allocation: Allocation) -> Tuple[Array, Array]:
        """Which jobs a node failure hits, bool [n], and the part of the slot that each works, float64 [n]."""
        settings, n = self.settings, len(self._active)
        until = np.ones(n)
        if not settings.node_mtbf:
            return np.zeros(n, dtype=bool), until
        chance, when = self._failure_rng.random((2, len(self.alive)))
        failing = self.alive & (chance < -np.expm1(-1.0 / settings.node_mtbf))
        self._up_again[failing] = self.slot + 1 + settings.node_repair
        self.failures += int(failing.sum())
        place = allocation.placement
        if place is not None:
            hit = failing[place.node]
            np.minimum.at(until, place.job[hit], when[place.node[hit]])
        failed = until < 1.0
        until[failed] = np.maximum(until[failed] - settings.failure_seconds / self.workload.slot_seconds, 0.0)
        return failed, until

    def _estimate_speeds(self, n: int) -> None:
        error = self.settings.speed_error
        if not error:
            self.estimated_rates = self.rates
            self._rate_index = self.trace.type_index
            return
        fields = _error_fields(self._rng, 16, self.rates.shape[1:])
        tables = self.rates[:, None] * (1.0 + error * fields[None])
        self.estimated_rates = tables.reshape((-1, *self.rates.shape[1:]))
        self._rate_index = self.trace.type_index * len(fields) + self._rng.integers(len(fields), size=n)


def _error_fields(rng: np.random.Generator, count: int, shape: Tuple[int, ...]) -> Array:
    """Smooth random fields in [-1, 1], float64 [count, *shape]: a coarse grid of 5 x 5, bilinearly refined."""
    coarse = rng.uniform(-1, 1, (count, 5, 5))
    fields = coarse
    for axis, size in enumerate(shape, start=1):
        position = np.linspace(0, 4, size)
        low = np.minimum(position.astype(int), 3)
        part = (position - low).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
        fields = np.take(fields, low, axis) * (1 - part) + np.take(fields, low + 1, axis) * part
    return fields
