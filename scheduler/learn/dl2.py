"""``dl2``: the agent of the DL2 paper as a Policy. How it is trained is in ``dl2_training.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence, Union

import numpy as np
import torch

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.learn import checkpoint
from scheduler.learn.network import Mlp
from scheduler.learn.params import Dl2Params
from scheduler.learn.window import ACTIONS, Window, begin, rows_of, state_size

FEATURES = "dl2/3"


class Dl2Agent:
    """Policy and value network with what they were made for.

    Args:
        params: the hyper-parameters; ``jobs`` and ``hidden`` fix the networks' sizes.
        types: names of the job types that the one-hot input knows, in order.
        seed: of the initial weights.
        name: the policy that it is an agent of; others may share the network (``offline.py``).
    """

    def __init__(self, params: Dl2Params, types: Sequence[str], seed: int = 0, name: str = "dl2") -> None:
        self.params, self.name = params, name
        self.types: Dict[str, int] = {name: index for index, name in enumerate(types)}
        generator_state = torch.random.get_rng_state()
        torch.manual_seed(seed)
        inputs = state_size(params.jobs, len(self.types))
        self.policy = Mlp(inputs, params.hidden, ACTIONS * params.jobs + 1)
        self.value = Mlp(inputs, params.hidden, 1)
        torch.random.set_rng_state(generator_state)

    def logits(self, states: np.ndarray) -> np.ndarray:
        """float32 [k, J (L + 5)] → float32 [k, 3J + 1]."""
        return self.policy.infer(states)

    def plain(self) -> Dict[str, Any]:
        """What a checkpoint holds of the agent."""
        return {
            "policy": self.name,
            "features": FEATURES,
            "params": self.params.plain(),
            "types": list(self.types),
            "policy_net": self.policy.state_dict(),
            "value_net": self.value.state_dict(),
        }

    @classmethod
    def from_plain(cls, data: Dict[str, Any], source: str, name: str = "dl2") -> Dl2Agent:
        checkpoint.expect(data, name, FEATURES, source)
        agent = cls(Dl2Params.from_plain(data["params"]), data["types"], name=name)
        checkpoint.restore(agent.policy, data["policy_net"], source)
        checkpoint.restore(agent.value, data["value_net"], source)
        return agent


class Dl2(Policy):
    """Takes the most likely action again and again, until void or full.

    Args:
        agent: a checkpoint, or an agent; None for the one that comes with the package.
    """

    name = "dl2"

    def __init__(self, agent: Union[str, Path, Dl2Agent, None] = None) -> None:
        if not isinstance(agent, Dl2Agent):
            path = checkpoint.packaged("dl2") if agent is None else Path(agent)
            agent = Dl2Agent.from_plain(checkpoint.load(path), str(path))
        self.agent = agent

    def allocate(self, cluster: ClusterView, jobs: JobsView) -> Allocation:
        agent, params = self.agent, self.agent.params
        _expect_known(agent, jobs)
        placer = begin(cluster, jobs, params.pairs, params.fill)
        rows = rows_of(cluster, jobs, agent.types)
        for first in range(0, len(jobs), params.jobs):
            window = Window(placer, rows, first, params.jobs, params.fill)
            while not window.done:
                logits = agent.logits(window.vector[None])[0]
                if not np.isfinite(logits).all():
                    raise ValueError(
                        "dl2: the network's output is not finite: its weights are damaged, give another --agent"
                    )
                while not window.done:
                    action = int(np.where(window.allowed, logits, -np.inf).argmax())
                    if window.act(action):
                        break
        return placer.allocation()


def _expect_known(agent: Dl2Agent, jobs: JobsView) -> None:
    if len(jobs) and not any(kind.name in agent.types for kind in jobs.types):
        raise ValueError(
            f"{agent.name}: the agent was trained on job types {', '.join(agent.types)}, and the workload has none of "
            f"them: train one with elastic-mx train-policy --policy {agent.name}, or use dl2x"
        )


def sample(logits: np.ndarray, allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An action per row from the softmax over what is allowed: float32 and bool [k, A] → int64 [k]."""
    noise = rng.gumbel(size=logits.shape)
    return np.where(allowed, logits + noise, -np.inf).argmax(axis=1)
