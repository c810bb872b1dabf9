"""Trains ``dl2x``: cross-entropy on a teacher's moves, then PPO with GAE over many simulated clusters.

The reward of a job in a slot is the time it progressed at its best speed less the time that passed, in slots: summed
over a job's life it is the bound without contention less its JCT. A resize costs progress, and so reward, by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch

from scheduler.core import Array, ClusterView, JobsView, Policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.encoder import features, pad
from scheduler.learn.moves import FACTS, MOVES, MoveBook
from scheduler.learn.plan import Plan, Record, lost_fraction
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
    group: plans sampled in every slot; the mean of what they promise is their baseline, which is exact.
    clusters, slots: simulated clusters side by side, and slots played on each between updates.
    """

    warmup_rate: float = 1e-3
    rate: float = 1e-3
    discount: float = 0.9
    trace: float = 0.8
    clip: float = 0.2
    epochs: int = 2
    batch: int = 128
    entropy: float = 0.0
    warm_traces: int = 6
    warm_updates: int = 40
    group: int = 4
    clusters: int = 16
    slots: int = 32


@dataclass
class Played:
    """One slot: what was seen, the plans that were drawn, and what came of the first, which was carried out.

    ``promised`` is, by the estimated speeds, the reward of each plan's slot plus the discounted value of where it
    leads; ``reward``, ``value`` (before the slot) and ``alive`` (after it) are by job.
    """

    seen: Array
    records: List[Record]
    promised: Array
    reward: Array
    value: Array
    alive: Array
    last: bool
    target: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


