"""One slot as ``dl2`` sees it: states of up to J jobs, the 3J + 1 actions, job-aware exploration. No network here.

Section 4.1 of the paper: per job its type, the slots it has been there, its remaining epochs, its dominant share, its
workers and its servers; an action adds a worker, a server or one of each to one job, and the void action ends the slot.
"""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView
from scheduler.placement import Placer

ADD_WORKER, ADD_SERVER, ADD_BOTH = 0, 1, 2
ACTIONS = 3
AGE, LEFT, SHARE, WORKERS, SERVERS = 0, 1, 2, 3, 4  # after the one-hot type
_NUMBERS = 5
WORKER_SCALE = 4.0  # workers that make 1 in a state
_SHARP = 5.0  # of the scores that are taught
_ENOUGH = 0.15  # score of the void: less than one task of thirty


def state_size(jobs: int, types: int) -> int:
    """Inputs of the network for a window of ``jobs`` jobs and ``types`` known types."""
    return jobs * (types + _NUMBERS)


def rows_of(cluster: ClusterView, jobs: JobsView, types: Dict[str, int]) -> Array:
    """The states of all jobs before anything is handed out, float32 [n, len(types) + 5].

    Slots count in hundreds, remaining epochs as a fraction of the job's total, workers in fours, servers by the
    logarithm of their number plus one, shares in tenths: the paper gives no scaling. A type that was not there in
    training has an all-zero type.
    """
    rows = np.zeros((len(jobs), len(types) + _NUMBERS), dtype=np.float32)
    column = np.array([types.get(kind.name, -1) for kind in jobs.types], dtype=np.int64)[jobs.type_index]
    known = np.flatnonzero(column >= 0)
    rows[known, column[known]] = 1.0
    rows[:, len(types) + AGE] = (cluster.slot - jobs.arrival) / 100.0
    rows[:, len(types) + LEFT] = np.clip(jobs.remaining / np.maximum(jobs.epochs, 1e-9), 0.0, 1.0)
    return rows


def begin(cluster: ClusterView, jobs: JobsView, pairs: bool, fill: bool) -> Placer:
    """The empty cluster of a slot, with a worker and a server of every job if ``pairs``, by arrival."""
    placer = Placer(cluster, jobs, strict=not fill)
    if pairs:
        for i in range(len(jobs)):
            placer.add_pair(i)
    return placer


class Window:
    """Up to J jobs of a slot, in order of arrival, being handed tasks action by action.

    Args:
        placer: where tasks go; shared by the windows of one slot.
        rows: states of all jobs of the slot, from ``rows_of``.
        first, size: the window holds jobs ``first`` to ``first + size - 1`` of the slot.
        fill: as ``Dl2Params.fill``.
        buffers: where to keep state and allowed actions, float32 [size (L + 5)] and bool [3 size + 1].
    """

    def __init__(
        self,
        placer: Placer,
        rows: Array,
        first: int,
        size: int,
        fill: bool,
        buffers: Optional[Tuple[Array, Array]] = None,
    ) -> None:
        self.placer = placer
        self.first = first
        self.count = max(0, min(size, len(rows) - first))
        if buffers is None:
            buffers = np.zeros(size * rows.shape[1], dtype=np.float32), np.zeros(ACTIONS * size + 1, dtype=bool)
        self.vector, self.allowed = buffers  # the network's input; changes with every action: copy it to keep it
        self.state = self.vector.reshape(size, -1)
        self.state[: self.count] = rows[first : first + self.count]
        self.state[self.count :] = 0.0
        self.allowed[:] = False
        self.allowed[: ACTIONS * self.count] = True
        self.allowed[-1] = True
        self.done = self.count == 0
        self._fill = fill
        self._numbers = rows.shape[1] - _NUMBERS
        self._kinds = placer.jobs.type_index[first : first + self.count]
        for k in range(self.count):
            self._refresh(k)

    def act(self, action: int) -> bool:
        """Carries out an allowed action. False if it turned out to fit nowhere: nothing changed but ``allowed``.

        ``done`` tells whether the window has ended.
        """
        if action == len(self.allowed) - 1:
            self.done = True
            return True
        k, what = divmod(action, ACTIONS)
        i = self.first + k
        if what == ADD_WORKER:
            placed = self.placer.add_worker(i)
        elif what == ADD_SERVER:
            placed = self.placer.add_server(i)
        else:
            placed = self.placer.add_pair(i)
        if placed:
            self._refresh(k)
        elif self._fill:
            for other in np.flatnonzero(self._kinds == self._kinds[k]).tolist():
                self.allowed[ACTIONS * other + what] = False  # what one cannot have, none of its type can
        if (not placed and not self._fill) or not self.allowed[:-1].any():
            self.done = True
        return placed

    def poor(self, ratio: float) -> Optional[int]:
        """The job-aware action for the first job in a poor state, if any and allowed (section 4.3).

        Workers without servers get a server, servers without workers a worker, and a lopsided job one of the fewer.
        """
        at = slice(self.first, self.first + self.count)
        workers, servers = np.array(self.placer.workers[at]), np.array(self.placer.servers[at])
        few_servers = (workers > 0) & (workers > ratio * servers)
        few_workers = (servers > 0) & (servers > ratio * workers)
        for k in np.flatnonzero(few_servers | few_workers).tolist():
            action = ACTIONS * k + (ADD_SERVER if few_servers[k] else ADD_WORKER)
            if self.allowed[action]:
                return int(action)
        return None

    def _refresh(self, k: int) -> None:
        i, placer = self.first + k, self.placer
        row = self.state[k]
        row[self._numbers + SHARE] = 10.0 * placer.dominant_share(i)
        row[self._numbers + WORKERS] = placer.workers[i] / WORKER_SCALE
        row[self._numbers + SERVERS] = np.log1p(placer.servers[i])
        if placer.workers[i] >= placer.max_workers:
            self.allowed[ACTIONS * k + ADD_WORKER] = self.allowed[ACTIONS * k + ADD_BOTH] = False
        if placer.servers[i] >= placer.max_servers:
            self.allowed[ACTIONS * k + ADD_SERVER] = self.allowed[ACTIONS * k + ADD_BOTH] = False


