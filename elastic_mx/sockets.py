"""ZeroMQ sockets for tensors: how they are set up, and how frames are sent without copying them."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import zmq

SMALL_BYTES = 64 * 1024
BUFFER_BYTES = 256 << 10
LINGER_MS = 1000

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_HEAP_BYTES = 64 << 20


def data_socket(context: Any, kind: int, identity: str = "") -> Any:
    """A socket of the data plane: nothing is dropped, and the kernel's buffers hold a few slices."""
    socket = context.socket(kind)
    socket.linger = LINGER_MS
    socket.sndhwm = socket.rcvhwm = 0
    socket.sndbuf = socket.rcvbuf = BUFFER_BYTES
    if kind == zmq.ROUTER:
        socket.router_handover = True
    if identity:
        socket.identity = identity.encode()
    return socket


def send(socket: Any, parts: Sequence[Any], frames: Sequence[Any], stable: bool) -> None:
    """Send a message: its `parts`, then tensor `frames` (buffers).

    Args:
        stable: the frames do not change until the receiver has answered, so that large ones need not be copied.
    """
    more = len(frames)
    socket.send_multipart(parts, zmq.SNDMORE if more else 0)
    for i, frame in enumerate(frames):
        copy = not stable or len(frame) < SMALL_BYTES
        socket.send(frame, zmq.SNDMORE if i + 1 < more else 0, copy=copy)


def keep_freed_memory() -> None:
    """Have the C library keep what messages free: fresh pages for each one cost more than copying it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, 4 * _LARGEST_HEAP_BYTES)
        libc.mallopt(_M_TOP_PAD, 2 * _LARGEST_HEAP_BYTES)  # else a thread's empty heap is unmapped
