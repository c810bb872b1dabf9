"""Tetris (Grandl et al., SIGCOMM 2014), as DL2's authors run it: packs node after node by alignment plus size.

On each node the job with the highest score gets a pair, until the best job's pair does not fit; the score is the dot
product of the node's free units with the pair's demand, plus (weighted to equal mean) the demand times the remaining
fraction. Departs from the paper as they do: there, a job with less work left is preferred; here, one with more.
"""

from __future__ import annotations

import numpy as np

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.placement import Placer


class Tetris(Policy):
    name = "tetris"

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        placer = Placer(cluster, jobs)
        if not len(jobs):
            return placer.allocation()
        worker, server = jobs.demands()
        pair = worker + server
        size = pair.sum(axis=1) * (1.0 - jobs.done / jobs.epochs)
        mean_size = size.mean()
        open_jobs = np.ones(len(jobs), dtype=bool)
        for node in np.flatnonzero(cluster.alive).tolist():
            free = cluster.capacity[node].copy()
            while open_jobs.any():
                alignment = pair @ free
                weight = alignment.mean() / mean_size if mean_size > 0 else 0.0
                if weight == 0:
                    break
                score = np.where(open_jobs, alignment + weight * size, -np.inf)
                i = int(np.argmax(score))
                if not placer.add_pair_at(i, node):
                    break
                free -= pair[i]
                open_jobs[i] = placer.below_limits(i)
        return placer.allocation()