def demonstrate(
    cluster: ClusterView,
    jobs: JobsView,
    rows: Array,
    allocation: Allocation,
    size: int,
    rng: np.random.Generator,
    pairs: bool = False,
    count: int = 8,
) -> Tuple[Array, Array]:
    """What a teacher's allocation of one slot teaches: states float32 [k, J (L + 5)], targets float32 [k, 3J + 1].

    A record tells how many tasks a job got, not in which order. We take the order in which the job comes first that
    lacks the largest part of what it will get: that part is linear in the job's own row once it is known what it will
    get, a task too many is made up for later on, and when the cluster is full no job is far from what the teacher gave
    it. So states are drawn in which every job lacks some tasks or has some too many, and an action's target is the
    softmax of what lacks.

    Args:
        size: J; each window of J jobs gives ``count`` states.
        pairs: every job that got any begins with a pair.
    """
    worker, server = jobs.demands()
    totals = np.where(cluster.totals > 0, cluster.totals, np.inf)
    states, targets = [], []
    for first in range(0, len(jobs), size):
        part = slice(first, first + size)
        want = np.stack([allocation.workers[part], allocation.servers[part]])  # [2, c]
        least = np.where(pairs & (want.min(axis=0) > 0), 1, 0)
        lack = rng.random((count, 1, 1)) * rng.uniform(-0.4, 1.0, (count, 2, want.shape[1]))
        have = np.rint(want * (1.0 - lack)) + rng.integers(0, 4, lack.shape) * (rng.random(lack.shape) < 0.15)
        have = np.maximum(have, least).astype(np.int64)
        have = np.minimum(have, np.array([cluster.max_workers, cluster.max_servers])[:, None])
        shares = have[:, 0, :, None] * (worker[part] / totals) + have[:, 1, :, None] * (server[part] / totals)
        state = np.zeros((count, size, rows.shape[1]), dtype=np.float32)
        state[:, : want.shape[1]] = rows[part]
        numbers = rows.shape[1] - _NUMBERS
        state[:, : want.shape[1], numbers + SHARE] = 10.0 * shares.max(axis=2, initial=0.0)
        state[:, : want.shape[1], numbers + WORKERS] = have[:, 0] / WORKER_SCALE
        state[:, : want.shape[1], numbers + SERVERS] = np.log1p(have[:, 1])
        states.append(state.reshape(count, -1))
        targets.append(targets_of(want, have, size))
    if not states:
        return np.zeros((0, size * rows.shape[1]), dtype=np.float32), np.zeros((0, ACTIONS * size + 1), np.float32)
    return np.concatenate(states), np.concatenate(targets)


def targets_of(want: Array, have: Array, size: int) -> Array:
    """Targets of the actions, float32 [k, 3J + 1], from workers and servers wanted [2, c] and had [k, 2, c].

    Scores are linear in the state, and the best one of a job is always right: both where both lack, else the one that
    lacks. For servers, of which jobs have many, the part that lacks counts; for workers, of which they have few, the
    number. A job without a pair gets one first.
    """
    count = want.shape[1]
    workers = 2.0 * (want[0] - have[:, 0]).astype(np.float32) - 1.0
    servers = (_SHARP * (np.log1p(want[1]) - np.log1p(have[:, 1]))).astype(np.float32)
    paired = have.min(axis=1) > 0
    scores = np.full((len(have), size, ACTIONS), -np.inf, dtype=np.float32)
    scores[:, :count, ADD_SERVER] = np.where(paired, servers, -np.inf)
    scores[:, :count, ADD_WORKER] = np.where(paired, workers, -np.inf)
    both = np.where(want.min(axis=0) > 0, servers + workers - 0.1, -np.inf)
    scores[:, :count, ADD_BOTH] = both
    targets = np.concatenate([scores.reshape(len(have), -1), np.full((len(have), 1), _ENOUGH)], axis=1)
    targets = np.exp(targets - targets.max(axis=1, keepdims=True))
    normal: Array = (targets / targets.sum(axis=1, keepdims=True)).astype(np.float32)
    return normal
