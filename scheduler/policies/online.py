"""Learns speeds from the jobs' own progress and hands them to another policy as its estimates (Optimus, section 3.2).

Each job type keeps the mean measured speed at every size it has run at, refits Optimus's form by non-negative least
squares when there is news, and until sizes have been seen leans on a weak prior whose scale is the measured one. Wrap
any policy that reads ``jobs.rates`` where no table is known, as on a live cluster. What to do with the estimates is up
to the wrapped policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.speeds import FittedSpeed, fit_speed

# Relative seconds per epoch by Optimus's five terms before anything is measured: computation divides over workers, a
# transfer as long as a quarter of it, a little overhead.
PRIOR = FittedSpeed((1.0, 0.1, 0.25, 0.01, 0.001))
_PRIOR_SIZES = np.array([(1, 1), (1, 4), (4, 1), (4, 4), (16, 2), (2, 16), (16, 16)])


class SpeedHistory:
    """Measured rates of one job type, and the model fitted to them.

    Args:
        prior_weight: weight of each prior point against one measured size.
    """

    def __init__(self, prior_weight: float = 0.01) -> None:
        self.prior_weight = prior_weight
        self._seen: Dict[Tuple[int, int], Tuple[float, int]] = {}
        self._table: Optional[Array] = None

    def add(self, servers: int, workers: int, rate: float) -> None:
        """One slot's measured rate, in epochs per slot."""
        mean, count = self._seen.get((servers, workers), (0.0, 0))
        count = min(count + 1, 20)  # forgets slowly: a job's speed may drift
        updated = mean + (rate - mean) / count
        if count == 1 or abs(updated - mean) > 1e-6 * mean:
            self._table = None
        self._seen[servers, workers] = (updated, count)

    def table(self, max_servers: int, max_workers: int) -> Array:
        """Estimated epochs per slot, float64 [max_servers + 1, max_workers + 1]."""
        if self._table is None:
            self._table = self._fit().table(max_servers, max_workers)
        return self._table

    def _fit(self) -> FittedSpeed:
        prior = PRIOR.table(16, 16)
        at = _PRIOR_SIZES
        expected = prior[at[:, 0], at[:, 1]]
        if not self._seen:
            return PRIOR
        sizes = np.array(list(self._seen), dtype=float)
        rates = np.array([mean for mean, _ in self._seen.values()])
        capped = np.minimum(sizes, 16).astype(int)
        scale = np.exp(np.mean(np.log(rates / prior[capped[:, 0], capped[:, 1]])))
        points = np.concatenate([sizes, at])
        weight = np.concatenate([np.ones(len(sizes)), np.full(len(at), self.prior_weight)])
        return fit_speed(points[:, 0], points[:, 1], np.concatenate([rates, expected * scale]), weight)


class Online(Policy):
    """Another policy on estimates learnt online. ``name`` is the wrapped policy's with ``-online``."""

    def __init__(self, policy: Policy, prior_weight: float = 0.01) -> None:
        self.policy = policy
        self.name = f"{policy.name}-online"
        self.prior_weight = prior_weight
        self.reset()

    def reset(self, seed: int = 0) -> None:
        self.policy.reset(seed)
        self._history: Dict[str, SpeedHistory] = {}
        self._tables: List[Array] = []
        self._rates = np.zeros((0, 0, 0))

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        self._learn(jobs)
        return self.policy.allocate(cluster, self._estimates(cluster, jobs))

    def _learn(self, jobs: JobsView) -> None:
        for i in np.flatnonzero(jobs.measured > 0).tolist():
            self._of(jobs.type(i).name).add(int(jobs.servers[i]), int(jobs.workers[i]), float(jobs.measured[i]))

    def _estimates(self, cluster: ClusterView, jobs: JobsView) -> JobsView:
        if not jobs.types:
            return jobs
        tables = [self._of(kind.name).table(cluster.max_servers, cluster.max_workers) for kind in jobs.types]
        if len(tables) != len(self._tables) or any(a is not b for a, b in zip(tables, self._tables)):
            self._tables, self._rates = tables, np.stack(tables)  # the same array as long as there is no news
        return replace(jobs, rates=self._rates, rate_index=jobs.type_index)

    def _of(self, name: str) -> SpeedHistory:
        if name not in self._history:
            self._history[name] = SpeedHistory(self.prior_weight)
        return self._history[name]


def online(policy: str, **options: Any) -> Online:
    """The policy of that name, wrapped."""
    from scheduler.policies import make

    return Online(make(policy, **options))
