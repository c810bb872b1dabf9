"""Optimizers on servers: every one of MXNet's does what MXNet's local updater does, and moves with its slices."""

import math
import subprocess
import sys
import warnings

import msgspec
import numpy as np
import pytest

import elastic_mx  # noqa: F401  (lets mxnet import)

mx = pytest.importorskip("mxnet")
from elastic_mx import optimizers  # noqa: E402
from elastic_mx.server_optimizer import OptimizerError, RowSparse, ServerOptimizer  # noqa: E402

warnings.filterwarnings("ignore", message="Accumulating with float16")

SHAPES = {0: (6, 5), 1: (40, 3), 2: (7,)}
ROUNDS = 4
REGISTERED = sorted(mx.optimizer.Optimizer.opt_registry)
COMMON = dict(wd=0.01, rescale_grad=0.125, clip_gradient=0.3)
# DCASGD with momentum raises in MXNet 1.9.1 itself; GroupAdaGrad takes matrices only and no weight decay.
CASES = [
    *((name, COMMON) for name in REGISTERED if name not in ("groupadagrad",)),
    *((name, dict(COMMON, momentum=0.9)) for name in ("sgd", "ccsgd", "nag", "signum", "lars", "lbsgd")),
    ("signum", dict(COMMON, momentum=0.9, wd_lh=0.1)),
    ("rmsprop", dict(COMMON, centered=True, clip_weights=1.0)),
    ("lbsgd", dict(momentum=0.9, batch_scale=2)),
    ("lbsgd", dict(momentum=0.9, warmup_strategy="lars")),
    ("lamb", dict(lower_bound=0.1, upper_bound=1.0, bias_correction=False)),
    ("adam", dict(begin_num_update=10, wd=0.1)),
    ("sgd", dict(momentum=0.9, rescale_grad=0.3)),
    ("groupadagrad", dict(rescale_grad=0.5)),
]
IDS = [f"{name}-{'-'.join(map(str, options))}" for name, options in CASES]


def numbers(shape, seed, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make(name, **options):
    return mx.optimizer.create(name, **{"learning_rate": 0.1, **options})


def shapes(name):
    return {key: shape for key, shape in SHAPES.items() if name != "groupadagrad" or len(shape) == 2}


def train_locally(optimizer, shapes, dtype="float32", rate=None, rounds=ROUNDS):
    """The weights after some rounds of MXNet's updater, in the order in which Trainer calls it."""
    updater = mx.optimizer.get_updater(optimizer)
    weights = {key: mx.nd.array(numbers(shape, key, dtype), dtype=dtype) for key, shape in shapes.items()}
    for i in range(rounds):
        if rate is not None:
            optimizer.set_learning_rate(rate(i))
        for key, weight in weights.items():
            updater(key, mx.nd.array(numbers(weight.shape, (i, key), dtype), dtype=dtype), weight)
    return {key: weight.asnumpy() for key, weight in weights.items()}


class Servers:
    """Weights cut into slices, updated by optimizers as servers have them, in one process."""

    def __init__(self, optimizer, shapes, pieces=1, dtype="float32", allowed=()):
        self.optimizer = optimizer
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(optimizers.describe(optimizer)))
        self.make = lambda: ServerOptimizer(wire, allowed)
        self.server = self.make()
        self.weights = {key: numbers(shape, key, dtype) for key, shape in shapes.items()}
        self.rows = {key: np.array_split(np.arange(shape[0]), pieces) for key, shape in shapes.items()}
        self.slices = {}
        for key in shapes:
            for i in range(pieces):
                self.slices[key, i] = len(self.slices)
        self.define()

    def define(self):
        for (key, _), s in self.slices.items():
            self.server.define(s, f"i:{key}")

    def update(self, number, gradients):
        values = optimizers.scalars(self.optimizer, number)
        self.server.set_scalars({name: float(value) for name, value in values.items()})
        for (key, i), s in self.slices.items():
            rows = self.rows[key][i]
            part = slice(rows[0], rows[-1] + 1)
            gradient = gradients[key]
            gradient.flags.writeable = False  # as a worker's arena is
            self.server.update(s, self.weights[key][part], gradient[part])

    def move(self):
        """To another server, by way of the wire."""
        states = {}
        for s in self.slices.values():
            structure, arrays = self.server.dump(s)
            frames = [np.frombuffer(array.tobytes(), np.uint8) for array in arrays]
            states[s] = msgspec.msgpack.decode(msgspec.msgpack.encode(structure)), frames
            self.server.forget(s)
        self.server = self.make()
        self.define()
        for s, (structure, frames) in reversed(states.items()):
            self.server.load(s, structure, frames)


