"""Dominant resource fairness (Ghodsi et al., NSDI 2011), as DL2's authors run it: pairs by smallest dominant share.

A pair is one worker and one server on one node. Ties go to the earlier arrival. The first pair that does not fit on
the least loaded node ends the slot, as in their simulator; ``strict=False`` looks at the other nodes and jobs too.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.placement import Placer
from scheduler.policies.memo import Memo


class Drf(Policy):
    name = "drf"

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self._memo = Memo()

    def reset(self, seed: int = 0) -> None:
        self._memo = Memo()

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        return self._memo.answer(cluster, jobs, self._allocate)

    def _allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs, strict=self.strict)
        queue = [(0.0, i) for i in range(len(jobs))]  # jobs are in order of arrival already
        heapify(queue)
        while queue:
            _, i = heappop(queue)
            if placer.add_pair(i):
                heappush(queue, (placer.dominant_share(i), i))
            elif self.strict and placer.below_limits(i):
                break
        return placer.allocation()
