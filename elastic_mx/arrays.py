"""The memory of MXNet's arrays as numpy arrays and the other way round, without copying.

Nothing here enqueues or waits for operations; engine.py does. What MXNet's C interface does not tell is read from
the NDArray's own structure, whose layout is checked against known arrays when it is first used.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_TYPES: Dict[Tuple[int, int], np.dtype] = {
    (0, 8): np.dtype("i1"),
    (0, 32): np.dtype("i4"),
    (0, 64): np.dtype("i8"),
    (1, 1): np.dtype("?"),
    (1, 8): np.dtype("u1"),
    (2, 16): np.dtype("f2"),
    (2, 32): np.dtype("f4"),
    (2, 64): np.dtype("f8"),
}
_CODES = {dtype: code for code, dtype in _TYPES.items()}
_MXNET_TYPES = dict(enumerate(map(np.dtype, ("f4", "f8", "f2", "u1", "i4", "i1", "i8", "?"))))
_CPU_DEVICES = (1, 3)  # memory of the host, pinned or not
_BFLOAT16 = 12


class _Memory:
    """What a numpy view stands on; it keeps the array alive that owns the memory."""

    __slots__ = ("__array_interface__", "owner")
    __array_interface__: Dict[str, Any]
    owner: Any


def view(array: mx.nd.NDArray) -> np.ndarray:
    """A writable numpy array on the memory of a dense NDArray in host memory, without copying.

    Nothing is waited for: call it inside an operation that has `array` in its read or write list, or after
    ``array.wait_to_read()``. Use the view then and there, and do not keep it: the engine may move the data.

    Returns:
        an array of the same shape and dtype; a bool array for a bool NDArray.

    Raises:
        TypeError: a bfloat16 array, which numpy has no type for.
        ValueError: the array is sparse, on a GPU, not allocated yet, or in oneDNN's own layout, as the weights of a
            convolution are after a forward pass without ``autograd.record``; ``copy_async`` copes with that.
    """
    if array.stype != "default":
        raise ValueError(f"a {array.stype} array has no dense view; use row_sparse_views")
    managed = ctypes.POINTER(_DLManagedTensor)()
    if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)):
        raise _view_error(array, _LIB.MXGetLastError().decode(errors="replace"))
    try:
        tensor = managed.contents.tensor
        if tensor.device_type not in _CPU_DEVICES:
            raise ValueError(f"an array on {array.context} has no view in host memory; copy it to mx.cpu() first")
        shape = tuple(tensor.shape[: tensor.ndim])
        dtype = _TYPES[tensor.code, tensor.bits]
        address = (tensor.data or 0) + tensor.byte_offset
    finally:
        _LIB.MXNDArrayCallDLPackDeleter(managed)
    if 0 in shape:
        return np.empty(shape, dtype)
    if not address:
        raise ValueError(f"an array of shape {shape} has no memory yet; wait for the operation that writes it")
    return _numpy(address, shape, dtype, array)


def flat_view(array: mx.nd.NDArray, count: int, dtype: np.dtype, writable: bool = False) -> np.ndarray:
    """As `view` or `writable_view`, but flat, and far cheaper where the array's memory is plain and where it was.

    The view does not keep the array alive.

    Args:
        count, dtype: what the array should have.

    Raises:
        ValueError: it has another number of elements or dtype.
    """
    handle = array.handle.value
    known = _known_views.get(handle)
    if known is not None:
        own, words, chunk, chunk_words, values = known
        # The words tell all that a view depends on, so what they belong to does not matter.
        if own.raw == words and chunk.raw == chunk_words and values.size == count and values.dtype == dtype:
            return values
    if len(_known_views) >= _MOST_KNOWN_VIEWS:
        _known_views.clear()
    plain = _plain_view(handle, count, dtype) if type(array) is mx.nd.NDArray else None
    if plain is not None:
        _known_views[handle] = plain
        return plain.values
    found = (writable_view if writable else view)(array).reshape(-1)
    if found.dtype != dtype or found.size != count:
        raise ValueError(f"an array of {found.size} {found.dtype} is used with a key of {count} {dtype}")
    return found


class _PlainView(NamedTuple):
    """A flat view, and what the NDArray's structure and its chunk's said when it was made."""

    own: Any
    words: bytes
    chunk: Any
    chunk_words: bytes
    values: np.ndarray


_known_views: Dict[int, _PlainView] = {}
_MOST_KNOWN_VIEWS = 100_000


def _plain_view(handle: int, count: int, dtype: np.dtype) -> Optional[_PlainView]:
    """A view of a dense array in host memory, in the plain layout; None if it is not that, or not as expected."""
    own = _WORDS.from_address(handle)
    if not (own[0] and count):
        return None
    storage, variable = _WORDS.from_address(own[0]), check_layout().variable
    axes = own[_AXES] & 0xFFFFFFFF
    if not (
        axes <= 4
        and math.prod(own[_AXES + 1 : _AXES + 1 + axes]) == count
        and _MXNET_TYPES.get(own[_DTYPE] & 0xFFFFFFFF) == dtype
        and (variable != _VARIABLE_AFTER_ONEDNN or not storage[(variable - 16) // 8])
        and storage[0]
        and storage[2] & 0xFFFFFFFF in _CPU_DEVICES
    ):
        return None
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(storage[0] + own[_BYTE_OFFSET])
    raw, chunk = ctypes.c_char * ctypes.sizeof(_WORDS), ctypes.c_char * (variable + 8)
    watched = raw.from_address(handle), chunk.from_address(own[0])
    return _PlainView(watched[0], watched[0].raw, watched[1], watched[1].raw, np.frombuffer(memory, dtype))


def _numpy(address: int, shape: Tuple[int, ...], dtype: np.dtype, owner: Any) -> np.ndarray:
    memory = _Memory()
    memory.owner = owner
    memory.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (address, False), "version": 3}
    return np.asarray(memory)


def _view_error(array: mx.nd.NDArray, reason: str) -> Exception:
    code = ctypes.c_int()
    check_call(_LIB.MXNDArrayGetDType(array.handle, ctypes.byref(code)))
    if code.value == _BFLOAT16:
        return TypeError("a bfloat16 array has no numpy view; cast it to float32 first")
    return ValueError(f"this array's memory cannot be viewed ({reason.splitlines()[0]}); use copy_async")


def writable_view(array: mx.nd.NDArray) -> np.ndarray:
    """A view of an array that is about to be written as a whole, also where its layout is oneDNN's own.

    The numbers are those of `view`, or, where oneDNN had them in another order, meaningless until written; MXNet
    takes the array to be plain from now on. Only for use inside an operation that has `array` in its write list.
    """
    try:
        return view(array)
    except ValueError:
        variable = check_layout().variable
        if array.stype != "default" or variable != _VARIABLE_AFTER_ONEDNN:
            raise
        # The pointer to what describes the order; that owns nothing of the data. Some hundred bytes are lost, which
        # is little once per weight and evaluation; the engine's own conversion would wait for this very operation.
        ctypes.memset(_chunk(array) + variable - 16, 0, 16)
        return view(array)


def data_pointer(array: mx.nd.NDArray) -> int:
    """The address of the first element, under the conditions of `view`; 0 for an array of no elements."""
    values = view(array)
    return values.ctypes.data if values.size else 0


def wrap(values: np.ndarray) -> mx.nd.NDArray:
    """An NDArray on the memory of a C-contiguous numpy array, without copying.

    The caller keeps the memory alive, longer than the NDArray and than any operation that is pending on it:
    ``mx.nd.waitall()`` before an arena is unmapped.

    Raises:
        TypeError: MXNet has no such dtype.
        ValueError: the array is not C-contiguous, or not writable.
    """
    if values.dtype not in _CODES:
        raise TypeError(f"MXNet has no dtype {values.dtype}; use one of {', '.join(str(t) for t in _CODES)}")
    if not (values.flags.c_contiguous and values.flags.writeable):
        raise ValueError("only a writable C-contiguous array can be wrapped; copy it first")
    managed = _DLManagedTensor()
    tensor = managed.tensor
    tensor.data = values.ctypes.data
    tensor.device_type = 1
    tensor.ndim = values.ndim
    tensor.code, tensor.bits = _CODES[values.dtype]
    tensor.lanes = 1
    tensor.shape = (ctypes.c_int64 * max(values.ndim, 1))(*values.shape)
    handle = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayFromDLPackEx(ctypes.byref(managed), True, ctypes.byref(handle)))
    return mx.nd.NDArray(handle=handle)


# ----------------------------------------------------------------------------------------------------- row_sparse


def row_sparse_views(array: mx.nd.sparse.RowSparseNDArray) -> Tuple[np.ndarray, np.ndarray]:
    """The values, of shape (rows, ...), and the int64 row numbers of a row_sparse array, without copying.

    The conditions of `view` apply. ``array.data`` and ``array.indices`` are copies, and they wait for the engine,
    which inside an operation is forever.
    """
    chunk = _chunk(array)
    rows = _word(_word(chunk + check_layout().shapes) + 8)
    shape = (rows, *array.shape[1:])
    dtype = np.dtype(array.dtype)
    if 0 in shape:
        return np.empty(shape, dtype), np.empty((rows,), np.int64)
    values = _numpy(_word(chunk), shape, dtype, array)
    return values, _numpy(_word(_word(chunk + _AUX_HANDLES)), (rows,), np.dtype("i8"), array)


def row_sparse_buffer(
    shape: Sequence[int], rows: Union[np.ndarray, Iterable[int]], dtype: Any = np.float32
) -> mx.nd.sparse.RowSparseNDArray:
    """A row_sparse array of `shape` that holds the given rows, as zeros, to be filled within an engine operation.

    A row_sparse array's storage cannot be sized inside an operation. So to write a row_sparse output: make a buffer
    of its rows, push an operation with the buffer in its write list that fills ``row_sparse_views(buffer)[0]``,
    then ``copy_async(buffer, output)``.

    Args:
        rows: row numbers, rising, without repetition.
    """
    numbers = np.ascontiguousarray(rows, np.int64)
    if not numbers.size:
        return mx.nd.sparse.zeros("row_sparse", tuple(shape), dtype=dtype)
    if (np.diff(numbers) <= 0).any() or numbers[0] < 0 or numbers[-1] >= shape[0]:
        raise ValueError(f"the rows of a row_sparse array of {shape[0]} rows must rise from 0 to {shape[0] - 1}")
    values = mx.nd.zeros((len(numbers), *shape[1:]), dtype=dtype)
    return mx.nd.sparse.row_sparse_array((values, wrap(numbers)), shape=tuple(shape), dtype=dtype)


# --------------------------------------------------------------------------------------- the layout of an NDArray
#
# An NDArray begins with a pointer to its chunk, which views share. A chunk begins with a storage handle of 32 bytes,
# whose first word is the address of the data (for row_sparse, of the values), then a vector of the handles of its
# auxiliary arrays (for row_sparse, of the row numbers). Builds with oneDNN then have a shared pointer (16 bytes).
# The engine's variable follows, and, further on, the shapes of the auxiliary arrays.

_AUX_HANDLES = 32
# In words of 8 bytes, after the pointer to the chunk: the number of axes, then up to four of them; then these.
_AXES, _BYTE_OFFSET, _DTYPE = 2, 8, 9
_WORDS = ctypes.c_uint64 * 10
_VARIABLE_AFTER_ONEDNN = 72
_VARIABLE_WITHOUT_ONEDNN = 56


@dataclass(frozen=True)
class _Layout:
    """Offsets in a chunk, in bytes: of the engine's variable and of the vector of the auxiliary arrays' shapes."""

    variable: int
    shapes: int


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _chunk(array: Any) -> int:
    return _word(array.handle.value)


def variables(handles: Iterable[int]) -> Iterable[int]:
    """The engine's variable of each NDArray handle: the same number for views of the same array."""
    offset, at = check_layout().variable, ctypes.c_uint64.from_address
    return [at(at(handle).value + offset).value for handle in handles]


