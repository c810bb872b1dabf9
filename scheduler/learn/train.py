"""Runs a training from nothing, or from where it stopped, to a finished agent. What is learnt is in ``*_training.py``.

A run is a number of warm-up rounds and then of online rounds. Every few rounds the agent is validated; the best one
is what the checkpoint offers as agent, beside all that a later run needs to go on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.learn import checkpoint, offline
from scheduler.learn.dl2 import FEATURES as DL2_FEATURES
from scheduler.learn.dl2 import Dl2, Dl2Agent
from scheduler.learn.dl2_training import Online
from scheduler.learn.dl2_training import WarmUp as Dl2WarmUp
from scheduler.learn.dl2x import FEATURE_SET, Dl2x, Dl2xAgent
from scheduler.learn.dl2x_training import Ppo, PpoParams
from scheduler.learn.dl2x_training import WarmUp as Dl2xWarmUp
from scheduler.learn.moves import MoveBook
from scheduler.learn.params import Dl2Params
from scheduler.learn.rollout import mean_jcts
from scheduler.learn.scenario import Held

WARM_UP, ONLINE = "warm-up", "online"
LESSONS = 64  # of a record that are taken in by a round of the warm-up
BESIDES = 2  # traces watched besides
Figures = Dict[str, float]
Lesson = Tuple[ClusterView, JobsView, Allocation]  # what was seen, and what the teacher gave


class Session(Protocol):
    """A policy in training."""

    features: str

    def warm_round(self) -> Figures: ...

    def online_round(self) -> Figures: ...

    def validate(self, count: int) -> float:
        """Mean JCT on so many held-out traces, slots; infinite, or very long, for an agent that starves jobs."""
        ...

    def agent(self) -> Dict[str, Any]:
        """What a checkpoint holds of the agent as it is now."""
        ...

    def state(self) -> Dict[str, Any]: ...

    def adopt(self, agent: Dict[str, Any], source: str) -> None:
        """Goes on from an agent's weights, as if it were new."""
        ...

    def restore(self, agent: Dict[str, Any], state: Dict[str, Any], source: str) -> None: ...


class Dl2Session:
    """``dl2``: a warm-up round is 4 traces of the teacher and 300 updates, an online round is so many slots.

    Args:
        lessons: decisions to imitate in place of the teacher's traces, where there is a record of them.
        decider: not asked, see ``Dl2xSession``: every job has a pair here whatever the network says.
        slots: of an online round, over all clusters.
    """

    features = DL2_FEATURES
    name = "dl2"
    slots = 1500  # of an online round

    def __init__(
        self,
        scenario: Held,
        teacher: Policy,
        params: Optional[Dl2Params] = None,
        lessons: Sequence[Lesson] = (),
        decider: Optional[Policy] = None,
        slots: int = 1500,
    ) -> None:
        self.scenario, self.teacher, self.lessons, self.slots = scenario, teacher, lessons, slots
        self.rng = scenario.training_rng()
        self._agent = Dl2Agent(params or Dl2Params.ours(), scenario.type_names(), scenario.seed, self.name)
        self._begin()

    def _begin(self) -> None:
        self._warm = Dl2WarmUp(self._agent, self.teacher, self.scenario.simulator, self.rng)
        self._online: Optional[Online] = None
        self._online_state: Dict[str, Any] = {}

    def warm_round(self) -> Figures:
        for lesson in _some(self.lessons, self.rng):
            self._warm.see(*lesson)
        for _ in range(0 if self.lessons else 4):
            self._warm.watch()
        return {"cross_entropy": self._warm.learn(300)}

    def online_round(self) -> Figures:
        if self._online is None:
            self._online = Online(self._agent, self.scenario.simulator, self.rng)
            if self._online_state:
                self._online.restore(self._online_state)
        return self._online.play(self.slots)

    def validate(self, count: int) -> float:
        return float(mean_jcts(self._agent, self.scenario.held_out(count)).mean())

    def policy(self) -> Policy:
        return Dl2(self._agent)

    def agent(self) -> Dict[str, Any]:
        return self._agent.plain()

    def state(self) -> Dict[str, Any]:
        return {
            "warm": self._warm.optimizer.state_dict(),
            "online": self._online.plain() if self._online is not None else self._online_state,
            "rng": self.rng.bit_generator.state,
        }

    def adopt(self, agent: Dict[str, Any], source: str) -> None:
        self._agent = Dl2Agent.from_plain(agent, source, self.name)
        self._begin()

    def restore(self, agent: Dict[str, Any], state: Dict[str, Any], source: str) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.adopt(agent, source)
        self._warm.optimizer.load_state_dict(state["warm"])
        self._online_state = state["online"]


