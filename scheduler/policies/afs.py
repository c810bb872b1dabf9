"""AFS, elastic fair sharing (Hwang et al., NSDI 2021, AFS-L): each next unit goes where it shortens the mean JCT most.

Every job first gets a pair, the shortest first. For the next unit, jobs are compared two by two: with a the one that
finishes sooner at its present speed p, b is preferred if (p_b' - p_b) / p_b' > (p_a' - p_a) / p_a, where p' is the
speed with the unit. The unit of the paper is a GPU; here it is the one of a worker, a server or a pair that raises the
job's speed most per dominant share, since servers are sized too.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.placement import Placer

Unit = Tuple[float, int, int, float]  # speed gained per dominant share, servers, workers, (p' - p) / p'
_UNITS = ((0, 1), (1, 0), (1, 1), (2, 1), (3, 1))  # servers, workers


class Afs(Policy):
    name = "afs"

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        if not len(jobs):
            return Placer(cluster, jobs).allocation()
        return _Round(cluster, jobs).fill()


class _Ranking:
    """Jobs by time left, soonest first, with the relative gain of each one's next unit: who wins the comparisons."""

    def __init__(self, left: Array, gain: Array) -> None:
        self._left = left.copy()
        self._job = np.argsort(left, kind="stable")
        self._key, self._gain = left[self._job], gain[self._job]

    def top(self) -> Tuple[int, float]:
        """The winner and its gain, from the soonest to finish to the last."""
        best = 0
        while True:
            gain = float(self._gain[best])
            better = self._gain[best + 1 :] > gain / max(1.0 - gain, 1e-12)  # (p' - p) / p of the sooner one
            step = int(better.argmax()) if len(better) else 0
            if not len(better) or not better[step]:
                return int(self._job[best]), gain
            best += 1 + step

    def update(self, job: int, left: float, gain: float) -> None:
        """Moves a job that now has no more time left than before."""
        old = int(np.searchsorted(self._key, self._left[job]))
        while self._job[old] != job:
            old += 1
        new = min(int(np.searchsorted(self._key, left)), old)
        for column, value in ((self._key, left), (self._gain, gain), (self._job, job)):
            column[new + 1 : old + 1] = column[new:old].copy()
            column[new] = value
        self._left[job] = left


class _Round:
    """One slot."""

    def __init__(self, cluster: ClusterView, jobs: JobsView) -> None:
        self.jobs = jobs
        self.placer = Placer(cluster, jobs)
        self.remaining = jobs.remaining
        self.units: List[List[Unit]] = [[] for _ in range(len(jobs))]
        worker, server = jobs.demands()
        totals = np.where(cluster.totals > 0, cluster.totals, np.inf)
        self.shares = [((s * server + w * worker) / totals).max(axis=1, initial=0.0) for s, w in _UNITS]

    def fill(self) -> Allocation:
        n = len(self.jobs)
        left, gain = np.full(n, np.inf), np.zeros(n)
        one = self.remaining / np.maximum(self.jobs.rate(1, 1), 1e-12)
        for i in np.argsort(one, kind="stable").tolist():
            if self.placer.add_pair(i):
                left[i], gain[i] = self._look(i)
        ranking = _Ranking(left, gain)
        while True:
            i, best = ranking.top()
            if best <= 0:
                return self.placer.allocation()
            _, servers, workers, _ = self.units[i][0]
            if self.placer.add(i, servers, workers):
                left[i], gain[i] = self._look(i)
            else:
                self.units[i].pop(0)
                gain[i] = self.units[i][0][3] if self.units[i] else 0.0
            ranking.update(i, left[i], gain[i])

    def _look(self, i: int) -> Tuple[float, float]:
        """Job i's time left at its present size, and the gain of its next unit; notes its next units, best first."""
        table, placer = self.jobs.table(i), self.placer
        s, w = placer.servers[i], placer.workers[i]
        now = max(float(table[s, w]), 1e-12)
        units = []
        for (ds, dw), share in zip(_UNITS, self.shares):
            if s + ds <= placer.max_servers and w + dw <= placer.max_workers:
                then = float(table[s + ds, w + dw])
                if then > now * (1 + 1e-9):
                    units.append(((then - now) / max(share[i], 1e-12), ds, dw, 1.0 - now / then))
        self.units[i] = sorted(units, reverse=True)
        return self.remaining[i] / now, self.units[i][0][3] if units else 0.0
