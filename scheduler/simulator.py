"""A cluster in arrays: advances jobs slot by slot under any policy. Policies, traces and reports are elsewhere.

Rules of the DL2 authors' simulator: every slot each job's allocation is decided afresh; a job advances by
rate(servers, workers) epochs if it has at least one of each; one that finishes a fraction f into slot t ends at t + f
and its JCT is t + f - arrival, in slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        resized: bool [n], jobs that have run before and whose size changed; a restart after a pause is one too.
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


@dataclass(frozen=True)
class _Size:
    """An allocation and what follows from it for the present jobs; ``settled`` once it has been in force for a slot."""

    allocation: Allocation
    kinds: Array
    rate: Array
    share: Array
    used: Array
    settled: bool = False


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
        totals = self.capacity.sum(axis=0)
        self._totals = np.where(totals > 0, totals, np.inf)
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
        self._checked: Optional[Allocation] = None  # this and the next hold for the present jobs and nodes
        self._size: Optional[_Size] = None
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
        at, size = self._active, self._sized(self._pending)
        rate = size.rate
        if self.settings.speed_variation:
            rate = rate * (1.0 + self.settings.speed_variation * self._speed_rng.uniform(-1, 1, len(at)))
        resized, lost = self._resize_losses(size)
        failed, until = self._failures(size.allocation)
        need = self.true_epochs[at] - self.done[at]
        possible = rate * np.maximum(until - lost, 0.0)
        finished = (possible >= need) & (rate > 0)
        trained = np.where(finished, need, possible)
        self.done[at] += trained
        self.service[at] += size.share
        self.measured[at] = np.where(rate > 0, rate, np.nan)
        spent = np.ones(len(at))
        ends = bool(finished.any())
        if ends:
            spent[finished] = lost[finished] + need[finished] / rate[finished]
            self.end[at[finished]] = self.slot + spent[finished]
            self._active = at[~finished]
        self.used_history.append(size.used)
        if self.settings.record:
            self.history.append((at, size.allocation.servers, size.allocation.workers))
        self._next_slot(changed=ends)
        return SlotResult(
            epochs=trained,
            fraction=trained / self.trace.epochs[at],
            finished=finished,
            resized=resized,
            failed=failed,
            lost_seconds=lost * self.workload.slot_seconds,
            spent=spent,
            used=size.used,
        )

    def _next_slot(self, changed: bool) -> None:
        """Jobs arrive and nodes come and go; ``changed`` says that jobs have left."""
        self._pending = self._seen = None
        self.slot += 1
        jobs = len(self._active)
        self._arrive()
        changed = changed or len(self._active) != jobs
        if self.settings.node_mtbf:
            alive = self._up_again <= self.slot
            changed = changed or not np.array_equal(alive, self.alive)
            self.alive = alive
        if changed:
            self._size = self._checked = None

    def _sized(self, allocation: Allocation) -> _Size:
        """What follows from the allocation alone; kept for as long as it, the jobs and the nodes stay the same."""
        if self._size is not None and self._size.allocation is allocation:
            self._size = replace(self._size, settled=True)
            return self._size
        kinds = self.trace.type_index[self._active]
        servers, workers = allocation.servers, allocation.workers
        rate = self.rates[kinds, servers, workers]
        if self._placed and allocation.placement is not None:
            speed = self._placed.speeds(kinds, allocation.placement, len(self.capacity))
            placed = speed * self.workload.slot_seconds / self._samples[kinds]
            rate = np.where(self._placed.is_physical[kinds], placed, rate)
        used = self._demand.worker[kinds] * workers[:, None] + self._demand.server[kinds] * servers[:, None]
        share = (used / self._totals).max(axis=1, initial=0.0)
        self._size = _Size(allocation, kinds, rate, share, used.sum(axis=0))
        return self._size

    def _resize_losses(self, size: _Size) -> Tuple[Array, Array]:
        """Which jobs that have run before change size, bool [n], and the part of the slot it costs, float64 [n]."""
        at, n = self._active, len(self._active)
        if size.settled:
            return np.zeros(n, dtype=bool), np.zeros(n)
        servers, workers = size.allocation.servers, size.allocation.workers
        old_s, old_w = self.servers[at], self.workers[at]
        resized = ((old_s != servers) | (old_w != workers)) & (self.service[at] > 0) & (workers > 0)
        self.servers[at], self.workers[at] = servers, workers
        self.resizes += int(resized.sum())
        cost = self.settings.resize_cost
        if cost is None or not resized.any():
            return resized, np.zeros(n)
        seconds = cost.seconds(self.model_size[size.kinds], (old_s, old_w), (servers, workers))
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
