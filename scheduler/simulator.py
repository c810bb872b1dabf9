"""A cluster in arrays: advances jobs slot by slot under any policy. Policies, traces and reports are elsewhere.

Rules of the DL2 authors' simulator: every slot each job's allocation is decided afresh; a job advances by
rate(servers, workers) epochs if it has at least one of each; one that finishes a fraction f into slot t ends at t + f
and its JCT is t + f - arrival, in slots.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import List, Optional, Tuple

import numpy as np

from scheduler.core import SERVER, Allocation, ClusterView, JobsView, Policy, ResizeCost
from scheduler.placement import Placer
from scheduler.workload import Trace, Workload


@dataclass(frozen=True)
class SimulatorSettings:
    """What may go wrong, and what is recorded.

    Attributes:
        epoch_error: true epochs differ from the estimate by up to this fraction, uniformly, per job.
        speed_error: estimated speeds differ from the true ones by up to this fraction, smoothly over sizes, per job.
        speed_variation: the true speed varies by up to this fraction from slot to slot (interference), per job.
        resize_cost: training seconds lost when a job's size changes; None for none.
        check: refuse allocations that exceed a node or a limit. Costs some microseconds a slot.
        record: keep each slot's allocation, for reports.
        max_slots: refuse to go on for longer: some job never finishes under this policy.
    """

    epoch_error: float = 0.0
    speed_error: float = 0.0
    speed_variation: float = 0.0
    resize_cost: Optional[ResizeCost] = None
    check: bool = True
    record: bool = False
    max_slots: int = 100_000


@dataclass(frozen=True)
class SlotResult:
    """What happened in one slot, aligned with the JobsView that was observed.

    Attributes:
        epochs: float64 [n], epochs trained.
        fraction: float64 [n], the same as a fraction of the job's estimated total: DL2's reward is its sum.
        finished: bool [n].
        resized: bool [n], running jobs whose size changed.
        lost_seconds: float64 [n], what the resizes cost.
        used: float64 [R], units in use.
    """

    epochs: np.ndarray
    fraction: np.ndarray
    finished: np.ndarray
    resized: np.ndarray
    lost_seconds: np.ndarray
    used: np.ndarray


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
        self.worker_demand = np.array([kind.worker for kind in workload.types])
        self.server_demand = np.array([kind.server for kind in workload.types])
        self.model_size = np.array([kind.model_size_mb for kind in workload.types])
        self.capacity = workload.capacity
        self._totals = self.capacity.sum(axis=0)
        self.reset(trace, seed)

    def reset(self, trace: Optional[Trace] = None, seed: int = 0) -> None:
        """Back to slot 0, with another trace and seed if given."""
        if trace is not None:
            self.trace = trace
        trace, n = self.trace, len(self.trace)
        self._rng = np.random.default_rng(seed)
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
        self.alive = np.ones(len(self.capacity), dtype=bool)
        self.used_history: List[np.ndarray] = []
        self.history: List[Tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # trace index, servers, workers
        self._next = 0  # trace index of the next arrival
        self._active = np.zeros(0, dtype=np.int64)
        self._pending: Optional[Allocation] = None
        self._arrive()

    @property
    def finished(self) -> bool:
        """All jobs of the trace are done."""
        return self._next == len(self.trace) and len(self._active) == 0

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
        )
        return cluster, jobs

    def enact(self, allocation: Allocation) -> None:
        if self.settings.check:
            self._check(allocation)
        self._pending = allocation

    def wait(self) -> bool:
        if self._pending is None:
            raise RuntimeError("wait() before enact(): give the simulator an allocation for the slot first")
        self._advance(self._pending)
        return not self.finished

    def step(self, allocation: Allocation) -> SlotResult:
        """``enact`` and ``wait`` in one, with what happened in the slot."""
        self.enact(allocation)
        return self._advance(allocation)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        last = int(np.searchsorted(self.trace.arrival, self.slot, side="right"))
        if last > self._next:
            self._active = np.concatenate([self._active, np.arange(self._next, last)])
            self._next = last

    def _advance(self, allocation: Allocation) -> SlotResult:
        at, settings = self._active, self.settings
        kinds = self.trace.type_index[at]
        servers, workers = allocation.servers, allocation.workers
        rate = self.rates[kinds, servers, workers]
        if settings.speed_variation:
            rate = rate * (1.0 + settings.speed_variation * self._rng.uniform(-1, 1, len(at)))
        old_s, old_w = self.servers[at], self.workers[at]
        resized = ((old_s != servers) | (old_w != workers)) & (old_w > 0) & (workers > 0)
        lost = np.zeros(len(at))
        if settings.resize_cost is not None and resized.any():
            cost = settings.resize_cost.seconds(self.model_size[kinds], (old_s, old_w), (servers, workers))
            lost = np.where(resized, np.minimum(cost / self.workload.slot_seconds, 1.0), 0.0)
        need = self.true_epochs[at] - self.done[at]
        possible = rate * (1.0 - lost)
        finished = (possible >= need) & (rate > 0)
        trained = np.where(finished, need, possible)
        used = self.worker_demand[kinds] * workers[:, None] + self.server_demand[kinds] * servers[:, None]
        self.done[at] += trained
        self.servers[at], self.workers[at] = servers, workers
        self.service[at] += (used / self._totals).max(axis=1, initial=0.0)
        self.measured[at] = np.where(rate > 0, rate, np.nan)
        if finished.any():
            self.end[at[finished]] = self.slot + lost[finished] + need[finished] / rate[finished]
        self.resizes += int(resized.sum())
        total = used.sum(axis=0)
        self.used_history.append(total)
        if settings.record:
            self.history.append((at, servers, workers))
        result = SlotResult(
            epochs=trained,
            fraction=trained / self.trace.epochs[at],
            finished=finished,
            resized=resized,
            lost_seconds=lost * self.workload.slot_seconds,
            used=total,
        )
        self._active = at[~finished]
        self._pending = None
        self.slot += 1
        self._arrive()
        return result

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

    def _check(self, allocation: Allocation) -> None:
        n, limits = len(self._active), (self.workload.max_servers, self.workload.max_workers)
        for name, counts, limit in zip(("servers", "workers"), (allocation.servers, allocation.workers), limits):
            if len(counts) != n:
                raise ValueError(f"allocation has {len(counts)} entries of {name} for {n} jobs: one per observed job")
            if n and (counts.min() < 0 or counts.max() > limit):
                raise ValueError(f"allocation gives {counts.min()} to {counts.max()} {name}: must be 0 to {limit}")
        place = allocation.placement
        if place is None:
            raise ValueError("allocation has no placement: take it from Placer.allocation() or place_counts()")
        kinds = self.trace.type_index[self._active[place.job]]
        demand = np.where((place.role == SERVER)[:, None], self.server_demand[kinds], self.worker_demand[kinds])
        used = np.zeros_like(self.capacity)
        np.add.at(used, place.node, demand)
        over = np.flatnonzero(((used > self.capacity + 1e-6).any(axis=1)) | (~self.alive & (used > 0).any(axis=1)))
        if len(over):
            node = int(over[0])
            raise ValueError(
                f"allocation puts {used[node].tolist()} of {list(self.workload.resources)} on node {node}, which has "
                f"{self.capacity[node].tolist()}{'' if self.alive[node] else ' and is down'}"
            )


def place_counts(cluster: ClusterView, jobs: JobsView, servers: np.ndarray, workers: np.ndarray) -> Allocation:
    """Places the wanted counts (int [n] each) job after job; what does not fit is left out."""
    placer = Placer(cluster, jobs)
    for i in range(len(jobs)):
        pairs = min(int(servers[i]), int(workers[i]))
        for _ in range(pairs):
            if placer.add_worker(i):
                placer.add_server(i)
        for _ in range(int(workers[i]) - pairs):
            placer.add_worker(i)
        for _ in range(int(servers[i]) - pairs):
            placer.add_server(i)
    return placer.allocation()


@dataclass(frozen=True)
class RunResult:
    """One policy on one trace; times in slots unless they say otherwise."""

    policy: str
    trace: str
    jct: np.ndarray
    makespan: float
    slots: int
    resizes: int
    decision_ms: float
    seconds: float
    utilisation: np.ndarray


def run(policy: Policy, simulator: Simulator) -> RunResult:
    """Runs a policy to the end of the simulator's trace.

    Raises:
        RuntimeError: the trace is not finished after ``max_slots`` slots.
    """
    began, deciding, decisions = time.perf_counter(), 0.0, 0
    policy.reset()
    while not simulator.finished:
        if simulator.slot >= simulator.settings.max_slots:
            raise RuntimeError(
                f"{policy.name}: {len(simulator._active)} jobs are unfinished after {simulator.slot} slots: "
                "raise --slots, or look why the policy starves them"
            )
        cluster, jobs = simulator.observe()
        start = time.perf_counter()
        allocation = policy.allocate(cluster, jobs)
        deciding += time.perf_counter() - start
        decisions += 1
        simulator.step(allocation)
    jct = simulator.end - simulator.trace.arrival
    used = np.array(simulator.used_history)
    return RunResult(
        policy=policy.name,
        trace=simulator.trace.name,
        jct=jct,
        makespan=float(simulator.end.max()),
        slots=simulator.slot,
        resizes=simulator.resizes,
        decision_ms=1000.0 * deciding / max(decisions, 1),
        seconds=time.perf_counter() - began,
        utilisation=used.mean(axis=0) / simulator.capacity.sum(axis=0),
    )


def _error_fields(rng: np.random.Generator, count: int, shape: Tuple[int, int]) -> np.ndarray:
    """Smooth random fields in [-1, 1], float64 [count, *shape]: a coarse grid of 5 x 5, bilinearly refined."""
    coarse = rng.uniform(-1, 1, (count, 5, 5))
    fields = coarse
    for axis, size in enumerate(shape, start=1):
        position = np.linspace(0, 4, size)
        low = np.minimum(position.astype(int), 3)
        part = (position - low).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
        fields = np.take(fields, low, axis) * (1 - part) + np.take(fields, low + 1, axis) * part
    return fields