def train_on_servers(optimizer, shapes, pieces=1, dtype="float32", move=False, rate=None, rounds=ROUNDS):
    servers = Servers(optimizer, shapes, pieces, dtype)
    for i in range(rounds):
        if rate is not None:
            optimizer.set_learning_rate(rate(i))
        if move and i:
            servers.move()
        servers.update(i + 1, {key: numbers(shape, (i, key), dtype) for key, shape in shapes.items()})
    return servers.weights


def assert_same(ours, theirs, rtol=1e-6):
    for key, value in theirs.items():
        assert np.isfinite(value.astype(np.float64)).all()
        np.testing.assert_allclose(ours[key], value, rtol=rtol, atol=rtol * np.abs(value).max(), err_msg=str(key))


# ----------------------------------------------------------------------------------- as MXNet's local updater


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_every_optimizer_does_what_mxnets_updater_does(name, options, pieces):
    if name == "sgld":
        pytest.skip("its noise is random: tested for its distribution instead")
    if pieces > 1 and optimizers.needs_whole_tensors(make(name, **options)):
        pieces = 1
    # Nadam's schedule is one for all weights and depends on their order, which the Trainer's param_dict tells.
    order = {key: mx.gluon.Parameter(f"p{key}", shape=shape) for key, shape in shapes(name).items()}
    theirs = train_locally(make(name, param_dict=order, **options), shapes(name))
    ours = train_on_servers(make(name, param_dict=order, **options), shapes(name), pieces)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name, options", CASES, ids=IDS)
def test_a_state_moves_between_servers_without_a_trace(name, options):
    stay, moved = (train_on_servers(make(name, **options), shapes(name), 1, move=move) for move in (False, True))
    for key in stay:
        assert np.array_equal(stay[key], moved[key])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "lamb", "lbsgd", "signum", "adamax"])
def test_dtypes_and_multi_precision(name, multi_precision, dtype):
    options = dict(COMMON, multi_precision=multi_precision)
    if name in ("sgd", "nag"):
        options["momentum"] = 0.9
    if name == "adam":
        options["epsilon"] = 1e-3  # the default is zero in float16
    if name == "lbsgd" and multi_precision and dtype == "float16":
        pytest.skip("LBSGD with multi_precision nests its states wrongly in MXNet 1.9.1")
    theirs = train_locally(make(name, **options), SHAPES, dtype)
    ours = train_on_servers(make(name, **options), SHAPES, 1, dtype)
    assert_same(ours, theirs, 1e-6 if dtype != "float16" else 1e-3)
    moved = train_on_servers(make(name, **options), SHAPES, 1, dtype, move=True)
    assert all(np.array_equal(ours[key], moved[key]) for key in ours)


@pytest.mark.parametrize("name", ["sgd", "nag", "adam"])
@pytest.mark.parametrize(
    "options",
    [dict(), dict(wd=0.01), dict(COMMON), dict(momentum=0.9, wd=0.1, rescale_grad=0.7), dict(rescale_grad=0.7)],
)
def test_numpy_and_mxnet_agree_to_the_last_bit(name, options):
    options = {k: v for k, v in options.items() if k != "momentum" or name != "adam"}
    long = {0: (70001,)}
    theirs, ours = train_locally(make(name, **options), long), train_on_servers(make(name, **options), long, 3)
    assert np.array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop", "nadam"])