class Dl2xSession:
    """``dl2x``: a warm-up round is a few traces of the teacher and updates, an online round one PPO iteration.

    Args:
        lessons: decisions to imitate in place of the teacher's traces, where there is a record of them.
        decider: whose they are, if it can be asked: it is watched besides, since a record shows few states (seldom
            many jobs at once), and a network says anything of those it never saw.
    """

    features = FEATURE_SET

    def __init__(
        self,
        scenario: Held,
        teacher: Policy,
        params: Optional[PpoParams] = None,
        lessons: Sequence[Lesson] = (),
        decider: Optional[Policy] = None,
    ) -> None:
        self.scenario, self.teacher, self.params = scenario, teacher, params or PpoParams()
        self.lessons, self.decider = lessons, decider
        self.rng = scenario.training_rng()
        self._agent = Dl2xAgent(seed=scenario.seed)
        self._begin()

    def _begin(self) -> None:
        shows = self.decider or self.teacher
        self._warm = Dl2xWarmUp(self._agent, shows, self.scenario.simulator, self.params, self.rng)
        self._ppo: Optional[Ppo] = None
        self._ppo_state: Dict[str, Any] = {}

    def warm_round(self) -> Figures:
        for cluster, jobs, allocation in _some(self.lessons, self.rng):
            self._warm.see(cluster, jobs, allocation, MoveBook(jobs.rates))
        watched = self.params.warm_traces if not self.lessons else BESIDES if self.decider else 0
        for _ in range(watched):
            self._warm.watch()
        return {"cross_entropy": self._warm.learn(self.params.warm_updates)}

    def online_round(self) -> Figures:
        if self._ppo is None:
            self._ppo = Ppo(self._agent, self.scenario.simulator, self.params, self.rng, self.teacher)
            if self._ppo_state:
                self._ppo.restore(self._ppo_state)
        return self._ppo.iterate()

    def validate(self, count: int) -> float:
        try:
            return self.scenario.mean_jct(Dl2x(self._agent), count)
        except RuntimeError:  # it starves jobs, as one may that has learnt little so far
            return float("inf")

    def agent(self) -> Dict[str, Any]:
        return self._agent.plain()

    def state(self) -> Dict[str, Any]:
        return {
            "warm": self._warm.optimizer.state_dict(),
            "online": self._ppo.plain() if self._ppo is not None else self._ppo_state,
            "rng": self.rng.bit_generator.state,
        }

    def adopt(self, agent: Dict[str, Any], source: str) -> None:
        self._agent = Dl2xAgent.from_plain(agent, source)
        self._begin()

    def restore(self, agent: Dict[str, Any], state: Dict[str, Any], source: str) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.adopt(agent, source)
        self._warm.optimizer.load_state_dict(state["warm"])
        self._ppo_state = state["online"]


class OfflineSession(Dl2Session):
    """``offline-rl``: rounds of 500 slots of reinforcement, in a scenario with analytical speeds; no other rounds."""

    name = offline.NAME
    slots = 500

    def __init__(self, scenario: Held, teacher: Policy, params: Optional[Dl2Params] = None) -> None:
        params = params or Dl2Params.ours(online_rate=0.0003, entropy=0.01)  # it has a long way to go
        super().__init__(scenario, teacher, params)

    def warm_round(self) -> Figures:
        raise ValueError(f"{self.name} imitates nobody: leave --warmup out")


SESSIONS = {"dl2": Dl2Session, "dl2x": Dl2xSession, offline.NAME: OfflineSession}


