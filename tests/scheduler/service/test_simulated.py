"""The service on a simulated cluster, by its own loop: jobs are resized, wait for room, and end in time."""

import subprocess
import sys
from contextlib import closing

import pytest
import torch
from click.testing import CliRunner

from scheduler.learn import checkpoint
from scheduler.learn.commands import train_policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.service.learner import Learner
from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster, Timings
from scheduler.service.slot import Node
from scheduler.service.snapshot import unpack
from scheduler.service.spec import parse_spec
from scheduler.service.store import Store
from tests.scheduler.service.played import Still


def spec(name, **fields):
    tasks = {"workers": {"max": 2}, "servers": {"max": 2, "cpus": 0.5}}
    return parse_spec({"name": name, "command": "python train.py", "epochs": 10, **tasks, **fields})


def serve(store, nodes, timings, arrivals):
    """Runs until all is done; the jobs as the record has them."""
    cluster = SimulatedCluster(nodes, lambda _, size: 0.1 * size[1], timings, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    for at, job in arrivals:
        cluster.call(1000.0 + at, lambda job=job: service.submit(job, None))
    cluster.idle = service.stop
    service.run()
    return store.jobs()


def test_a_job_alone_ends_after_its_start_its_training_and_its_end(store):
    timings = Timings(starting=4, ending=2)
    [row] = serve(store, [Node("a", (4.0, 16.0, 0.0))], timings, [(5, spec("one"))])
    assert (row.state, row.done) == ("finished", 10)
    assert row.ended_at - row.submitted_at == pytest.approx(4 + 10 / 0.2 + 2)


def test_jobs_share_the_room_and_grow_when_one_ends(store):
    timings = Timings(starting=1, growing=3, shrinking=1, stall=0.5, ending=1)
    arrivals = [(0, spec("one")), (1, spec("two")), (2, spec("three", epochs=3))]
    rows = serve(store, [Node("a", (4.0, 16.0, 0.0))], timings, arrivals)
    assert [row.state for row in rows] == ["finished"] * 3
    changes = [c for c in store.changes() if c["kind"] == "resize"]
    assert changes and all(c["outcome"] == "done" and c["stall_seconds"] == 0.5 for c in changes)
    starts = {c["job"]: c["at"] for c in store.changes() if c["kind"] == "start"}
    assert starts[3] >= min(row.ended_at for row in rows[:2]), "three began where there was no room for it"
    assert {c["seconds"] for c in changes} <= {1.0, 3.0}


def test_a_cancelled_job_gives_its_room_back(store):
    cluster = SimulatedCluster([Node("a", (2.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    for name in ("one", "two"):
        service.submit(spec(name), None)
    cluster.call(1030.0, lambda: service.cancel(store.job("one")))
    cluster.idle = service.stop
    service.run()
    one, two = store.jobs()
    assert (one.state, one.ended_at) == ("cancelled", 1030.0)
    assert (two.state, two.started_at) == ("finished", 1030.0)


def test_speeds_are_those_of_training_and_are_known_to_a_service_that_is_started_again(store):
    nodes, timings = [Node("a", (4.0, 16.0, 0.0))], Timings(starting=25, ending=2)
    cluster = SimulatedCluster(nodes, lambda _, size: 0.1 * size[1], timings, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    service.submit(spec("one", workers={"max": 1}, servers={"max": 1}, epochs=20), None)
    cluster.call(1100.0, service.stop)
    service.run()
    [row] = store.jobs()
    assert row.service == pytest.approx(9 * 2 / 4, abs=1), "the time before a job progressed was counted again"
    again = Service(store, cluster, 10.0, "drf")
    cluster.idle = again.stop
    again.run()
    tables = [unpack(decision.snapshot)["types"][0][4] for decision in store.decisions(limit=1000)]
    assert tables[-1][1][1] == pytest.approx(1.0), "starting was taken for slow training"
    first = next(k for k, decision in enumerate(store.decisions(limit=1000)) if decision.at >= 1100.0)
    assert tables[first][1][1] == pytest.approx(1.0)


def test_a_service_on_drf_does_without_torch(tmp_path):
    script = f"""
import sys
from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster
from scheduler.service.slot import Node
from scheduler.service.store import Store
cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1)
service = Service(Store({str(tmp_path)!r}), cluster, 10.0, "drf")
cluster.idle = service.stop
service.run()
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_a_service_without_jobs_tells_of_nothing(store):
    cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    for now in (1000.0, 1010.0):
        service.slot(now)
    assert store.events() == [] and store.last_decision() is None


@pytest.mark.parametrize("policy", ["dl2", "dl2x"])
def test_an_agent_made_from_the_record_serves_is_learnt_further_and_falls_back_once_it_is_damaged(
    policy, tmp_path, capsys
):
    state, agent = tmp_path / "state", tmp_path / "agent.pt"
    nodes, timings = [Node("a", (4.0, 16.0, 0.0))], Timings(starting=4, growing=3, shrinking=1, ending=1)

    def serve_again(store, start, learning=None, name=policy):
        cluster = SimulatedCluster(nodes, lambda _, size: 0.1 * size[1], timings, start=start)
        service = Service(store, cluster, 10.0, name, str(agent) if name == policy else None, learning=learning)
        for number in range(6):
            job = spec(f"job-{len(store.jobs()) + number}", epochs=6 + number)
            cluster.call(start + 15 * number, lambda job=job: service.submit(job, None))
        cluster.idle = service.stop
        service.run()
        assert {row.state for row in store.jobs()} == {"finished"}
        return {decision.policy for decision in store.decisions(limit=1000) if decision.at >= start}

    with closing(Store(state)) as store:
        assert serve_again(store, 1000.0, name="drf") == {"drf"}
        given = ["--policy", policy, "--from-record", str(state), "--teacher", "drf", "--warmup", "2"]
        ran = CliRunner().invoke(train_policy, [*given, "--validation", "1", "--out", str(agent)])
        assert ran.exit_code == 0, ran.output
        learning = Still(str(state), tmp_path / "agents", policy, str(agent), "drf")
        learner = Learner(store, policy, agent, learning.file, "drf")
        assert learner.round() and serve_again(store, 2000.0, learning) == {policy}
        assert learner.round() and len(store.setting("expected")["jcts"]) == 6, "the guard has nothing to go by"
        damaged = checkpoint.load(agent)
        for network in ("network", "policy_net"):
            for weights in damaged.get(network, {}).values():
                weights.fill_(float("nan"))
        checkpoint.save(damaged, agent)
        assert serve_again(store, 3000.0, learning) == {"drf"}
        lines = [event["text"] for event in store.events(limit=1000) if event["kind"] == "fallback"]
        assert len(lines) == 1 == capsys.readouterr().err.count("\n") and "output is not finite" in lines[0]


def test_no_job_is_harmed_by_an_agent_that_falls_back(store, tmp_path, capsys):
    agent = Dl2xAgent()
    torch.nn.init.constant_(agent.network.theta.bias, float("nan"))
    checkpoint.save(agent.plain(), tmp_path / "bad.pt")
    cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda _, size: 0.1 * size[1], start=1000.0)
    service = Service(store, cluster, 10.0, "dl2x", str(tmp_path / "bad.pt"))
    for name in ("one", "two", "three"):
        service.submit(spec(name), None)
    cluster.idle = service.stop
    service.run()
    assert [row.state for row in store.jobs()] == ["finished"] * 3
    assert [event["kind"] for event in store.events()].count("fallback") == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert {decision.policy for decision in store.decisions()} == {"drf"}
