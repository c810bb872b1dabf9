"""A cluster that is reckoned: made-up nodes and jobs, under a clock of their own that the service's waiting moves.

The service drives it by the code that drives real jobs. Nothing runs; a job trains at a given speed once it has
started, and its changes take the time that they are said to take.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from scheduler.service.cluster import DONE, ENDED, LATE, Answer, Attempt, Look, Outcome
from scheduler.service.slot import UNKNOWN_EPOCHS, Node, Room, Size
from scheduler.service.spec import JobSpec

Speed = Callable[[JobSpec, Size], float]


@dataclass(frozen=True)
class Timings:
    """How long things take, s.

    Attributes:
        starting: from a job's beginning until it trains.
        growing: a resize that starts processes, until it is in force.
        shrinking: one that does not.
        stall: what a resize costs the job's training.
        ending: from the last step until the job's processes have ended.
    """

    starting: float = 0.0
    growing: float = 0.0
    shrinking: float = 0.0
    stall: float = 0.0
    ending: float = 0.0


@dataclass
class _Job:
    """An attempt: it has trained ``done`` epochs at time ``at``, and trains on from there at its size's speed."""

    attempt: Attempt
    size: Size
    at: float
    done: float = 0.0
    ends: Optional[float] = None  # when it was told to
    ended: Optional[float] = None
    status: int = 0
    change: Optional[Tuple[float, Size, Answer]] = None

    @property
    def epochs(self) -> float:
        return self.attempt.spec.epochs or UNKNOWN_EPOCHS


