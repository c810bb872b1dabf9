"""Shortest remaining job first, as DL2's authors run it: by remaining fraction of epochs, pairs up to the limit.

Departs from textbook SRTF as they do: the fraction 1 - done / epochs stands for the remaining time, so a long job that
is nearly done goes before a short one that has just begun. ``by="time"`` orders by estimated remaining slots at the
job's best size instead.
"""

from __future__ import annotations

import numpy as np

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.policies.fifo import fill_in_order


class Srtf(Policy):
    name = "srtf"

    def __init__(self, by: str = "fraction") -> None:
        if by not in ("fraction", "time"):
            raise ValueError(f"srtf: by is {by!r}, must be 'fraction' or 'time'")
        self.by = by

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        if self.by == "fraction":
            key = 1.0 - jobs.done / jobs.epochs
        else:
            best = jobs.rates.reshape(len(jobs.rates), -1).max(axis=1)[jobs.rate_index]
            key = jobs.remaining / np.maximum(best, 1e-12)
        order = np.argsort(key, kind="stable")
        return fill_in_order(cluster, jobs, order.tolist())
