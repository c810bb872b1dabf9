"""MXNet's dependency engine from Python: asynchronous operations and copies that run in its order.

Views of arrays are in arrays.py. Nothing here knows about keys, servers or sockets. The facts about MXNet 1.9.1
that this stands on are in docs/mxnet.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet.base import _LIB, check_call

from elastic_mx.arrays import (
    check_layout,
    data_pointer,
    flat_view,
    row_sparse_buffer,
    row_sparse_views,
    variables,
    view,
    wrap,
    writable_view,
)

__all__ = [
    "Copy",
    "Done",
    "EngineError",
    "Variable",
    "copy_async",
    "data_pointer",
    "drain",
    "flat_view",
    "plain_copy",
    "push_async",
    "row_sparse_buffer",
    "row_sparse_views",
    "view",
    "wrap",
    "writable_view",
]

_log = logging.getLogger(__name__)

# A thread pool of its own: a callback never waits in the queue behind a convolution.
_CPU_PRIORITIZED = ctypes.c_int(3)
_EXIT_SECONDS = 10.0
_PUSH_SECONDS = 1.0  # between an operation's entry in our list and in the engine's
_GIVE_UP_SECONDS = 60.0  # for what waited for those given up to begin; only a machine under load takes more than none

_ASYNC_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_THREE_WORDS = ctypes.c_size_t * 3


class EngineError(RuntimeError):
    """An operation that ran in the engine raised; its cause is attached. Raised by the next ``push_async``."""


class Variable:
    """Orders operations that share no array: put it into their `read` or `write` lists."""

    def __init__(self) -> None:
        self._array = mx.nd.zeros((1,))
        self.handle = self._array.handle

    def wait(self) -> None:
        """Block until every operation that writes this variable and was pushed so far is complete."""
        self._array.wait_to_read()


Ordered = Union[mx.nd.NDArray, Variable]


class Done:
    """Completes one operation when called, from any thread. A second call raises RuntimeError."""

    __slots__ = ("_arguments", "_complete", "_number", "_running")

    def __init__(self, running: Dict[int, Done], number: int, complete: Callable[..., None], engine: int, word: int):
        self._running = running
        self._number = number
        self._complete = complete
        self._arguments = (engine, word, None)
        running[number] = self

    def __call__(self) -> None:
        if self._running.pop(self._number, None) is None:  # a step that the interpreter does not interrupt
            raise RuntimeError("an engine operation was completed twice; call its done() once")
        self._complete(*self._arguments)

    @property
    def called(self) -> bool:
        return self._number not in self._running


Operation = Callable[[Done], None]


def push_async(
    operation: Operation,
    read: Sequence[Ordered] = (),
    write: Sequence[Ordered] = (),
    priority: int = 0,
    after: Sequence[Variable] = (),
    alone: Sequence[Variable] = (),
) -> None:
    """Enqueue `operation` into MXNet's engine.

    ``operation(done)`` is called on an engine thread, and must not block, once the writes of all arrays in `read`
    and all uses of the arrays in `write` that were pushed before are complete. What is pushed later and needs these
    arrays waits until ``done()`` was called, once, from any thread. An array may be given twice, in both lists, or
    through several views; writing wins.

    An exception in `operation` is logged with its traceback, completes the operation, and is raised as EngineError
    by the next call of this function.

    Under ``MXNET_ENGINE_TYPE=NaiveEngine`` the call itself blocks until ``done()`` was called.

    Args:
        priority: a hint; operations that are ready start in order of falling priority.
        after: variables to read besides, each once and none of `alone`; cheaper than among `read`.
        alone: variables to write besides, each once; cheaper than among `write`.

    Raises:
        EngineError: an earlier operation raised.
    """
    _dispatcher().push(operation, read, write, priority, after, alone)


class _Dispatcher:
    """The one C callback of this process, and the operations that it has yet to run, by number."""

    def __init__(self) -> None:
        self._operations: Dict[int, Operation] = {}
        self._running: Dict[int, Done] = {}
        self._numbers = itertools.count(1)
        self._completions: Dict[int, Callable[..., None]] = {}
        self._error: Optional[BaseException] = None
        self._forking: Optional[int] = None  # the thread that is about to fork
        self._kept = threading.local()
        check_layout()  # waits for the engine, which within an operation would be forever
        self._callback = _ASYNC_FUNCTION(self._run)  # must live as long as the engine may call it
        self._callback_address = ctypes.cast(self._callback, ctypes.c_void_p)
        self._context = (ctypes.c_int * 2)(1, 0)  # mxnet::Context: device type cpu, device 0
        # Released and taken back for each push, the GIL would go to and fro between this thread and the engine's.
        # Under NaiveEngine the push itself waits for the operation, which other threads complete.
        blocks = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
        self._push = _function(
            "MXEnginePushAsyncND",
            ctypes.CFUNCTYPE if blocks else ctypes.PYFUNCTYPE,
            *[ctypes.c_void_p] * 5,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_bool,
        )
        self._constant = (ctypes.addressof(self._context), ctypes.addressof(_CPU_PRIORITIZED))
        self._wait_before_forks()

    def push(
        self,
        operation: Operation,
        read: Sequence[Ordered],
        write: Sequence[Ordered],
        priority: int,
        after: Sequence[Variable],
        alone: Sequence[Variable],
    ) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise EngineError(f"an engine operation raised {type(error).__name__}: {error}") from error
        reads = [array.handle.value for array in read]
        writes = [array.handle.value for array in write]
        if len(reads) + len(writes) > 1:
            reads, writes = self._distinct(reads, writes)
        reads += [variable.handle.value for variable in after]
        writes += [variable.handle.value for variable in alone]
        number = next(self._numbers)
        self._operations[number] = operation
        while self._forking not in (None, threading.get_ident()):
            del self._operations[number]  # the thread that forks waits for what is in there
            time.sleep(0.0002)
            self._operations[number] = operation
        context, prop = self._constant
        status = self._push(
            self._callback_address,
            number,
            None,
            context,
            (ctypes.c_void_p * len(reads))(*reads),
            len(reads),
            (ctypes.c_void_p * len(writes))(*writes),
            len(writes),
            prop,
            priority,
            None,
            False,
        )
        if status:
            self._operations.pop(number, None)
            check_call(status)

    @staticmethod
    def _distinct(reads: List[int], writes: List[int]) -> Tuple[List[int], List[int]]:
        """One handle per engine variable, no variable in both lists: the engine would wait for itself forever."""
        by_variable = dict(zip(variables(writes), writes))
        distinct_writes = list(by_variable.values())
        distinct_reads = dict(zip(variables(reads), reads))
        return [handle for variable, handle in distinct_reads.items() if variable not in by_variable], distinct_writes

    def _run(self, _run_context: int, on_complete: int, number: int) -> None:
        """Called by the engine. `on_complete` points to three words: function, engine, parameter."""
        function, engine, parameter = _THREE_WORDS.from_address(on_complete)
        complete = self._completions.get(function)
        if complete is None:
            complete = self._completions[function] = _COMPLETE(function)
        if not getattr(self._kept, "state", False):
            # Creating the interpreter's state of a foreign thread costs some 20 us; this keeps it for the next call.
            ctypes.pythonapi.PyGILState_Ensure()
            self._kept.state = True
        done = Done(self._running, number, complete, engine, parameter)
        try:
            self._operations.pop(number)(done)
        except BaseException as error:  # nothing above this frame could handle it
            _log.exception("an engine operation raised; its outputs are not what they should be")
            self._error = error
            if not done.called:
                done()

    def _wait_before_forks(self) -> None:
        """MXNet's own fork handler waits for all operations while it holds the GIL, which ours need to complete.

        It joins the engine's threads as well, so they must have left Python too, not only have called ``done()``;
        and none may begin until the fork has happened, so other threads' pushes wait.
        """

        def before() -> None:
            self._forking = threading.get_ident()
            self._settle()

        def after() -> None:
            self._forking = None

        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
        if sys.version_info < (3, 10):  # where subprocess forks without calling the hooks of register_at_fork

            def audit(event: str, _arguments: Any) -> None:
                if event == "subprocess.Popen":
                    self._settle()

            sys.addaudithook(audit)

    def _settle(self) -> None:
        """Wait, without the GIL, until no operation is left and the engine's threads are out of Python."""
        with contextlib.suppress(mx.base.MXNetError):  # an operation of MXNet's own failed: its outputs tell
            mx.nd.waitall()
        run = _Dispatcher._run.__code__
        deadline = time.monotonic() + _PUSH_SECONDS
        while self._operations and time.monotonic() < deadline:
            time.sleep(0.0002)
        # The engine does not call operations whose arrays an earlier failure left without values.
        self._operations.clear()
        while self._running or any(_outermost(frame) is run for frame in sys._current_frames().values()):
            time.sleep(0.0002)

    def drain(self) -> None:
        """At exit: the engine must not call into an interpreter that is gone, nor wait for what nobody completes."""
        settling = threading.Thread(target=self._settle, daemon=True)
        settling.start()
        settling.join(_EXIT_SECONDS)
        if not settling.is_alive():
            return
        left = len(self._operations) + len(self._running)
        _log.error("%d engine operations were not complete when the script ended; they are given up", left)
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while settling.is_alive() and time.monotonic() < deadline:
            for done in list(self._running.values()):
                with contextlib.suppress(RuntimeError):
                    done()
            settling.join(0.001)  # those that waited for these begin, and are given up in turn