def test_a_learning_rate_set_between_steps_takes_effect(name):
    order = {key: mx.gluon.Parameter(f"p{key}", shape=shape) for key, shape in SHAPES.items()}
    rate = [0.1, 0.01, 0.5, 0.2].__getitem__
    assert_same(
        train_on_servers(make(name, param_dict=order), SHAPES, 2, rate=rate),
        train_locally(make(name, param_dict=order), SHAPES, rate=rate),
    )


def test_lars_corrects_the_momentum_of_every_weight_when_the_rate_changes():
    """MXNet's own instance corrects the first weight's only; with one weight both agree."""
    rate = [0.1, 0.01, 0.5, 0.2].__getitem__
    one = {0: (6, 5)}
    assert_same(
        train_on_servers(make("lars", momentum=0.9), one, rate=rate),
        train_locally(make("lars", momentum=0.9), one, rate=rate),
    )


def test_a_scheduler_stays_on_the_worker():
    def scheduled():
        return make("sgd", lr_scheduler=mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1))

    assert_same(train_on_servers(scheduled(), SHAPES, 2), train_locally(scheduled(), SHAPES))
    assert "lr_scheduler" not in optimizers.describe(scheduled())["attributes"]
    assert [optimizers.scalars(scheduled(), n)["lr"] for n in (1, 2, 3, 5)] == [0.1, 0.1, 0.05, 0.025]


def test_multipliers_of_gluon_parameters():
    def parameters():
        found = {key: mx.gluon.Parameter(f"p{key}", shape=shape) for key, shape in SHAPES.items()}
        found[0].lr_mult, found[1].wd_mult, found[2].lr_mult = 0.5, 0.0, 0.0
        return found

    for name in ("sgd", "rmsprop"):
        theirs = train_locally(make(name, param_dict=parameters(), wd=0.1), SHAPES)
        assert_same(train_on_servers(make(name, param_dict=parameters(), wd=0.1), SHAPES, 2), theirs)


def test_multipliers_and_names_of_a_module():
    names = {0: "fc_weight", 1: "fc_gamma", 2: "fc_bias"}
    for name in ("sgd", "lars"):
        optimizer = make(name, param_idx2name=names, wd=0.1)
        optimizer.set_lr_mult({"fc_weight": 0.5})
        assert_same(train_on_servers(optimizer, SHAPES), train_locally(optimizer, SHAPES))
    description = optimizers.describe(optimizer)
    assert description["multipliers"]["s:fc_bias"] == (1.0, 0.0) == description["multipliers"]["i:2"]


# ---------------------------------------------------------------------------------------------- row_sparse

# Adamax divides by zero where a row has had no gradient yet, on MXNet's side too.
SPARSE = [
    *((name, {}) for name in REGISTERED if name not in ("sgld", "nag", "lars", "lamb", "adamax")),
    ("sgd", dict(momentum=0.9, wd=0.01)),
    ("sgd", dict(momentum=0.9, wd=0.01, lazy_update=False)),
    ("adam", dict(wd=0.01, clip_gradient=0.3)),
    ("adam", dict(wd=0.01, lazy_update=False)),
    ("lars", dict(momentum=0.9, wd=0.01)),
]


