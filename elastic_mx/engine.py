"""Operations of ours in MXNet's engine: they wait for arrays to be ready, and arrays wait for them."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Callable, Dict, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

Operation = Callable[[Callable[[], None]], None]

_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_THREE_WORDS = ctypes.c_void_p * 3
_operations: Dict[int, Operation] = {}
_numbers = itertools.count(1)


class _Context(ctypes.Structure):
    _fields_ = [("dev_type", ctypes.c_int), ("dev_id", ctypes.c_int32)]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def _execute(_context: int, on_complete: int, number: int) -> None:
    function, engine, parameter = _THREE_WORDS.from_address(on_complete)
    _operations.pop(number)(lambda: _COMPLETE(function)(engine, parameter, None))


_cpu = _Context(1, 0)
_normal = ctypes.c_int(0)


def push_async(operation: Operation, read: Sequence[Any] = (), write: Sequence[Any] = (), priority: int = 0) -> None:
    """Enqueue `operation(done)`: called on an engine thread once the arrays are ready; `done()` completes it."""
    writes = {array.handle.value: array for array in write}
    reads = {array.handle.value for array in read if array.handle.value not in writes}
    number = next(_numbers)
    _operations[number] = operation
    check_call(
        _LIB.MXEnginePushAsyncND(
            _execute,
            ctypes.c_void_p(number),
            None,
            ctypes.byref(_cpu),
            (ctypes.c_void_p * len(reads))(*reads),
            len(reads),
            (ctypes.c_void_p * len(writes))(*writes),
            len(writes),
            ctypes.byref(_normal),
            priority,
            b"elastic_mx",
            False,
        )
    )


def view(array: Any) -> np.ndarray:
    """A NumPy array over the memory of a CPU array, without copying or waiting."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    dtype = np.dtype(array.dtype)
    nbytes = array.size * dtype.itemsize
    if not nbytes:
        return np.empty(array.shape, dtype)
    memory = (ctypes.c_byte * nbytes).from_address(pointer.value)
    return np.frombuffer(memory, dtype).reshape(array.shape)


def Variable() -> Any:
    """Something to put into read and write lists to order operations by."""
    return mx.nd.zeros((1,))