class SimulatedCluster:
    """Args: nodes; epochs per second of a job at a size; how long things take; the clock's first time, s."""

    def __init__(self, nodes: Sequence[Node], speed: Speed, timings: Optional[Timings] = None, start: float = 0.0):
        self.idle: Optional[Callable[[], None]] = None  # called when nothing is left that could happen
        self._nodes, self._speed, self._timings = list(nodes), speed, timings or Timings()
        self._now = start
        self._jobs: Dict[Tuple[int, int], _Job] = {}
        self._calls: List[Tuple[float, int, Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._room = Room(nodes)
        self._seats: Dict[Tuple[int, int], Tuple[JobSpec, Tuple[List[int], List[int]]]] = {}  # servers' nodes, workers'

    def call(self, at: float, function: Callable[[], Any]) -> None:
        """Calls a function when the clock shows a time, for what happens outside: a job is submitted, a node goes."""
        heapq.heappush(self._calls, (at, next(self._numbers), function))

    def now(self) -> float:
        return self._now

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def refuses(self, spec: JobSpec) -> str:
        return ""

    # -------------------------------------------------------------------------------------------------- observe

    def observe(self, jobs: Sequence[Attempt]) -> List[Look]:
        return [self._look(self._jobs.get((job.id, job.number))) for job in jobs]

    def _look(self, job: Optional[_Job]) -> Look:
        if job is None:
            return Look(lost=True)
        if job.ended is not None:
            return Look(ended=job.ended, status=job.status, epochs=job.done)
        if self._now < job.at and job.done == 0:
            return Look(tasks=job.size)  # it starts
        return Look(job.size, job.size, True, self._trained(job))

    def _trained(self, job: _Job) -> float:
        gained = max(0.0, self._now - job.at) * self._speed(job.attempt.spec, job.size)
        return min(job.epochs, job.done + gained)

    def wait(self, jobs: Sequence[Attempt], seconds: float, poked: threading.Event) -> None:
        until = self._now + seconds
        watched = {(job.id, job.number) for job in jobs}
        while self._now < until and not poked.is_set():
            when, happens = self._next()
            if happens is None and self.idle is not None:
                self.idle()
                return
            if happens is None or when > until:
                self._now = until
                return
            self._now = max(self._now, when)
            if happens() in watched:
                return

    def _next(self) -> Tuple[float, Optional[Callable[[], Any]]]:
        """The next thing that happens: when, and the function that does it (the attempt that it ended, if any)."""
        when: float = self._calls[0][0] if self._calls else float("inf")
        happens: Optional[Callable[[], Any]] = self._called if self._calls else None
        for job in self._jobs.values():
            if job.change is not None and job.change[0] < when:
                when, happens = job.change[0], partial(self._changed, job)
            end = self._end(job) if job.ended is None else float("inf")
            if end < when:
                when, happens = end, partial(self._ended, job)
        return when, happens

    def _called(self) -> None:
        heapq.heappop(self._calls)[2]()

    def _end(self, job: _Job) -> float:
        if job.ends is not None:
            return job.ends
        speed = self._speed(job.attempt.spec, job.size)
        return job.at + (job.epochs - job.done) / speed + self._timings.ending if speed > 0 else float("inf")

    def _ended(self, job: _Job) -> Tuple[int, int]:
        job.done, job.ended = self._trained(job), self._now
        key = (job.attempt.id, job.attempt.number)
        self._free(key, (0, 0))
        if job.change is not None:
            answer, job.change = job.change[2], None
            answer(Outcome(ENDED, "the job has ended"))
        return key

    # ---------------------------------------------------------------------------------------------------- enact

    def reserve(self, jobs: Sequence[Attempt], wanted: Sequence[Tuple[Attempt, Size]]) -> Set[int]:
        known = {(job.id, job.number) for job in jobs}
        for key in [key for key in self._seats if key not in known and key not in self._jobs]:
            self._free(key, (0, 0))  # it was promised room and never began
        return {job.id for job, size in wanted if self._seat(job, size)}

    def _seat(self, job: Attempt, size: Size) -> bool:
        key = (job.id, job.number)
        _, seats = self._seats.setdefault(key, (job.spec, ([], [])))
        before = (len(seats[0]), len(seats[1]))
        for demand, nodes, count in zip(_demands(job.spec), seats, size):
            while len(nodes) < count:
                where = self._room.take(demand)
                if where is None:
                    self._free(key, before)
                    return False
                nodes.append(where)
        return True

    def _free(self, key: Tuple[int, int], size: Size) -> None:
        """Gives back what an attempt has beyond a size."""
        spec, seats = self._seats[key]
        for demand, nodes, count in zip(_demands(spec), seats, size):
            while len(nodes) > count:
                self._room.give(demand, nodes.pop())
        if size == (0, 0):
            del self._seats[key]

    def begin(self, job: Attempt, size: Size) -> None:
        key = (job.id, job.number)
        if key not in self._jobs:
            self._jobs[key] = _Job(job, size, self._now + self._timings.starting)

    def resize(self, job: Attempt, size: Size, seconds: float, answer: Answer) -> None:
        found = self._jobs[job.id, job.number]
        grows = size[0] > found.size[0] or size[1] > found.size[1]
        takes = self._timings.growing if grows else self._timings.shrinking
        if takes > seconds:
            answer(Outcome(LATE, f"it would take {takes:g} s"))
        elif takes > 0:
            found.change = (self._now + takes, size, answer)
        else:
            self._take(found, size, answer, 0.0)

    def _changed(self, job: _Job) -> None:
        assert job.change is not None
        (_, size, answer), job.change = job.change, None
        grows = size[0] > job.size[0] or size[1] > job.size[1]
        self._take(job, size, answer, self._timings.growing if grows else self._timings.shrinking)

    def _take(self, job: _Job, size: Size, answer: Answer, took: float) -> None:
        stall = self._timings.stall
        job.done, job.at, job.size = self._trained(job), max(job.at, self._now) + stall, size
        self._free((job.attempt.id, job.attempt.number), size)
        answer(Outcome(DONE, seconds=took, stall_seconds=stall, bytes_moved=0))

    def checkpoint(self, job: Attempt, seconds: float, answer: Answer) -> None:
        answer(Outcome(DONE))

    def stop(self, job: Attempt) -> None:
        found = self._jobs[job.id, job.number]
        found.ends, found.status = self._now + self._timings.ending, 143

    def drop_checkpoint(self, job: Attempt) -> None:
        pass

    def drop(self, job: Attempt) -> str:
        return ""

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------------------------------------ for people

    def tasks(self, job: Attempt) -> Dict[str, Dict[str, Any]]:
        _, seats = self._seats.get((job.id, job.number), (job.spec, ([], [])))
        return {
            f"{role}-{k}": {"role": role, "node": self._nodes[node].name}
            for role, nodes in zip(("server", "worker"), seats)
            for k, node in enumerate(nodes)
        }

    def logs(self, job: Attempt, offsets: Mapping[str, int]) -> Dict[str, Dict[str, Any]]:
        return {}

    def used(self, jobs: Sequence[Attempt]) -> Dict[str, List[Tuple[float, ...]]]:
        found: Dict[str, List[Tuple[float, ...]]] = {}
        for job in jobs:
            _, seats = self._seats.get((job.id, job.number), (job.spec, ([], [])))
            for demand, nodes in zip(_demands(job.spec), seats):
                for node in nodes:
                    found.setdefault(self._nodes[node].name, []).append(demand)
        return found


def _demands(spec: JobSpec) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
    return spec.servers.demand, spec.workers.demand
