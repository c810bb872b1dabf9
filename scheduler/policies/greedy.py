"""Greedy by relative time saved: a heuristic that is hard to beat, for the learned policies to be measured against.

A pair for each job, by arrival; then, again and again, the move (up to 6 servers and 2 workers at once) that saves the
most time per unit of the scarcest resource, divided by the job's remaining time. The scarcest resource is the one with
the largest share in use. With T = remaining / rate, the time saved divided by T is 1 - rate / new rate: the remaining
epochs cancel, so the order of moves depends on speeds alone, and moves are worked out once per (speed table, size).

``strict=True`` (policy ``greedy``) tries only the least loaded node for each task, as the DL2 authors' simulator does;
``strict=False`` (policy ``greedy-fit``) takes the least loaded node with room, which wastes less of the cluster.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Dict, List, Optional, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, JobType, Policy
from scheduler.placement import Placer
from scheduler.policies.memo import Memo

Move = Tuple[float, int, int]  # score, servers, workers; best first
Entry = Tuple[float, int, int, List[Move]]  # minus the score, job, position of the move among its moves


class Greedy(Policy):
    """Args: most servers and workers that one move adds; whether only the least loaded node is tried."""

    name = "greedy"

    def __init__(self, servers: int = 6, workers: int = 2, strict: bool = True) -> None:
        self.strict = strict
        self.name = "greedy" if strict else "greedy-fit"
        grid = [(s, w) for s in range(servers + 1) for w in range(workers + 1) if s or w]
        self._grid = np.array(grid, dtype=np.int64)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        self._memo = Memo()
        self._moves: Dict[Tuple[int, int, int, int], List[Move]] = {}
        self._rates: Optional[Array] = None
        self._totals: Array = np.zeros(0)

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        totals = cluster.totals
        if self._rates is not jobs.rates or not np.array_equal(self._totals, totals):
            self.reset()
            self._rates, self._totals = jobs.rates, totals
        return self._memo.answer(cluster, jobs, self._allocate)

    def _allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs, strict=self.strict)
        for i in range(len(jobs)):
            placer.add_pair(i)
        rows = jobs.rate_index.tolist()
        kinds = jobs.type_index.tolist()
        queue: List[Entry] = []
        for i in range(len(jobs)):
            if placer.workers[i]:
                self._push(queue, self._moves_of(placer, i, rows[i], jobs.types[kinds[i]], kinds[i]), 0, i)
        heapify(queue)
        while queue:
            _, i, position, moves = heappop(queue)
            _, servers, workers = moves[position]
            if placer.add(i, servers, workers):
                moves = self._moves_of(placer, i, rows[i], jobs.types[kinds[i]], kinds[i])
                position = 0
            else:
                position += 1
            self._push(queue, moves, position, i)
        return placer.allocation()

    @staticmethod
    def _push(queue: List[Entry], moves: List[Move], position: int, i: int) -> None:
        if position < len(moves):
            heappush(queue, (-moves[position][0], i, position, moves))

    def _moves_of(self, placer: Placer, i: int, row: int, kind: JobType, number: int) -> List[Move]:
        """Moves from job i's size that save time, best first."""
        scarce = placer.scarcest()
        servers, workers = placer.servers[i], placer.workers[i]
        key = (row, number, servers * (placer.max_workers + 1) + workers, scarce)
        moves = self._moves.get(key)
        if moves is None:
            assert self._rates is not None
            moves = self._moves[key] = self._score(self._rates[row], servers, workers, kind, scarce, self._totals)
        return moves

    def _score(self, table: Array, servers: int, workers: int, kind: JobType, scarce: int, totals: Array) -> List[Move]:
        new_s, new_w = self._grid[:, 0] + servers, self._grid[:, 1] + workers
        grid = self._grid[(new_s < table.shape[0]) & (new_w < table.shape[1])]
        rate = table[grid[:, 0] + servers, grid[:, 1] + workers]
        saved = 1.0 - table[servers, workers] / np.maximum(rate, 1e-300)
        cost = (grid[:, 0] * kind.server[scarce] + grid[:, 1] * kind.worker[scarce]) / totals[scarce]
        score = saved / np.maximum(cost, 1e-9)
        order = np.argsort(-score, kind="stable")
        return [(float(score[k]), int(grid[k, 0]), int(grid[k, 1])) for k in order if saved[k] > 1e-9]
