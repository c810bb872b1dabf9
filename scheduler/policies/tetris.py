"""Tetris (Grandl et al., SIGCOMM 2014), as DL2's authors run it: packs node after node by alignment plus size.

On each node the job with the highest score gets a pair, until the best job's pair does not fit; the score is the dot
product of the node's free units with the pair's demand, plus (weighted to equal mean) the demand times the remaining
fraction. Departs from the paper as they do: there, a job with less work left is preferred; here, one with more.
"""

from __future__ import annotations

from typing import Dict, List

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.placement import Placer


class Tetris(Policy):
    name = "tetris"

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs)
        packing = _Packing(placer, jobs)
        if len(jobs):
            for node in np.flatnonzero(cluster.alive).tolist():
                packing.fill(node, cluster.capacity[node])
            packing.split()
        return placer.allocation()


class _Packing:
    """One slot. Nodes of equal capacity are packed alike as long as no job reaches its limit, so that is reused."""

    def __init__(self, placer: Placer, jobs: JobsView) -> None:
        worker, server = jobs.demands()
        self.placer = placer
        self.pair = worker + server
        self.size = self.pair.sum(axis=1) * (1.0 - jobs.done / jobs.epochs)
        self.open = np.array([not placer.splits_pairs(i) for i in range(len(jobs))], dtype=bool)
        self.known: Dict[bytes, List[int]] = {}  # by capacity: the jobs whose pairs fill a node, in order

    def fill(self, node: int, capacity: Array) -> None:
        free, key, order = capacity.copy(), capacity.tobytes(), []
        for i in self.known.get(key, ()):
            if not self._add(i, node, free):
                return
            order.append(i)
            if not self.open[i]:
                break
        else:
            if key in self.known:
                return
        while self.open.any():
            i = self._best(free)
            if i < 0 or not self._add(i, node, free):
                break
            order.append(i)
        if self.open[order].all():
            self.known[key] = order

    def split(self) -> None:
        """Pairs that are larger than any node, which the packing above passes by: largest first, apart."""
        for i in np.argsort(-self.size, kind="stable").tolist():
            while self.placer.splits_pairs(i) and self.placer.add_pair(i):
                pass

    def _best(self, free: Array) -> int:
        """The job with the highest score on a node with these free units, or -1 if nothing aligns with it."""
        alignment = self.pair @ free
        mean_size = self.size.mean()
        weight = alignment.mean() / mean_size if mean_size > 0 else 0.0
        if weight == 0:
            return -1
        return int(np.argmax(np.where(self.open, alignment + weight * self.size, -np.inf)))

    def _add(self, i: int, node: int, free: Array) -> bool:
        if not self.placer.add_pair_at(i, node):
            return False
        free -= self.pair[i]
        if not self.placer.below_limits(i):
            self.open[i] = False
            self.known.clear()
        return True
