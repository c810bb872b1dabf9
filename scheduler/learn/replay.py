"""The replay buffer of ``dl2``: the latest decisions, oldest overwritten first. Sampling is uniform (section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Decisions; all arrays have length k.

    Attributes:
        states, after, following: float32 [k, D], the state, the one that the action led to in the slot, and the first
            of the next slot.
        last: bool, the action ended its slot; ``after`` means nothing there.
        allowed: bool [k, A], actions that were open.
        actions: int64.
        rewards: float32, of the slot.
        going_on: float32, 0 where the trace ended with the slot.
        log_probs: float32, of the action when it was taken.
    """

    states: np.ndarray
    after: np.ndarray
    last: np.ndarray
    following: np.ndarray
    allowed: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    going_on: np.ndarray
    log_probs: np.ndarray


class Replay:
    """Args: most decisions kept; sizes D of a state and A of an action vector."""

    def __init__(self, size: int, state: int, actions: int) -> None:
        self.size = size
        self._arrays: Dict[str, np.ndarray] = {
            "states": np.zeros((size, state), dtype=np.float32),
            "after": np.zeros((size, state), dtype=np.float32),
            "last": np.zeros(size, dtype=bool),
            "following": np.zeros((size, state), dtype=np.float32),
            "allowed": np.zeros((size, actions), dtype=bool),
            "actions": np.zeros(size, dtype=np.int64),
            "rewards": np.zeros(size, dtype=np.float32),
            "going_on": np.zeros(size, dtype=np.float32),
            "log_probs": np.zeros(size, dtype=np.float32),
        }
        self.added = 0

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, batch: Batch) -> None:
        """Stores decisions, the newest over the oldest."""
        k = len(batch.actions)
        at = (self.added + np.arange(k)) % self.size
        for name, array in self._arrays.items():
            array[at] = getattr(batch, name)
        self.added += k

    def sample(self, k: int, rng: np.random.Generator) -> Batch:
        """k decisions drawn uniformly, with replacement."""
        at = rng.integers(len(self), size=k)
        return Batch(**{name: array[at] for name, array in self._arrays.items()})

    @property
    def mean_reward(self) -> float:
        return float(self._arrays["rewards"][: len(self)].mean()) if len(self) else 0.0
