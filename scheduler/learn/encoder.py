"""The network of ``dl2x``: one encoder for every job, attention over the jobs, coefficients for the scores of moves.

No window, no order, no type index: a job is described by its demands, its speed curve and its progress, all relative
to its cluster, so that an agent serves other clusters and job types than those it was trained on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

import numpy as np
import torch
from torch import nn

from scheduler.core import ClusterView, JobsView
from scheduler.learn.moves import FACTS, MoveBook, Prices, knees
from scheduler.learn.plan import lost_fraction

CURVE = (2, 4, 8, 16, 32)  # tasks
_FIELDS = (
    "remaining",
    "left",
    "age",
    "waiting",
    "servers",
    "workers",
    "speed",
    "running",
    "lost",
    "knee servers",
    "knee workers",
    "worker cost",
    "server cost",
    "rank",
    "jobs",
    "pressure",
    "least pressure",
    "total remaining",
)
FEATURES = len(_FIELDS) + len(CURVE)


@dataclass(frozen=True)
class EncoderParams:
    """Sizes of the network.

    Attributes:
        width: of a job's encoding.
        heads: of the attention over jobs.
        sharpness: initial coefficient of a move's gain per cost; all others begin at zero, so that every move is equal.
    """

    width: int = 64
    heads: int = 4
    sharpness: float = 0.0

    def plain(self) -> Dict[str, Any]:
        return asdict(self)


def features(cluster: ClusterView, jobs: JobsView, book: MoveBook) -> np.ndarray:
    """What the network sees of a slot's jobs, float32 [n, FEATURES]; everything is relative to cluster and slot."""
    n = len(jobs)
    if not n:
        return np.zeros((0, FEATURES), dtype=np.float32)
    prices = Prices(cluster, jobs, book)
    rows = jobs.rate_index
    best = np.maximum(book.best[rows], 1e-300)
    ideal = np.minimum(jobs.remaining / best, 1e4)  # slots left at the best size
    knee_s, knee_w = knees(book)[:, rows]
    pressure = prices.pressure[cluster.totals > 0]
    columns = {
        "remaining": np.log(ideal + 0.1) / 3.0,
        "left": np.clip(jobs.remaining / np.maximum(jobs.epochs, 1e-9), 0.0, 1.0),
        "age": np.log1p(np.maximum(cluster.slot - jobs.arrival, 0.0)) / 3.0,
        "waiting": (jobs.service <= 0).astype(float),
        "servers": jobs.servers / cluster.max_servers,
        "workers": jobs.workers / cluster.max_workers,
        "speed": jobs.rate(jobs.servers, jobs.workers) / best,
        "running": ((jobs.servers > 0) & (jobs.workers > 0)).astype(float),
        "lost": lost_fraction(cluster, jobs),
        "knee servers": knee_s / cluster.max_servers,
        "knee workers": knee_w / cluster.max_workers,
        "worker cost": np.log(prices.worker_share.max(axis=1) * n + 1e-4) / 3.0,
        "server cost": np.log(prices.server_share.max(axis=1) * n + 1e-4) / 3.0,
        "rank": np.argsort(np.argsort(ideal, kind="stable"), kind="stable") / n,
        "jobs": np.full(n, np.log(n) / 4.0),
        "pressure": np.full(n, np.log(pressure.max(initial=0.0) + 0.01) / 2.0),
        "least pressure": np.full(n, np.log(pressure.min(initial=np.inf) + 0.01) / 2.0),
        "total remaining": np.full(n, np.log(ideal.sum() + 0.1) / 6.0),
    }
    fields = np.stack([columns[name] for name in _FIELDS], axis=1)
    return np.concatenate([fields, curves(book)[rows]], axis=1).astype(np.float32)


def curves(book: MoveBook) -> np.ndarray:
    """Best speed with so many tasks relative to the best of all, float64 [M, len(CURVE)]; cached in the book."""
    cached = book.__dict__.get("_curves")
    if cached is None:
        size = np.add.outer(np.arange(book.rates.shape[1]), np.arange(book.rates.shape[2]))
        best = np.maximum(book.best, 1e-300)
        cached = np.stack([book.rates[:, size <= k].max(axis=1, initial=0.0) / best for k in CURVE], axis=1)
        book.__dict__["_curves"] = cached
    return np.asarray(cached)


class Encoder(nn.Module):
    """Jobs of slots → coefficients of their moves, score of the void, and value of each job.

    ``forward`` takes float32 [B, n, FEATURES] and bool [B, n], true for jobs that are there, and returns coefficients
    float32 [B, n, len(FACTS)], void [B] and values [B, n] (slots that the job will lose from now on, negative).
    """

    def __init__(self, params: EncoderParams) -> None:
        super().__init__()
        width = params.width
        self.params = params
        self.inward = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.attention = nn.MultiheadAttention(width, params.heads, batch_first=True)
        self.mixed = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.theta = nn.Linear(width, len(FACTS))
        self.void = nn.Linear(width, 1)
        self.value = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        nn.init.zeros_(self.theta.weight)
        nn.init.zeros_(self.theta.bias)
        nn.init.zeros_(self.void.weight)
        with torch.no_grad():
            self.theta.bias[0] = params.sharpness
            self.void.bias[0] = -10.0

    def forward(self, jobs: torch.Tensor, there: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = self.inward(jobs)
        seen, _ = self.attention(own, own, own, key_padding_mask=~there, need_weights=False)
        mixed = self.mixed(torch.cat([own, seen], dim=2))
        count = there.sum(dim=1, keepdim=True).clamp(min=1)
        pooled = (mixed * there[..., None]).sum(dim=1) / count
        return self.theta(mixed), self.void(pooled)[:, 0], self.value(mixed)[..., 0]


def pad(slots: Tuple[np.ndarray, ...]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Features of several slots as one batch: float32 [B, n, FEATURES] and bool [B, n]. Each slot has a job."""
    most = max(len(x) for x in slots)
    batch = np.zeros((len(slots), most, FEATURES), dtype=np.float32)
    there = np.zeros((len(slots), most), dtype=bool)
    for k, x in enumerate(slots):
        batch[k, : len(x)] = x
        there[k, : len(x)] = True
    return torch.from_numpy(batch), torch.from_numpy(there)