class Rows:
    """Records of several slots as tensors."""

    def __init__(self, records: List[Record]) -> None:
        records = [_standing(record) for record in records]
        slots, rows = len(records), max(len(r.job) for r in records)
        steps = max(max(len(r.row) for r in records), 1)
        facts = np.zeros((slots, rows, MOVES, len(FACTS)), dtype=np.float32)
        is_open, within = np.zeros((slots, rows, MOVES), dtype=bool), np.zeros((slots, rows, MOVES), dtype=bool)
        job = np.zeros((slots, rows), dtype=np.int64)
        stands = np.zeros((slots, steps, rows), dtype=bool)
        chosen = np.zeros((3, slots, steps), dtype=np.int64)  # row, move, whether there was a decision
        old = np.zeros((slots, steps), dtype=np.float32)
        for k, r in enumerate(records):
            n, d = len(r.job), len(r.row)
            if not d:
                continue
            facts[k, :n], is_open[k, :n], within[k, :n] = np.stack(r.facts), np.stack(r.open), np.stack(r.within)
            at = np.arange(d)[:, None]
            stands[k, :d, :n] = (np.array(r.born)[None] <= at) & (at < np.array(r.gone)[None])
            job[k, :n], chosen[0, k, :d], chosen[1, k, :d], chosen[2, k, :d] = r.job, r.row, r.move, 1
            old[k, :d] = r.log_prob
        self.facts, self.open, self.within = (torch.from_numpy(x) for x in (facts, is_open, within))
        self.job, self.stands, self.old = (torch.from_numpy(x) for x in (job, stands, old))
        self.row, self.move = torch.from_numpy(chosen[0]).clamp(min=0), torch.from_numpy(chosen[1])
        self.void, self.mask = torch.from_numpy(chosen[0] < 0), torch.from_numpy(chosen[2] > 0)

    def log_probs(self, theta: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        """Of what was chosen: float32 [B, n, FACTS] and [B] → [B, steps]; where ``mask`` is false, nothing was."""
        scores = self._scores(theta)
        picked = scores.flatten(1).gather(1, self.row * MOVES + self.move)
        return torch.where(self.void, void[:, None].expand_as(picked), picked) - self._total(scores, void)

    def agreement(self, theta: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        """Log-probability of any move within what the teacher gave; shapes as in ``log_probs``."""
        scores = self._scores(theta)
        return self._standing(scores.masked_fill(~self.within, -1e9)).logsumexp(dim=2) - self._total(scores, void)

    def _scores(self, theta: torch.Tensor) -> torch.Tensor:
        coefficients = theta.gather(1, self.job[..., None].expand(-1, -1, theta.shape[-1]))
        return (self.facts @ coefficients[..., None])[..., 0].masked_fill(~self.open, -1e9)

    def _standing(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.logsumexp(dim=2)[:, None].masked_fill(~self.stands, -1e9)

    def _total(self, scores: torch.Tensor, void: torch.Tensor) -> torch.Tensor:
        standing = self._standing(scores)
        return torch.cat([standing, void[:, None, None].expand(-1, standing.shape[1], 1)], dim=2).logsumexp(dim=2)


def _standing(record: Record) -> Record:
    """The record without the rows that no decision looked at."""
    keep = [k for k, (born, gone) in enumerate(zip(record.born, record.gone)) if born < gone]
    if len(keep) == len(record.job):
        return record
    number = {old: new for new, old in enumerate(keep)}
    return Record(
        facts=[record.facts[k] for k in keep],
        open=[record.open[k] for k in keep],
        within=[record.within[k] for k in keep],
        job=[record.job[k] for k in keep],
        born=[record.born[k] for k in keep],
        gone=[record.gone[k] for k in keep],
        row=[number[row] if row >= 0 else -1 for row in record.row],
        move=record.move,
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
                theta = np.zeros((len(jobs), len(FACTS)))
                record = Plan(cluster, jobs, book, theta, 0.0).follow(allocation, self.rng)
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
            loss = -rows.agreement(theta, void)[rows.mask].mean()
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

    def draw(self, theta: Array, void: float, group: int) -> List[Imagined]:
        """Draws plans for the slot, and imagines where each leads."""
        first = Plan(self.cluster, self.jobs, self.book, theta, void)
        drawn = []
        for _ in range(group):
            plan = first.fork()
            record = plan.sample(self._rng)
            drawn.append(imagine(self.cluster, self.jobs, self.book, plan, record))
        return drawn

    def play(self, drawn: List[Imagined], promised: Array, value: Array) -> Played:
        """Carries out the first of the plans."""
        seen, jobs = self.seen, self.jobs
        result = self.simulator.step(drawn[0].plan.placer.allocation())
        reward = rewards(jobs, self.book, result)
        ended = self.simulator.finished
        if not ended:
            self._skip()
        records = [imagined.record for imagined in drawn]
        return Played(seen, records, promised, reward, value, ~result.finished, ended)

    def mean_jct(self) -> float:
        """Of the trace that has ended, slots."""
        return float((self.simulator.end - self.simulator.trace.arrival).mean())


def rewards(jobs: JobsView, book: MoveBook, result: SlotResult) -> Array:
    """Per job: slots of progress at its best speed less slots that passed, float64 [n]; at most about 0."""
    best = np.maximum(book.best[jobs.rate_index], 1e-300)
    return result.epochs / best - result.spent


@dataclass
class Imagined:
    """A plan, its reward by the estimated speeds, and the features of the jobs that it would leave, if any."""

    plan: Plan
    record: Record
    reward: float
    seen: Array


def imagine(cluster: ClusterView, jobs: JobsView, book: MoveBook, plan: Plan, record: Record) -> Imagined:
    """One slot of the plan if the estimated speeds were true and no job arrived."""
    servers, workers = np.array(plan.placer.servers), np.array(plan.placer.workers)
    rate, best = jobs.rate(servers, workers), np.maximum(book.best[jobs.rate_index], 1e-300)
    resized = ((servers != jobs.servers) | (workers != jobs.workers)) & (jobs.workers > 0) & (workers > 0)
    possible = rate * (1.0 - np.where(resized, lost_fraction(cluster, jobs), 0.0))
    left = jobs.remaining
    part = np.minimum(1.0, left / np.maximum(possible, 1e-300))
    reward = float((part * (possible / best - 1.0)).sum())
    stay = np.flatnonzero(possible < left)
    after = replace(
        jobs,
        ids=jobs.ids[stay],
        type_index=jobs.type_index[stay],
        arrival=jobs.arrival[stay],
        epochs=jobs.epochs[stay],
        done=(jobs.done + possible)[stay],
        servers=servers[stay],
        workers=workers[stay],
        service=(jobs.service + (rate > 0))[stay],
        rate_index=jobs.rate_index[stay],
        measured=rate[stay],
    )
    return Imagined(plan, record, reward, features(replace(cluster, slot=cluster.slot + 1), after, book))


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
        """Reward and discounted value of every plan, float64 [clusters, group]."""
        promised = np.array([[imagined.reward for imagined in group] for group in drawn])
        if self.params.discount:
            at = [(k, g) for k, group in enumerate(drawn) for g, imagined in enumerate(group) if len(imagined.seen)]
            if at:
                jobs, there = pad(tuple(drawn[k][g].seen for k, g in at))
                with torch.inference_mode():
                    _, _, value = self.agent.network(jobs, there)
                total = (value * there).sum(dim=1).numpy()
                for (k, g), ahead in zip(at, total):
                    promised[k, g] += self.params.discount * ahead
        return promised

    def _learn(self, played: List[Played]) -> Dict[str, float]:
        params = self.params
        gains = np.stack([slot.promised - slot.promised.mean() for slot in played])  # [slots, group]
        gains /= gains.std() + 1e-6
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


def set_targets(track: List[Played], after: Array, discount: float, trace: float) -> None:
    """Value targets of one cluster's slots, in order, by generalised advantages (lambda returns).

    A job's value is what it will lose from the slot on, the slot's own reward included. Its target is the value plus
    the job's advantage. A job that arrives in the next slot counts from there on.

    Args:
        after: float64 [>= n], values of the jobs that follow the last slot.
        discount, trace: gamma and lambda.
    """
    ahead: Optional[Array] = None  # advantages by job in the next slot
    for t in range(len(track) - 1, -1, -1):
        slot = track[t]
        following, later = np.zeros(len(slot.value)), np.zeros(len(slot.value))
        if not slot.last:
            alive = np.flatnonzero(slot.alive)  # they come first in the next slot, in this order
            values = track[t + 1].value if t + 1 < len(track) else after
            following[alive] = values[: len(alive)]
            if ahead is not None:
                later[alive] = ahead[: len(alive)]
        by_job = slot.reward + discount * following - slot.value + discount * trace * later
        slot.target = (by_job + slot.value).astype(np.float32)
        ahead = by_job
