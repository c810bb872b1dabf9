"""A log file that is rotated by its size: NAME.log, then NAME.log.1 and so on, the oldest dropped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Optional


class Log:
    """Appends to a file. What cannot be written, as on a full disk, is lost, and a line says how much once it can.

    Args:
        path: the file.
        most: bytes after which it is put aside and a new one begun, at the end of a line where there is one.
        keep: how many files there may be, at least 1.
    """

    def __init__(self, path: Path, most: int, keep: int) -> None:
        self._path, self._most, self._keep = path, most, keep
        self._file: Optional[BinaryIO] = None
        self._size = 0
        self._lost = 0  # bytes

    def write(self, data: bytes) -> None:
        """Append, rotating first where the file would grow too large."""
        try:
            if self._lost:
                self._append(b"\n[%d bytes are missing: they could not be written]\n" % self._lost)
                self._lost = 0
            self._append(data)
        except OSError:
            self._lost += len(data)
            self._close()

    def _append(self, data: bytes) -> None:
        while data:
            file = self._file or self._open()
            room = self._most - self._size
            piece = data if len(data) <= room else data[: data.rfind(b"\n", 0, max(room, 0)) + 1]
            if not piece and self._size:
                self._rotate()
                continue
            piece = piece or data[: self._most]  # a line longer than a file
            written = file.write(piece)
            self._size += written
            data = data[written:]

    def _open(self) -> BinaryIO:
        self._file = file = open(self._path, "ab", buffering=0)  # noqa: SIM115  (lives as long as its task)
        self._size = file.tell()
        return file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self) -> None:
        self._close()
        for number in range(self._keep - 1, 0, -1):
            source = self._path if number == 1 else Path(f"{self._path}.{number - 1}")
            if source.exists():
                os.replace(source, f"{self._path}.{number}")
        if self._keep == 1:
            self._path.unlink()
