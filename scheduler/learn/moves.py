"""The moves that ``dl2x`` chooses among, and what it knows of each: gain, cost, size. Choosing is in ``plan.py``.

From its present size a job may take 1 to 32 more tasks at once: as the split of servers and workers that raises its
speed most, as servers only, as workers only, or, where resizes cost time, as a return to its size in the slot before.
Big moves matter because speed is not concave in the size: a job that gains nothing from one more server may gain much
from twelve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

import numpy as np

from scheduler.core import ClusterView, JobsView

SPLIT = (2, 3, 4, 6, 8, 12, 16, 24, 32)
SERVERS_ONLY = (1, 2, 4, 8, 16)
WORKERS_ONLY = (1, 2, 4, 8)
MOVES = len(SPLIT) + len(SERVERS_ONLY) + len(WORKERS_ONLY) + 1  # the last is the return
RETURN = MOVES - 1
FACTS = (
    "log gain per cost",
    "log tasks",
    "speed after",
    "first tasks",
    "average speed per cost after",
    "as before",
    "resize cost",
    "slot left over",
    "priority",
)
_TINY = 1e-9


@dataclass(frozen=True)
class MoveSet:
    """The moves from one size, by what the speed table alone says of them.

    Attributes:
        servers, workers: int64 [MOVES], how many are added; the entry of the return is zero.
        rate: float64 [MOVES], epochs per slot afterwards.
        gain: float64 [MOVES], 1 - rate before / rate after; at most 0 where the move is useless or passes a limit.
    """

    servers: np.ndarray
    workers: np.ndarray
    rate: np.ndarray
    gain: np.ndarray


class MoveBook:
    """Works out the moves from a size once per (speed table, size) and remembers them."""

    def __init__(self, rates: np.ndarray) -> None:
        self.rates = rates
        self._sets: Dict[Tuple[int, int, int], MoveSet] = {}
        self.best = rates.reshape(len(rates), -1).max(axis=1, initial=0.0)  # fastest speed of each table

    def moves(self, row: int, servers: int, workers: int) -> MoveSet:
        key = (row, servers, workers)
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = self._work_out(self.rates[row], servers, workers)
        return found

    @staticmethod
    def _work_out(table: np.ndarray, servers: int, workers: int) -> MoveSet:
        ds, dw = np.zeros(MOVES, dtype=np.int64), np.zeros(MOVES, dtype=np.int64)
        max_s, max_w = table.shape[0] - 1, table.shape[1] - 1
        inside = (_PAIR_S + servers <= max_s) & (_PAIR_W + workers <= max_w)
        rate = np.where(inside, table[np.minimum(_PAIR_S + servers, max_s), np.minimum(_PAIR_W + workers, max_w)], -1.0)
        for k, (start, stop) in enumerate(_RUNS):
            at = start + int(rate[start:stop].argmax())
            ds[k], dw[k] = _PAIR_S[at], _PAIR_W[at]
        ds[_FIXED], dw[_FIXED] = _FIXED_S, _FIXED_W
        inside = (ds + servers <= max_s) & (dw + workers <= max_w) & (ds + dw > 0)
        after = table[np.minimum(ds + servers, max_s), np.minimum(dw + workers, max_w)]
        now = table[servers, workers]
        gain = np.where(inside & (after > 0), 1.0 - now / np.maximum(after, 1e-300), 0.0)
        return MoveSet(ds, dw, after, gain)


class Prices:
    """What a task costs, given how sought after each resource is in the slot.

    A resource's price is its pressure: what all jobs would use at 90 % of their best speed, over what there is. The
    cost of a task is the price-weighted share of the cluster that it takes, prices summing to one.

    Attributes:
        worker, server: float64 [n], cost of one task of each job.
        pressure: float64 [R].
    """

    def __init__(self, cluster: ClusterView, jobs: JobsView, book: MoveBook) -> None:
        totals = np.where(cluster.totals > 0, cluster.totals, np.inf)
        worker, server = jobs.demands()
        self.worker_share, self.server_share = worker / totals, server / totals
        knee_s, knee_w = knees(book)[:, jobs.rate_index] if len(jobs) else np.zeros((2, 0))
        self.pressure = (knee_s[:, None] * self.server_share + knee_w[:, None] * self.worker_share).sum(axis=0)
        price = self.pressure**2
        price = price / max(price.sum(), _TINY)
        self.worker = self.worker_share @ price + _TINY
        self.server = self.server_share @ price + _TINY


def knees(book: MoveBook) -> np.ndarray:
    """Per speed table the smallest size with 90 % of the best speed, as servers and workers, int64 [2, M]; cached."""
    cached = book.__dict__.get("_knees")
    if cached is None:
        size = np.add.outer(np.arange(book.rates.shape[1]), np.arange(book.rates.shape[2])).astype(float)
        enough = book.rates >= 0.9 * book.best[:, None, None]
        flat = np.where(enough, size, np.inf).reshape(len(book.rates), -1).argmin(axis=1)
        cached = np.stack(np.unravel_index(flat, size.shape))
        book.__dict__["_knees"] = cached
    return np.asarray(cached)


def _pairs() -> Tuple[np.ndarray, np.ndarray, List[Tuple[int, int]]]:
    servers: List[int] = []
    workers: List[int] = []
    runs = []
    for total in SPLIT:
        start = len(servers)
        for w in range(total + 1):
            servers.append(total - w)
            workers.append(w)
        runs.append((start, len(servers)))
    return np.array(servers, dtype=np.int64), np.array(workers, dtype=np.int64), runs


_PAIR_S, _PAIR_W, _RUNS = _pairs()
_FIXED = slice(len(SPLIT), RETURN)
_FIXED_S = np.array(SERVERS_ONLY + (0,) * len(WORKERS_ONLY), dtype=np.int64)
_FIXED_W = np.array((0,) * len(SERVERS_ONLY) + WORKERS_ONLY, dtype=np.int64)
