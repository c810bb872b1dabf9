"""A service's record as lessons and as a cluster: what comes out is what went in, and bad records cost one line."""

from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from scheduler.learn import checkpoint
from scheduler.learn.commands import train_policy
from scheduler.learn.dl2x import Dl2x
from scheduler.learn.recorded import from_store, read
from scheduler.policies import make
from scheduler.service import tables as t
from scheduler.service.decider import policy_of
from scheduler.service.store import Store
from tests.scheduler.service.played import NODES, play, spec


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state folder of a service under DRF, and later for a few slots under SRTF."""
    folder = tmp_path_factory.mktemp("state")
    store = Store(folder)
    play(store, policy_of("drf"), make("drf"), count=8)
    play(store, make("srtf"), make("drf"), count=2, start=1000.0)
    store.close()
    return folder


def test_the_lessons_are_what_the_policy_saw_and_answered(state):
    recorded = read(state, "drf")
    assert set(recorded.policies) == {"drf", "srtf"} and len(recorded.lessons) == recorded.policies["drf"]
    policy = policy_of("drf")
    for cluster, jobs, allocation in recorded.lessons:
        again = policy.allocate(cluster, jobs)
        np.testing.assert_array_equal(again.servers, allocation.servers)
        np.testing.assert_array_equal(again.workers, allocation.workers)
    assert len(read(state).lessons) == sum(recorded.policies.values())


def test_the_cluster_has_the_records_nodes_jobs_and_speeds(state):
    recorded = read(state)
    workload = recorded.workload
    np.testing.assert_allclose(workload.capacity, [node.capacity for node in NODES])
    assert (workload.max_servers, workload.max_workers) == (2, 4) and len(recorded.kinds) == 10
    assert sorted(recorded.epochs) == sorted(4.0 + number % 3 for number in (*range(8), 0, 1))
    np.testing.assert_allclose(workload.speed_tables()[0][1, 1], 0.25)
    assert 0 < recorded.mean_jct(make("drf"), 2) < 30
    first, again = (part.held_out(1)[0].trace.arrival for part in (recorded, read(state)))
    np.testing.assert_array_equal(first, again)


def test_jobs_that_have_room_on_no_node_any_more_are_left_out(tmp_path):
    with closing(Store(tmp_path)) as store:
        play(store, policy_of("drf"), make("drf"), count=4)
        row, _ = store.submit(spec(99, workers={"cpus": 64}), None, 50.0)
        store.change_job(row.id, started_at=50.0, state=t.RUNNING)
        assert len(from_store(store).kinds) == 4


@pytest.mark.parametrize("policy", ["dl2x", "dl2"])
def test_an_agent_learns_to_give_what_the_record_gave(state, policy, tmp_path):
    out = tmp_path / "agent.pt"
    given = ["--from-record", str(state), "--teacher", "drf", "--warmup", "6", "--validation", "1", "--final"]
    result = CliRunner().invoke(train_policy, ["--policy", policy, "--out", str(out), *given])
    assert result.exit_code == 0, result.output
    assert "decisions to imitate" in result.output and checkpoint.load(out)["policy"] == policy
    agent = make(policy, str(out))
    lessons = read(state, "drf").lessons
    fresh = Dl2x(type(agent.agent)()) if policy == "dl2x" else None

    def differ(one):
        return float(
            np.mean([np.abs(one.allocate(c, j).workers - a.workers).mean() for c, j, a in lessons if len(j) > 1])
        )

    assert differ(agent) < 1.0
    assert fresh is None or differ(agent) < differ(fresh)


def outcome(*options):
    result = CliRunner().invoke(train_policy, ["--out", "/nowhere/agent.pt", *map(str, options)])
    assert result.exit_code == 1 and len(result.output.strip().splitlines()) == 1, result.output
    return result.output


def test_records_that_teach_nothing_are_told_in_one_line(state, tmp_path):
    assert "there is no record: give the --state of an elastic-mx serve" in outcome("--from-record", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    store = Store(tmp_path / "empty")
    assert "the record holds no decision: run jobs" in outcome("--from-record", tmp_path / "empty")
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.close()
    assert "the record has schema version 9999, this elastic-mx reads" in outcome("--from-record", tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "record.db").write_text("no database, but long enough to be taken for one")
    assert "the record cannot be opened: file is not a database" in outcome("--from-record", tmp_path / "other")
    assert "no decision of 'fifo': it has drf" in outcome("--from-record", state, "--teacher", "fifo")
    assert "--peaks is given with --from-record" in outcome("--from-record", state, "--peaks", "1")
    assert "the record cannot be opened" in outcome("--from-record", "postgresql://nobody@127.0.0.1:1/none")
