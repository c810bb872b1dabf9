"""Speeds of the physical model where it matters which tasks share a node. The model itself is in ``speeds``."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from scheduler.core import WORKER, Array, JobType, Placement
from scheduler.speeds import PhysicalSpeed


class PlacedSpeeds:
    """The job types of a workload that have a physical model, and their speeds under a placement."""

    def __init__(self, types: Sequence[JobType]) -> None:
        self.is_physical = np.array([isinstance(kind.speed, PhysicalSpeed) for kind in types], dtype=bool)
        parameters = np.ones((len(types), 5))
        for t, kind in enumerate(types):
            model = kind.speed
            if isinstance(model, PhysicalSpeed):
                parameters[t] = (
                    model.compute_seconds,
                    model.model_size_mb,
                    model.network_mb_per_second,
                    model.local_mb_per_second,
                    model.samples_per_step,
                )
        self._parameters = parameters

    def __bool__(self) -> bool:
        return bool(self.is_physical.any())

    def speeds(self, kinds: Array, placement: Placement, nodes: int) -> Array:
        """Samples/s of every job, float64 [n]; zero without a worker or a server.

        Args:
            kinds: int64 [n], the jobs' types. Types without a physical model get a meaningless number.
            placement: tasks; ``job`` indexes ``kinds``.
            nodes: how many nodes there are.
        """
        n = len(kinds)
        speed = np.zeros(n)
        if not len(placement.job):
            return speed
        is_worker = placement.role == WORKER
        pairs, index = np.unique(placement.job * nodes + placement.node, return_inverse=True)
        workers = np.bincount(index, weights=is_worker, minlength=len(pairs))
        servers = np.bincount(index, weights=~is_worker, minlength=len(pairs))
        job = pairs // nodes
        total_w = np.bincount(job, weights=workers, minlength=n)
        total_s = np.bincount(job, weights=servers, minlength=n)
        compute, size, network, local, samples = self._parameters[kinds].T
        part = servers / np.maximum(total_s[job], 1)
        sent = workers * (1.0 - part)
        received = part * (total_w[job] - workers)
        remote = np.maximum(sent, received) * 2.0 * size[job] / network[job]
        within = workers * part * 2.0 * size[job] / local[job]
        starts = np.flatnonzero(np.diff(job, prepend=-1))
        transfer = np.maximum.reduceat(np.maximum(remote, within), starts)
        present = job[starts]
        speed[present] = total_w[present] * samples[present] / (compute[present] + transfer)
        return np.where((total_w > 0) & (total_s > 0), speed, 0.0)
