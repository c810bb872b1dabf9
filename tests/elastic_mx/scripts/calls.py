"""Uses every call of the kvstore as MXNet documents it, on each worker, and checks what comes back."""

import os

import elastic_mx  # noqa: F401  (registers dist_elastic)
import mxnet as mx
import numpy as np

kv = mx.kv.create("dist_elastic")
n, rank = kv.num_workers, kv.rank


def check(found, expected):
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-3)


# str and int keys, lists, several devices' values per key, priorities; the pushed gradient is left alone.
kv.init("a", mx.nd.ones((2, 3)))
kv.init([1, 2], [mx.nd.ones((4,)) * 5, mx.nd.zeros((1,))])
out = mx.nd.zeros((2, 3))
kv.pull("a", out=out)
check(out, np.ones((2, 3)))
gradient = mx.nd.ones((2, 3)) * (rank + 1)
kv.push("a", gradient, priority=-1)
kv.pull("a", out=out, priority=-1)
check(out, np.full((2, 3), sum(range(1, n + 1))))
check(gradient, np.full((2, 3), rank + 1))
two = [mx.nd.ones((4,), ctx=mx.cpu(0)), mx.nd.ones((4,), ctx=mx.cpu(1)) * 2]
outs = [mx.nd.zeros((4,), ctx=mx.cpu(0)), mx.nd.zeros((4,), ctx=mx.cpu(1))]
kv.pushpull([1, 2], [two, [mx.nd.ones((1,))]], out=[outs, [mx.nd.zeros((1,))]])
check(outs[0], np.full(4, 3 * n))
check(outs[1], np.full(4, 3 * n))
alone = mx.nd.ones((4,)) * (rank + 1)
kv.pushpull(1, alone)
check(alone, np.full(4, sum(range(1, n + 1))))
broadcast = mx.nd.zeros((3,))
kv.broadcast("b", mx.nd.ones((3,)) * (7 if rank == 0 else 9), out=broadcast)
check(broadcast, np.full(3, 7))

# a key given twice has both arrays, no key at all is no round
kv.init("twice", mx.nd.zeros((3,)))
places = [mx.nd.zeros((3,)), mx.nd.zeros((3,))]
kv.push(["twice", "a", "twice"], [mx.nd.ones((3,)), gradient, mx.nd.ones((3,)) * 2])
kv.pull(["twice", "twice"], out=places)
for place in places:
    check(place, np.full(3, 3 * n))
kv.pushpull(["twice", "twice"], places)
for place in places:
    check(place, np.full(3, 6 * n * n))
kv.push([], [])
kv.pull([], out=[])

# dtypes
for dtype in ("float16", "float32", "float64"):
    kv.init(dtype, mx.nd.zeros((1000, 3), dtype=dtype))
    value = mx.nd.ones((1000, 3), dtype=dtype) * 0.5
    kv.pushpull(dtype, value)
    assert value.dtype == np.dtype(dtype)
    check(value, np.full((1000, 3), 0.5 * n))

# no axis at all, under NumPy's shapes
with mx.util.np_shape(True):
    kv.init("scalar", mx.nd.ones(()))
    scalar = mx.nd.ones(())
    kv.pushpull("scalar", scalar)
    check(scalar, n)
    for key in ("empty", "empty too"):
        kv.init(key, mx.nd.ones((0, 3)))
    nothing = [mx.nd.ones((0, 3)), mx.nd.ones((0, 3))]
    kv.pushpull(["empty", "scalar", "empty too"], [nothing[0], mx.nd.ones(()), nothing[1]])
    mx.nd.waitall()
    kv.pull("empty", out=nothing[0])
    mx.nd.waitall()

# LAMB needs whole tensors, and keys were cut into slices already
try:
    kv.set_optimizer(mx.optimizer.create("lamb"))
    raise AssertionError("a set_optimizer that comes too late was not refused")
except ValueError as refused:
    assert "before init" in str(refused)

# two stores do not mix their keys
other = mx.kv.create("dist_elastic")
other.init("a", mx.nd.zeros((5,)))
fives = mx.nd.ones((5,))
other.pushpull("a", fives)
check(fives, np.full(5, n))

# an optimizer on the servers; a learning rate that changes takes effect
trained = mx.kv.create("dist_elastic")
optimizer = mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5)
trained.set_optimizer(optimizer)
trained.init("w", mx.nd.zeros((300, 4)))
w = mx.nd.zeros((300, 4))
trained.pushpull("w", mx.nd.ones((300, 4)), out=w)
check(w, np.full((300, 4), -n))
optimizer.set_learning_rate(0.0)
trained.pushpull("w", mx.nd.ones((300, 4)), out=w)
check(w, np.full((300, 4), -1.5 * n))
path = os.environ["OUT"] + ".states"
trained.save_optimizer_states(path)
trained._barrier()
trained.pushpull("w", mx.nd.ones((300, 4)), out=w)
check(w, np.full((300, 4), -1.75 * n))
trained.load_optimizer_states(path)
trained.pushpull("w", mx.nd.ones((300, 4)), out=w)
check(w, np.full((300, 4), -2.0 * n))

# a Trainer's states, which it reads through its store
net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "adam", kvstore="dist_elastic")
with mx.autograd.record():
    loss = net(mx.nd.ones((1, 3)))
loss.backward()
trainer.step(n)
trainer.save_states(path)
trainer.load_states(path)
trainer.set_learning_rate(0.5)
assert trainer.learning_rate == 0.5

# row_sparse gradients and weights
sparse = mx.kv.create("dist_elastic")
sparse.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.9, lazy_update=True))
sparse.init("e", mx.nd.ones((1000, 4)).tostype("row_sparse"))
rows = mx.nd.sparse.row_sparse_array((np.ones((2, 4), "float32"), [5, 700 + rank]), shape=(1000, 4))
sparse.push("e", rows)
wanted = mx.nd.array([700, 5, 5, 3], dtype="int64")
found = mx.nd.sparse.zeros("row_sparse", (1000, 4))
sparse.row_sparse_pull("e", out=found, row_ids=wanted)
assert found.indices.asnumpy().tolist() == [3, 5, 700]
check(found.data, np.array([[1] * 4, [1 - n] * 4, [0] * 4]))
for wrong in (-1, 1000):
    try:
        sparse.row_sparse_pull("e", out=found, row_ids=mx.nd.array([wrong], dtype="int64"))
        raise AssertionError(f"row {wrong} was not refused")
    except ValueError as refused:
        assert "of key 'e' were asked for, which has rows 0 to 999" in str(refused)
dense = mx.nd.zeros((1000, 4))
sparse.pull("e", out=dense)
expected = np.ones((1000, 4))
expected[5] -= n
expected[700 : 700 + n] -= 1
check(dense, expected)

assert kv.type == "dist_elastic_sync" and isinstance(kv, mx.kvstore.KVStore)
assert kv.get_num_dead_node() == 0
kv._barrier()
kv._barrier()
