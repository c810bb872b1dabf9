"""dl2's second phase: what an action is credited with, whose decisions are replayed, and which network learns when."""

from dataclasses import replace
from typing import List, Tuple

import numpy as np
import pytest
import torch

from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.dl2_training import Online
from scheduler.learn.params import Dl2Params
from scheduler.learn.replay import Replay
from scheduler.learn.rollout import Slot
from tests.scheduler.learn.test_training import scenario

SMALL = Dl2Params(jobs=4, hidden=8, batch=16, replay=24, pairs=True)


def online(params: Dl2Params, clusters: int = 2, private: bool = False) -> Tuple[Dl2Agent, Online]:
    agent = Dl2Agent(params, scenario().type_names())
    return agent, Online(agent, scenario().simulator, np.random.default_rng(0), clusters, private)


def test_a_step_is_credited_with_the_value_it_leads_to_and_the_last_of_a_slot_with_what_the_slot_earned() -> None:
    agent, learner = online(replace(SMALL, stepwise=True))
    learner.play(12)
    batch = learner.replay.sample(64, np.random.default_rng(1))
    assert batch.last.any() and not batch.last.all()
    earned = torch.arange(64, dtype=torch.float32)
    worth = learner._led_to(batch, earned).numpy()
    np.testing.assert_array_equal(worth[batch.last], earned.numpy()[batch.last])
    values = agent.value(torch.from_numpy(batch.after))[:, 0].detach().numpy()
    np.testing.assert_allclose(worth[~batch.last], values[~batch.last])
    agent.params = SMALL  # the paper's credit: the slot's for each of its actions
    np.testing.assert_array_equal(learner._led_to(batch, earned).numpy(), earned.numpy())


def test_decisions_of_private_clusters_stay_apart() -> None:
    _, learner = online(SMALL, clusters=3, private=True)
    stored: List[Tuple[Replay, int]] = []
    store = learner._store

    def note(slot: Slot, replay: Replay) -> None:
        stored.append((replay, len(slot.actions)))
        store(slot, replay)

    learner._store = note  # type: ignore[method-assign]
    learner.play(30)
    buffers = {id(replay): replay for replay, _ in stored}
    assert len(buffers) == 3 and learner.updates > 0
    for key, replay in buffers.items():
        assert replay.added == sum(count for where, count in stored if id(where) == key)


@pytest.mark.parametrize("params", [SMALL, replace(SMALL, actor_critic=False), replace(SMALL, critic_first=10**6)])
def test_each_network_learns_when_its_time_has_come(params: Dl2Params) -> None:
    agent, learner = online(replace(params, centred=True))
    before = [p.detach().clone() for net in (agent.policy, agent.value) for p in net.parameters()]
    learner.play(30)
    after = [p.detach() for net in (agent.policy, agent.value) for p in net.parameters()]
    moved = [not torch.equal(a, b) for a, b in zip(before, after)]
    half = len(moved) // 2
    assert learner.updates > 0
    assert any(moved[:half]) == (params.critic_first == 0)
    assert any(moved[half:]) == params.actor_critic


def test_the_replay_buffer_keeps_the_latest() -> None:
    _, learner = online(SMALL)
    assert len(learner.replay) == 0
    learner.play(20)
    assert len(learner.replay) == learner.replay.size < learner.replay.added
