"""First in, first out, as DL2's authors run it: the earliest job takes pairs up to the limit, then the next one.

The first pair that does not fit on the least loaded node ends the slot, as in their simulator.
"""

from __future__ import annotations

from typing import Iterable

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.placement import Placer
from scheduler.policies.memo import Memo


class Fifo(Policy):
    name = "fifo"

    def __init__(self) -> None:
        self._memo = Memo()

    def reset(self, seed: int = 0) -> None:
        self._memo = Memo()

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        return self._memo.answer(cluster, jobs, lambda c, j: fill_in_order(c, j, range(len(j))))


def fill_in_order(cluster: ClusterView, jobs: JobsView, order: Iterable[int]) -> Allocation:
    """Pairs up to the limit for one job after the other, until a pair does not fit on the least loaded node."""
    placer = Placer(cluster, jobs, strict=True)
    for i in order:
        while placer.add_pair(i):
            pass
        if placer.below_limits(i):
            break
    return placer.allocation()