@pytest.mark.parametrize("weights", ["default", "row_sparse"])
@pytest.mark.parametrize("name, options", SPARSE)
def test_row_sparse_gradients(name, options, weights):
    if name == "test" and weights == "row_sparse":
        pytest.skip("MXNet's Test optimizer refuses row_sparse weights")
    shape, rounds = (8, 3), [[1, 4], [0, 4], [], [4, 6, 7]]
    gradients = [numbers((len(rows), 3), (5, i)) for i, rows in enumerate(rounds)]
    updater = mx.optimizer.get_updater(make(name, **options))
    theirs = mx.nd.array(numbers(shape, 0)).tostype(weights)
    for rows, values in zip(rounds, gradients):
        if rows:
            gradient = mx.nd.sparse.row_sparse_array((values, rows), shape=shape)
        else:
            gradient = mx.nd.sparse.zeros("row_sparse", shape)
        updater(0, gradient, theirs)
    server = ServerOptimizer(optimizers.describe(make(name, **options)))
    server.define(0, "i:0", sparse=weights == "row_sparse")
    ours = numbers(shape, 0)
    for i, (rows, values) in enumerate(zip(rounds, gradients)):
        server.set_scalars(optimizers.scalars(make(name, **options), i + 1))
        server.update(0, ours, RowSparse(np.array(rows, np.int64), values))
    assert_same({0: ours}, {0: theirs.asnumpy()}, 2e-6)