@dataclass
class Progress:
    """Where a run stands; saved with it.

    Attributes:
        warm, online: rounds done.
        best: lowest mean JCT on the validation traces so far, slots.
        latest: the latest one.
        cpu_seconds: spent so far, all threads, validation included.
    """

    warm: int = 0
    online: int = 0
    best: float = float("inf")
    latest: float = float("nan")
    cpu_seconds: float = 0.0

    def plain(self) -> Dict[str, float]:
        return dict(self.__dict__)


class Observer(Protocol):
    """Is told what happens: a terminal, TensorBoard, or nothing."""

    def round(self, phase: str, progress: Progress, figures: Figures) -> None: ...

    def validated(self, phase: str, progress: Progress) -> None: ...


class Training:
    """A run with its file.

    Args:
        session: the policy in training.
        out: checkpoint to write.
        warm, online: rounds of each phase in all, those of an earlier run included.
        every: rounds between validations.
        validation: traces to validate on.
        made: what the checkpoint tells of its making.
    """

    def __init__(
        self,
        session: Session,
        out: str,
        warm: int,
        online: int,
        every: int = 5,
        validation: int = 6,
        made: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.session, self.out = session, out
        self.rounds = {WARM_UP: warm, ONLINE: online}
        self.every, self.validation = every, validation
        self.made = made or {}
        self.progress = Progress()
        self._best: Dict[str, Any] = {}
        self._began = time.process_time()

    def resume(self) -> None:
        """Takes up the run in ``out``.

        Raises:
            ValueError: the file is no unfinished training of this policy.
        """
        data = checkpoint.load(self.out)
        checkpoint.expect(data, str(self.session.agent()["policy"]), self.session.features, self.out)
        saved = data.get("resume")
        if not saved:
            raise ValueError(f"agent {self.out} holds no training to resume: it was written with --final")
        self.session.restore(saved["agent"], saved["state"], self.out)
        self.progress = Progress(**saved["progress"])
        self._best = {name: value for name, value in data.items() if name not in ("resume", "format", "made")}
        self._began = time.process_time() - self.progress.cpu_seconds

    def run(self, observer: Observer) -> Progress:
        """Trains to the end, or to Ctrl-C; what has been learnt is saved in either case."""
        try:
            self._phase(WARM_UP, observer)
            self._phase(ONLINE, observer)
        except KeyboardInterrupt:
            self.save()
            raise
        self.save()
        return self.progress

    def _phase(self, phase: str, observer: Observer) -> None:
        progress, total = self.progress, self.rounds[phase]
        play = self.session.warm_round if phase == WARM_UP else self.session.online_round
        while (progress.warm if phase == WARM_UP else progress.online) < total:
            figures = play()
            if phase == WARM_UP:
                progress.warm += 1
            else:
                progress.online += 1
            done = progress.warm if phase == WARM_UP else progress.online
            progress.cpu_seconds = time.process_time() - self._began
            observer.round(phase, progress, figures)
            if done % self.every == 0 or done == total:
                self._validate()
                observer.validated(phase, progress)
                self.save()

    def _validate(self) -> None:
        jct = self.session.validate(self.validation)
        self.progress.latest = jct
        self.progress.cpu_seconds = time.process_time() - self._began
        if jct < self.progress.best:
            self.progress.best = jct
            self._best = _copy(self.session.agent())

    def save(self, final: bool = False) -> None:
        """Writes the best agent; unless ``final``, with all that resuming needs."""
        best = self._best or _copy(self.session.agent())
        data = {**best, "made": {**self.made, **self.progress.plain()}}
        if not final:
            data["resume"] = {
                "agent": self.session.agent(),
                "state": self.session.state(),
                "progress": self.progress.plain(),
            }
        checkpoint.save(data, self.out)


def _some(lessons: Sequence[Lesson], rng: np.random.Generator) -> List[Lesson]:
    """LESSONS of them, or all if there are fewer."""
    if len(lessons) <= LESSONS:
        return list(lessons)
    return [lessons[i] for i in rng.choice(len(lessons), LESSONS, replace=False)]


def _copy(value: Any) -> Any:
    """Tensors cloned, so that training on does not change them."""
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if hasattr(value, "clone") else value
