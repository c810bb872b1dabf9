"""A simulated cluster that ``dl2x`` plays: slots, plans drawn for each, what they promise. Learning is elsewhere.

The reward of a job in a slot is the time it progressed at its best speed less the time that passed, in slots: summed
over a job's life it is the bound without contention less its JCT. A resize costs progress, and so reward, by itself.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Callable, List, Optional

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.encoder import features
from scheduler.learn.moves import FACTS, MoveBook
from scheduler.learn.plan import Plan, Record, lost_fraction
from scheduler.simulator import Simulator, SlotResult

NewSimulator = Callable[[np.random.Generator], Simulator]


@dataclass
class Played:
    """One slot: what was seen, the plans that were drawn, and what came of the first, which was carried out.

    ``promised`` is, by the estimated speeds, the reward of each plan's slot plus the discounted value of where it
    leads; ``reward``, ``value`` (before the slot) and ``alive`` (after it) are by job.
    """

    seen: Array
    records: List[Record]
    promised: Array
    reward: Array
    value: Array
    alive: Array
    last: bool
    target: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Player:
    """One simulated cluster that is played slot by slot."""

    def __init__(self, new_simulator: NewSimulator, rng: np.random.Generator) -> None:
        self._new, self._rng = new_simulator, rng
        self.renew()

    def renew(self) -> None:
        self.simulator = self._new(self._rng)
        self.book = MoveBook(self.simulator.estimated_rates)
        self._skip()

    def go_forward(self, agent: Dl2xAgent, slots: int) -> None:
        """Plays so many slots by the agent's best plans; from the beginning of another trace if this one ends."""
        while self.simulator.slot < slots:
            self.simulator.step(agent.plan(self.cluster, self.jobs, self.book).best())
            if self.simulator.finished:
                self.renew()
                return
            self._skip()

    def _skip(self) -> None:
        """Lets slots without jobs pass."""
        while not self.simulator.finished:
            self.cluster, self.jobs = self.simulator.observe()
            if len(self.jobs):
                self.seen = features(self.cluster, self.jobs, self.book)
                return
            self.simulator.step(Plan(self.cluster, self.jobs, self.book, np.zeros((0, len(FACTS))), 0.0).best())

    def draw(self, theta: Array, void: float, group: int) -> List[Imagined]:
        """Draws plans for the slot, and imagines where each leads."""
        first = Plan(self.cluster, self.jobs, self.book, theta, void)
        drawn = []
        for _ in range(group):
            plan = first.fork()
            record = plan.sample(self._rng)
            drawn.append(imagine(self.cluster, self.jobs, self.book, plan, record))
        return drawn

    def play(self, drawn: List[Imagined], promised: Array, value: Array) -> Played:
        """Carries out the first of the plans."""
        seen, jobs = self.seen, self.jobs
        result = self.simulator.step(drawn[0].plan.placer.allocation())
        reward = rewards(jobs, self.book, result)
        ended = self.simulator.finished
        if not ended:
            self._skip()
        records = [imagined.record for imagined in drawn]
        return Played(seen, records, promised, reward, value, ~result.finished, ended)

    def mean_jct(self) -> float:
        """Of the trace that has ended, slots."""
        return float((self.simulator.end - self.simulator.trace.arrival).mean())


def rewards(jobs: JobsView, book: MoveBook, result: SlotResult) -> Array:
    """Per job: slots of progress at its best speed less slots that passed, float64 [n]; at most about 0."""
    best = np.maximum(book.best[jobs.rate_index], 1e-300)
    return result.epochs / best - result.spent


@dataclass
class Imagined:
    """A plan, its reward by the estimated speeds, and the features of the jobs that it would leave, if any."""

    plan: Plan
    record: Record
    reward: float
    seen: Array


def imagine(cluster: ClusterView, jobs: JobsView, book: MoveBook, plan: Plan, record: Record) -> Imagined:
    """One slot of the plan if the estimated speeds were true and no job arrived."""
    servers, workers = np.array(plan.placer.servers), np.array(plan.placer.workers)
    rate, best = jobs.rate(servers, workers), np.maximum(book.best[jobs.rate_index], 1e-300)
    resized = ((servers != jobs.servers) | (workers != jobs.workers)) & (jobs.workers > 0) & (workers > 0)
    possible = rate * (1.0 - np.where(resized, lost_fraction(cluster, jobs), 0.0))
    left = jobs.remaining
    part = np.minimum(1.0, left / np.maximum(possible, 1e-300))
    reward = float((part * (possible / best - 1.0)).sum())
    stay = np.flatnonzero(possible < left)
    after = replace(
        jobs,
        ids=jobs.ids[stay],
        type_index=jobs.type_index[stay],
        arrival=jobs.arrival[stay],
        epochs=jobs.epochs[stay],
        done=(jobs.done + possible)[stay],
        servers=servers[stay],
        workers=workers[stay],
        service=(jobs.service + (rate > 0))[stay],
        rate_index=jobs.rate_index[stay],
        measured=rate[stay],
    )
    return Imagined(plan, record, reward, features(replace(cluster, slot=cluster.slot + 1), after, book))


def fork(simulator: Simulator) -> Simulator:
    """The same cluster at the same moment, to be played on by itself. The noise of slots, if any, goes on alike."""
    other = copy(simulator)
    for name in ("done", "servers", "workers", "service", "measured", "end", "_up_again"):
        setattr(other, name, getattr(simulator, name).copy())
    other._rng, other._speed_rng, other._failure_rng = deepcopy(
        (simulator._rng, simulator._speed_rng, simulator._failure_rng)
    )
    other.used_history, other.history = [], []
    return other


def roll_out(simulator: Simulator, allocation: Allocation, base: Policy) -> float:
    """Minus the sum of all jobs' JCTs, in slots, if this slot goes by ``allocation`` and all later ones by ``base``."""
    ahead = fork(simulator)
    ahead.step(allocation)
    while not ahead.finished:
        ahead.step(base.allocate(*ahead.observe()))
    return -float((ahead.end - ahead.trace.arrival).sum())


def set_targets(track: List[Played], after: Array, discount: float, trace: float) -> None:
    """Value targets of one cluster's slots, in order, by generalised advantages (lambda returns).

    A job's value is what it will lose from the slot on, the slot's own reward included. Its target is the value plus
    the job's advantage. A job that arrives in the next slot counts from there on.

    Args:
        after: float64 [>= n], values of the jobs that follow the last slot.
        discount, trace: gamma and lambda.
    """
    ahead: Optional[Array] = None  # advantages by job in the next slot
    for t in range(len(track) - 1, -1, -1):
        slot = track[t]
        following, later = np.zeros(len(slot.value)), np.zeros(len(slot.value))
        if not slot.last:
            alive = np.flatnonzero(slot.alive)  # they come first in the next slot, in this order
            values = track[t + 1].value if t + 1 < len(track) else after
            following[alive] = values[: len(alive)]
            if ahead is not None:
                later[alive] = ahead[: len(alive)]
        by_job = slot.reward + discount * following - slot.value + discount * trace * later
        slot.target = (by_job + slot.value).astype(np.float32)
        ahead = by_job
