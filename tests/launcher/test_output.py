"""The relay: whole lines with their process's name, whatever pieces they come in."""

from typing import List, Tuple

import pytest

from launcher.output import Relay


class Played:
    def __init__(self, colours=None) -> None:
        self.now = 0.0
        self.lines: List[Tuple[int, bytes]] = []
        self.relay = Relay(lambda stream, data: self.lines.append((stream, data)), colours or {}, lambda: self.now)

    def feed(self, *pieces: bytes, stream: int = 1) -> bytes:
        for piece in pieces:
            self.relay.feed("w", stream, piece)
        shown = b"".join(data for _, data in self.lines)
        self.lines = []
        return shown


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb\n"], b"[w] a\n[w] b\n"),
        ([b"a", b"b\nc", b"\n"], b"[w] ab\n[w] c\n"),
        ([b"\n\n"], b"[w] \n[w] \n"),
        ([b"no end", b""], b"[w] no end\n"),
        ([b"a\r", b"\nb\r\n"], b"[w] a\n[w] b\n"),
        ([b"1%\r2%\r", b"3%\r", b"done\n"], b"[w] done\n"),
        ([b"\r1%", b"\r2%", b"\r3%\n"], b"[w] 3%\n"),
        ([b"\xff\xfe\n"], b"[w] \xff\xfe\n"),
        ([b""], b""),
    ],
)
def test_lines_are_whole(pieces, shown):
    assert Played().feed(*pieces) == shown


def test_the_streams_are_kept_apart():
    played = Played()
    played.feed(b"out", stream=1)
    assert played.feed(b"err\n", stream=2) == b"[w] err\n"
    assert played.feed(b"put\n", stream=1) == b"[w] output\n"


def test_a_line_without_an_end_is_shown_after_a_second():
    played = Played()
    assert played.feed(b"Continue? ") == b""
    played.now = 1.0
    played.relay.tick()
    assert played.feed() == b"[w] Continue? \n"


def test_a_progress_bar_is_shown_once_a_second():
    played = Played()
    shown = b""
    for percent in range(100):
        shown += played.feed(b"\r%d%%" % percent)
        played.now += 0.05
    assert 4 <= shown.count(b"\n") <= 6


def test_a_line_of_any_length_is_shown_without_being_kept_for_ever():
    assert Played().feed(b"x" * 100_000).startswith(b"[w] xxx")


def test_names_are_coloured_where_asked_for():
    assert Played({1: True}).feed(b"a\n") == b"\x1b[36m[w]\x1b[0m a\n"
