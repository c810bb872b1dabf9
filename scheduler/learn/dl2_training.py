"""The two phases of DL2 (section 4): cross-entropy on a teacher's decisions, then actor-critic in the simulator.

One object holds the whole of a training run, so that it can be saved at any moment and resumed. Traces come from
outside; progress, files and figures of merit are the business of ``train.py``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import numpy as np
import torch
from torch.nn import functional

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.replay import Batch, Replay
from scheduler.learn.rollout import Fleet, Slot
from scheduler.learn.window import ACTIONS, demonstrate, rows_of, state_size
from scheduler.simulator import Simulator

NewSimulator = Callable[[np.random.Generator], Simulator]


class WarmUp:
    """Supervised phase (section 4.2): the network imitates the scheduler that is in place.

    Args:
        agent: changed in place.
        teacher: the scheduler to imitate.
        new_simulator: draws a fresh simulated cluster with a trace.
        keep: states kept for training; each slot of the teacher is kept with probability 1 / ``thin``.
        decay: the step size shrinks by this factor at every ``learn``.
    """

    def __init__(
        self,
        agent: Dl2Agent,
        teacher: Policy,
        new_simulator: NewSimulator,
        rng: np.random.Generator,
        keep: int = 49152,
        thin: int = 4,
        decay: float = 0.95,
    ) -> None:
        self.agent, self.teacher, self.new_simulator, self.rng = agent, teacher, new_simulator, rng
        self.optimizer = torch.optim.Adam(agent.policy.parameters(), lr=agent.params.warmup_rate)
        self._states: List[np.ndarray] = []
        self._targets: List[np.ndarray] = []
        self._keep, self._thin, self._decay = keep, thin, decay

    def watch(self) -> int:
        """One trace under the teacher; the decisions kept so far."""
        simulator = self.new_simulator(self.rng)
        self.teacher.reset()
        while not simulator.finished:
            cluster, jobs = simulator.observe()
            allocation = self.teacher.allocate(cluster, jobs)
            if self.rng.integers(self._thin) == 0 and len(jobs):
                self.see(cluster, jobs, allocation)
            simulator.step(allocation)
        return self.decisions

    def see(self, cluster: ClusterView, jobs: JobsView, allocation: Allocation) -> None:
        """Takes in one decision on at least one job."""
        params = self.agent.params
        rows = rows_of(cluster, jobs, self.agent.types)
        self.add(*demonstrate(cluster, jobs, rows, allocation, params.jobs, self.rng, params.pairs))

    def add(self, states: np.ndarray, targets: np.ndarray) -> None:
        """Takes in states with the targets of their actions, dropping the oldest beyond ``keep``."""
        self._states.append(states)
        self._targets.append(targets)
        while self.decisions - len(self._targets[0]) > self._keep:
            self._states.pop(0)
            self._targets.pop(0)

    @property
    def decisions(self) -> int:
        return sum(len(t) for t in self._targets)

    def learn(self, updates: int) -> float:
        """That many updates with batches drawn uniformly; the mean cross-entropy, nats."""
        states, targets = np.concatenate(self._states), np.concatenate(self._targets)
        params, total = self.agent.params, 0.0
        for _ in range(updates):
            at = self.rng.integers(len(targets), size=params.batch)
            scores = self.agent.policy(torch.from_numpy(states[at]))
            loss = functional.cross_entropy(scores, torch.from_numpy(targets[at]))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach())
        for group in self.optimizer.param_groups:
            group["lr"] *= self._decay
        return total / max(updates, 1)


class Online:
    """Reinforcement phase (section 4.3): actor-critic with job-aware exploration and experience replay.

    Args:
        agent: changed in place.
        new_simulator: draws a fresh simulated cluster with a trace.
        clusters: simulated clusters driven side by side.
        private: federated training (section 6.5): decisions never leave their cluster, which has a replay buffer of
            its own, and after each of its slots applies a gradient from that alone to the common networks, as in A3C.
            Ours take turns, so no gradient is stale.
    """

    def __init__(
        self,
        agent: Dl2Agent,
        new_simulator: NewSimulator,
        rng: np.random.Generator,
        clusters: int = 16,
        private: bool = False,
    ) -> None:
        params = agent.params
        self.agent, self.new_simulator, self.rng = agent, new_simulator, rng
        self.actor = torch.optim.Adam(agent.policy.parameters(), lr=params.online_rate)
        self.critic = torch.optim.Adam(agent.value.parameters(), lr=params.critic_rate)
        self._fleet = Fleet(agent, [new_simulator(rng) for _ in range(clusters)], rng, self._ended)
        width = state_size(params.jobs, len(agent.types))
        self._buffers = [
            Replay(params.replay, width, ACTIONS * params.jobs + 1) for _ in range(clusters if private else 1)
        ]
        self._seen: Dict[str, List[float]] = {}
        self.slots = 0
        self.traces = 0
        self.updates = 0

    @property
    def replay(self) -> Replay:
        """The buffer; of private clusters, the first one's."""
        return self._buffers[0]

    def play(self, slots: int, learn: bool = True) -> Dict[str, float]:
        """Plays that many slots, with one update after each once the buffer is full; means of what was seen."""
        self._seen, self._learn = {}, learn
        until = self.slots + slots
        while self.slots < until:
            self._fleet.step()
        return {name: float(np.mean(values)) for name, values in self._seen.items()}

    def _ended(self, k: int, slot: Slot) -> None:
        self.slots += 1
        self._note("reward", slot.reward)
        replay = self._buffers[k % len(self._buffers)]
        if slot.actions:
            self._store(slot, replay)
        if slot.following is None:
            ended = self._fleet.drivers[k].simulator
            self.traces += 1
            self._note("train_jct", float((ended.end - ended.trace.arrival).mean()))
            self._fleet.renew(k, self.new_simulator(self.rng))
        if self._learn and len(replay) == replay.size:
            for name, value in self.update(replay).items():
                self._note(name, value)

    def _note(self, name: str, value: float) -> None:
        self._seen.setdefault(name, []).append(value)

    def _store(self, slot: Slot, replay: Replay) -> None:
        k, states = len(slot.actions), np.stack(slot.states)
        following = np.zeros_like(states[0]) if slot.following is None else slot.following
        replay.add(
            Batch(
                states=states,
                after=np.concatenate([states[1:], states[-1:]]),
                last=np.arange(1, k + 1) == k,
                following=np.broadcast_to(following, states.shape),
                allowed=np.stack(slot.allowed),
                actions=np.array(slot.actions, dtype=np.int64),
                rewards=np.full(k, slot.reward, dtype=np.float32),
                going_on=np.full(k, 0.0 if slot.following is None else 1.0, dtype=np.float32),
                log_probs=slot.log_probs().astype(np.float32),
            )
        )

    def update(self, replay: Replay) -> Dict[str, float]:
        """One step of actor and critic on a batch from a buffer."""
        params, agent = self.agent.params, self.agent
        batch = replay.sample(params.batch, self.rng)
        states, rewards = torch.from_numpy(batch.states), torch.from_numpy(batch.rewards)
        value_loss = torch.zeros(())
        if params.actor_critic:
            with torch.no_grad():
                ahead = agent.value(torch.from_numpy(batch.following))[:, 0] * torch.from_numpy(batch.going_on)
                target = rewards + params.discount * ahead
            values = agent.value(states)[:, 0]
            advantage = self._led_to(batch, target) - values.detach()
            value_loss = functional.mse_loss(values, target)
            self.critic.zero_grad()
            value_loss.backward()
            self.critic.step()
        else:
            advantage = rewards - replay.mean_reward
        advantage = advantage - advantage.mean() if params.centred else advantage
        advantage = (advantage / (advantage.std() + 1e-6)).clamp(-3.0, 3.0)
        logits = agent.policy(states).masked_fill(~torch.from_numpy(batch.allowed), -1e9)
        log_probs = functional.log_softmax(logits, dim=1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
        taken = log_probs.gather(1, torch.from_numpy(batch.actions)[:, None])[:, 0]
        if params.clip:
            ratio = (taken.detach() - torch.from_numpy(batch.log_probs)).exp()
            advantage = advantage * ratio.clamp(max=params.clip)
        loss = -(taken * advantage).mean() - params.entropy * entropy
        if self.updates >= params.critic_first:
            self.actor.zero_grad()
            loss.backward()
            self.actor.step()
        self.updates += 1
        return {"entropy": float(entropy.detach()), "value_loss": float(value_loss.detach())}

    def _led_to(self, batch: Batch, target: torch.Tensor) -> torch.Tensor:
        """What an action is worth, float32 [k]: the slot's reward and future, or its next state's value."""
        if not self.agent.params.stepwise:
            return target
        with torch.no_grad():
            after = self.agent.value(torch.from_numpy(batch.after))[:, 0]
        return torch.where(torch.from_numpy(batch.last), target, after)

    def plain(self) -> Dict[str, Any]:
        """Optimizers and counters, for a checkpoint. The buffer fills again within a few dozen slots."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "counters": [self.slots, self.traces, self.updates],
        }

    def restore(self, data: Dict[str, Any]) -> None:
        self.actor.load_state_dict(data["actor"])
        self.critic.load_state_dict(data["critic"])
        self.slots, self.traces, self.updates = (int(x) for x in data["counters"])
