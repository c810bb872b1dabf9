"""One slot as ``dl2`` sees it: states of up to J jobs, the 3J + 1 actions, job-aware exploration. No network here.

Section 4.1 of the paper: per job its type, the slots it has been there, its remaining epochs, its dominant share, its
workers and its servers; an action adds a worker, a server or one of each to one job, and the void action ends the slot.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import numpy as np

from scheduler.core import SERVER, WORKER, Allocation, Array, ClusterView, JobsView
from scheduler.placement import Placer

ADD_WORKER, ADD_SERVER, ADD_BOTH = 0, 1, 2
ACTIONS = 3
AGE, LEFT, SHARE, WORKERS, SERVERS = 0, 1, 2, 3, 4  # after the one-hot type
_NUMBERS = 5


def state_size(jobs: int, types: int) -> int:
    """Inputs of the network for a window of ``jobs`` jobs and ``types`` known types."""
    return jobs * (types + _NUMBERS)


def rows_of(cluster: ClusterView, jobs: JobsView, types: Dict[str, int]) -> Array:
    """The states of all jobs before anything is handed out, float32 [n, len(types) + 5].

    Slots count in hundreds, remaining epochs as a fraction of the job's total, tasks as a fraction of the limit: the
    paper gives no scaling. A type that was not there in training has an all-zero type.
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
        scale_w, scale_s = self.placer.max_workers, self.placer.max_servers
        workers = self.state[: self.count, self._numbers + WORKERS] * scale_w
        servers = self.state[: self.count, self._numbers + SERVERS] * scale_s
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
        row[self._numbers + SHARE] = placer.dominant_share(i)
        row[self._numbers + WORKERS] = placer.workers[i] / placer.max_workers
        row[self._numbers + SERVERS] = placer.servers[i] / placer.max_servers
        if placer.workers[i] >= placer.max_workers:
            self.allowed[ACTIONS * k + ADD_WORKER] = self.allowed[ACTIONS * k + ADD_BOTH] = False
        if placer.servers[i] >= placer.max_servers:
            self.allowed[ACTIONS * k + ADD_SERVER] = self.allowed[ACTIONS * k + ADD_BOTH] = False


def steps_of(allocation: Allocation, pairs: bool = False) -> List[Tuple[int, int]]:
    """Another scheduler's allocation as a sequence of (job, action): job after job, pairs first, then what is left.

    A record tells how many tasks a job got, not in which order. This order is the one that is learnt most easily: the
    job that is being filled is the last that has any, and all there is to learn is when it has enough. With ``pairs``
    the first pair of each job is left out.
    """
    steps: List[Tuple[int, int]] = []
    for job, (servers, workers) in enumerate(zip(allocation.servers.tolist(), allocation.workers.tolist())):
        both = min(servers, workers)
        steps += [(job, ADD_BOTH)] * (both - 1 if pairs else both)
        steps += [(job, ADD_SERVER)] * (servers - both) + [(job, ADD_WORKER)] * (workers - both)
    return steps


def demonstrate(
    cluster: ClusterView, jobs: JobsView, rows: Array, allocation: Allocation, size: int, pairs: bool = False
) -> Tuple[Array, Array]:
    """What a teacher's allocation of one slot teaches: states float32 [k, J (L + 5)] and actions int64 [k].

    Each window of J jobs ends with the void action.
    """
    states: List[Array] = []
    actions: List[int] = []
    steps = steps_of(allocation, pairs)
    for first in range(0, len(jobs), size):
        window = _Replay(cluster, jobs, rows, first, size)
        for job in range(first, min(first + size, len(jobs))):
            if pairs and allocation.servers[job] and allocation.workers[job]:
                window.add(job - first, ADD_BOTH)
        for job, what in steps:
            if first <= job < first + size:
                states.append(window.state.reshape(-1).copy())
                actions.append(ACTIONS * (job - first) + what)
                window.add(job - first, what)
        states.append(window.state.reshape(-1).copy())
        actions.append(ACTIONS * size)
    if not states:
        return np.zeros((0, size * rows.shape[1]), dtype=np.float32), np.zeros(0, dtype=np.int64)
    return np.stack(states), np.array(actions, dtype=np.int64)


class _Replay:
    """A window in which tasks are counted but not placed: the teacher has placed them."""

    def __init__(self, cluster: ClusterView, jobs: JobsView, rows: Array, first: int, size: int) -> None:
        part = rows[first : first + size]
        self.state = np.zeros((size, rows.shape[1]), dtype=np.float32)
        self.state[: len(part)] = part
        self._numbers = rows.shape[1] - _NUMBERS
        self._scale = (cluster.max_workers, cluster.max_servers)
        worker, server = jobs.demands()
        totals = np.where(cluster.totals > 0, cluster.totals, np.inf)
        self._worker, self._server = (worker / totals)[first:], (server / totals)[first:]
        self._counts = np.zeros((size, 2), dtype=np.int64)

    def add(self, k: int, what: int) -> None:
        if what != ADD_SERVER:
            self._counts[k, WORKER] += 1
        if what != ADD_WORKER:
            self._counts[k, SERVER] += 1
        workers, servers = self._counts[k, WORKER], self._counts[k, SERVER]
        row = self.state[k]
        row[self._numbers + WORKERS] = workers / self._scale[0]
        row[self._numbers + SERVERS] = servers / self._scale[1]
        row[self._numbers + SHARE] = (workers * self._worker[k] + servers * self._server[k]).max(initial=0.0)
