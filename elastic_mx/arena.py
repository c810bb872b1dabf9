"""Memory that processes of one host share without a name: created here, opened by a peer, gone with its users.

An arena is a sparse `memfd`: it is as long as it could ever be and takes memory only where it was written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
from typing import Iterable, Optional, Tuple

import numpy as np

LENGTH = 1 << 40
HEADER = 4096
NONCE_BYTES = 16
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_WRITE = 23
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01


class Arena:
    """A process's own arena; offsets count from its first usable byte."""

    def __init__(self, label: str) -> None:
        self.fd = os.memfd_create(f"elastic-mx-{label}")
        os.ftruncate(self.fd, LENGTH)
        try:
            self._map = _map(self.fd, writable=True)
        except OSError as error:
            os.close(self.fd)
            raise OSError(
                error.errno,
                f"{label} cannot have {LENGTH >> 40} TiB of address space, of which it fills what it needs "
                f"({error.strerror}): allow it with ulimit -v unlimited",
            ) from error
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._map[:NONCE_BYTES] = self.nonce
        self.bytes = np.frombuffer(self._map, np.uint8)[HEADER:]

    def release(self, offset: int, nbytes: int) -> None:
        """Give the whole pages within a range back to the system; they read as zero afterwards."""
        start = -(-(HEADER + offset) // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (HEADER + offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(self.fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(stop - start))

    def populate(self, offset: int, nbytes: int) -> None:
        """Have a range's pages there before they are written, which changes nothing else; old kernels do nothing."""
        start = (HEADER + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = -(-(HEADER + offset + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        first = self.bytes.ctypes.data - HEADER + start
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - start), _MADV_POPULATE_WRITE)

    def close(self) -> None:
        """Drop the descriptor; the memory lives until the last array over it is gone."""
        os.close(self.fd)


def populate_soon(ranges: Iterable[Tuple[Arena, int, int]]) -> None:
    """Populate ranges, (arena, offset, bytes), on a thread of their own: whoever writes them first would wait else."""

    def run() -> None:
        for arena, offset, nbytes in ranges:
            arena.populate(offset, nbytes)

    threading.Thread(target=run, name="elastic-mx-pages", daemon=True).start()


def open_peer(pid: int, fd: int, nonce: bytes) -> Optional[np.ndarray]:
    """Map another process's arena.

    Returns:
        Its bytes (uint8), or None where that process is not on this host or may not be looked into: its first bytes
        tell, for the same number may mean another process here.
    """
    try:
        mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except OSError:
        return None
    try:
        if os.fstat(mine).st_size != LENGTH:
            return None
        mapped = _map(mine, writable=False)
    except (OSError, ValueError):
        return None
    finally:
        os.close(mine)
    if mapped[:NONCE_BYTES] != nonce:
        return None
    return np.frombuffer(mapped, np.uint8)[HEADER:]


def _map(fd: int, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(fd, LENGTH, flags=mmap.MAP_SHARED | _MAP_NORESERVE, prot=protection)
