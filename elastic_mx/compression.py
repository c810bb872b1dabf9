"""Gradient compression on the way from a worker to the servers: 2bit as MXNet's, and fp16.

Pure arithmetic on numpy arrays; when a gradient is sent, and that only dense ones are compressed, is traffic.py's.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional

import msgspec
import numpy as np

KINDS = ("2bit", "fp16")
CHUNK = 65536  # elements; a multiple of 16, so that chunks end at whole words
_WORD = 16  # elements in the four bytes of a packed word
_DEFAULT_THRESHOLD = 0.5  # MXNet's


class Compression(msgspec.Struct, frozen=True, array_like=True):
    """How gradients are compressed: `kind` is '2bit', to -`threshold`, 0 or `threshold`; or 'fp16'."""

    kind: str
    threshold: float = 0.0

    @property
    def keeps_residual(self) -> bool:
        return self.kind == "2bit"


def from_parameters(parameters: Mapping[str, Any]) -> Compression:
    """What ``set_gradient_compression`` was given, checked.

    Raises:
        ValueError: the type is not known, the threshold is not above zero, or there is another parameter.
    """
    given = dict(parameters)
    kind = given.pop("type", None)
    if kind not in KINDS:
        raise ValueError(f"gradient compression of type {kind!r} is not known: use '2bit' or 'fp16'")
    threshold = given.pop("threshold", _DEFAULT_THRESHOLD) if kind == "2bit" else 0.0
    if given:
        raise ValueError(f"gradient compression {kind!r} has no parameter {sorted(given)[0]!r}: leave it out")
    try:
        value = float(np.float32(threshold))
    except (TypeError, ValueError):
        value = math.nan
    if kind == "2bit" and not 0 < value < math.inf:
        raise ValueError(f"the threshold of gradient compression is {threshold!r}: use a number above zero, as 0.5")
    return Compression(kind, value)


def applies_to(dtype: np.dtype, compression: Compression) -> bool:
    """Whether gradients of `dtype` are compressed: real numbers that become smaller."""
    return dtype.kind == "f" and not (compression.kind == "fp16" and dtype.itemsize <= 2)


def packed_bytes(elements: int, compression: Compression) -> int:
    """The bytes that `elements` numbers take on the wire: four for 16 of them with 2bit, as in MXNet."""
    return 2 * elements if compression.kind == "fp16" else 4 * -(-elements // _WORD)


def pack(gradient: np.ndarray, residual: Optional[np.ndarray], compression: Compression, out: np.ndarray) -> None:
    """Compress a flat gradient.

    With 2bit, what is lost is kept in `residual`, and added to the next gradient: residual + what is sent is what
    came in, exactly but for rounding (MXNet 1.9.1, ``src/kvstore/gradient_compression-inl.h``). fp16 is a cast.

    Args:
        residual: flat, of the gradient's size and dtype; changed in place; not used with fp16.
        out: uint8, `packed_bytes` of them.
    """
    if compression.kind == "fp16":
        with np.errstate(over="ignore"):
            np.copyto(out.view(np.float16), gradient, casting="same_kind")
        return
    assert residual is not None
    threshold = gradient.dtype.type(compression.threshold)
    bits = np.zeros((min(CHUNK, 4 * len(out)), 2), bool)
    for start in range(0, gradient.size, CHUNK):
        part = residual[start : start + CHUNK]
        part += gradient[start : start + CHUNK]
        these = bits[: -(-part.size // _WORD) * _WORD]
        these[part.size :] = False
        above, sent = these[: part.size, 1], these[: part.size, 0]
        np.greater_equal(part, threshold, out=above)
        below = part <= -threshold
        np.logical_or(above, below, out=sent)
        part -= above * threshold
        part += below * threshold
        packed = np.packbits(these)
        out[start // 4 : start // 4 + len(packed)] = packed


def unpack(packed: np.ndarray, compression: Compression, out: np.ndarray) -> None:
    """Write the numbers that `packed` (uint8) holds to the flat array `out`."""
    if compression.kind == "fp16":
        np.copyto(out, packed.view(np.float16))
        return
    table = _four_numbers(compression.threshold).astype(out.dtype)
    for start in range(0, out.size, CHUNK):
        part = out[start : start + CHUNK]
        part[:] = table[packed[start // 4 : -(-(start + part.size) // 4)]].reshape(-1)[: part.size]


def _four_numbers(threshold: float) -> np.ndarray:
    """For each byte the four numbers that it stands for, the first in its highest bits: 11 is +, 10 is -."""
    codes = np.arange(256)[:, None] >> np.array([6, 4, 2, 0]) & 3
    return np.array([0.0, 0.0, -threshold, threshold])[codes]
