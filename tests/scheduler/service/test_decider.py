"""Who decides: a bad agent falls back with one line and comes back when it is set; learnt agents are taken up."""

import os

import numpy as np
import pytest
import torch

from scheduler.learn import checkpoint
from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.params import Dl2Params
from scheduler.policies import make
from scheduler.service import tables as t
from scheduler.service.decider import Decider, digest, in_force
from scheduler.service.learner import Learner, finite
from scheduler.service.slot import Seen, Speeds, views
from tests.scheduler.service.played import NODES, SLOT_SECONDS, Still, play, spec


@pytest.fixture
def agents(tmp_path):
    """Files of a good agent and of one whose weights are not numbers."""
    good, bad = Dl2xAgent(), Dl2xAgent()
    torch.nn.init.constant_(bad.network.theta.bias, float("nan"))
    for name, agent in (("good", good), ("bad", bad)):
        checkpoint.save(agent.plain(), tmp_path / f"{name}.pt")
    return {name: str(tmp_path / f"{name}.pt") for name in ("good", "bad")}


def look():
    return views(NODES, [Seen(1, spec(1), 0.0), Seen(2, spec(2), 1.0)], 3, SLOT_SECONDS, Speeds())


def begun(store, policy, now, agent, **options):
    decider = Decider(store, store, policy, agent, **options)
    decider.take_over(now)
    decider.take_up(10.0, now)
    return decider


def kinds(store):
    return [event["kind"] for event in store.events()]


def test_an_agent_that_fails_falls_back_with_one_line_until_it_is_set_again(store, agents, capsys):
    decider = begun(store, "dl2x", 0.0, agents["bad"], fallback="srtf")
    for now in range(3):
        decider.take_up(10.0, float(now))
        decided = decider.decide(*look(), float(now))
        assert decided.policy == "srtf" and "not finite" in decided.fallback
        np.testing.assert_array_equal(decided.answer.workers, make("srtf").allocate(*look()).workers)
    assert kinds(store) == ["fallback"] and capsys.readouterr().err.count("\n") == 1
    told = decider.told()
    assert (told["policy"], told["decides"]) == ("dl2x", "srtf") and "policy set dl2x" in told["fallen"]["why"]

    again = begun(store, "dl2x", 5.0, agents["bad"], fallback="srtf")  # a service that is started again
    assert again.decide(*look(), 5.0).policy == "srtf" and kinds(store) == ["fallback"]

    os.replace(agents["good"], agents["bad"])  # repaired
    decider.set("dl2x", 6.0)
    for one in (decider, again):
        one.take_up(10.0, 7.0)
        assert one.decide(*look(), 7.0).policy == "dl2x"
    assert decider.told()["fallen"] is None


def test_a_service_started_with_another_agent_begins_anew(store, agents):
    begun(store, "dl2x", 0.0, agents["bad"]).decide(*look(), 0.0)
    assert in_force(store)[1]
    decider = begun(store, "dl2x", 1.0, agents["good"])
    assert decider.decide(*look(), 1.0).policy == "dl2x"
    assert in_force(store) == ({"policy": "dl2x", "at": 1.0}, None)


def test_a_fallback_that_is_learned_itself_is_refused(store):
    with pytest.raises(ValueError, match="fallback 'dl2' is learned itself"):
        Decider(store, store, "drf", fallback="dl2")


def test_a_policy_that_is_too_slow_falls_back(store, agents, tmp_path):
    learning = Still(str(tmp_path), tmp_path / "agents", "dl2x", agents["good"], "drf")
    decider = begun(store, "dl2x", 0.0, agents["good"], learning=learning)
    for number in range(6):
        row, _ = store.submit(spec(number), None, 10.0 * number)
        store.change_job(row.id, state=t.FINISHED, ended_at=10.0 * number + 400.0)
    decider.take_up(10.0, 500.0)
    assert decider.decide(*look(), 500.0).policy == "dl2x"
    store.set("expected", {"since": 0.0, "jcts": {row.id: 10.0 for row in store.jobs()}})
    decider.take_up(10.0, 510.0)
    decided = decider.decide(*look(), 510.0)
    assert decided.policy == "drf" and "mean JCT of its last 6 jobs is 40.0 slots" in decided.fallback
    assert kinds(store).count("fallback") == 1
    decider.set("dl2x", 520.0)
    decider.take_up(10.0, 530.0)
    assert decider.decide(*look(), 530.0).policy == "dl2x", "what was before is not held against it again"


def untrained(policy):
    small = Dl2Params.ours(jobs=8, hidden=32, replay=256, batch=64)
    return Dl2xAgent() if policy == "dl2x" else Dl2Agent(small, ["job"])


@pytest.mark.parametrize("policy", ["dl2", "dl2x"])
def test_an_agent_that_was_learnt_is_taken_up_and_kept_by_the_next_service(policy, store, tmp_path):
    play(store, make("drf", strict=False), make("drf"), count=8)
    start = tmp_path / "start.pt"
    checkpoint.save(untrained(policy).plain(), start)
    learning = Still(str(tmp_path), tmp_path / "agents", policy, str(start), "drf")
    decider = begun(store, policy, 100.0, str(start), learning=learning)
    learner = Learner(store, policy, start, learning.file, "drf")
    assert decider.told()["learning"]["doing"] == "waits for 4 jobs in the record"
    for _ in range(20):
        assert learner.round()
        if learning.file.exists():
            break
    before = decider._policy
    decider.take_up(10.0, 200.0)
    assert kinds(store)[-1] == "agent" and decider._policy is not before
    assert store.setting("learning")["written"] == 1 and decider.told()["learning"]["rounds"] >= 1
    assert decider.told()["learning"]["written_jct"] < decider.told()["learning"]["start_jct"]
    learnt = checkpoint.load(learning.file)
    for one in (decider, begun(store, policy, 300.0, str(start), learning=learning)):
        assert same(one._policy.agent.plain(), learnt) and not same(checkpoint.load(start), learnt)
    learning.file.write_bytes(b"broken")
    decider.take_up(10.0, 400.0)
    assert decider.decide(*look(), 400.0).policy == policy and kinds(store).count("agent") == 1


def same(one, other):
    """Whether two agents have the same weights."""
    nets = [name for name in one if name in ("network", "policy_net")]
    return all(torch.equal(value, other[name][key]) for name in nets for key, value in one[name].items())


def test_nothing_is_learnt_from_too_few_jobs_or_from_weights_that_are_no_numbers(store, agents, tmp_path):
    start, file = tmp_path / "good.pt", tmp_path / "learnt.pt"
    assert not Learner(store, "dl2x", start, file, "drf").round()
    play(store, make("drf", strict=False), make("drf"), count=2)
    assert not Learner(store, "dl2x", start, file, "drf").round() and not file.exists()
    with pytest.raises(ValueError, match="weights that are not finite"):
        Learner(store, "dl2x", tmp_path / "bad.pt", file, "drf")
    assert finite(checkpoint.load(start)) and digest(start) != digest(tmp_path / "bad.pt")
