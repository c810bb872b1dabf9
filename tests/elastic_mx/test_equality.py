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


def weights(folder):
    return [value for name, value in np.load(folder / "worker-0.npz").items() if name != "steps"]


def loads(job):
    """Bytes of the model on each server."""
    return {server["name"]: server["bytes"] for server in job.status()["servers"]}


def run_elastic(folder, workers=2, **env):
    folder.mkdir()
    with Job("compare.py", workers=workers, servers=2, out=folder, **env) as job:
        assert set(job.wait(90).values()) == {0}
    return weights(folder)


def run_through(folder, changes, slice_bytes, **env):
    """Run a job through `changes` of its servers; its weights, and how many steps it took."""
    folder.mkdir()
    stop = folder / "stop"
    with Job(
        "compare.py", workers=3, servers=2, out=folder, slice_bytes=slice_bytes, STEPS=10**6, STOP=stop, **env
    ) as job:
        job.wait_for_step(1)
        for number, wanted in enumerate(changes):
            before = loads(job)
            reply = job.scale(number + 1, servers=wanted)
            assert reply.error == "" and reply.body["servers"] == wanted
            after = loads(job)
            assert max(after.values()) - min(after.values()) <= slice_bytes, "even to within one slice"
            least = sum(max(0, nbytes - before.get(server, 0)) for server, nbytes in after.items())
            assert reply.body["bytes_moved"] == least, "no byte moves that could have stayed"
        stop.touch()
        assert set(job.wait(90).values()) == {0}
    return weights(folder), int(np.load(folder / "worker-0.npz")["steps"])


# On the workers MXNet's own optimizers run, and the servers do the same for each.
@pytest.mark.parametrize(
    "optimizer, update", [("sgd", "server"), ("momentum", "server"), ("adam", "server"), ("adam", "worker")]
)
def test_a_script_ends_with_the_weights_that_dist_sync_gives(tmp_path, optimizer, update):
    name, parameters = OPTIMIZERS[optimizer]
    env = {"OPTIMIZER": name, "PARAMETERS": json.dumps(parameters), "UPDATE": update}
    (tmp_path / "native").mkdir()
    run_native("compare.py", tmp_path / "native", servers=1, **env)
    for ours, theirs in zip(run_elastic(tmp_path / "elastic", **env), weights(tmp_path / "native")):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("transport, optimizer", [("auto", "adam"), ("tcp", "momentum")])
def test_two_runs_give_the_same_bits_also_where_the_servers_of_one_change_ten_times(tmp_path, transport, optimizer):
    name, parameters = OPTIMIZERS[optimizer]
    env = {"OPTIMIZER": name, "PARAMETERS": json.dumps(parameters), "slice_bytes": 4096, "transport": transport}
    moved, steps = run_through(tmp_path / "moved", (3, 4, 2, 1, 3, 2, 5, 1, 2, 3), **env)
    still = run_elastic(tmp_path / "still", workers=3, STEPS=steps, **env)
    assert all(np.array_equal(a, b) for a, b in zip(still, moved))
