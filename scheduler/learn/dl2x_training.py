"""Trains ``dl2x``: cross-entropy on a teacher's moves, then PPO with GAE over many simulated clusters.

What a cluster is rewarded for, and what a plan promises, is in ``player.py``.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

from scheduler.core import Allocation, Array, ClusterView, JobsView, Policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.encoder import features, pad
from scheduler.learn.moves import FACTS, MoveBook
from scheduler.learn.plan import Plan, Record
from scheduler.learn.player import Imagined, NewSimulator, Played, Player, roll_out, set_targets
from scheduler.learn.rows import Rows


@dataclass(frozen=True)
class PpoParams:
    """Attributes:
    warmup_rate, rate: Adam's step size in the two phases.
    discount, trace: gamma and lambda of GAE, per slot, by which the values of jobs are learnt.
    ahead: discount of the value of where a plan leads, in what the plan promises; 0 judges it by its own slot alone.
    own_slots: slots played, over all clusters, until plans are rolled out instead: a plan then promises what comes of
        it if the teacher goes on from there to the end of the trace. Dearer by far, but it is the aim itself.
    clip: PPO's bound on the change of a probability.
    epochs, batch: passes over what was played, slots per step.
    entropy: weight of the bonus.
    warm_traces, warm_updates: traces watched, and updates made, in a round of the warm-up.
    group: plans sampled in every slot; the mean of what they promise is their baseline, which is exact.
    clusters, slots: simulated clusters side by side, and slots played on each between updates.
    stagger: the clusters begin up to so many slots into their first trace, so that an update sees all its stages.
    """

    warmup_rate: float = 1e-3
    rate: float = 1e-3
    discount: float = 0.9
    trace: float = 0.8
    ahead: float = 0.0
    own_slots: int = 6144
    clip: float = 0.2
    epochs: int = 2
    batch: int = 128
    entropy: float = 0.0
    warm_traces: int = 6
    warm_updates: int = 40
    group: int = 4
    clusters: int = 16
    slots: int = 8
    stagger: int = 120


class WarmUp:
    """Imitates a teacher. ``watch`` collects, ``learn`` fits."""

    def __init__(
        self,
        agent: Dl2xAgent,
        teacher: Policy,
        new_simulator: NewSimulator,
        params: PpoParams,
        rng: np.random.Generator,
        keep: int = 4096,
        thin: int = 4,
    ) -> None:
        self.agent, self.teacher, self.new_simulator, self.rng = agent, teacher, new_simulator, rng
        self.optimizer = torch.optim.Adam(agent.network.parameters(), lr=params.warmup_rate)
        self._seen: List[Array] = []
        self._records: List[Record] = []
        self._params, self._keep, self._thin = params, keep, thin

    def watch(self) -> int:
        """One trace under the teacher; the slots kept so far."""
        simulator = self.new_simulator(self.rng)
        book = MoveBook(simulator.estimated_rates)
        self.teacher.reset()
        while not simulator.finished:
            cluster, jobs = simulator.observe()
            allocation = self.teacher.allocate(cluster, jobs)
            if len(jobs) and self.rng.integers(self._thin) == 0:
                self.see(cluster, jobs, allocation, book)
            simulator.step(allocation)
        return len(self._records)

    def see(self, cluster: ClusterView, jobs: JobsView, allocation: Allocation, book: MoveBook) -> None:
        """Takes in one decision on at least one job; one that gave nothing to any teaches nothing."""
        theta = np.zeros((len(jobs), len(FACTS)))
        record = Plan(cluster, jobs, book, theta, 0.0).follow(allocation, self.rng)
        if record.row:
            self._seen.append(features(cluster, jobs, book))
            self._records.append(record)
        del self._seen[: -self._keep], self._records[: -self._keep]

    def learn(self, updates: int) -> float:
        """That many updates; the mean cross-entropy of a decision, nats. ValueError if nothing was taken in."""
        if not self._records:
            raise ValueError("the decisions of the teacher give no task to any job: there is nothing to imitate")
        total = 0.0
        for _ in range(updates):
            at = self.rng.integers(len(self._records), size=min(self._params.batch, len(self._records)))
            theta, void, _ = self.agent.network(*pad(tuple(self._seen[i] for i in at)))
            rows = Rows([self._records[i] for i in at])
            loss = -rows.agreement(theta, void)[rows.mask].mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach())
        return total / max(updates, 1)


class Ppo:
    """The online phase (Schulman et al. 2017; generalised advantages, 2016).

    Args:
        agent: changed in place.
        new_simulator: draws a fresh simulated cluster with a trace.
        base: goes on from a plan that is rolled out; without one, none is.
    """

    def __init__(
        self,
        agent: Dl2xAgent,
        new_simulator: NewSimulator,
        params: PpoParams,
        rng: np.random.Generator,
        base: Optional[Policy] = None,
    ) -> None:
        self.agent, self.params, self.rng = agent, params, rng
        self._bases = [deepcopy(base) for _ in range(params.clusters)]  # each remembers its own cluster's moves
        self.optimizer = torch.optim.Adam(agent.network.parameters(), lr=params.rate)
        self.players = [Player(new_simulator, rng) for _ in range(params.clusters)]
        for player in self.players:
            player.go_forward(agent, int(rng.integers(params.stagger + 1)))
        self.slots = 0
        self.traces = 0

    def iterate(self) -> Dict[str, float]:
        """Plays ``params.slots`` slots on every cluster, then learns from them; means of what was seen."""
        jcts: List[float] = []
        tracks = self._play(jcts)
        played = [slot for track in tracks for slot in track]
        figures = self._learn(played)
        figures["reward"] = float(np.mean([slot.reward.sum() for slot in played]))
        if jcts:
            figures["train_jct"] = float(np.mean(jcts))
        return figures

    def _play(self, jcts: List[float]) -> List[List[Played]]:
        params = self.params
        tracks: List[List[Played]] = [[] for _ in self.players]
        for _ in range(params.slots):
            theta, void, value = self._forward()
            drawn = [
                player.draw(theta[k, : len(player.jobs)], float(void[k]), params.group)
                for k, player in enumerate(self.players)
            ]
            promised = self._promises(drawn)
            for k, player in enumerate(self.players):
                played = player.play(drawn[k], promised[k], value[k, : len(player.jobs)])
                tracks[k].append(played)
                self.slots += 1
                if played.last:
                    jcts.append(player.mean_jct())
                    self.traces += 1
                    player.renew()
        _, _, value = self._forward()
        for k, track in enumerate(tracks):
            set_targets(track, value[k], params.discount, params.trace)
        return tracks

    def _forward(self) -> Tuple[Array, Array, Array]:
        with torch.inference_mode():
            theta, void, value = self.agent.network(*pad(tuple(player.seen for player in self.players)))
        return theta.numpy().astype(np.float64), void.numpy(), value.numpy().astype(np.float64)

    def _promises(self, drawn: List[List[Imagined]]) -> Array:
        """What comes of every plan, float64 [clusters, group]: by rolling it out, or reward and discounted value."""
        if self.slots >= self.params.own_slots and self._bases[0] is not None:
            return np.array([self._rolled_out(k, group) for k, group in enumerate(drawn)])
        promised = np.array([[imagined.reward for imagined in group] for group in drawn])
        if self.params.ahead:
            at = [(k, g) for k, group in enumerate(drawn) for g, imagined in enumerate(group) if len(imagined.seen)]
            if at:
                jobs, there = pad(tuple(drawn[k][g].seen for k, g in at))
                with torch.inference_mode():
                    _, _, value = self.agent.network(jobs, there)
                total = (value * there).sum(dim=1).numpy()
                for (k, g), ahead in zip(at, total):
                    promised[k, g] += self.params.ahead * ahead
        return promised

    def _rolled_out(self, k: int, group: List[Imagined]) -> List[float]:
        simulator, base = self.players[k].simulator, self._bases[k]
        assert base is not None
        return [roll_out(simulator, imagined.plan.placer.allocation(), base) for imagined in group]

    def _learn(self, played: List[Played]) -> Dict[str, float]:
        params = self.params
        gains = np.stack([slot.promised - slot.promised.mean() for slot in played])  # [slots, group]
        gains = np.clip(gains / (gains.std() + 1e-6), -3.0, 3.0)
        drawn = [(slot, record, gains[k, g]) for k, slot in enumerate(played) for g, record in enumerate(slot.records)]
        seen: Dict[str, List[float]] = {}
        for _ in range(params.epochs):
            order = self.rng.permutation(len(drawn))
            for start in range(0, len(order), params.batch):
                for name, value in self._step([drawn[i] for i in order[start : start + params.batch]]).items():
                    seen.setdefault(name, []).append(value)
        figures = {name: float(np.mean(values)) for name, values in seen.items()}
        figures["spread"] = float(np.mean([slot.promised.std() for slot in played]))
        figures["decisions"] = float(np.mean([len(record.row) for _, record, _ in drawn]))
        return figures

    def _step(self, part: List[Tuple[Played, Record, float]]) -> Dict[str, float]:
        params = self.params
        theta, void, value = self.agent.network(*pad(tuple(slot.seen for slot, _, _ in part)))
        rows = Rows([record for _, record, _ in part])
        change = rows.log_probs(theta, void) - rows.old
        ratio = change[rows.mask].exp()
        gain = torch.tensor([gain for _, _, gain in part], dtype=torch.float32)[:, None].expand_as(change)[rows.mask]
        policy_loss = -torch.minimum(ratio * gain, ratio.clamp(1 - params.clip, 1 + params.clip) * gain).mean()
        targets, there = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
        for k, (slot, record, _) in enumerate(part):
            if record is slot.records[0]:
                targets[k, : len(slot.target)] = torch.from_numpy(slot.target)
                there[k, : len(slot.target)] = True
        value_loss = (
            torch.nn.functional.smooth_l1_loss(value[there], targets[there]) if there.any() else value.sum() * 0
        )
        self.optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        torch.nn.utils.clip_grad_norm_(self.agent.network.parameters(), 0.5)
        self.optimizer.step()
        moved = float((change[rows.mask].detach().abs() > params.clip).float().mean())
        return {"policy_loss": float(policy_loss.detach()), "value_loss": float(value_loss.detach()), "moved": moved}

    def plain(self) -> Dict[str, Any]:
        """Optimizer and counters, for a checkpoint."""
        return {"optimizer": self.optimizer.state_dict(), "counters": [self.slots, self.traces]}

    def restore(self, data: Dict[str, Any]) -> None:
        self.optimizer.load_state_dict(data["optimizer"])
        self.slots, self.traces = (int(x) for x in data["counters"])
