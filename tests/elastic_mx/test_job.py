"""Whole jobs with real processes: rounds add up, and servers and workers come and go while they run."""

import json

import numpy as np
import pytest

from elastic_mx import messages as m
from tests.elastic_mx.harness import Job


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_round_is_the_sum_over_the_workers(tmp_path, transport):
    with Job("rounds.py", workers=2, servers=2, out=tmp_path, transport=transport) as job:
        assert set(job.wait().values()) == {0}
    for worker in ("worker-0", "worker-1"):
        assert np.array_equal(np.load(tmp_path / f"{worker}.npy"), [[2, 4, 6, 8]] * 20)


def test_servers_come_and_go_without_changing_a_sum(tmp_path):
    stop = tmp_path / "stop"
    with Job("rounds.py", workers=2, servers=1, out=tmp_path, STEPS=100000, PAUSE=0.01, STOP=stop) as job:
        job.wait_for_step(5)
        for number, servers in enumerate((2, 3, 1, 2)):
            reply = job.scale(number + 1, servers=servers)
            assert reply.error == "" and reply.body["servers"] == servers
        stop.touch()
        assert set(job.wait().values()) == {0}
    totals = np.load(tmp_path / "worker-0.npy")
    assert np.array_equal(totals, [[2, 4, 6, 8]] * len(totals))
    told = json.loads((tmp_path / "worker-0.json").read_text())  # the script may end before the last is told
    assert [(e["generation"], e["workers"], e["servers"], e["dead"]) for e in told[:3]] == [
        (1, 2, 2, 0),
        (2, 2, 3, 0),
        (3, 2, 1, 0),
    ]


def test_a_worker_joins_and_leaves_and_each_round_has_the_members_sum(tmp_path):
    stop = tmp_path / "stop"
    with Job("rounds.py", workers=1, servers=1, out=tmp_path, STEPS=100000, PAUSE=0.01, STOP=stop) as job:
        job.wait_for_step(5)
        up = job.scale(1, workers=2)
        down = job.scale(2, workers=1)
        assert up.error == down.error == ""
        stop.touch()
        assert set(job.wait().values()) == {0}
    totals = np.load(tmp_path / "worker-0.npy")
    first, last = up.body["step"], down.body["step"]
    expected = np.array([[1, 2, 3, 4]] * len(totals))
    expected[first:last] *= 2
    assert np.array_equal(totals, expected)


def train(tmp_path, changes=(), workers=1, replies=None, **env):
    """Run scripts/gluon.py through `changes` (step to wait for, workers, servers); what each worker left behind."""
    stop = tmp_path / "stop"
    with Job("gluon.py", workers=workers, servers=1, out=tmp_path, STOP=stop, **env) as job:
        for number, (step, wanted, servers) in enumerate(changes):
            job.wait_for_step(step)
            reply = job.scale(number + 1, workers=wanted, servers=servers)
            assert reply.error == ""
            if replies is not None:
                replies.append(reply.body)
        stop.touch()
        assert set(job.wait(90).values()) == {0}
    return {
        path.stem: (json.loads(path.read_text()), dict(np.load(path.with_suffix(".npz"))))
        for path in tmp_path.glob("*.json")
    }


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("update", ["worker", "server"])
def test_workers_that_come_and_go_use_each_sample_once_and_train_as_one_would(tmp_path, update, loaders):
    env = dict(UPDATE=update, LOADERS=loaders, EPOCHS=20, NORM=0, DEFERRED=0)
    (tmp_path / "alone").mkdir()
    (tmp_path / "elastic").mkdir()
    alone = train(tmp_path / "alone", **env)["worker-0"]
    ended = train(tmp_path / "elastic", changes=[(5, 3, None), (12, 2, 2)], PAUSE=0.2, **env)
    assert len(ended) == 3
    for epoch in range(20):
        used = sorted(i for record, _ in ended.values() for e, batch in record["used"] if e == epoch for i in batch)
        assert used == list(range(480)), f"epoch {epoch}"
    for name in ("worker-0", "worker-1"):
        for parameter, value in ended[name][1].items():
            np.testing.assert_allclose(value, alone[1][parameter], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["worker", "server"])
def test_a_worker_that_joins_begins_with_the_others_weights_and_statistics(tmp_path, update):
    replies = []
    env = dict(UPDATE=update, EPOCHS=40, PAUSE=0.1, STATES=1, OPTIMIZER="adam", PARAMETERS='{"learning_rate": 0.01}')
    ended = train(tmp_path, changes=[(30, 2, None)], replies=replies, **env)
    step = replies[0]["step"]
    old, new = ended["worker-0"][0], ended["worker-1"][0]
    assert new["used"][0][0] == old["used"][step][0] >= 3, "it begins in the epoch that the job is in"
    np.testing.assert_allclose(new["before"][0], old["before"][step], rtol=1e-6, atol=1e-7)
    assert abs(new["accuracy"] - old["accuracy"]) < 0.02


def test_fifty_requests_back_to_back_all_take_effect_or_lead_to_the_last(tmp_path):
    stop = tmp_path / "stop"
    with Job("rounds.py", workers=1, servers=1, out=tmp_path, STEPS=100000, PAUSE=0.002, STOP=stop) as job:
        for number in range(1, 51):
            job.send(m.Scale(request=number, servers=1 + number % 3, workers=1 + number % 2))
        replies = [job.reply(number, timeout=110) for number in range(1, 51)]
        assert all(reply.error == "" for reply in replies)
        assert (replies[-1].body["workers"], replies[-1].body["servers"]) == (1, 3)
        stop.touch()
        assert set(job.wait().values()) == {0}
    # Requests that come before the job has begun may leave out its first worker.
    totals = np.load(max(tmp_path.glob("worker-*.npy"), key=lambda path: path.stat().st_size))
    assert all(row[0] in (1, 2) and np.array_equal(row, row[0] * np.array([1, 2, 3, 4])) for row in totals)


def test_a_resize_in_the_first_and_one_in_the_last_step(tmp_path):
    stop = tmp_path / "stop"
    with Job("rounds.py", workers=2, servers=1, out=tmp_path, STEPS=100000, PAUSE=0.2, STOP=stop) as job:
        assert job.scale(1, servers=2).error == ""
        stop.touch()
        late = job.scale(2, servers=1)
        assert late.error == "" or "finished" in late.error
        assert set(job.wait().values()) == {0}
    totals = np.load(tmp_path / "worker-0.npy")
    assert np.array_equal(totals, [[2, 4, 6, 8]] * len(totals))