@functools.cache
def check_layout() -> _Layout:
    """The layout of this build of MXNet. Raises RuntimeError where it is none of those known."""
    dense, other = mx.nd.zeros((2,)), mx.nd.zeros((2,))
    sparse = mx.nd.sparse.row_sparse_array((np.ones((2, 3)), [1, 4]), shape=(6, 3))
    mx.nd.waitall()
    for variable in (_VARIABLE_AFTER_ONEDNN, _VARIABLE_WITHOUT_ONEDNN):
        part = dense[1:2]
        found = [_word(_chunk(array) + variable) for array in (dense, part, other, sparse)]
        if not all(found) or found[0] != found[1] or len(set(found)) != 3:
            continue
        words = _WORDS.from_address(part.handle.value)
        if words[_BYTE_OFFSET] != 4 or words[_DTYPE] & 0xFFFFFFFF or words[_AXES] & 0xFFFFFFFF != 1 or words[3] != 1:
            continue
        # flags and types (16), vector of auxiliary types (24), context (8), storage shape (48), vector of shapes:
        # its first shape begins with two 32-bit numbers, the number of dimensions among them
        shapes = _chunk(sparse) + variable + 8 + 8 + 24 + 8 + 48
        rows = _word(_word(shapes) + 8) if _word(shapes) else 0
        if rows == 2 and _numpy(_word(_word(_chunk(sparse) + _AUX_HANDLES)), (2,), np.dtype("i8"), 0).tolist() == [
            1,
            4,
        ]:
            return _Layout(variable, shapes - _chunk(sparse))
    raise RuntimeError(f"the NDArray of mxnet {mx.__version__} is laid out differently; install mxnet 1.9.1")
