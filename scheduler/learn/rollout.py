"""Many simulated clusters driven in lockstep by one ``dl2`` agent, so that one forward pass serves them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, List, Optional

import numpy as np

from scheduler.core import Array
from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.window import ACTIONS, Window, begin, rows_of, state_size
from scheduler.simulator import Simulator


@dataclass
class Slot:
    """The decisions of one slot of one cluster, and what came of them."""

    states: List[Array] = field(default_factory=list)
    allowed: List[Array] = field(default_factory=list)
    logits: List[Array] = field(default_factory=list)
    actions: List[int] = field(default_factory=list)
    reward: float = 0.0
    following: Optional[Array] = None  # first state of the next slot; None where the trace has ended

    def log_probs(self) -> Array:
        """Of the actions when they were taken, float64 [k]."""
        scores = np.where(np.stack(self.allowed), np.stack(self.logits), -np.inf)
        scores = scores - scores.max(axis=1, keepdims=True)
        total = np.log(np.exp(scores).sum(axis=1))
        picked: Array = scores[np.arange(len(self.actions)), self.actions] - total
        return picked


class Driver:
    """One simulated cluster and the slot that is being decided, in rows of the fleet's arrays."""

    def __init__(self, agent: Dl2Agent, simulator: Simulator, state: Array, allowed: Array) -> None:
        self.agent, self.simulator = agent, simulator
        self._state, self._allowed = state, allowed
        self._begin()

    def _begin(self) -> None:
        cluster, jobs = self.simulator.observe()
        self._placer = begin(cluster, jobs, self.agent.params.pairs, self.agent.params.fill)
        self._rows = rows_of(cluster, jobs, self.agent.types)
        self.slot = Slot()
        self._look(0)

    def _look(self, first: int) -> None:
        params = self.agent.params
        self._first = first
        buffers = (self._state, self._allowed)
        self.window = Window(self._placer, self._rows, first, params.jobs, params.fill, buffers)

    def next_window(self) -> Optional[Slot]:
        """After a window has ended: opens the next one, or ends the slot and returns it, beginning the next slot."""
        size = self.agent.params.jobs
        if self._first + size < len(self._rows):
            self._look(self._first + size)
            return None
        slot = self.slot
        result = self.simulator.step(self._placer.allocation())
        slot.reward = float(result.fraction.sum())
        while not self.simulator.finished:
            self._begin()
            if not self.window.done:
                slot.following = self.window.vector.copy()
                break
            self.simulator.step(self._placer.allocation())  # a slot without jobs
        return slot


class Fleet:
    """Clusters side by side.

    Args:
        agent: decides for all.
        simulators: one per cluster, none of them finished.
        rng: draws actions; None takes the most likely ones, and nothing is recorded.
        ended: called with the number of a cluster and the slot that it has finished. It may put a new simulator in
            place with ``renew``; a cluster whose trace has ended drops out otherwise.
        explore: with a rng, take the job-aware action in poor states as often as ``Dl2Params`` says.
    """

    def __init__(
        self,
        agent: Dl2Agent,
        simulators: List[Simulator],
        rng: Optional[np.random.Generator],
        ended: Callable[[int, Slot], None],
        explore: bool = True,
    ) -> None:
        params = agent.params
        self.agent, self.rng, self._ended, self._explore = agent, rng, ended, explore
        width = state_size(params.jobs, len(agent.types))
        self._states = np.zeros((len(simulators), width), dtype=np.float32)
        self._allowed = np.zeros((len(simulators), ACTIONS * params.jobs + 1), dtype=bool)
        self.drivers: List[Driver] = []
        for k, simulator in enumerate(simulators):
            self.drivers.append(Driver(agent, simulator, self._states[k], self._allowed[k]))
        self._live = list(range(len(simulators)))

    def renew(self, k: int, simulator: Simulator) -> None:
        """Gives a cluster a new trace."""
        self.drivers[k] = Driver(self.agent, simulator, self._states[k], self._allowed[k])

    def step(self) -> bool:
        """One action on every cluster; False when all traces have ended."""
        at = self._live
        logits = self.agent.logits(self._states if len(at) == len(self.drivers) else self._states[at])
        scores = logits if self.rng is None else logits + self.rng.gumbel(size=logits.shape)
        states, allowed = (self._states.copy(), self._allowed.copy()) if self.rng is not None else (None, None)
        actions = np.where(self._allowed[at], scores, -np.inf).argmax(axis=1).tolist()
        ended = False
        for row, k in enumerate(at):
            driver = self.drivers[k]
            action = self._carry_out(driver.window, actions[row], scores[row])
            if action is not None and states is not None and allowed is not None:
                slot = driver.slot
                slot.states.append(states[k])
                slot.allowed.append(allowed[k])
                slot.logits.append(logits[row])
                slot.actions.append(action)
            if driver.window.done:
                finished = driver.next_window()
                if finished is not None:
                    self._ended(k, finished)
                    ended = ended or self.drivers[k].simulator.finished
        if ended:
            self._live = [k for k in self._live if not self.drivers[k].simulator.finished]
        return bool(self._live)

    def _carry_out(self, window: Window, action: int, scores: Array) -> Optional[int]:
        """Takes the action, or the next best that fits; the one taken, None if the window ended without."""
        explore = self.agent.params.explore if self._explore else 0.0
        if self.rng is not None and explore and self.rng.random() < explore:
            mended = window.poor(self.agent.params.ratio)
            action = action if mended is None else mended
        while not window.act(action):
            if window.done:
                return None
            action = int(np.where(window.allowed, scores, -np.inf).argmax())
        return action


def mean_jcts(
    agent: Dl2Agent, simulators: List[Simulator], max_slots: int = 1000, rng: Optional[np.random.Generator] = None
) -> Array:
    """Mean JCT of each simulator's trace under the agent's best actions, or what ``rng`` draws, slots, float64 [k].

    A job that is unfinished ``max_slots`` after the trace's last arrival counts as finished then: an agent in training
    may starve some.
    """
    until = [int(simulator.trace.arrival[-1]) + max_slots for simulator in simulators]
    fleet = Fleet(agent, simulators, rng, lambda k, slot: None, explore=False)
    while fleet.step():
        if all(fleet.drivers[k].simulator.slot >= until[k] for k in fleet._live):
            break
    ends = [np.where(np.isnan(s.end), most, s.end) - s.trace.arrival for s, most in zip(simulators, until)]
    return np.array([float(jct.mean()) for jct in ends])
