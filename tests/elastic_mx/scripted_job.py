"""A job in this process whose resizes follow a script: what the data tests put in the place of the network.

It keeps the rules of `elastic_mx.data.Job`: a step's membership is fixed, a joining worker is told an epoch that has
begun, and each worker counts its own pushes.
"""

from typing import Dict, List, Optional, Sequence, Set, Tuple

from elastic_mx.data import Limits, Position, Retired, Session, Share


class ScriptedJob:
    """Generations as pairs (scaling clock, members), ascending, the first at step 0.

    `lag`: how many epochs behind the newest a joining worker is told (the coordinator may not have heard yet).
    """

    def __init__(self, generations: Sequence[Tuple[int, Sequence[str]]], lag: int = 0) -> None:
        self.generations = list(generations)
        self.lag = lag
        self.epochs: Dict[int, int] = {}
        self.limits: Optional[int] = None

    def generation(self, step: int) -> int:
        return max(g for g, (clock, _) in enumerate(self.generations) if clock <= step)

    def names(self) -> List[str]:
        """All workers, in the order in which they join."""
        return list(dict.fromkeys(name for _, members in self.generations for name in members))

    def worker(self, name: str) -> "ScriptedWorker":
        return ScriptedWorker(self, name)

    def session(self, name: str) -> Session:
        return Session(self.worker(name))


class ScriptedWorker:
    """The `Job` that one worker sees. `pushed` is the step of its next push; tests move it where it matters."""

    def __init__(self, job: ScriptedJob, name: str) -> None:
        self.job = job
        self.name = name
        self.first = next(clock for clock, members in job.generations if name in members)
        self.pushed = self.first
        self.dealt: Set[int] = set()

    def join(self, limits: Limits) -> Position:
        if limits.max_workers is not None:
            known = self.job.limits
            self.job.limits = limits.max_workers if known is None else min(known, limits.max_workers)
        begun = sorted(epoch for epoch, step in self.job.epochs.items() if step <= self.first)
        epoch = begun[max(0, len(begun) - 1 - self.job.lag)] if begun else 0
        epoch_step = self.job.epochs.get(epoch, 0)
        history = tuple((clock, len(members)) for clock, members in self.job.generations if clock <= self.first)
        return Position(epoch, epoch_step, self.first, history[self.job.generation(epoch_step) :])

    def deal(self, step: int) -> Share:
        generation = self.job.generation(step)
        members = list(self.job.generations[generation][1])
        if self.name not in members:
            raise Retired(f"{self.name} is not a member at step {step}")
        self.dealt.add(step)
        return Share(members.index(self.name), len(members), generation)

    def epoch_began(self, epoch: int, step: int) -> None:
        assert self.job.epochs.setdefault(epoch, step) == step, f"{self.name}: epoch {epoch} begins twice"

    def step(self) -> Optional[int]:
        return self.pushed
