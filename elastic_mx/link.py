"""A process's connection to its coordinator. What the messages mean is for the process to know."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, Optional

import zmq

from elastic_mx import messages as m
from elastic_mx.settings import ProcessSettings

logger = logging.getLogger("elastic_mx.link")


class JobError(Exception):
    """The job cannot go on as asked; the text says what to do."""


class ControlLink:
    """A DEALER socket to the coordinator, and the registration that opens it.

    Args:
        context: the process's ZeroMQ context.
        settings: where the coordinator is, and this process's name.
    """

    def __init__(self, context: Any, settings: ProcessSettings) -> None:
        self.settings = settings
        self.socket = context.socket(zmq.DEALER)
        self.socket.identity = settings.name.encode()
        self.socket.linger = 1000
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.connect(settings.coordinator)

    def register(self, role: str, address: str = "") -> None:
        """Say who this process is; the coordinator answers with Welcome or Refused."""
        self.send(
            m.Register(role=role, name=self.settings.name, address=address, pid=os.getpid(), host=socket.gethostname())
        )

    def send(self, message: m.Message) -> None:
        logger.debug("> %s", message)
        self.socket.send(m.encode(message))

    def receive(self, timeout: Optional[float] = None) -> Optional[m.Message]:
        """Return the next message; None if none comes within `timeout` seconds (None: wait).

        Raises:
            JobError: the coordinator refused something; its reason.
        """
        if not self.socket.poll(None if timeout is None else int(timeout * 1000)):
            return None
        message = m.decode_from_coordinator(self.socket.recv())
        logger.debug("< %s", message)
        if isinstance(message, m.Refused):
            raise JobError(message.reason)
        return message
