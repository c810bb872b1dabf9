"""One slot as pure functions: from nodes and jobs to a policy's views, and from its answer to changes of jobs.

Nothing here asks a clock, a job or the record. A backend tells what there is (``Node``, ``Seen``) and carries out what
comes back (``Move``); the same code decides for a local cluster and for a simulated one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, JobType, Policy
from scheduler.service.spec import RESOURCES, JobSpec

START, RESIZE = "start", "resize"
UNKNOWN_EPOCHS = 20.0  # what a job without a length is reckoned with
SERVER_DRAG = 0.5  # of the speed curve assumed before anything is measured: how much few servers slow many workers
_EPS = 1e-9
Size = Tuple[int, int]  # servers, workers


@dataclass(frozen=True)
class Node:
    """A machine, or a part of one. ``capacity`` is in the units and order of ``RESOURCES``; ``cores`` are those that
    its tasks may run on, empty for any."""

    name: str
    capacity: Tuple[float, ...]
    cores: Tuple[int, ...] = ()
    alive: bool = True


@dataclass(frozen=True)
class Seen:
    """An unfinished job as observed.

    Attributes:
        arrival: in slots; ``done``: epochs trained; ``service``: dominant share times slots.
        servers, workers: what it has, 0 and 0 while it waits.
        fixed: a change of it is under way, or it does not answer: it keeps what it has in this slot.
        rate: epochs per slot, measured since the slot before; None where it is not known.
    """

    id: int
    spec: JobSpec
    arrival: float
    done: float = 0.0
    service: float = 0.0
    servers: int = 0
    workers: int = 0
    fixed: bool = False
    rate: Optional[float] = None

    @property
    def size(self) -> Size:
        return self.servers, self.workers

    @property
    def waiting(self) -> bool:
        return self.workers == 0

    @property
    def least(self) -> Size:
        return self.spec.servers.min, self.spec.workers.min

    @property
    def most(self) -> Size:
        return self.spec.servers.max, self.spec.workers.max

    @property
    def epochs(self) -> float:
        if self.spec.epochs:
            return self.spec.epochs
        if self.spec.steps:
            return self.spec.steps / (self.spec.steps_per_epoch or self.spec.steps)
        return UNKNOWN_EPOCHS


@dataclass(frozen=True)
class Move:
    """What is to become of one job."""

    kind: str
    job: int
    before: Size
    size: Size


class Speeds:
    """What is learnt of the speed of each job type: the assumed curve, scaled by what was measured.

    Holds no clock and no job; ``saw`` after each observation, ``table`` for the policies.
    """

    def __init__(self, keep: int = 50) -> None:
        self._scales: Dict[str, List[float]] = {}
        self._keep = keep

    def saw(self, kind: str, size: Size, rate: float) -> None:
        """Takes in the epochs per slot of one job of a kind."""
        if rate > 0 and all(size):
            known = self._scales.setdefault(kind, [])
            known.append(rate / float(curve(np.array(size[0]), np.array(size[1]))))
            del known[: -self._keep]

    def scale(self, kind: str) -> float:
        """Epochs per slot of one worker with one server, as far as it is known."""
        every = [value for values in self._scales.values() for value in values]
        return statistics.median(self._scales.get(kind) or every or [1.0])

    def table(self, kind: str, most: Size) -> Array:
        """Epochs per slot at (servers, workers), float64 [servers + 1, workers + 1]."""
        servers, workers = np.meshgrid(np.arange(most[0] + 1.0), np.arange(most[1] + 1.0), indexing="ij")
        return np.asarray(self.scale(kind) * curve(servers, workers))


def curve(servers: Array, workers: Array) -> Array:
    """Speed relative to one worker with one server; zero where either is none."""
    ratio = np.divide(workers, servers, out=np.zeros(np.shape(workers)), where=np.asarray(servers) > 0)
    return np.where(np.asarray(servers) > 0, workers * (1 + SERVER_DRAG) / (1 + SERVER_DRAG * ratio), 0.0)


def views(
    nodes: Sequence[Node], jobs: Sequence[Seen], slot: int, slot_seconds: float, speeds: Speeds
) -> Tuple[ClusterView, JobsView]:
    """What a policy is shown; ``jobs`` in order of arrival."""
    most = (
        max((job.most[0] for job in jobs), default=1),
        max((job.most[1] for job in jobs), default=1),
    )
    cluster = ClusterView(
        slot,
        slot_seconds,
        RESOURCES,
        np.array([node.capacity for node in nodes], dtype=float).reshape(len(nodes), len(RESOURCES)),
        np.array([node.alive for node in nodes], dtype=bool),
        *most,
    )
    numbers: Dict[Tuple[object, ...], int] = {}
    types: List[JobType] = []
    index = []
    for job in jobs:
        key = (job.spec.kind, job.spec.workers.demand, job.spec.servers.demand)
        if key not in numbers:
            numbers[key] = len(types)
            types.append(JobType(*key, epochs=job.epochs))
        index.append(numbers[key])
    rates = np.array([speeds.table(kind.name, most) for kind in types]).reshape(-1, most[0] + 1, most[1] + 1)
    kinds = np.array(index, dtype=np.int64)
    return cluster, JobsView(
        ids=np.array([job.id for job in jobs], dtype=np.int64),
        types=tuple(types),
        type_index=kinds,
        arrival=np.array([job.arrival for job in jobs], dtype=float),
        epochs=np.array([job.epochs for job in jobs], dtype=float),
        done=np.array([job.done for job in jobs], dtype=float),
        servers=np.array([job.servers for job in jobs], dtype=np.int64),
        workers=np.array([job.workers for job in jobs], dtype=np.int64),
        service=np.array([job.service for job in jobs], dtype=float),
        rates=rates,
        rate_index=kinds,
        measured=np.array([np.nan if job.rate is None else job.rate for job in jobs], dtype=float),
    )


def ask(policy: Policy, safe: Policy, cluster: ClusterView, jobs: JobsView) -> Tuple[Allocation, str]:
    """The policy's answer, or the safe one's where that is none; and why, empty if the policy's was taken."""
    try:
        answer = policy.allocate(cluster, jobs)
        wrong = _wrong(answer, len(jobs))
    except Exception as error:  # a policy that fails must not cost the slot
        answer, wrong = None, f"{type(error).__name__}: {' '.join(str(error).split())}"
    if answer is not None and not wrong:
        return answer, ""
    return safe.allocate(cluster, jobs), f"{policy.name} gave no valid answer ({wrong}): {safe.name} decided"


