"""Gradient compression: 2bit to the bit as MXNet's, fp16 on the wire, nothing lost when slices move."""

import json

import numpy as np
import pytest

from elastic_mx import compression
from tests.elastic_mx.harness import Job
from tests.elastic_mx.native import run_native

TWO_BIT = compression.Compression("2bit", 0.5)


def mxnets_two_bits(gradient, residual, threshold):
    """MXNet's own loop over single numbers, in gradient_compression-inl.h."""
    packed = bytearray(4 * -(-len(gradient) // 16))
    for i, value in enumerate(gradient):
        residual[i] += value
        if residual[i] >= threshold:
            residual[i] -= threshold
            packed[i >> 2] |= (0xC0, 0x30, 0x0C, 0x03)[i & 3]
        elif residual[i] <= -threshold:
            residual[i] += threshold
            packed[i >> 2] |= (0x80, 0x20, 0x08, 0x02)[i & 3]
    return bytes(packed)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1003])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_two_bits_are_packed_as_mxnet_packs_them(size, dtype, monkeypatch):
    monkeypatch.setattr(compression, "CHUNK", 64)
    rng = np.random.default_rng(size)
    ours, theirs = np.zeros(size, dtype), np.zeros(size, dtype)
    for _ in range(4):
        gradient = rng.standard_normal(size).astype(dtype)
        gradient[:3] = 0.5
        packed = np.empty(compression.packed_bytes(size, TWO_BIT), np.uint8)
        before = ours.astype(float) + gradient
        compression.pack(gradient, ours, TWO_BIT, packed)
        assert packed.tobytes() == mxnets_two_bits(gradient, theirs, np.dtype(dtype).type(0.5))
        assert np.array_equal(ours, theirs)
        sent = np.empty(size, dtype)
        compression.unpack(packed, TWO_BIT, sent)
        assert set(sent.tolist()) <= {-0.5, 0.0, 0.5}
        np.testing.assert_allclose(sent + ours.astype(float), before, atol=2e-3 if dtype == "float16" else 1e-6)


def test_fp16_is_a_cast():
    values = np.array([1.0, 1e-9, 3.14159, 1e6], np.float32)
    how = compression.from_parameters({"type": "fp16"})
    packed = np.empty(compression.packed_bytes(4, how), np.uint8)
    compression.pack(values, None, how, packed)
    found = np.empty(4, np.float32)
    compression.unpack(packed, how, found)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    "parameters, told",
    [
        ({"type": "1bit"}, "type '1bit' is not known: use '2bit' or 'fp16'"),
        ({}, "type None is not known"),
        ({"type": "2bit", "threshold": 0}, "threshold of gradient compression is 0: use a number above zero"),
        ({"type": "2bit", "threshold": "much"}, "is 'much': use a number above zero"),
        ({"type": "2bit", "threshold": float("nan")}, "is nan"),
        ({"type": "fp16", "threshold": 0.5}, "'fp16' has no parameter 'threshold'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(parameters, told):
    with pytest.raises(ValueError) as refused:
        compression.from_parameters(parameters)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_mxnets_defaults():
    assert compression.from_parameters({"type": "2bit"}) == TWO_BIT
    assert compression.from_parameters({"type": "2bit", "threshold": "0.25"}).threshold == 0.25


# ---------------------------------------------------------------------------------------------------- real jobs


def results(folder, worker):
    values = list(np.load(folder / f"worker-{worker}.npz").values())
    return values[:3], values[3:6], values[6:]


def test_two_bits_end_with_the_weights_that_dist_sync_gives(tmp_path):
    env = {"COMPRESSION": json.dumps({"type": "2bit", "threshold": 0.7})}
    (tmp_path / "native").mkdir()
    (tmp_path / "elastic").mkdir()
    run_native("compress.py", tmp_path / "native", **env)
    with Job("compress.py", workers=2, servers=2, out=tmp_path / "elastic", slice_bytes=4096, **env) as job:
        assert set(job.wait(90).values()) == {0}
    theirs = list(np.load(tmp_path / "native" / "worker-0.npz").values())[:3]
    for ours, native in zip(results(tmp_path / "elastic", 0)[0], theirs):
        np.testing.assert_allclose(ours, native, rtol=1e-5, atol=1e-6)
        assert np.abs(native).max() > 0.6


@pytest.mark.parametrize("how", [{"type": "2bit", "threshold": 0.5}, {"type": "fp16"}], ids=["2bit", "fp16"])
def test_nothing_is_lost_while_slices_move_between_servers(tmp_path, how):
    stop, env = tmp_path / "stop", {"COMPRESSION": json.dumps(how), "STEPS": 100000, "transport": "tcp"}
    with Job("compress.py", workers=2, servers=1, out=tmp_path, slice_bytes=4096, STOP=stop, **env) as job:
        for number, servers in enumerate((3, 2), start=1):
            assert job.scale(number, servers=servers).error == ""
        stop.touch()
        assert set(job.wait(90).values()) == {0}
    (weights, first, given), (_, second, also) = results(tmp_path, 0), results(tmp_path, 1)
    for weight, *residuals, one, two in zip(weights, first, second, given, also):
        steps_error = 2e-2 if how["type"] == "fp16" else 2e-3
        np.testing.assert_allclose(sum(residuals) - weight, one + two, atol=steps_error * np.abs(one).max())
        if how["type"] == "2bit":
            assert all(np.abs(residual).max() > 0 for residual in residuals)
