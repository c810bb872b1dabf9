"""Optimus (Peng et al., EuroSys 2018), as DL2's authors run it: the task that saves the most remaining time, next.

Every job begins with a worker and a server; then, again and again, the one more worker or server with the largest drop
of the estimated remaining time is added, while there is a drop. The first task that does not fit on the least loaded
node ends the slot, as in their simulator. Speeds are the estimates given; ``optimus-online`` fits them online.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Tuple

import numpy as np

from scheduler.core import SERVER, WORKER, Allocation, Array, ClusterView, JobsView, Policy
from scheduler.placement import Placer

_FIRST = -float(np.iinfo(np.int32).max)


class Optimus(Policy):
    name = "optimus"

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs, strict=True)
        remaining = (jobs.epochs - jobs.done).tolist()
        tables = [jobs.table(i) for i in range(len(jobs))]
        queue = [(*self._gain(placer, i, remaining[i], tables[i]), i) for i in range(len(jobs))]
        queue = [(gain, i, role) for gain, role, i in queue]
        heapify(queue)
        while queue:
            gain, i, role = heappop(queue)
            if gain >= 0:
                break
            count, limit = (
                (placer.workers[i], placer.max_workers) if role == WORKER else (placer.servers[i], placer.max_servers)
            )
            if count >= limit:
                continue
            if not (placer.add_worker(i) if role == WORKER else placer.add_server(i)):
                break
            gain, role = self._gain(placer, i, remaining[i], tables[i])
            heappush(queue, (gain, i, role))
        return placer.allocation()

    def _gain(self, placer: Placer, i: int, remaining: float, table: Array) -> Tuple[float, int]:
        s, w = placer.servers[i], placer.workers[i]
        if w == 0:
            return _FIRST, WORKER
        if s == 0:
            return _FIRST, SERVER
        now = remaining / max(table[s, w], 1e-12)
        more_w = now - remaining / max(table[s, w + 1], 1e-12) if w < placer.max_workers else 0.0
        more_s = now - remaining / max(table[s + 1, w], 1e-12) if s < placer.max_servers else 0.0
        return (-more_s, SERVER) if more_s >= more_w else (-more_w, WORKER)