@functools.cache
def _dispatcher() -> _Dispatcher:
    return _Dispatcher()


def drain() -> None:
    """To be called at exit, before MXNet's own: wait for the operations, and give up those that do not end."""
    if _dispatcher.cache_info().currsize:
        _dispatcher().drain()


def _function(name: str, kind: Any, *argument_types: Any) -> Any:
    """A function of MXNet's library that no other user of the library shares, so its argument types are ours."""
    return kind(ctypes.c_int, *argument_types)((name, _LIB))


def _outermost(frame: Any) -> Any:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


class Copy:
    """A copy of one NDArray into another, prepared once and enqueued many times (some 10 us each, without the GIL).

    This is MXNet's own operator: it runs in the order of the engine and copes with oneDNN's layouts, other devices
    and other dtypes. Copying to and from a wrapped arena is the safe way to move weights and gradients.

    Args:
        source: dense array, or row_sparse with a row_sparse `target`.
        target: array of the same shape.
    """

    _operator: Optional[ctypes.c_void_p] = None

    def __init__(self, source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
        if source.shape != target.shape:
            raise ValueError(f"cannot copy an array of shape {source.shape} into one of shape {target.shape}")
        if Copy._operator is None:
            operator = ctypes.c_void_p()
            check_call(_LIB.NNGetOpHandle(b"_copyto", ctypes.byref(operator)))
            Copy._operator = operator
        self._arrays = (source, target)
        self._inputs = (ctypes.c_void_p * 1)(source.handle.value)
        self._outputs = (ctypes.c_void_p * 1)(target.handle.value)
        self._count = ctypes.c_int(1)
        self._output_pointer = ctypes.cast(self._outputs, ctypes.POINTER(ctypes.c_void_p))
        self._storage_types = ctypes.POINTER(ctypes.c_int)()
        no_strings = (ctypes.c_char_p * 0)()
        self._arguments = (
            Copy._operator,
            1,
            self._inputs,
            ctypes.byref(self._count),
            ctypes.byref(self._output_pointer),
            0,
            no_strings,
            no_strings,
            ctypes.byref(self._storage_types),
        )

    def enqueue(self) -> None:
        was_recording = ctypes.c_int()
        check_call(_LIB.MXAutogradSetIsRecording(0, ctypes.byref(was_recording)))
        status = _LIB.MXImperativeInvokeEx(*self._arguments)
        if was_recording.value:
            check_call(_LIB.MXAutogradSetIsRecording(1, ctypes.byref(was_recording)))
        check_call(status)


def copy_async(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Enqueue a copy; see `Copy` for what it copes with, and for the cheaper form where it is repeated."""
    Copy(source, target).enqueue()


def plain_copy(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """A copy in MXNet's plain layout, which `view` can show; it is written in the order of the engine."""
    copy = mx.nd.empty(array.shape, dtype=array.dtype)
    copy_async(array, copy)
    return copy