def _wrong(answer: Allocation, n: int) -> str:
    for name, values in (("servers", answer.servers), ("workers", answer.workers)):
        array = np.asarray(values)
        if array.shape != (n,):
            return f"{name} has shape {array.shape}, not ({n},)"
        if not np.isfinite(array.astype(float)).all() or (array < 0).any():
            return f"{name} holds a number that is not finite or below 0"
    return ""


# ------------------------------------------------------------------------------------------- from answer to changes


class Room:
    """What is free, by node; takes and gives tasks."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.names = [node.name for node in nodes]
        self.free = np.array([node.capacity if node.alive else (0.0,) * len(RESOURCES) for node in nodes], dtype=float)
        self.free = self.free.reshape(len(nodes), len(RESOURCES))

    def take(self, demand: Tuple[float, ...], wanted: Optional[int] = None) -> Optional[int]:
        """Puts a task on the node with the most room (or the one that is named); the node, None if it fits nowhere."""
        need = np.asarray(demand)
        if wanted is not None:
            self.free[wanted] -= need
            return wanted
        if not len(self.free):
            return None
        most = int(self.free[:, 0].argmax())
        if need[0] > self.free[most, 0] + _EPS:
            return None
        if (self.free[most] + _EPS >= need).all():  # as it nearly always is: no other has to be looked at
            self.free[most] -= need
            return most
        fits = (self.free + _EPS >= need).all(axis=1)
        if not fits.any():
            return None
        node = int(np.where(fits, self.free[:, 0], -np.inf).argmax())
        self.free[node] -= need
        return node

    def give(self, demand: Tuple[float, ...], node: int) -> None:
        self.free[node] += np.asarray(demand)

    def take_all(self, spec: JobSpec, more: Size) -> Optional[List[int]]:
        """Puts so many servers and workers, or none (None)."""
        taken: List[Tuple[Tuple[float, ...], int]] = []
        for demand, count in ((spec.servers.demand, more[0]), (spec.workers.demand, more[1])):
            for _ in range(count):
                node = self.take(demand)
                if node is None:
                    for earlier, where in taken:
                        self.give(earlier, where)
                    return None
                taken.append((demand, node))
        return [node for _, node in taken]


def settle(nodes: Sequence[Node], jobs: Sequence[Seen], answer: Allocation) -> List[Size]:
    """The size that each job is to have: the policy's answer within what jobs and nodes allow.

    A job that runs keeps at least its minimum, as no job is suspended; one whose change is under way keeps what it
    has; one that waits begins with its minimum at least, or not yet. Higher priorities first, then by arrival.
    """
    room = Room(nodes)
    order = sorted(range(len(jobs)), key=lambda i: (-jobs[i].spec.priority, i))
    wish = [_within(jobs[i], (int(answer.servers[i]), int(answer.workers[i]))) for i in range(len(jobs))]
    size: List[Size] = [(0, 0)] * len(jobs)
    for i in order:  # what cannot be taken away
        job = jobs[i]
        if job.fixed or not job.waiting:
            size[i] = job.size if job.fixed else _smaller(job.least, job.size)
            _occupy(room, job.spec, size[i])
    for i in order:
        begins = jobs[i].waiting and not jobs[i].fixed and wish[i] != (0, 0)
        if begins and room.take_all(jobs[i].spec, jobs[i].least) is not None:
            size[i] = jobs[i].least
    growing = [i for i in order if size[i] != (0, 0) and not jobs[i].fixed]
    while growing:  # one task each in turn
        growing = [i for i in growing if _grow(room, jobs[i], size, i, wish[i])]
    return size


def _within(job: Seen, wish: Size) -> Size:
    """A wish within a job's limits; none where the policy gives it nothing at all."""
    if not all(wish):
        return (0, 0)
    low, high = job.least, job.most
    return min(max(wish[0], low[0]), high[0]), min(max(wish[1], low[1]), high[1])


