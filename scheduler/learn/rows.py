"""Recorded decisions of ``dl2x`` as tensors, to be scored again under other coefficients."""

from __future__ import annotations

from typing import List

import numpy as np
import torch

from scheduler.learn.moves import FACTS, MOVES
from scheduler.learn.plan import Record


class Rows:
    """Records of several slots as tensors."""

    def __init__(self, records: List[Record]) -> None:
        records = [_standing(record) for record in records]
        slots, rows = len(records), max(len(r.job) for r in records)
        steps = max(max(len(r.row) for r in records), 1)
        facts = np.zeros((slots, rows, MOVES, len(FACTS)), dtype=np.float32)
        is_open, within = np.zeros((slots, rows, MOVES), dtype=bool), np.zeros((slots, rows, MOVES), dtype=bool)
        job = np.zeros((slots, rows), dtype=np.int64)
        stands = np.zeros((slots, steps, rows), dtype=bool)
        chosen = np.zeros((3, slots, steps), dtype=np.int64)  # row, move, whether there was a decision
        old = np.zeros((slots, steps), dtype=np.float32)
        for k, r in enumerate(records):
            n, d = len(r.job), len(r.row)
            if not d:
                continue
            facts[k, :n], is_open[k, :n], within[k, :n] = np.stack(r.facts), np.stack(r.open), np.stack(r.within)
            at = np.arange(d)[:, None]
            stands[k, :d, :n] = (np.array(r.born)[None] <= at) & (at < np.array(r.gone)[None])
            job[k, :n], chosen[0, k, :d], chosen[1, k, :d], chosen[2, k, :d] = r.job, r.row, r.move, 1
            old[k, :d] = r.log_prob
        self.facts, self.open, self.within = (torch.from_numpy(x) for x in (facts, is_open, within))
        self.job, self.stands, self.old = (torch.from_numpy(x) for x in (job, stands, old))
        self.row, self.move = torch.from_numpy(chosen[0]).clamp(min=0), torch.from_numpy(chosen[1])
        self.void, self.mask = torch.from_numpy(chosen[0] < 0), torch.from_numpy(chosen[2] > 0)

    def log_probs(self, theta: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        """Of what was chosen: float32 [B, n, FACTS] and [B] → [B, steps]; where ``mask`` is false, nothing was."""
        scores = self._scores(theta)
        picked = scores.flatten(1).gather(1, self.row * MOVES + self.move)
        return torch.where(self.void, void[:, None].expand_as(picked), picked) - self._total(scores, void)

    def agreement(self, theta: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        """Log-probability of any move within what the teacher gave; shapes as in ``log_probs``."""
        scores = self._scores(theta)
        return self._standing(scores.masked_fill(~self.within, -1e9)).logsumexp(dim=2) - self._total(scores, void)

    def _scores(self, theta: torch.Tensor) -> torch.Tensor:
        coefficients = theta.gather(1, self.job[..., None].expand(-1, -1, theta.shape[-1]))
        return (self.facts @ coefficients[..., None])[..., 0].masked_fill(~self.open, -1e9)

    def _standing(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.logsumexp(dim=2)[:, None].masked_fill(~self.stands, -1e9)

    def _total(self, scores: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        standing = self._standing(scores)
        return torch.cat([standing, void[:, None, None].expand(-1, standing.shape[1], 1)], dim=2).logsumexp(dim=2)


def _standing(record: Record) -> Record:
    """The record without the rows that no decision looked at."""
    keep = [k for k, (born, gone) in enumerate(zip(record.born, record.gone)) if born < gone]
    if len(keep) == len(record.job):
        return record
    number = {old: new for new, old in enumerate(keep)}
    return Record(
        facts=[record.facts[k] for k in keep],
        open=[record.open[k] for k in keep],
        within=[record.within[k] for k in keep],
        job=[record.job[k] for k in keep],
        born=[record.born[k] for k in keep],
        gone=[record.gone[k] for k in keep],
        row=[number[row] if row >= 0 else -1 for row in record.row],
        move=record.move,
        log_prob=record.log_prob,
    )