# ---------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("name", ["sgd", "nag", "adam"])
def test_slices_side_by_side_are_updated_in_one_run_as_one_by_one(name):
    optimizer = make(name, wd=0.01, **({} if name == "adam" else {"momentum": 0.9}))
    sizes = [64, 160, 16, 4096]
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = {s: (int(offset) * 4, size * 4) for s, (offset, size) in enumerate(zip(offsets, sizes))}
    single, run = (ServerOptimizer(optimizers.describe(optimizer), (), place.__getitem__) for _ in range(2))
    weights = [numbers((sum(sizes),), 1) for _ in range(2)]
    for i in range(3):
        gradient = numbers((sum(sizes),), (2, i))
        for server in (single, run):
            server.set_scalars(optimizers.scalars(optimizer, i + 1))
            if i == 0:
                for s in place:
                    server.define(s, "i:0")
        for s, (offset, nbytes) in place.items():
            part = slice(offset // 4, (offset + nbytes) // 4)
            single.update(s, weights[0][part], gradient[part])
        whole = run.begin_run(list(place), weights[1])
        for start in (0, 100, 3000):
            stop = {0: 100, 100: 3000, 3000: sum(sizes)}[start]
            whole.update(start, gradient[start:stop])
        assert np.array_equal(*weights)
        assert [run.count(s) for s in place] == [i + 1] * 4


def test_slices_that_differ_are_not_updated_in_one_run():
    optimizer = make("sgd")
    optimizer.set_lr_mult({1: 0.5})
    server = ServerOptimizer(optimizers.describe(optimizer))
    weight = np.zeros(32, np.float32)
    for s, key in enumerate(["i:0", "i:1", "i:0"]):
        server.define(s, key)
    assert server.begin_run([0, 1], weight) is None
    server.update(0, weight[:16], weight[:16])
    assert server.begin_run([0, 2], weight) is None
    assert ServerOptimizer(optimizers.describe(make("rmsprop"))).begin_run([], weight) is None


def test_a_place_that_is_used_again_begins_with_a_fresh_state():
    optimizer = make("sgd", momentum=0.9)
    server = ServerOptimizer(optimizers.describe(optimizer), (), lambda s: (64, 40))
    results = []
    for s in (0, 1):
        server.define(s, "i:0")
        weight = np.ones(10, np.float32)
        for _ in range(3):
            server.update(s, weight, np.ones(10, np.float32))
        results.append(weight)
        server.forget(s)
    assert np.array_equal(*results)


# ---------------------------------------------------------------------------------------------- SGLD


def test_sgld_steps_with_noise_of_the_learning_rates_variance_and_can_be_repeated():
    def run(seed):
        server = ServerOptimizer(optimizers.describe(make("sgld", learning_rate=0.04, wd=0.5), seed))
        server.define(3, "i:0")
        weight = np.full(100000, 2, np.float32)
        server.update(3, weight, np.ones(100000, np.float32))
        return weight

    weight = run(1)
    assert weight.mean() == pytest.approx(2 - 0.02 * (1 + 0.5 * 2), abs=0.003)
    assert weight.std() == pytest.approx(math.sqrt(0.04), rel=0.02)
    assert np.array_equal(weight, run(1)) and not np.array_equal(weight, run(2))


# ---------------------------------------------------------------------------------------------- how it travels


class Halving(mx.optimizer.Optimizer):
    """An optimizer of a user's own."""

    elementwise = True

    def __init__(self, factor, betas=(0.5, 2), **kwargs):
        super().__init__(**kwargs)
        self.factor, self.betas, self.seen = factor, betas, {}

    def create_state(self, index, weight):
        return [mx.nd.zeros(weight.shape), 0.5, None]

    def update(self, index, weight, grad, state):
        self._update_count(index)
        self.seen[index] = self.seen.get(index, 0) + 1
        state[0][:] += grad
        weight[:] -= self._get_lr(index) * self.factor * self.betas[0] * state[0] * self.seen[index]


PATH = f"{__name__}:Halving"


def test_a_class_of_the_users_own_is_imported_where_that_is_allowed():
    optimizer = Halving(0.25, learning_rate=0.1)
    assert optimizers.describe(optimizer)["name"] == PATH
    with pytest.raises(OptimizerError, match=f"--optimizer {PATH}"):
        ServerOptimizer(optimizers.describe(optimizer))
    stay, moved = Servers(optimizer, SHAPES, 2, allowed=[PATH]), Servers(optimizer, SHAPES, 2, allowed=[PATH])
    for i in range(3):
        gradients = {key: numbers(shape, (i, key)) for key, shape in SHAPES.items()}
        stay.update(i + 1, gradients)
        moved.move()
        moved.update(i + 1, gradients)
    assert_same(stay.weights, train_locally(Halving(0.25, learning_rate=0.1), SHAPES, rounds=3))
    assert all(np.array_equal(stay.weights[key], moved.weights[key]) for key in SHAPES)
    assert not optimizers.needs_whole_tensors(optimizer)


def test_what_cannot_travel_is_refused_on_the_worker():
    class Local(mx.optimizer.SGD):
        pass

    with pytest.raises(ValueError, match="move it to the top level"):
        optimizers.describe(Local())
    optimizer = Halving(0.25)
    optimizer.table = mx.nd.zeros((3,))
    with pytest.raises(ValueError, match=r"Halving.table is a NDArray"):
        optimizers.describe(optimizer)


def test_a_server_refuses_what_is_no_optimizer():
    with pytest.raises(OptimizerError, match="none of MXNet's"):
        ServerOptimizer({"name": "sdg", "attributes": {}})
    for description in ({}, {"name": 3, "attributes": {}}, {"name": "sgd", "attributes": {}, "code": "x"}):
        with pytest.raises(OptimizerError, match="not the description"):
            ServerOptimizer(description)


def test_which_optimizers_need_whole_tensors():
    whole = {name for name in REGISTERED if optimizers.needs_whole_tensors(make(name))}
    assert whole == {"lamb", "lars"}
    assert optimizers.needs_whole_tensors(make("lbsgd", warmup_strategy="lars"))


def test_the_usual_optimizers_run_without_importing_mxnet():
    code = f"""
import sys, numpy as np
from elastic_mx.server_optimizer import ServerOptimizer
for description in {[optimizers.describe(make(name)) for name in ("sgd", "nag", "adam", "sgld")]!r}:
    server = ServerOptimizer(description)
    server.define(0, "i:0")
    server.update(0, np.ones(5, np.float32), np.ones(5, np.float32))
assert "mxnet" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arrays_of_no_elements_and_without_an_axis():
    for name in ("sgd", "adam", "rmsprop"):
        server = ServerOptimizer(optimizers.describe(make(name)))
        server.define(0, "i:0")
        server.define(1, "i:1")
        scalar = np.array(1.0, np.float32)
        server.update(0, scalar, np.array(1.0, np.float32))
        server.update(1, np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
        assert scalar < 1 and server.count(1) == 1
