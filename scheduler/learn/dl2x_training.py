"""Trains ``dl2x``: cross-entropy on a teacher's moves, then PPO with GAE over many simulated clusters.

The reward of a job in a slot is the time it progressed at its best speed less the time that passed, in slots: summed
over a job's life it is the bound without contention less its JCT. A resize costs progress, and so reward, by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch

from scheduler.core import JobsView, Policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.encoder import features, pad
from scheduler.learn.moves import FACTS, MOVES, MoveBook
from scheduler.learn.plan import Plan, Record
from scheduler.simulator import Simulator, SlotResult

NewSimulator = Callable[[np.random.Generator], Simulator]


@dataclass(frozen=True)
class PpoParams:
    """Attributes:
    warmup_rate, rate: Adam's step size in the two phases.
    discount, trace: gamma and lambda of GAE, per slot.
    clip: PPO's bound on the change of a probability.
    epochs, batch: passes over what was played, slots per step.
    entropy: weight of the bonus.
    warm_traces, warm_updates: traces watched, and updates made, in a round of the warm-up.
    clusters, slots: simulated clusters side by side, and slots played on each between updates.
    """

    warmup_rate: float = 1e-3
    rate: float = 3e-4
    discount: float = 0.98
    trace: float = 0.9
    clip: float = 0.2
    epochs: int = 3
    batch: int = 128
    entropy: float = 0.0
    warm_traces: int = 6
    warm_updates: int = 40
    clusters: int = 8
    slots: int = 128


@dataclass
class Played:
    """One slot: what was seen, what was decided, and by job the reward, the value before, and who lives on."""

    seen: np.ndarray
    record: Record
    reward: np.ndarray
    value: np.ndarray
    alive: np.ndarray
    last: bool
    advantage: float = 0.0
    target: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Rows:
    """Records of several slots as tensors.

    A decision's log-probability is the log-sum of its moves' scores less that of everything open at the time.
    """

    def __init__(self, records: List[Record]) -> None:
        records = [_standing(record) for record in records]
        self.slots = len(records)
        rows = max(len(r.job) for r in records)
        steps = max(max(len(r.row) for r in records), 1)
        facts = np.zeros((self.slots, rows, MOVES, len(FACTS)), dtype=np.float32)
        is_open = np.zeros((self.slots, rows, MOVES), dtype=bool)
        job = np.zeros((self.slots, rows), dtype=np.int64)
        stands = np.zeros((self.slots, steps, rows), dtype=bool)
        chosen_row = np.zeros((self.slots, steps), dtype=np.int64)
        chosen = np.zeros((self.slots, steps, MOVES), dtype=bool)
        self.decided = np.zeros((self.slots, steps), dtype=bool)
        void = np.zeros((self.slots, steps), dtype=bool)
        old = np.zeros((self.slots, steps), dtype=np.float32)
        for k, r in enumerate(records):
            n, d = len(r.job), len(r.row)
            if not d:
                continue
            facts[k, :n], is_open[k, :n], job[k, :n] = np.stack(r.facts), np.stack(r.open), r.job
            at = np.arange(d)[:, None]
            stands[k, :d, :n] = (np.array(r.born)[None] <= at) & (at < np.array(r.gone)[None])
            row = np.array(r.row)
            chosen_row[k, :d], void[k, :d] = np.maximum(row, 0), row < 0
            chosen[k, :d] = np.stack(r.moves)
            self.decided[k, :d] = True
            old[k, :d] = r.log_prob
        self.facts, self.open, self.job = torch.from_numpy(facts), torch.from_numpy(is_open), torch.from_numpy(job)
        self.stands, self.chosen_row = torch.from_numpy(stands), torch.from_numpy(chosen_row)
        self.chosen, self.void = torch.from_numpy(chosen), torch.from_numpy(void)
        self.old, self.mask = torch.from_numpy(old), torch.from_numpy(self.decided)

    def log_probs(self, theta: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        """float32 [B, n, FACTS] and [B] → [B, steps]; entries where ``mask`` is false mean nothing."""
        width = theta.shape[-1]
        coefficients = theta.gather(1, self.job[..., None].expand(-1, -1, width))
        scores = (self.facts @ coefficients[..., None])[..., 0].masked_fill(~self.open, -1e9)
        by_row = scores.logsumexp(dim=2)
        standing = by_row[:, None].masked_fill(~self.stands, -1e9)
        all_of_it = torch.cat([standing, void[:, None, None].expand(-1, standing.shape[1], 1)], dim=2)
        total = all_of_it.logsumexp(dim=2)
        at = self.chosen_row[..., None].expand(-1, -1, MOVES)
        picked = scores.gather(1, at).masked_fill(~self.chosen, -1e9).logsumexp(dim=2)
        return torch.where(self.void, void[:, None].expand_as(picked), picked) - total


def _standing(record: Record) -> Record:
    """The record without the rows that no decision looked at."""
    keep = [k for k, (born, gone) in enumerate(zip(record.born, record.gone)) if born < gone]
    if len(keep) == len(record.job):
        return record
    number = {old: new for new, old in enumerate(keep)}
    return Record(
        facts=[record.facts[k] for k in keep],
        open=[record.open[k] for k in keep],
        job=[record.job[k] for k in keep],
        born=[record.born[k] for k in keep],
        gone=[record.gone[k] for k in keep],
        row=[number[row] if row >= 0 else -1 for row in record.row],
        moves=record.moves,
        log_prob=record.log_prob,
    )


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
        self._seen: List[np.ndarray] = []
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
                theta = np.zeros((len(jobs), len(FACTS)))
                record = Plan(cluster, jobs, book, theta, 0.0).follow(allocation)
                if record.row:
                    self._seen.append(features(cluster, jobs, book))
                    self._records.append(record)
            simulator.step(allocation)
        del self._seen[: -self._keep], self._records[: -self._keep]
        return len(self._records)

    def learn(self, updates: int) -> float:
        """That many updates; the mean cross-entropy of a decision, nats."""
        total = 0.0
        for _ in range(updates):
            at = self.rng.integers(len(self._records), size=min(self._params.batch, len(self._records)))
            theta, void, _ = self.agent.network(*pad(tuple(self._seen[i] for i in at)))
            rows = Rows([self._records[i] for i in at])
            loss = -rows.log_probs(theta, void)[rows.mask].mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach())
        return total / max(updates, 1)


class Player:
    """One simulated cluster that is played slot by slot."""

    def __init__(self, new_simulator: NewSimulator, rng: np.random.Generator) -> None:
        self._new, self._rng = new_simulator, rng
        self.renew()

    def renew(self) -> None:
        self.simulator = self._new(self._rng)
        self.book = MoveBook(self.simulator.estimated_rates)
        self._skip()

    def _skip(self) -> None:
        """Lets slots without jobs pass."""
        while not self.simulator.finished:
            self.cluster, self.jobs = self.simulator.observe()
            if len(self.jobs):
                self.seen = features(self.cluster, self.jobs, self.book)
                return
            self.simulator.step(Plan(self.cluster, self.jobs, self.book, np.zeros((0, len(FACTS))), 0.0).best())

    def play(self, theta: np.ndarray, void: float, value: np.ndarray) -> Played:
        """Plays the slot with sampled moves."""
        plan = Plan(self.cluster, self.jobs, self.book, theta, void)
        record, seen = plan.sample(self._rng), self.seen
        result = self.simulator.step(plan.placer.allocation())
        reward = rewards(self.jobs, self.book, result)
        ended = self.simulator.finished
        if not ended:
            self._skip()
        return Played(seen, record, reward, value, ~result.finished, ended)

    def mean_jct(self) -> float:
        """Of the trace that has ended, slots."""
        return float((self.simulator.end - self.simulator.trace.arrival).mean())


def rewards(jobs: JobsView, book: MoveBook, result: SlotResult) -> np.ndarray:
    """Per job: slots of progress at its best speed less slots that passed, float64 [n]; at most about 0."""
    best = np.maximum(book.best[jobs.rate_index], 1e-300)
    return result.epochs / best - result.spent


class Ppo:
    """The online phase (Schulman et al. 2017; generalised advantages, 2016).

    Args:
        agent: changed in place.
        new_simulator: draws a fresh simulated cluster with a trace.
    """

    def __init__(
        self, agent: Dl2xAgent, new_simulator: NewSimulator, params: PpoParams, rng: np.random.Generator
    ) -> None:
        self.agent, self.params, self.rng = agent, params, rng
        self.optimizer = torch.optim.Adam(agent.network.parameters(), lr=params.rate)
        self.players = [Player(new_simulator, rng) for _ in range(params.clusters)]
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
            for k, player in enumerate(self.players):
                n = len(player.jobs)
                played = player.play(theta[k, :n], float(void[k]), value[k, :n])
                tracks[k].append(played)
                self.slots += 1
                if played.last:
                    jcts.append(player.mean_jct())
                    self.traces += 1
                    player.renew()
        _, _, value = self._forward()
        for k, track in enumerate(tracks):
            advantages(track, value[k], params.discount, params.trace)
        return tracks

    def _forward(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        with torch.inference_mode():
            theta, void, value = self.agent.network(*pad(tuple(player.seen for player in self.players)))
        return theta.numpy().astype(np.float64), void.numpy(), value.numpy().astype(np.float64)

    def _learn(self, played: List[Played]) -> Dict[str, float]:
        params = self.params
        advantage = np.array([slot.advantage for slot in played])
        scale = advantage.std() + 1e-6
        seen: Dict[str, List[float]] = {"policy_loss": [], "value_loss": [], "moved": []}
        for _ in range(params.epochs):
            order = self.rng.permutation(len(played))
            for start in range(0, len(order), params.batch):
                part = [played[i] for i in order[start : start + params.batch]]
                for name, value in self._step(part, advantage.mean(), scale).items():
                    seen[name].append(value)
        return {
            "advantage": float(scale),
            "moved": float(np.mean(seen["moved"])),
            "policy_loss": float(np.mean(seen["policy_loss"])),
            "value_loss": float(np.mean(seen["value_loss"])),
        }

    def _step(self, part: List[Played], mean: float, scale: float) -> Dict[str, float]:
        params = self.params
        jobs, there = pad(tuple(slot.seen for slot in part))
        theta, void, value = self.agent.network(jobs, there)
        rows = Rows([slot.record for slot in part])
        advantage = torch.tensor([(slot.advantage - mean) / scale for slot in part], dtype=torch.float32)[:, None]
        change = rows.log_probs(theta, void) - rows.old
        ratio = change[rows.mask].exp()
        gain = advantage.expand_as(change)[rows.mask]
        policy_loss = -torch.minimum(ratio * gain, ratio.clamp(1 - params.clip, 1 + params.clip) * gain).mean()
        targets = torch.zeros_like(value)
        for k, slot in enumerate(part):
            targets[k, : len(slot.target)] = torch.from_numpy(slot.target)
        value_loss = torch.nn.functional.smooth_l1_loss(value[there], targets[there])
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


def advantages(track: List[Played], after: np.ndarray, discount: float, trace: float) -> None:
    """Fills in advantages (sum over a slot's jobs) and value targets (by job) of one cluster's slots, in order.

    A job that arrives in the next slot does not count for this one: nothing decided here brought it.

    Args:
        after: float64 [>= n], values of the jobs that follow the last slot.
        discount, trace: gamma and lambda.
    """
    ahead: Optional[np.ndarray] = None  # advantages by job in the next slot
    for t in range(len(track) - 1, -1, -1):
        slot = track[t]
        following, later = np.zeros(len(slot.value)), np.zeros(len(slot.value))
        if not slot.last:
            alive = np.flatnonzero(slot.alive)  # they come first in the next slot, in this order
            values = track[t + 1].value if t + 1 < len(track) else after
            following[alive] = values[: len(alive)]
            if ahead is not None:
                later[alive] = ahead[: len(alive)]
        delta = slot.reward + discount * following - slot.value
        by_job = delta + discount * trace * later
        slot.advantage = float(by_job.sum())
        slot.target = (by_job + slot.value).astype(np.float32)
        ahead = by_job
