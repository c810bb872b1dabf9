"""Lets one process tell the workers of several jobs, in turn, to do something and report: so noise hits all alike.

The conductor listens on loopback; a worker's script connects with `Turns`. Lines of JSON, one each way per turn.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Dict, Iterator, List, Optional

VARIABLE = "BENCHMARK_CONDUCTOR"


class Failed(Exception):
    """A worker did not answer its turn."""


class Conductor:
    """The side that gives the turns; a context manager. `env` is what the workers' environment needs."""

    def __init__(self, timeout: float = 120) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._timeout = timeout
        host, port = self._listener.getsockname()
        self.env = {VARIABLE: f"{host}:{port}"}

    def gather(self, count: int) -> List[Member]:
        """Wait for so many workers; returns them by rank.

        Raises:
            Failed: not all came in time.
        """
        members = []
        self._listener.settimeout(self._timeout)
        for _ in range(count):
            try:
                connection, _ = self._listener.accept()
            except socket.timeout as error:
                raise Failed(f"only {len(members)} of {count} workers came within {self._timeout:g} s") from error
            members.append(Member(connection, self._timeout))
        return sorted(members, key=lambda member: str(member.hello["rank"]))

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()


class Member:
    """A worker as the conductor sees it; `hello` is what it said of itself."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        connection.settimeout(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lines = connection.makefile("r")
        self.hello: Dict[str, Any] = self.read()

    def tell(self, command: str, **what: Any) -> None:
        self._connection.sendall((json.dumps({"command": command, **what}) + "\n").encode())

    def read(self) -> Dict[str, Any]:
        """The worker's next report.

        Raises:
            Failed: it has ended, or says nothing in time.
        """
        try:
            line = self._lines.readline()
        except OSError as error:
            raise Failed(f"a worker does not answer: {error}") from error
        if not line:
            raise Failed("a worker ended within its turn; what it said stands above")
        return json.loads(line)  # type: ignore[no-any-return]


def turn(members: List[Member], command: str, **what: Any) -> List[Dict[str, Any]]:
    """Give all members a turn at the same time; returns their reports, by rank."""
    for member in members:
        member.tell(command, **what)
    return [member.read() for member in members]


class Turns:
    """The worker's side.

    Args:
        hello: what to say of this worker; `rank` must be among it.
    """

    def __init__(self, **hello: Any) -> None:
        host, _, port = os.environ[VARIABLE].rpartition(":")
        self._connection = socket.create_connection((host, int(port)))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._connection.makefile("r")
        self.report(**hello)

    def report(self, **what: Any) -> None:
        self._connection.sendall((json.dumps(what) + "\n").encode())

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        """The turns, until the conductor says "end" or goes away."""
        for line in self._lines:
            message = json.loads(line)
            if message["command"] == "end":
                return
            yield message

    def next(self) -> Optional[Dict[str, Any]]:
        return next(iter(self), None)


def wait_until(condition: Any, timeout: float, what: str) -> None:
    """Poll until `condition()` is true.

    Raises:
        Failed: it is not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.01)