def _smaller(a: Size, b: Size) -> Size:
    return min(a[0], b[0]), min(a[1], b[1])


def _occupy(room: Room, spec: JobSpec, size: Size) -> None:
    """Takes what a job has already, even where it was placed otherwise than it would be now."""
    for demand, count in ((spec.servers.demand, size[0]), (spec.workers.demand, size[1])):
        for _ in range(count):
            if room.take(demand) is None and len(room.free):
                room.take(demand, int(room.free[:, 0].argmax()))


def _grow(room: Room, job: Seen, size: List[Size], i: int, wish: Size) -> bool:
    """One more worker, or a server where it has fewer of its wish; False when there is no more for it."""
    servers, workers = size[i]
    lacks = [servers < wish[0], workers < wish[1]]
    if not any(lacks):
        return False
    server_first = lacks[0] and (not lacks[1] or servers * wish[1] < workers * wish[0])
    for more in ((1, 0), (0, 1)) if server_first else ((0, 1), (1, 0)):
        if lacks[more[1]] and room.take_all(job.spec, more) is not None:
            size[i] = (servers + more[0], workers + more[1])
            return True
    return False


def moves(jobs: Sequence[Seen], sizes: Sequence[Size]) -> List[Move]:
    """What has to change, what frees resources first."""
    changed = [
        Move(START if job.waiting else RESIZE, job.id, job.size, size)
        for job, size in zip(jobs, sizes)
        if not job.fixed and size != job.size and size != (0, 0)
    ]
    return sorted(changed, key=lambda move: sum(move.size) - sum(move.before) if move.kind == RESIZE else 1 << 30)


def misfit(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """Why a job can never run on these nodes, naming field and value; empty if it can."""
    for role, tasks in (("workers", spec.workers), ("servers", spec.servers)):
        if not any(_EPS + cap >= need for node in nodes for cap, need in [(node.capacity[0], tasks.cpus)]):
            most = max((node.capacity[0] for node in nodes), default=0)
            return f"{role}.cpus: {tasks.cpus:g} is more than any node has ({most:g}): ask for less"
        if not any(node.capacity[1] + _EPS >= tasks.demand[1] for node in nodes):
            most = max((node.capacity[1] for node in nodes), default=0)
            return f"{role}.memory: {tasks.memory} is more than any node has ({most:.1f}GiB): ask for less"
        if not any(node.capacity[2] + _EPS >= tasks.gpus for node in nodes):
            most = max((node.capacity[2] for node in nodes), default=0)
            return f"{role}.gpus: {tasks.gpus:g} is more than any node has ({most:g}): ask for less"
        if Room(nodes).take(tasks.demand) is None:
            together = f"{tasks.cpus:g} cpus, {tasks.memory} and {tasks.gpus:g} gpus together"
            return f"{role}: {together} are on no node: ask for less of one"
    if Room([replace(node, alive=True) for node in nodes]).take_all(spec, (spec.servers.min, spec.workers.min)) is None:
        together = f"{spec.workers.min} with servers.min {spec.servers.min}"
        return f"workers.min: {together} do not fit on all nodes together: lower them"
    return ""
