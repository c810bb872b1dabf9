"""The networks of ``dl2``: two fully connected hidden layers, then a softmax or a value (section 4.3)."""

from __future__ import annotations

import numpy as np
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

    def infer(self, states: np.ndarray) -> np.ndarray:
        """``forward`` without gradients, in NumPy: for the few rows of a decision, calling torch costs more than the
        sums."""
        linear = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        for layer in linear[:-1]:
            states = states @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
            np.maximum(states, 0.0, out=states)
        scores: np.ndarray = states @ linear[-1].weight.detach().numpy().T + linear[-1].bias.detach().numpy()
        return scores
