"""A log file that is rotated by its size: NAME.log, then NAME.log.1 and so on, the oldest dropped."""

from __future__ import annotations

import os
from pathlib import Path


class Log:
    """Appends to a file.

    Args:
        path: the file.
        most: bytes after which it is put aside and a new one begun, at the end of a line where there is one.
        keep: how many files there may be, at least 1.
    """

    def __init__(self, path: Path, most: int, keep: int) -> None:
        self._path, self._most, self._keep = path, most, keep
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (lives as long as its task)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append, rotating first where the file would grow too large."""
        while data:
            room = self._most - self._size
            piece = data if len(data) <= room else data[: data.rfind(b"\n", 0, max(room, 0)) + 1]
            if not piece and self._size:
                self._rotate()
                continue
            piece = piece or data[: self._most]  # a line longer than a file
            self._file.write(piece)
            self._size += len(piece)
            data = data[len(piece) :]

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            source = self._path if number == 1 else Path(f"{self._path}.{number - 1}")
            if source.exists():
                os.replace(source, f"{self._path}.{number}")
        self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
        self._size = 0
