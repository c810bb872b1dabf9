"""Where a job's output goes and what its processes may use: here a terminal; hosted.py has a folder for the service."""

from __future__ import annotations

import contextlib
import errno
from typing import List, Optional, Protocol, Set, Tuple

from launcher.output import Relay, to_own_streams, wants_colour
from launcher.processes import Limits

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Host(Protocol):
    """What LocalJob asks of its surroundings. Called from one thread.

    `gone` turns true when nobody is there any more whom the output could reach; the job is then ended.
    """

    gone: bool

    def limits(self, role: str, name: str) -> Optional[Limits]:
        """What a process that is about to start may use."""

    def listening(self, address: str) -> None:
        """The coordinator listens at `address`."""

    def began(self, role: str, name: str, pid: int) -> None:
        """A process was started."""

    def ended(self, name: str, status: int) -> None:
        """A process has ended; `status` is negative for a signal."""

    def output(self, name: str, stream: int, data: bytes) -> None:
        """A process has output something on stream 1 or 2; no data is the end of that stream."""

    def say(self, text: str) -> None:
        """Tell the user in one line."""

    def tick(self, now: float) -> List[Tuple[str, str]]:
        """Time has passed; return the processes to kill, each with a line that says why."""


class Terminal:
    """The streams of this process."""

    def __init__(self) -> None:
        self.gone = False
        self._relay = Relay(self._write, wants_colour())
        self._told: Set[int] = set()  # the streams whose losses were told

    def limits(self, role: str, name: str) -> Optional[Limits]:
        """Return None: a job that a user launches may use what its user may."""
        return None

    def listening(self, address: str) -> None:
        pass

    def began(self, role: str, name: str, pid: int) -> None:
        pass

    def ended(self, name: str, status: int) -> None:
        pass

    def output(self, name: str, stream: int, data: bytes) -> None:
        self._relay.feed(name, stream, data)

    def say(self, text: str) -> None:
        self._write(2, f"elastic-mx: {text}\n".encode())

    def tick(self, now: float) -> List[Tuple[str, str]]:
        self._relay.tick()
        return []

    def _write(self, stream: int, data: bytes) -> None:
        if self.gone:
            return
        try:
            to_own_streams(stream, data)
        except OSError as error:
            if error.errno in FULL:
                self._lose(stream, error)
            else:
                self.gone = True

    def _lose(self, stream: int, error: OSError) -> None:
        """What was to be written is lost, which is no reason to end a job; say so once, where there is room."""
        if stream in self._told:
            return
        self._told.add(stream)
        name, other = ("stdout", 2) if stream == 1 else ("stderr", 1)
        lost = f"elastic-mx: {name} is lost while it cannot be written ({error.strerror}); the job goes on\n"
        with contextlib.suppress(OSError):
            to_own_streams(other, lost.encode())
