"""The networks of ``dl2``: two fully connected hidden layers, then a softmax or a value (section 4.3)."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """float32 [batch, inputs] → float32 [batch, outputs], through two hidden layers with ReLU."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.layers(state)
