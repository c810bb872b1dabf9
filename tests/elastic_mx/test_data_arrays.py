"""`NDArrayIter` under Module.fit: shares whose size changes, joining, leaving, and the scale of the gradient."""

from typing import Any, List, Tuple

import numpy as np
import pytest

from elastic_mx.data import Alone, NDArrayIter, Session
from tests.elastic_mx.scripted_job import ScriptedJob

mx = pytest.importorskip("mxnet")

RESIZES = [(0, "a"), (5, "abc"), (9, "ab"), (23, "bcda")]


def data(n: int = 100) -> Tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("float32")


def module(**options: Any) -> Any:
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="dense")
    return mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax"), **options)


def fit(mod: Any, it: NDArrayIter, num_epoch: int, begin_epoch: int = 0, **options: Any) -> List[int]:
    """Train from zero weights; return the sizes of the batches."""
    sizes: List[int] = []
    mod.fit(
        it,
        num_epoch=num_epoch,
        begin_epoch=begin_epoch,
        initializer=mx.init.Zero(),
        optimizer_params={"learning_rate": 0.5, "rescale_grad": it.rescale_grad},
        batch_end_callback=lambda p: sizes.append(p.locals["data_batch"].data[0].shape[0]),
        **options,
    )
    return sizes


def reference(x: np.ndarray, y: np.ndarray, batches: List[np.ndarray], scale: float) -> np.ndarray:
    """Softmax regression by SGD over the same samples, in NumPy."""
    w, b = np.zeros((2, x.shape[1])), np.zeros(2)
    for rows in batches:
        z = x[rows] @ w.T + b
        p = np.exp(z - z.max(1, keepdims=True))
        g = p / p.sum(1, keepdims=True) - np.eye(2)[y[rows].astype(int)]
        w, b = w - 0.5 * scale * g.T @ x[rows], b - 0.5 * scale * g.sum(0)
    return np.concatenate([w, b[:, None]], axis=1)


def test_module_trains_right_through_changes_of_the_share() -> None:
    x, y = data()
    it = NDArrayIter(x, y, 16, shuffle=True, session=ScriptedJob(RESIZES).session("a"))
    again = NDArrayIter(x, y, 16, shuffle=True, session=ScriptedJob(RESIZES).session("a")).sampler
    batches = [b.indices for _ in range(4) for b in again.batches()]
    mod = module()
    sizes = fit(mod, it, num_epoch=4)
    assert sizes == [len(b) for b in batches]
    assert set(sizes) == {15, 14, 5, 8, 7, 3}  # 1, 3, 2 and 4 workers, uneven shares among them.
    weights = mod.get_params()[0]
    got = np.concatenate([weights["dense_weight"].asnumpy(), weights["dense_bias"].asnumpy()[:, None]], axis=1)
    np.testing.assert_allclose(got, reference(x, y, batches, 1 / 16), rtol=1e-4, atol=1e-6)


def test_module_splits_a_share_among_its_devices() -> None:
    it = NDArrayIter(*data(), 16, session=ScriptedJob(RESIZES).session("a"))
    sizes = fit(module(context=[mx.cpu(0), mx.cpu(1)]), it, num_epoch=4)
    assert len(sizes) == 28


def test_shapes_are_those_of_this_workers_share() -> None:
    it = NDArrayIter(*data(), 16, session=ScriptedJob([(0, "abc")]).session("c"))
    assert [(d.name, d.shape, d.dtype) for d in it.provide_data] == [("data", (5, 6), np.float32)]
    assert [(d.name, d.shape) for d in it.provide_label] == [("softmax_label", (5,))]
    batch = it.next()
    assert batch.data[0].shape == batch.provide_data[0].shape == (5, 6)
    assert batch.pad == 0


def test_a_joining_worker_fits_from_the_jobs_epoch() -> None:
    job = ScriptedJob(RESIZES)
    fit(module(), NDArrayIter(*data(), 16, session=job.session("a")), num_epoch=4)
    session = job.session("d")
    it = NDArrayIter(*data(), 16, session=session)
    assert session.epoch() == 3
    assert len(fit(module(), it, num_epoch=4, begin_epoch=session.epoch())) == 5


def test_a_joining_worker_that_begins_with_epoch_0_is_told_what_to_write() -> None:
    job = ScriptedJob(RESIZES)
    fit(module(), NDArrayIter(*data(), 16, session=job.session("a")), num_epoch=4)
    with pytest.raises(RuntimeError, match=r"joined in epoch 3: pass begin_epoch=elastic_mx.epoch\(\)"):
        fit(module(), NDArrayIter(*data(), 16, session=job.session("d")), num_epoch=4)


def test_the_script_of_a_worker_that_leaves_ends_in_peace() -> None:
    sizes: List[int] = []
    it = NDArrayIter(*data(), 16, session=ScriptedJob(RESIZES).session("c"))
    it.sampler.session.epoch()
    with pytest.raises(SystemExit) as end:
        module().fit(it, num_epoch=4, batch_end_callback=lambda p: sizes.append(1))
    assert end.value.code == 0
    assert len(sizes) == 4  # Steps 5 to 8.


def test_the_scale_of_the_gradient_is_the_same_for_every_membership() -> None:
    x, y = data()
    session = Session(Alone())
    assert NDArrayIter(x, y, 16, session=session).rescale_grad == 1 / 16
    assert NDArrayIter(x, y, 16, batches_per_step=2, session=session).rescale_grad == 1 / 32
    assert NDArrayIter(x, y, 16, per_worker=True, session=session).rescale_grad == 1 / 16


def test_several_arrays_keep_their_names_and_types() -> None:
    x, y = data()
    arrays = {"left": mx.nd.array(x, dtype="float64"), "right": x[:, :2]}
    it = NDArrayIter(arrays, y, 100, session=Session(Alone()))
    assert {d.name: (d.shape, np.dtype(d.dtype).name) for d in it.provide_data} == {
        "left": ((100, 6), "float64"),
        "right": ((100, 2), "float32"),
    }
    left, right = it.next().data
    assert left.dtype == np.float64
    np.testing.assert_array_equal(right.asnumpy(), x[:, :2])


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    x, y = data()
    with pytest.raises(ValueError, match="different numbers of samples"):
        NDArrayIter(x, y[:50], 16, session=Session(Alone()))
    with pytest.raises(ValueError, match="storage type 'csr'"):
        NDArrayIter(mx.nd.array(x).tostype("csr"), y, 16, session=Session(Alone()))
