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

# For each byte its four pairs of bits, from the highest; MXNet's 11 is +, 10 is -.
_PAIRS = np.arange(256)[:, None] >> np.array([6, 4, 2, 0]) & 3
# For four signs of two bits each (01 is +, 11 is -) MXNet's byte.
_CODES = (np.array([0, 3, 0, 2])[_PAIRS] << np.array([6, 4, 2, 0])).sum(1).astype(np.uint8)


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
    size = min(CHUNK, 4 * len(out))
    signs, numbers = np.empty(size, np.int8), np.empty(size, gradient.dtype)
    above, below = np.empty(size, bool), np.empty(size, bool)
    for start in range(0, gradient.size, CHUNK):
        part = residual[start : start + CHUNK]
        part += gradient[start : start + CHUNK]
        count, padded = part.size, -(-part.size // _WORD) * _WORD
        np.greater_equal(part, threshold, out=above[:count])
        np.less_equal(part, -threshold, out=below[:count])
        np.subtract(above[:count].view(np.int8), below[:count].view(np.int8), out=signs[:count])
        part -= np.multiply(signs[:count], threshold, out=numbers[:count])
        signs[count:padded] = 0
        four = signs[:padded].view("<u4") & 0x03030303  # a sign's two low bits in each byte: 01 is +, 11 is -
        four = four << 6 | four >> 4 | four >> 14 | four >> 24
        np.take(_CODES, four.astype(np.uint8), out=out[start // 4 : start // 4 + len(four)], mode="clip")


def unpack(packed: np.ndarray, compression: Compression, out: np.ndarray) -> None:
    """Write the numbers that `packed` (uint8) holds to the flat array `out`."""
    if compression.kind == "fp16":
        np.copyto(out, packed.view(np.float16))
        return
    table = np.array([0.0, 0.0, -compression.threshold, compression.threshold], out.dtype)[_PAIRS]
    whole = out.size // 4
    np.take(table, packed[:whole], axis=0, out=out[: 4 * whole].reshape(-1, 4), mode="clip")
    if out.size % 4:
        out[4 * whole :] = table[packed[whole], : out.size % 4]
