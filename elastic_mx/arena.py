"""Memory that processes of one host share without a name: created here, opened by a peer, gone with its users.

An arena is a sparse `memfd`: it is as long as it could ever be and takes memory only where it was written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from typing import Optional

import numpy as np

LENGTH = 1 << 40
HEADER = 4096
NONCE_BYTES = 16
_MAP_NORESERVE = 0x4000
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01


class Arena:
    """A process's own arena; offsets count from its first usable byte."""

    def __init__(self, label: str) -> None:
        self.fd = os.memfd_create(f"elastic-mx-{label}")
        os.ftruncate(self.fd, LENGTH)
        self._map = _map(self.fd, writable=True)
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

    def close(self) -> None:
        """Drop the descriptor; the memory lives until the last array over it is gone."""
        os.close(self.fd)


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
