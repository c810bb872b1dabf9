"""Relays the output of a job's processes line by line, each with its process's name in front."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Callable, Dict, List, Mapping, Tuple

COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
LONGEST_LINE = 1 << 16
HOLD_SECONDS = 1.0


class Relay:
    """Turns pieces of output into whole lines on this process's stdout and stderr.

    A line without an end is shown after a second; of what overwrites itself with carriage returns (progress bars),
    the last state that a second brings.

    Args:
        write: called with 1 or 2 (stdout, stderr) and the bytes of a line.
        colours: whether the names are coloured.
        clock: returns seconds, from any origin.
    """

    def __init__(
        self,
        write: Callable[[int, bytes], None],
        colours: Mapping[int, bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._colours, self._clock = write, colours, clock
        self._held: Dict[Tuple[str, int], Tuple[bytes, float]] = {}
        self._number: Dict[str, int] = {}

    def feed(self, name: str, stream: int, data: bytes) -> None:
        """Take a piece of output; none is the end of the stream."""
        held, since = self._held.pop((name, stream), (b"", self._clock()))
        lines = (held + data).replace(b"\r\n", b"\n").split(b"\n")
        rest = lines.pop()
        self._show(name, stream, lines)
        if not data or len(rest) > LONGEST_LINE:
            self._show(name, stream, [rest] if rest else [])
        elif rest:
            self._held[name, stream] = (_last_state(rest), since)
            self._release(name, stream)

    def tick(self) -> None:
        """Show what has waited for the end of its line for too long."""
        for name, stream in list(self._held):
            self._release(name, stream)

    def _release(self, name: str, stream: int) -> None:
        rest, since = self._held[name, stream]
        if self._clock() - since >= HOLD_SECONDS:
            del self._held[name, stream]
            self._show(name, stream, [rest])

    def _show(self, name: str, stream: int, lines: List[bytes]) -> None:
        if not lines:
            return
        label = f"[{name}]".encode()
        if self._colours.get(stream):
            number = self._number.setdefault(name, len(self._number))
            label = b"\x1b[%dm%s\x1b[0m" % (COLOURS[number % len(COLOURS)], label)
        shown = (_last_state(line).rstrip(b"\r") for line in lines)
        self._write(stream, b"".join(b"%s %s\n" % (label, line) for line in shown))


def _last_state(line: bytes) -> bytes:
    """What a line looks like after its carriage returns; one at its end is kept, as more may follow."""
    text = line.rstrip(b"\r")
    return text.rpartition(b"\r")[2] + line[len(text) :][:1]


def to_own_streams(stream: int, data: bytes) -> None:
    """Write to this process's stdout (1) or stderr (2), past Python's buffers, so that lines stay whole."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # another program that has the same terminal made it so
            select.select([], [stream], [])


def open_standard_streams() -> None:
    """Put /dev/null in the place of each standard stream that is closed: the next file opened would become it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  (for the life of the process)


def wants_colour(environment: Mapping[str, str] = os.environ) -> Dict[int, bool]:
    """Which of this process's streams are terminals that may be coloured (NO_COLOR says no)."""
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    return {1: sys.stdout.isatty() and not plain, 2: sys.stderr.isatty() and not plain}
