"""``dl2x``: the learned policy that is the default, as a Policy. How it is trained is in ``dl2x_training.py``.

What it changes against the paper's agent: no window of jobs and no order (attention), demands and speed curves in
place of a type index, moves of several tasks, what does not fit is masked, resizes have their cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional, Union

import numpy as np
import torch

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.learn import checkpoint
from scheduler.learn.encoder import FEATURES, Encoder, EncoderParams, features, pad
from scheduler.learn.moves import MoveBook
from scheduler.learn.plan import Plan
from scheduler.placement import Placer

FEATURE_SET = "dl2x/2"


class Dl2xAgent:
    """The network with what it was made for. Args: sizes; seed of the initial weights."""

    def __init__(self, params: Optional[EncoderParams] = None, seed: int = 0) -> None:
        self.params = params or EncoderParams()
        before = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.network = Encoder(self.params)
        torch.random.set_rng_state(before)

    def plan(self, cluster: ClusterView, jobs: JobsView, book: MoveBook) -> Plan:
        """A slot to be filled; it needs at least one job. ValueError if the network's output is not finite."""
        with torch.inference_mode():
            theta, void, _ = self.network(*pad((features(cluster, jobs, book),)))
        if not (torch.isfinite(theta).all() and torch.isfinite(void).all()):
            raise ValueError("dl2x: the network's output is not finite: its weights are damaged, give another --agent")
        return Plan(cluster, jobs, book, theta[0].numpy().astype(np.float64), float(void[0]))

    def plain(self) -> Dict[str, object]:
        """What a checkpoint holds of the agent."""
        return {
            "policy": "dl2x",
            "features": FEATURE_SET,
            "params": self.params.plain(),
            "network": self.network.state_dict(),
        }

    @classmethod
    def from_plain(cls, data: Dict[str, object], source: str) -> Dl2xAgent:
        checkpoint.expect(data, "dl2x", FEATURE_SET, source)
        agent = cls(EncoderParams(**data["params"]))  # type: ignore[arg-type]
        checkpoint.restore(agent.network, data["network"], source)
        return agent


class Dl2x(Policy):
    """Always the move with the highest score.

    Args:
        agent: a checkpoint, or an agent; None for the one that comes with the package.
    """

    name = "dl2x"

    def __init__(self, agent: Union[str, Path, Dl2xAgent, None] = None) -> None:
        if not isinstance(agent, Dl2xAgent):
            path = checkpoint.packaged("dl2x") if agent is None else Path(agent)
            agent = Dl2xAgent.from_plain(checkpoint.load(path), str(path))
        self.agent = agent
        with torch.inference_mode():  # the first attention has torch import for a second, which no slot is to wait for
            agent.network(torch.zeros(1, 1, FEATURES), torch.ones(1, 1, dtype=torch.bool))
        self._book: Optional[MoveBook] = None

    def reset(self, seed: int = 0) -> None:
        self._book = None

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        if not len(jobs):
            return Placer(cluster, jobs).allocation()
        if self._book is None or self._book.rates is not jobs.rates:
            self._book = MoveBook(jobs.rates)
        return self.agent.plan(cluster, jobs, self._book).best()
