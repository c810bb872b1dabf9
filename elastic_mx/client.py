"""The control client: asks a job's coordinator for a size, for its state, or to end. Needs neither MXNet nor NumPy.

Used by the command and by the scheduler; what the answers contain is job_state.py's.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
import uuid
from typing import Any, Dict, Optional

import zmq

from elastic_mx import messages as m
from elastic_mx.link import ControlLink, JobError
from elastic_mx.settings import ProcessSettings

PATIENCE_SECONDS = 10.0
PROBES_PER_PATIENCE = 4


class NoAnswer(JobError):
    """The coordinator was not heard in time."""


class Declined(JobError):
    """The coordinator understood and says no; the text is its reason."""


class ControlClient:
    """A connection to one job's coordinator; a context manager. Not for several threads at once.

    Args:
        address: the coordinator's, as ``tcp://host:port``.
        job: the job's name, for error messages.
        role: ``client``, or ``launcher`` for who starts the job's processes.
        name: what the coordinator knows this connection by; made up if not given.
        patience: seconds without a sign of the coordinator after which it counts as gone.

    Raises:
        JobError: the address cannot be one.
    """

    def __init__(
        self, address: str, job: str = "", role: str = "client", name: str = "", patience: float = PATIENCE_SECONDS
    ) -> None:
        self.address, self.job, self.patience = address, job, patience
        self._context = zmq.Context()
        name = name or f"{role}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            self._link = ControlLink(self._context, ProcessSettings(address, name))
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise JobError(f"{address!r} is no address of a job's coordinator: {error}") from error
        self._numbers = itertools.count(1)
        self._link.register(role)

    # ------------------------------------------------------------------------------------------------ requests

    def scale(
        self, workers: Optional[int] = None, servers: Optional[int] = None, timeout: Optional[float] = None
    ) -> Dict[str, Any]:
        """Ask for a size and wait until it is in force; None leaves that number as it is.

        Args:
            timeout: the longest wait in seconds; None waits as long as the coordinator shows that it lives.

        Returns:
            What the resize cost: `generation`, `kind`, `step` (the first of the new generation), `bytes_moved`,
            `startup_seconds` (from the request to the plan, with the start of new processes), `seconds` (from the plan
            until in force), `migration_seconds`, `longest_stall_seconds`, `median_step_seconds`, `workers`, `servers`.

        Raises:
            Declined: the job cannot have that size, or ends first.
            NoAnswer: nothing was heard for `patience` seconds, or the size is not in force after `timeout`.
        """
        request = m.Scale(request=next(self._numbers), workers=workers, servers=servers)
        return self._ask(request, timeout, f"is not at {_size(workers, servers)}")

    def checkpoint(self, folder: str, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Have the job write a checkpoint while it trains, and wait until it is whole.

        Args:
            folder: where, as an absolute path on the hosts of the job's servers.
            timeout: as for `scale`.

        Returns:
            `folder`, and `step`: the first step that a job goes on with from there.

        Raises:
            Declined: the job ends first.
            NoAnswer: nothing was heard for `patience` seconds, or the checkpoint is not whole after `timeout`.
        """
        request = m.Checkpoint(request=next(self._numbers), folder=folder)
        return self._ask(request, timeout, f"has no whole checkpoint in {folder}")

    def status(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Return the job's state: `name`, `generation`, `workers`, `servers`, `target`, `resizes`, `drop_in`.

        Raises:
            NoAnswer: no answer within `timeout` (default: `patience`) seconds.
        """
        return self._ask(m.Status(request=next(self._numbers)), timeout or self.patience, "did not tell its state")

    def stop(self, timeout: Optional[float] = None) -> None:
        """Ask for the end of the job; returns when its processes were told.

        Raises:
            NoAnswer: no answer within `timeout` (default: `patience`) seconds.
        """
        self._ask(m.Stop(request=next(self._numbers)), timeout or self.patience, "has not stopped")

    def _ask(self, request: Any, timeout: Optional[float], unfinished: str) -> Dict[str, Any]:
        """Send a request and wait for its reply, probing meanwhile whether the coordinator lives."""
        self.send(request)
        begun = heard = time.monotonic()
        pause = self.patience / PROBES_PER_PATIENCE
        probed = begun - pause
        while True:
            now = time.monotonic()
            if now - heard >= self.patience:
                raise self._gone(self.patience)
            if timeout is not None and now - begun >= timeout:
                if heard == begun:
                    raise self._gone(timeout)
                raise NoAnswer(f"{self._who()} at {self.address} {unfinished} after {timeout:g} s")
            if now - probed >= pause:
                self.send(m.Status(request=0))
                probed = now
            message = self.receive(pause if timeout is None else min(pause, begun + timeout - now))
            if message is not None:
                heard = time.monotonic()
            if isinstance(message, m.Reply) and message.request == request.request:
                if message.error:
                    raise Declined(message.error)
                return message.body

    def _gone(self, waited: float) -> NoAnswer:
        return NoAnswer(
            f"{self._who()} does not answer at {self.address} (waited {waited:g} s): "
            "elastic-mx status lists the jobs that run"
        )

    def _who(self) -> str:
        return f"job {self.job!r}" if self.job else "the job"

    # ------------------------------------------------------------------------- single messages, for a launcher

    @property
    def socket(self) -> Any:
        """The ZeroMQ socket, to poll for messages."""
        return self._link.socket

    def send(self, message: m.Message) -> None:
        """Send a message; does not wait."""
        self._link.send(message)

    def receive(self, timeout: Optional[float] = 0) -> Optional[m.Message]:
        """Return the next message, None if there is none within `timeout` seconds.

        Raises:
            JobError: the coordinator refused a message of this client; its reason.
        """
        return self._link.receive(timeout)

    # ------------------------------------------------------------------------------------------------- the end

    def close(self, linger: float = 0.2) -> None:
        """Take leave; what was sent has `linger` seconds to go out."""
        self._context.destroy(linger=int(linger * 1000))

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _size(workers: Optional[int], servers: Optional[int]) -> str:
    """A size as text: ``4 workers and 2 servers``."""
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((workers, "worker"), (servers, "server")) if n]
    return " and ".join(parts)
