"""Every optimizer of MXNet's registry updates slices on a server as MXNet's own updater does a key on a worker."""

import mxnet as mx
import numpy as np
import pytest

from elastic_mx.optimizers import OptimizerError, ServerOptimizer, describe, needs_whole_tensors, scalars
from elastic_mx.updates import FusedOptimizer, fusable

SHAPE = (6, 5)
NAMES = sorted(mx.optimizer.Optimizer.opt_registry)
FUSED = {
    "sgd": [dict(), dict(momentum=0.9, wd=0.01), dict(clip_gradient=0.5, wd=0.1, rescale_grad=0.25)],
    "nag": [
        dict(momentum=0.9),
        dict(momentum=0.0, wd=0.1, clip_gradient=0.3),
        dict(momentum=0.9, wd=0.1, clip_gradient=0.3),
    ],
    "adam": [dict(), dict(wd=0.1, clip_gradient=0.5, rescale_grad=0.5)],
}


def local_result(optimizer, gradients, start):
    """What MXNet's updater makes of a weight."""
    weight = mx.nd.array(start)
    updater = mx.optimizer.get_updater(optimizer)
    for gradient in gradients:
        updater(0, mx.nd.array(gradient), weight)
    return weight.asnumpy()


def server_result(server, optimizer, gradients, start, pieces):
    """What a server makes of it, cut into `pieces` row ranges, moved to a second server half way."""
    weights = [part.copy() for part in np.array_split(start, pieces)]
    for s in range(pieces):
        server.define(s, "i:0")
    for step, gradient in enumerate(gradients):
        server.set_scalars(scalars(optimizer, step + 1))
        for s, part in enumerate(np.array_split(gradient, pieces)):
            server.update(s, weights[s], part.copy())
        if step == len(gradients) // 2:
            moved = type(server)(server.description)
            for s in range(pieces):
                moved.define(s, "i:0")
                structure, arrays = server.dump(s)
                moved.load(s, structure, [np.frombuffer(a.tobytes(), np.uint8) for a in arrays])
            server = moved
    return np.concatenate(weights)


def data():
    rng = np.random.RandomState(3)
    return rng.randn(*SHAPE).astype("float32"), [rng.randn(*SHAPE).astype("float32") for _ in range(6)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sgld"])
def test_a_servers_update_is_mxnets(name):
    start, gradients = data()
    optimizer, twin = mx.optimizer.create(name), mx.optimizer.create(name)
    pieces = 1 if needs_whole_tensors(optimizer) or name in ("nadam",) else 3
    found = server_result(ServerOptimizer(describe(optimizer)), optimizer, gradients, start, pieces)
    np.testing.assert_allclose(found, local_result(twin, gradients, start), rtol=1e-5, atol=1e-6)


def test_sgld_moves_every_weight():
    start, gradients = data()
    optimizer = mx.optimizer.create("sgld")
    found = server_result(ServerOptimizer(describe(optimizer)), optimizer, gradients, start, 2)
    assert np.isfinite(found).all() and (found != start).all()


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(("name", "parameters"), [(n, p) for n, cases in FUSED.items() for p in cases])
def test_a_fused_rule_gives_what_mxnet_gives(name, parameters, pieces):
    start, gradients = data()
    optimizer, twin = mx.optimizer.create(name, **parameters), mx.optimizer.create(name, **parameters)
    assert fusable(describe(optimizer), "float32")
    found = server_result(FusedOptimizer(describe(optimizer)), optimizer, gradients, start, pieces)
    np.testing.assert_allclose(found, local_result(twin, gradients, start), rtol=1e-6, atol=1e-7)


def test_a_schedulers_learning_rate_rides_on_the_pushes():
    optimizer = mx.optimizer.create("sgd", learning_rate=1.0, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5))
    assert [scalars(optimizer, update)["lr"] for update in (1, 2, 3, 4, 5)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_multipliers_travel_by_key():
    optimizer = mx.optimizer.create("sgd", param_idx2name={0: "fc_weight", 1: "fc_bias"}, wd=0.1)
    assert describe(optimizer)["multipliers"] == {"i:1": (1.0, 0.0), "s:fc_bias": (1.0, 0.0)}


class Mine(mx.optimizer.SGD):
    """An optimizer that the servers do not know."""


def test_a_class_of_the_scripts_own_needs_permission():
    description = describe(Mine(learning_rate=0.1))
    with pytest.raises(OptimizerError, match="launch the job with --optimizer"):
        ServerOptimizer(description)
    assert type(ServerOptimizer(description, [description["name"]]).optimizer).__name__ == "Mine"
