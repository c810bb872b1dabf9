"""The same weights as MXNet's own store, the same bits from run to run, and the same bits through any servers."""

import json

import numpy as np
import pytest

from tests.elastic_mx.harness import Job
from tests.elastic_mx.native import run_native

OPTIMIZERS = {
    "sgd": ("sgd", {"learning_rate": 0.05, "wd": 0.001}),
    "momentum": ("sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": ("adam", {"learning_rate": 0.01}),
}


def weights(folder, worker="worker-0"):
    return list(np.load(folder / f"{worker}.npz").values())


def loads(job):
    """Bytes of the model on each server."""
    return {server["name"]: server["bytes"] for server in job.status()["servers"]}


def run_elastic(folder, changes=(), workers=2, servers=2, **env):
    folder.mkdir()
    with Job("compare.py", workers=workers, servers=servers, out=folder, **env) as job:
        if changes:
            job.wait_for_step(1)
        for number, wanted in enumerate(changes):
            before = loads(job)
            reply = job.scale(number + 1, servers=wanted)
            assert reply.error == "" and reply.body["servers"] == wanted
            after = loads(job)
            assert max(after.values()) - min(after.values()) <= env["slice_bytes"], "even to within one slice"
            least = sum(max(0, nbytes - before.get(server, 0)) for server, nbytes in after.items())
            assert reply.body["bytes_moved"] == least, "no byte moves that could have stayed"
        assert set(job.wait(90).values()) == {0}
    return weights(folder)


@pytest.mark.parametrize("update", ["server", "worker"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_script_ends_with_the_weights_that_dist_sync_gives(tmp_path, optimizer, update):
    name, parameters = OPTIMIZERS[optimizer]
    env = {"OPTIMIZER": name, "PARAMETERS": json.dumps(parameters), "UPDATE": update}
    (tmp_path / "native").mkdir()
    run_native("compare.py", tmp_path / "native", **env)
    for ours, theirs in zip(run_elastic(tmp_path / "elastic", **env), weights(tmp_path / "native")):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_two_runs_give_the_same_bits(tmp_path):
    env = {"OPTIMIZER": "adam", "PARAMETERS": '{"learning_rate": 0.01}'}
    first = run_elastic(tmp_path / "first", workers=3, **env)
    second = run_elastic(tmp_path / "second", workers=3, **env)
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_ten_changes_of_the_servers_leave_every_bit_as_without(tmp_path, transport):
    env = {"OPTIMIZER": "sgd", "PARAMETERS": '{"learning_rate": 0.05, "momentum": 0.9}'}
    env.update(STEPS=1500, slice_bytes=4096, transport=transport)
    still = run_elastic(tmp_path / "still", **env)
    moved = run_elastic(tmp_path / "moved", changes=(3, 4, 2, 1, 3, 2, 5, 1, 2, 3), PAUSE=0.02, **env)
    assert all(np.array_equal(a, b) for a, b in zip(still, moved))
