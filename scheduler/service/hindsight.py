"""The record as a simulated cluster: its nodes, its job types with the speeds measured live, its jobs by arrival.

What is simulated on it is up to others: agents are trained and judged there (scheduler.learn), and what the fallback
would have made of the same jobs is what a learned policy is held against (guard.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

import numpy as np

from scheduler.core import Array, JobType, Policy
from scheduler.evaluate import run
from scheduler.service.spec import RESOURCES, JobSpec
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.workload import Arrivals, Workload, make_trace

Demand = Tuple[float, ...]
MOST_SLOTS = 20_000  # that are simulated before a policy is said to starve jobs
LONGEST_GAP = 200  # slots between two arrivals, at most: what comes after is as if the cluster were empty


@dataclass(frozen=True)
class Known:
    """A job of the record: when it arrived (slots), how long it is (epochs); ``spec`` says what it may have."""

    id: int
    spec: JobSpec
    arrival: float
    epochs: float


@dataclass(frozen=True)
class Table:
    """A speed model that is a table: samples/s at (servers, workers), and no faster beyond its edges."""

    rates: Array

    def table(self, max_servers: int, max_workers: int) -> Array:
        servers = np.minimum(np.arange(max_servers + 1), self.rates.shape[0] - 1)
        workers = np.minimum(np.arange(max_workers + 1), self.rates.shape[1] - 1)
        return np.asarray(self.rates[servers[:, None], workers])


def workload_of(
    capacity: Array, jobs: Sequence[Known], tables: Mapping[str, Array], slot_seconds: float
) -> Tuple[Workload, List[int]]:
    """The cluster with the types of these jobs, and each job's type; jobs that differ in their limits differ in type.

    Args:
        capacity: float64 [N, R].
        tables: epochs per slot at (servers, workers), by kind; each job's must be there.
    """
    numbers: Dict[Tuple[str, Demand, Demand, Tuple[int, int]], int] = {}
    lengths: List[List[float]] = []
    kinds: List[int] = []
    for job in jobs:
        spec = job.spec
        limits = spec.servers.max, spec.workers.max
        key = (spec.kind, spec.workers.demand, spec.servers.demand, limits)
        if key not in numbers:
            numbers[key] = len(numbers)
            lengths.append([])
        kinds.append(numbers[key])
        lengths[kinds[-1]].append(job.epochs)
    types = []
    for (kind, worker, server, (most_s, most_w)), epochs in zip(numbers, lengths):
        speed = Table(tables[kind][: most_s + 1, : most_w + 1] / slot_seconds)
        mean, weight = float(np.mean(epochs)), float(len(epochs))
        types.append(JobType(kind, worker, server, epochs=mean, speed=speed, weight=weight))
    most = [max(getattr(job.spec, role).max for job in jobs) for role in ("servers", "workers")]
    process = Arrivals("poisson", jobs=len(jobs))
    workload = Workload("record", slot_seconds, RESOURCES, capacity, tuple(types), most[0], most[1], process=process)
    return workload, kinds


def fits(spec: JobSpec, capacity: Array) -> bool:
    """Whether a worker and a server have room on empty nodes, float64 [N, R]: the record's nodes may have changed."""
    worker, server = (np.asarray(part.demand) for part in (spec.workers, spec.servers))
    one, other = ((capacity + 1e-9 >= demand).all(axis=1) for demand in (worker, server))
    both = (capacity + 1e-9 >= worker + server).all(axis=1)
    return bool(both.any() or (one.any() and other.any() and (one | other).sum() > 1))


def gaps(arrivals: Sequence[float]) -> Array:
    """Slots between arrivals, float64 [n], the first of them 0, none longer than LONGEST_GAP."""
    return np.clip(np.diff(np.asarray(arrivals, dtype=float), prepend=arrivals[:1]), 0.0, float(LONGEST_GAP))


def jcts_under(
    policy: Policy, capacity: Array, jobs: Sequence[Known], tables: Mapping[str, Array], slot_seconds: float
) -> Dict[int, float]:
    """By job, its JCT in slots if a policy had decided from slot 0 on: each trained from its arrival, none before.

    Raises:
        ValueError: a job can never run on these nodes, or never progress.
        RuntimeError: the policy leaves a job unfinished.
    """
    workload, kinds = workload_of(capacity, jobs, tables, slot_seconds)
    ids, arrival, epochs = (np.array([getattr(job, name) for job in jobs]) for name in ("id", "arrival", "epochs"))
    trace = make_trace("record", ids, np.array(kinds), np.floor(arrival), epochs)
    simulator = Simulator(workload, trace, SimulatorSettings(check=False, max_slots=MOST_SLOTS))
    return {int(job): float(jct) for job, jct in zip(trace.ids, run(policy, simulator).jct)}
