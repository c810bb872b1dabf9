"""One slot under ``dl2x``: hands out moves by their scores until nothing useful fits or the void wins.

A move's score is the inner product of the job's coefficients, which the network gives once per slot, and the facts of
the move (``moves.FACTS``). So the network runs once, a job's scores change only when that job grows, and a cluster of
500 nodes is filled in tens of milliseconds.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Dict, List, Optional, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView
from scheduler.learn.moves import FACTS, MOVES, RETURN, MoveBook, MoveSet, Prices
from scheduler.placement import Placer

_BAR = -1e9  # score of a move that cannot be made
_NONE = np.zeros(MOVES, dtype=bool)


@dataclass
class Record:
    """The decisions of a slot, to be scored again under other coefficients.

    A row is one job at one size, with the moves that were open; a decision chooses one move among all rows that stood
    then. ``born`` and ``gone`` are the decisions between which a row stood. What was chosen is one move of one row
    (``row``, -1 for the void, and ``move``); or, where a teacher is followed, any move of any row that stays ``within``
    what the teacher gave.
    """

    facts: List[Array] = field(default_factory=list)  # float32 [MOVES, FACTS]
    open: List[Array] = field(default_factory=list)  # bool [MOVES]
    within: List[Array] = field(default_factory=list)  # bool [MOVES]
    job: List[int] = field(default_factory=list)
    born: List[int] = field(default_factory=list)
    gone: List[int] = field(default_factory=list)
    row: List[int] = field(default_factory=list)  # per decision
    move: List[int] = field(default_factory=list)  # per decision
    log_prob: List[float] = field(default_factory=list)  # per decision


@dataclass(frozen=True)
class _Size:
    """A size that a job may have in this slot: its moves, and what all jobs of the type at this size have in common.

    ``slots`` is how long an epoch takes after each move, ``least_slots`` after the best; ``bar`` is ``_BAR`` for moves
    that are useless or pass a limit, else 0.
    """

    servers: Array
    workers: Array
    facts: Array
    slots: Array
    least_slots: float
    bar: Array


class Plan:
    """The state of one slot.

    Args:
        cluster, jobs: as observed.
        book: moves for ``jobs.rates``.
        theta: float64 [n, len(FACTS)], coefficients of each job.
        void: score of stopping.
    """

    def __init__(self, cluster: ClusterView, jobs: JobsView, book: MoveBook, theta: Array, void: float) -> None:
        self.jobs, self.book, self.theta, self.void = jobs, book, theta, void
        self.placer = Placer(cluster, jobs)
        n = len(jobs)
        prices = Prices(cluster, jobs, book)
        self._cost_w, self._cost_s = prices.worker * n, prices.server * n  # 1 is a fair share
        self._remaining = jobs.remaining.tolist()
        self._best = np.maximum(book.best[jobs.rate_index], 1e-300)
        running = (jobs.servers > 0) & (jobs.workers > 0)
        self._lost = np.where(running, lost_fraction(cluster, jobs), 0.0).tolist()
        self._rows = jobs.rate_index.tolist()
        self._before = list(zip(jobs.servers.tolist(), jobs.workers.tolist()))
        self._shares = (prices.worker_share, prices.server_share)
        self._totals = cluster.totals
        self._kinds = jobs.type_index.tolist()
        alike: Dict[Tuple[int, int], Dict[Tuple[int, int], _Size]] = {}  # by what jobs have in common
        self._known = [alike.setdefault(key, {}) for key in zip(self._rows, self._kinds)]
        self.facts: List[Array] = []
        self.scores: List[Array] = []
        self.steps: List[Tuple[Array, Array]] = []  # servers, workers of each move, per job
        for i in range(n):
            facts, score, step = self._look(i)
            self.facts.append(facts)
            self.scores.append(score)
            self.steps.append(step)

    def fork(self) -> Plan:
        """The same slot, to be filled anew; call it before anything has been placed."""
        other = copy(self)
        other.placer = Placer(self.placer.cluster, self.jobs)
        other.facts, other.scores, other.steps = list(self.facts), list(self.scores), list(self.steps)
        return other

    # -- facts ------------------------------------------------------------------------------------------------------

    def _look(self, i: int) -> Tuple[Array, Array, Tuple[Array, Array]]:
        """Facts float64 [MOVES, FACTS], scores [MOVES] (``_BAR`` where closed) and sizes of job i's moves."""
        s, w = self.placer.servers[i], self.placer.workers[i]
        known = self._known[i]
        size = known.get((s, w))
        if size is None:
            size = known[s, w] = self._describe(i, self.book.moves(self._rows[i], s, w), s, w)
        facts, lost = size.facts, self._lost[i]
        if lost:  # it matters what size the job had
            was_s, was_w = self._before[i]
            if was_s >= s and was_w >= w and was_s + was_w > s + w:
                size = self._with_return(i, s, w, was_s - s, was_w - w)
            facts = size.facts.copy()
            same = (size.servers == was_s - s) & (size.workers == was_w - w)
            facts[:, 5] = same
            facts[:, 6] = np.where(same, 0.0, lost)
        if self._remaining[i] * size.least_slots < 1.0:  # some move lets it finish within the slot
            facts = facts.copy()
            facts[:, 7] = np.maximum(0.0, 1.0 - self._remaining[i] * size.slots)
        scores = facts @ self.theta[i] + size.bar
        return facts, scores, (size.servers, size.workers)

    def _with_return(self, i: int, s: int, w: int, servers: int, workers: int) -> _Size:
        """As ``_describe``, with the move back to the size of the slot before."""
        found = self.book.moves(self._rows[i], s, w)
        table = self.book.rates[self._rows[i]]
        rate = found.rate.copy()
        rate[RETURN] = table[s + servers, w + workers]
        gain = found.gain.copy()
        gain[RETURN] = 1.0 - table[s, w] / rate[RETURN] if rate[RETURN] > 0 else 0.0
        more_s, more_w = found.servers.copy(), found.workers.copy()
        more_s[RETURN], more_w[RETURN] = servers, workers
        return self._describe(i, MoveSet(more_s, more_w, rate, gain), s, w)

    def _describe(self, i: int, found: MoveSet, s: int, w: int) -> _Size:
        cost_w, cost_s = self._cost_w[i], self._cost_s[i]
        cost = found.workers * cost_w + found.servers * cost_s
        speed = found.rate / self._best[i]
        facts = np.zeros((MOVES, len(FACTS)))
        facts[:, 0] = np.log(np.maximum(found.gain, 1e-9) / np.maximum(cost, 1e-9))
        facts[:, 1] = np.log(np.maximum(found.servers + found.workers, 1)) / 3.0
        facts[:, 2] = speed
        facts[:, 3] = 1.0 if s == 0 and w == 0 else 0.0
        total = np.maximum(cost + w * cost_w + s * cost_s, 1e-9)
        facts[:, 4] = np.log(np.maximum(speed, 1e-6) / total) / 3.0
        facts[:, 8] = 1.0  # the same for all moves of a job: its coefficient sets the job before others
        slots = 1.0 / np.maximum(found.rate, 1e-300)
        bar = np.where(found.gain <= 1e-9, _BAR, 0.0)
        return _Size(found.servers, found.workers, facts, slots, float(slots.min()), bar)

    def _renew(self, i: int) -> None:
        self.facts[i], self.scores[i], self.steps[i] = self._look(i)

    def _try(self, i: int, move: int) -> bool:
        """Makes a move if it fits; otherwise closes it, and with it every move that asks for no less."""
        servers, workers = self.steps[i]
        ds, dw = servers.item(move), workers.item(move)
        if ds + dw == 1:
            if self.placer.add_worker(i) if dw else self.placer.add_server(i):
                return True
        elif self.placer.add(i, ds, dw):
            return True
        scores = self.scores[i].copy()
        scores[(servers >= ds) & (workers >= dw)] = _BAR
        placer, (worker, server) = self.placer, self._shares
        left = 1.0 + 1e-9 - np.array(placer.used) / np.maximum(self._totals, 1e-9)
        need = servers[:, None] * server[i] + workers[:, None] * worker[i]
        scores[(need > left).any(axis=1)] = _BAR
        self.scores[i] = scores
        return False

    # -- choosing ---------------------------------------------------------------------------------------------------

    def best(self) -> Allocation:
        """Always the move with the highest score, until the void's is higher: not before something has been placed,
        since to leave a cluster idle while jobs wait is never right, whatever a network that has seen little says."""
        queue = []
        for i, scores in enumerate(self.scores):
            move = int(scores.argmax())
            queue.append((-scores.item(move), i, move))
        heapify(queue)
        least = _BAR / 2
        while queue and -queue[0][0] > least:
            _, i, move = queue[0]
            if self._try(i, move):
                self._renew(i)
                least = max(self.void, _BAR / 2)
            scores = self.scores[i]
            move = int(scores.argmax())
            heapreplace(queue, (-scores.item(move), i, move))
        return self.placer.allocation()

    def sample(self, rng: np.random.Generator) -> Record:
        """Moves drawn from the softmax over all scores and the void, what does not fit being drawn again."""
        n = len(self.scores)
        record = Record()
        current = [self._open_row(record, i, 0) for i in range(n)]
        weight = np.append([_log_sum(score) for score in self.scores], self.void)
        step = 0
        while n and weight[:n].max() > _BAR / 2:
            i = int((weight + rng.gumbel(size=n + 1)).argmax())
            total = _log_sum(weight)
            if i == n:
                self._decide(record, -1, 0, self.void - total)
                break
            score = self.scores[i]
            move = int((score + rng.gumbel(size=MOVES)).argmax())
            if self._try(i, move):
                self._decide(record, current[i], move, float(score[move]) - total)
                step += 1
                self._renew(i)
            record.gone[current[i]] = step
            weight[i] = _log_sum(self.scores[i])
            current[i] = self._open_row(record, i, step)
        for row in current:
            record.gone[row] = len(record.row)
        return record

    def follow(self, teacher: Allocation, rng: np.random.Generator) -> Record:
        """Another policy's allocation as decisions: in any order, any move that does not pass what it gave.

        An allocation tells how many tasks a job got, not in which order. So the order is drawn, and every move that
        stays within the allocation counts as right.
        """
        record, n = Record(), len(self.scores)
        within = [self._within(i, teacher) for i in range(n)]
        current = [self._open_row(record, i, 0, within[i]) for i in range(n)]
        step = 0
        while True:
            left = [i for i in range(n) if within[i].any()]
            if not left:
                break
            i = left[rng.integers(len(left))]
            move = int(rng.choice(np.flatnonzero(within[i])))
            if self._try(i, move):
                self._decide(record, current[i], move, 0.0)
                step += 1
                self._renew(i)
                within[i] = self._within(i, teacher)
                record.gone[current[i]] = step
                current[i] = self._open_row(record, i, step, within[i])
            else:
                within[i] = within[i] & (self.scores[i] > _BAR / 2)
        for row in current:
            record.gone[row] = step
        return record

    def _within(self, i: int, teacher: Allocation) -> Array:
        servers, workers = self.steps[i]
        more_s = teacher.servers[i] - self.placer.servers[i]
        more_w = teacher.workers[i] - self.placer.workers[i]
        within: Array = (servers <= more_s) & (workers <= more_w) & (self.scores[i] > _BAR / 2)
        return within

    def _open_row(self, record: Record, i: int, step: int, within: Optional[Array] = None) -> int:
        record.facts.append(self.facts[i].astype(np.float32))
        record.open.append(self.scores[i] > _BAR / 2)
        record.within.append(_NONE if within is None else within)
        record.job.append(i)
        record.born.append(step)
        record.gone.append(step)
        return len(record.job) - 1

    @staticmethod
    def _decide(record: Record, row: int, move: int, log_prob: float) -> None:
        record.row.append(row)
        record.move.append(move)
        record.log_prob.append(log_prob)


def lost_fraction(cluster: ClusterView, jobs: JobsView) -> Array:
    """The part of a slot that a resize would cost each job, float64 [n], 0 to 1."""
    if cluster.resize_cost is None or not len(jobs):
        return np.zeros(len(jobs))
    size = np.array([kind.model_size_mb for kind in jobs.types])[jobs.type_index]
    old = (jobs.servers, jobs.workers)
    seconds = cluster.resize_cost.seconds(size, old, (jobs.servers + 1, jobs.workers))
    return np.clip(np.asarray(seconds, dtype=float) / cluster.slot_seconds, 0.0, 1.0)


def _log_sum(scores: Array) -> float:
    top = float(scores.max())
    return top + float(np.log(np.exp(scores - top).sum()))
