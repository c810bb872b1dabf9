"""Tiresias (Gu et al., NSDI 2019): gangs of fixed size, least attained service first, in discrete queues.

Discretised two-dimensional LAS: a job sinks to the next queue when its attained service (dominant share of the cluster
times slots; the paper: GPUs times time) passes a threshold; within a queue, the earlier arrival goes first. A gang runs
whole or not at all, and a gang that does not fit lets smaller ones behind it pass. Departs from the paper where it has
no counterpart here: the size of the gang, which its users chose, is an option; there is no profiling of placement skew.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.placement import Placer


class Tiresias(Policy):
    """Args: pairs of worker and server in a gang; thresholds between queues, in cluster-slots, ascending."""

    name = "tiresias"

    def __init__(self, gang: int = 4, thresholds: Sequence[float] = (0.5, 2.0)) -> None:
        if gang < 1:
            raise ValueError(f"tiresias: gang is {gang}, must be at least 1")
        self.gang = gang
        self.thresholds = np.sort(np.asarray(thresholds, dtype=float))

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs)
        gang = min(self.gang, cluster.max_servers, cluster.max_workers)
        queue = np.searchsorted(self.thresholds, jobs.service, side="right")
        for i in np.argsort(queue, kind="stable").tolist():
            mark = placer.mark()
            for _ in range(gang):
                if not placer.add_pair(i):
                    if mark:  # the first gang keeps what the empty cluster holds, or it would starve
                        placer.undo(mark)
                    break
        return placer.allocation()
