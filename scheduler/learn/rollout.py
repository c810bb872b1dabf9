"""Many simulated clusters driven in lockstep by one ``dl2`` agent, so that one forward pass serves them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional

import numpy as np

from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.window import Window, rows_of
from scheduler.placement import Placer
from scheduler.simulator import Simulator

# (states [k, D], windows) → (logits [k, A])
Scores = Callable[[np.ndarray], np.ndarray]


@dataclass
class Slot:
    """The decisions of one slot of one cluster, and what came of them."""

    states: List[np.ndarray]
    allowed: List[np.ndarray]
    actions: List[int]
    log_probs: List[float]
    reward: float
    following: Optional[np.ndarray]  # None where the trace has ended


class Driver:
    """One simulated cluster with the slot that is being decided."""

    def __init__(self, agent: Dl2Agent, simulator: Simulator) -> None:
        self.agent = agent
        self.simulator = simulator
        self.slot = Slot([], [], [], [], 0.0, None)
        self._begin()

    def _begin(self) -> None:
        params = self.agent.params
        cluster, jobs = self.simulator.observe()
        self._placer = Placer(cluster, jobs, strict=not params.fill)
        self._rows = rows_of(cluster, jobs, self.agent.types)
        self._first = 0
        self.window = Window(self._placer, self._rows, 0, params.jobs, params.fill)
        self.slot = Slot([], [], [], [], 0.0, None)

    def act(self, logits: np.ndarray, rng: Optional[np.random.Generator]) -> Optional[Slot]:
        """Takes one action, the best or (with ``rng``) a sampled one; the finished slot, when it was its last."""
        window, params = self.window, self.agent.params
        while not window.done:
            allowed = window.allowed.copy()
            action = self._choose(logits, allowed, rng)
            before = window.vector.copy()
            if window.act(action):
                self._note(before, allowed, action, logits)
                break
        if not window.done:
            return None
        self._first += params.jobs
        if self._first < len(self._rows):
            self.window = Window(self._placer, self._rows, self._first, params.jobs, params.fill)
            return None
        return self._end()

    def _choose(self, logits: np.ndarray, allowed: np.ndarray, rng: Optional[np.random.Generator]) -> int:
        params = self.agent.params
        if rng is None:
            return int(np.where(allowed, logits, -np.inf).argmax())
        if params.explore and rng.random() < params.explore:
            action = self.window.poor(params.ratio)
            if action is not None:
                return action
        return int(np.where(allowed, logits + rng.gumbel(size=len(logits)), -np.inf).argmax())

    def _note(self, state: np.ndarray, allowed: np.ndarray, action: int, logits: np.ndarray) -> None:
        masked = np.where(allowed, logits, -np.inf)
        top = masked.max()
        self.slot.states.append(state)
        self.slot.allowed.append(allowed)
        self.slot.actions.append(action)
        self.slot.log_probs.append(float(logits[action] - top - np.log(np.exp(masked - top).sum())))

    def _end(self) -> Slot:
        slot = self.slot
        result = self.simulator.step(self._placer.allocation())
        slot.reward = float(result.fraction.sum())
        if not self.simulator.finished:
            self._begin()
            slot.following = self.window.vector.copy()
        return slot


def mean_jcts(agent: Dl2Agent, simulators: List[Simulator]) -> np.ndarray:
    """Mean JCT of each simulator's trace under the agent's best actions, slots, float64 [k]."""
    drivers = [Driver(agent, simulator) for simulator in simulators]
    live = drivers
    while live:
        logits = agent.logits(np.stack([d.window.vector for d in live]))
        for driver, row in zip(live, logits):
            driver.act(row, None)
        live = [d for d in live if not d.simulator.finished]
    return np.array([float((s.end - s.trace.arrival).mean()) for s in simulators])
