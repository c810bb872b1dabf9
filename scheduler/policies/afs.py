"""AFS, elastic fair sharing (Hwang et al., NSDI 2021, AFS-L): each next unit goes where it shortens the mean JCT most.

Every job first gets a pair, the shortest first. For the next unit, jobs are compared two by two: with a the one that
finishes sooner at its present speed p, b is preferred if (p_b' - p_b) / p_b' > (p_a' - p_a) / p_a, where p' is the
speed with the unit. The unit of the paper is a GPU; here it is the one of a worker, a server or a pair that raises the
job's speed most per dominant share, since servers are sized too.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.placement import Placer

_UNITS = ((0, 1), (1, 0), (1, 1), (2, 1), (3, 1))  # servers, workers


class Afs(Policy):
    name = "afs"

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        if not len(jobs):
            return Placer(cluster, jobs).allocation()
        return _Round(cluster, jobs).fill()


class _Round:
    """One slot: for every job its time left, and the relative gain of its next unit."""

    def __init__(self, cluster: ClusterView, jobs: JobsView) -> None:
        self.jobs = jobs
        self.placer = Placer(cluster, jobs)
        self.remaining = jobs.remaining
        self.left = np.full(len(jobs), np.inf)  # slots left at the present size
        self.gain = np.zeros(len(jobs))  # (p' - p) / p'
        self.units: List[List[Tuple[float, int, int, float]]] = [[] for _ in range(len(jobs))]
        worker, server = jobs.demands()
        totals = np.where(cluster.totals > 0, cluster.totals, np.inf)
        self.shares = [((s * server + w * worker) / totals).max(axis=1, initial=0.0) for s, w in _UNITS]

    def fill(self) -> Allocation:
        one = self.remaining / np.maximum(self.jobs.rate(1, 1), 1e-12)
        for i in np.argsort(one, kind="stable").tolist():
            if self.placer.add_pair(i):
                self._look(i)
        while True:
            i = self._top()
            if self.gain[i] <= 0:
                break
            _, servers, workers, _ = self.units[i][0]
            if self.placer.add(i, servers, workers):
                self._look(i)
            else:
                self.units[i].pop(0)
                self.gain[i] = self.units[i][0][3] if self.units[i] else 0.0
        return self.placer.allocation()

    def _top(self) -> int:
        """The winner of the comparisons, taken from the soonest to finish to the last."""
        order = np.argsort(self.left, kind="stable")
        gains = self.gain[order]
        best = 0
        while True:
            bar = gains[best] / max(1.0 - gains[best], 1e-12)  # (p' - p) / p of the sooner one
            better = np.flatnonzero(gains[best + 1 :] > bar)
            if not len(better):
                return int(order[best])
            best += 1 + int(better[0])

    def _look(self, i: int) -> None:
        """Works out job i's next units, best first, at its present size."""
        table, placer = self.jobs.table(i), self.placer
        s, w = placer.servers[i], placer.workers[i]
        now = table[s, w]
        self.left[i] = self.remaining[i] / max(now, 1e-12)
        units = []
        for (ds, dw), share in zip(_UNITS, self.shares):
            if s + ds <= placer.max_servers and w + dw <= placer.max_workers:
                then = table[s + ds, w + dw]
                if then > now * (1 + 1e-9):
                    units.append(((then - now) / max(share[i], 1e-12), ds, dw, 1.0 - now / then))
        self.units[i] = sorted(units, reverse=True)
        self.gain[i] = self.units[i][0][3] if units else 0.0
