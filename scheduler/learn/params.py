"""Hyper-parameters of ``dl2``: the paper's values, and ours beside them. What they do is in the other files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Dict


@dataclass(frozen=True)
class Dl2Params:
    """The defaults are the paper's (arXiv 1909.06040, sections 4 and 6.2); ``ours()`` says what we train with and why.

    Attributes:
        jobs: J, how many jobs the network sees at once; more are scheduled in batches of J by arrival.
        hidden: neurons of each of the two fully connected layers.
        warmup_rate, online_rate: Adam's step size in the supervised and in the online phase.
        critic_rate: the value network's in the online phase.
        batch: samples per update.
        replay: size of the replay buffer, in decisions.
        discount: of the reward from one slot to the next.
        entropy: weight of the entropy bonus, beta.
        explore: probability of the job-aware action in a poor state, epsilon.
        ratio: workers per server, or servers per worker, from which a job's state is poor.
        actor_critic: learn a value network as baseline; without it, the mean reward of the buffer is the baseline.
        clip: bound on the importance weight of a replayed decision, 0 for none: the paper replays as if on-policy.
        stepwise: an action is credited with how much it changes the state's value; without it, with what the whole slot
            earned beyond that value, as in the paper.
        centred: advantages are taken relative to the mean of their batch.
        critic_first: updates of the value network before the first of the policy.
        pairs: every job, by arrival, gets a worker and a server before the agent's first action, as in the authors'
            code; the paper does not say so.
        fill: an action that fits on no node is drawn again; without it, it ends the slot, as in the authors' code.
    """

    jobs: int = 20
    hidden: int = 256
    warmup_rate: float = 0.005
    online_rate: float = 0.0001
    critic_rate: float = 0.0001
    batch: int = 256
    replay: int = 8192
    discount: float = 0.9
    entropy: float = 0.1
    explore: float = 0.4
    ratio: float = 10.0
    actor_critic: bool = True
    clip: float = 0.0
    stepwise: bool = False
    centred: bool = False
    critic_first: int = 0
    pairs: bool = False
    fill: bool = False

    def __post_init__(self) -> None:
        for name in ("jobs", "hidden", "batch", "replay"):
            if getattr(self, name) < 1:
                raise ValueError(f"dl2: {name} is {getattr(self, name)}, must be 1 or more")
        for name in ("discount", "explore"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"dl2: {name} is {getattr(self, name)}, must be from 0 to 1")

    @classmethod
    def ours(cls, **changes: Any) -> Dl2Params:
        """What departs from the paper, and why.

        A window of 48 jobs, since with 20 the later batches of a crowded slot find the cluster full; a gentler first
        phase, which ends at a lower loss; an entropy bonus that does not drown the small differences in reward; a pair
        for every job, so that none starves; all nodes tried for a task before a slot ends; replayed decisions weighted
        by how likely they still are; a value network that learns first and faster, and advantages around zero, since as
        long as its values are too low every action looks good; credit for what a single action changes, as the slot's
        reward tells little of one among dozens.
        """
        values: Dict[str, Any] = {
            "jobs": 48,
            "warmup_rate": 0.001,
            "entropy": 0.003,
            "clip": 1.0,
            "critic_rate": 0.001,
            "critic_first": 300,
            "stepwise": True,
            "centred": True,
            "pairs": True,
            "fill": True,
        }
        return cls(**{**values, **changes})

    def plain(self) -> Dict[str, Any]:
        """For a checkpoint: names and numbers only."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Dict[str, Any]) -> Dl2Params:
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})
