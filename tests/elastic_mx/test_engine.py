"""Asynchronous operations in MXNet's engine, and zero-copy arrays."""

import logging
import subprocess
import sys
import textwrap
import threading
import time
from typing import Callable, List

import numpy as np
import pytest

import elastic_mx  # noqa: F401  (lets mxnet import)

mx = pytest.importorskip("mxnet")
from elastic_mx import engine  # noqa: E402

ENGINES = ["ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"]


def run(code: str, timeout: float = 60, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def later(done: Callable[[], None], seconds: float = 0.05) -> None:
    threading.Timer(seconds, done).start()


# ----------------------------------------------------------------------------------------------- push_async


def test_a_reader_of_the_output_waits_for_done():
    output = mx.nd.zeros((3,))

    def operation(done):
        def write():
            engine.view(output)[:] = 7
            done()

        later(write)

    begin = time.monotonic()
    engine.push_async(operation, write=[output])
    pushed = time.monotonic() - begin
    assert (output + 1).asnumpy().tolist() == [8, 8, 8]
    assert pushed < 0.05 <= time.monotonic() - begin


def test_an_operation_sees_what_was_computed_before_it():
    big = mx.nd.ones((300, 300))
    for _ in range(20):
        big = mx.nd.dot(big, big) / 300
    seen: List[float] = []
    token = engine.Variable()

    def operation(done):
        seen.append(float(engine.view(big)[0, 0]))
        done()

    engine.push_async(operation, read=[big], write=[token])
    token.wait()
    assert seen == [pytest.approx(1.0)]


def test_a_writer_waits_for_the_operation_that_reads():
    array = mx.nd.ones((4,))
    held, seen = [], []
    engine.push_async(held.append, read=[array])
    array += 1
    time.sleep(0.05)
    seen.append(engine.view(array)[0])
    held[0]()
    assert seen == [1] and array.asnumpy()[0] == 2


@pytest.mark.parametrize(
    "reads, writes",
    [("aa", "b"), ("a", "bb"), ("ab", "b"), ("a", "ab"), ("av", "b"), ("a", "v"), ("", "vaav"), ("", "")],
)
def test_an_array_may_be_given_twice_and_through_views(reads, writes):
    arrays = {"a": mx.nd.ones((4,)), "b": mx.nd.ones((4,))}
    arrays["v"] = arrays["a"][1:3]
    ran = threading.Event()

    def operation(done):
        ran.set()
        done()

    engine.push_async(operation, [arrays[name] for name in reads], [arrays[name] for name in writes])
    assert ran.wait(5)
    assert sum(array.asnumpy().sum() for array in arrays.values()) == 10


def test_variables_order_operations_that_share_no_array():
    token, order = engine.Variable(), []

    def numbered(number):
        def operation(done):
            later(lambda: (order.append(number), done()), 0.02 if number == 0 else 0)

        return operation

    for number in range(4):
        engine.push_async(numbered(number), write=[token])
    token.wait()
    assert order == [0, 1, 2, 3]


def test_an_exception_is_logged_completes_the_operation_and_is_raised_by_the_next_push(caplog):
    output = mx.nd.zeros((2,))

    def operation(_done):
        raise ValueError("no such server")

    with caplog.at_level(logging.ERROR):
        engine.push_async(operation, write=[output])
        output.wait_to_read()
    assert "no such server" in caplog.text
    with pytest.raises(engine.EngineError, match="ValueError: no such server"):
        engine.push_async(lambda done: done(), write=[output])
    engine.push_async(lambda done: done(), write=[output])
    output.wait_to_read()


def test_a_second_done_is_refused():
    output, held = mx.nd.zeros((2,)), []
    engine.push_async(lambda done: (held.append(done), done()), write=[output])
    output.wait_to_read()
    with pytest.raises(RuntimeError, match="twice"):
        held[0]()


def test_many_operations_from_several_threads_all_run():
    counts = [0] * 4
    tokens = [engine.Variable() for _ in counts]

    def push(i):
        def operation(done):
            counts[i] += 1
            done()

        for _ in range(500):
            engine.push_async(operation, write=[tokens[i]])

    threads = [threading.Thread(target=push, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for token in tokens:
        token.wait()
    assert counts == [500] * 4


@pytest.mark.parametrize("kind", ENGINES)
def test_it_works_under_every_engine(kind):
    code = """
        import elastic_mx, threading
        from elastic_mx import engine
        import mxnet as mx
        a, b = mx.nd.ones((3,)), mx.nd.zeros((3,))
        def operation(done):
            def write():
                engine.view(b)[:] = engine.view(a) + 1
                done()
            threading.Timer(0.02, write).start()
        for _ in range(3):
            engine.push_async(operation, [a, a], [b, b, b[0:1]])
        print((b * 2).asnumpy().tolist())
    """
    assert run(code, MXNET_ENGINE_TYPE=kind).strip() == "[4.0, 4.0, 4.0]"


def test_a_fork_with_operations_pending_waits_for_them():
    code = """
        import elastic_mx, os, threading
        from elastic_mx import engine
        import mxnet as mx
        a = mx.nd.ones((3,))
        engine.push_async(lambda done: threading.Timer(0.2, done).start(), write=[a])
        for _ in range(20):
            for _ in range(50):
                engine.push_async(lambda done: done(), write=[a])
            child = os.fork()
            if child == 0:
                b = mx.nd.zeros((3,))
                engine.push_async(lambda done: done(), [a], [b])
                b.wait_to_read()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        a.wait_to_read()
        print("forked")
    """
    assert run(code).strip() == "forked"


def test_a_script_that_ends_with_operations_in_the_queue_ends_cleanly():
    code = """
        import elastic_mx
        from elastic_mx import engine
        import mxnet as mx
        a = mx.nd.ones((300, 300))
        for _ in range(300):
            a = mx.nd.dot(a, a) / 300
            engine.push_async(lambda done: done(), [a])
        print("end")
    """
    assert run(code).strip() == "end"


def test_a_script_that_ends_before_an_operation_is_done_ends():
    code = """
        import elastic_mx
        from elastic_mx import engine
        import mxnet as mx
        engine._EXIT_SECONDS = 0.3
        a = mx.nd.ones((3,))
        engine.push_async(lambda done: None, write=[a])
        engine.push_async(lambda done: None, write=[a])
        print("end")
    """
    assert run(code).strip() == "end"


def test_a_failure_of_mxnets_own_neither_stops_a_fork_nor_the_end():
    code = """
        import elastic_mx, os
        from elastic_mx import engine
        import mxnet as mx
        a = mx.nd.zeros((3,))
        engine.push_async(lambda done: done(), write=[a])
        half = mx.nd.ones((2, 3), dtype="float16")
        b = mx.nd.FullyConnected(half, half, num_hidden=2, no_bias=True)  # not to be had on a CPU
        engine.push_async(lambda done: done(), [b], [a])
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        engine.push_async(lambda done: done(), [b], [a])
        print("end")
    """
    assert run(code, timeout=60).strip() == "end"


# ----------------------------------------------------------------------------------------------- dense arrays

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_shares_memory_both_ways(dtype):
    array = mx.nd.zeros((2, 3), dtype=dtype)
    array.wait_to_read()
    values = engine.view(array)
    assert values.dtype == np.dtype(dtype) and values.shape == (2, 3)
    values[1, 2] = 1
    assert array.asnumpy()[1, 2] == 1
    array[:] = 1
    array.wait_to_read()
    assert values.all()
    assert engine.data_pointer(array) == values.ctypes.data


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrapped_memory_is_shared_both_ways(dtype):
    values = np.zeros((2, 3), dtype)
    array = engine.wrap(values)
    values[0, 0] = 1
    assert array.asnumpy()[0, 0] == 1 and array.dtype == np.dtype(dtype)
    array[:] = 1
    array.wait_to_read()
    assert values.all() and values.flags.writeable


def test_a_view_keeps_the_memory_alive():
    values = engine.view(mx.nd.array(np.arange(100000)))
    mx.nd.ones((100000,)).wait_to_read()
    assert (values == np.arange(100000)).all()


def test_zero_dim_and_empty_arrays():
    with mx.util.np_shape(True):
        scalar = mx.np.array(3.0)
        scalar.wait_to_read()
        assert engine.view(scalar).shape == () and engine.view(scalar) == 3
        assert engine.wrap(np.array(2.0, np.float32)).shape == ()
        assert engine.view(mx.np.zeros((0, 3))).shape == (0, 3)
        assert engine.data_pointer(mx.np.zeros((0,))) == 0


def test_an_array_of_more_than_2_31_bytes():
    array = mx.nd.empty((2**28 + 5, 2))  # 2,147,483,688 bytes; its pages are touched only where we write
    values = engine.view(array)
    assert values.nbytes > 2**31
    values[-1] = (5, 6)
    assert array[2**28 + 4].asnumpy().tolist() == [5, 6]


def test_a_part_of_an_array_has_its_own_address():
    array = mx.nd.array(np.arange(12).reshape(4, 3))
    array.wait_to_read()
    part = array[2:4]
    assert engine.view(part).tolist() == [[6, 7, 8], [9, 10, 11]]
    assert engine.data_pointer(part) == engine.data_pointer(array) + 24


def test_what_has_no_view_is_refused():
    with pytest.raises(TypeError, match="bfloat16"):
        engine.view(mx.nd.amp_cast(mx.nd.ones((2,)), dtype="bfloat16"))
    with pytest.raises(ValueError, match="row_sparse_views"):
        engine.view(mx.nd.sparse.row_sparse_array((np.ones((2, 2)), [0, 2]), shape=(3, 2)))
    with pytest.raises(TypeError, match="complex64"):
        engine.wrap(np.zeros(3, np.complex64))
    with pytest.raises(ValueError, match="contiguous"):
        engine.wrap(np.zeros((4, 4), np.float32)[:, 1])


def convolution():
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=3)
    net.initialize()
    return net, mx.nd.ones((1, 3, 8, 8))


def test_gradients_can_be_viewed_but_weights_after_inference_only_copied():
    """The reason that weights are pulled through copy_async: oneDNN reorders them during inference."""
    net, image = convolution()
    with mx.autograd.record():
        loss = net(image).sum()
    loss.backward()
    mx.nd.waitall()
    assert engine.view(net.weight.grad()).shape == (16, 3, 3, 3)
    before = net.weight.data().asnumpy()
    net(image).wait_to_read()
    mx.nd.waitall()
    with pytest.raises(ValueError, match="copy_async"):
        engine.view(net.weight.data())
    arena = np.zeros((16, 3, 3, 3), np.float32)
    engine.copy_async(net.weight.data(), engine.wrap(arena))
    copy = engine.plain_copy(net.weight.data())
    mx.nd.waitall()
    assert (arena == before).all() and (engine.view(copy) == before).all()


def test_weights_pulled_after_inference_are_what_the_next_pass_uses():
    net, image = convolution()
    net(image)
    arena = np.full((16, 3, 3, 3), 2, np.float32)
    source = engine.wrap(arena)
    with mx.autograd.record():  # copying is never recorded
        engine.copy_async(source, net.weight.data())
        assert mx.autograd.is_recording()
    assert (net.weight.data().asnumpy() == 2).all()
    assert net(image).asnumpy().ravel()[0] == pytest.approx(54)


def test_weights_written_after_inference_are_what_the_next_pass_uses():
    net, image = convolution()
    weight = net.weight.data()
    for value in (2.0, 3.0):
        net(image)

        def operation(done, value=value):
            engine.writable_view(weight)[:] = value
            done()

        engine.push_async(operation, write=[weight])
        assert (weight.asnumpy() == value).all()
        assert net(image).asnumpy().ravel()[0] == pytest.approx(27 * value)
    with mx.autograd.record():
        loss = net(image).sum()
    loss.backward()
    assert np.isfinite(net.weight.grad().asnumpy()).all()


def test_a_prepared_copy_can_be_enqueued_again_and_converts_dtypes():
    source, target = mx.nd.ones((5,)), mx.nd.zeros((5,), dtype="float64")
    copy = engine.Copy(source, target)
    for value in (1, 2):
        source[:] = value
        copy.enqueue()
        assert target.asnumpy().tolist() == [value] * 5
    with pytest.raises(ValueError, match="shape"):
        engine.Copy(source, mx.nd.zeros((6,)))


# ----------------------------------------------------------------------------------------------- row_sparse


def test_row_sparse_views_share_memory():
    array = mx.nd.sparse.row_sparse_array((np.ones((2, 3), np.float32), [1, 4]), shape=(6, 3))
    array.wait_to_read()
    values, rows = engine.row_sparse_views(array)
    assert rows.tolist() == [1, 4] and rows.dtype == np.int64
    values[1] = 5
    assert array.asnumpy()[4].tolist() == [5, 5, 5]
    values, rows = engine.row_sparse_views(mx.nd.sparse.zeros("row_sparse", (6, 3)))
    assert values.shape == (0, 3) and rows.shape == (0,)


def test_a_row_sparse_output_is_written_through_a_buffer():
    output = mx.nd.sparse.zeros("row_sparse", (6, 3))
    buffer = engine.row_sparse_buffer((6, 3), [0, 2, 5])

    def operation(done):
        def write():
            values, rows = engine.row_sparse_views(buffer)
            values[:] = rows[:, None]
            done()

        later(write)

    engine.push_async(operation, write=[buffer])
    engine.copy_async(buffer, output)
    assert output.indices.asnumpy().tolist() == [0, 2, 5]
    assert output.asnumpy()[:, 0].tolist() == [0, 0, 2, 0, 0, 5]


def test_a_row_sparse_buffer_of_no_rows_and_of_wrong_rows():
    assert engine.row_sparse_buffer((6, 3), []).asnumpy().sum() == 0
    for rows in ([2, 1], [1, 1], [-1, 0], [0, 6]):
        with pytest.raises(ValueError, match="rise"):
            engine.row_sparse_buffer((6, 3), rows)
