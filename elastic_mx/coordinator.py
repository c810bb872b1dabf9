"""The coordinator process: a ROUTER socket around coordinator_machine.py.

Run as ``python -m elastic_mx.coordinator``; prints where it listens as one line of JSON. It decides nothing itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Iterator, Optional, Tuple

import zmq

from elastic_mx import checkpoint
from elastic_mx import messages as m
from elastic_mx.coordinator_machine import CoordinatorMachine
from elastic_mx.job_state import InvalidTransition, Outbox
from elastic_mx.settings import JobSettings

logger = logging.getLogger("elastic_mx.coordinator")
LINGER_MS = 2000


class Coordinator:
    """Serves one job until it is over and everyone was told."""

    def __init__(self, settings: JobSettings, bind: str) -> None:
        restored = checkpoint.read_manifest(Path(settings.restore)) if settings.restore else None
        if restored is not None:
            settings = replace(settings, slice_bytes=restored.slice_bytes)
        self.machine = CoordinatorMachine(settings, restored, run=uuid.uuid4().hex[:8])
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = LINGER_MS
        self._socket.router_handover = True
        self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.bind(bind)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.stopping = False

    def run(self) -> None:
        """Handle messages until SIGTERM or until the launcher ends this process."""
        while not self.stopping:
            if self._socket.poll(200):
                identity, data = self._socket.recv_multipart()[:2]
                self._handle(identity, data)
        self._socket.close()
        self._context.term()

    def _handle(self, identity: bytes, data: bytes) -> None:
        sender = identity.decode(errors="replace")
        try:
            message = m.decode_from_process(data)
            logger.debug("%s > %s", sender, message)
            outbox = self.machine.handle(sender, message, time.monotonic())
        except (m.ProtocolError, InvalidTransition) as error:
            logger.error("%s: %s", sender, error)
            outbox = [(sender, m.Refused(reason=str(error).splitlines()[0]))]
        self._send([*outbox, *self._complete_checkpoints()])

    def _complete_checkpoints(self) -> Outbox:
        """Make what the servers wrote checkpoints, or delete it; returns the answers to who asked."""
        outbox: Outbox = []
        written, self.machine.job.written = self.machine.job.written, []
        for one in written:
            folder, error = Path(one.folder), one.error
            try:
                if not error:
                    checkpoint.commit(folder, one.manifest)
            except OSError as failure:
                error = f"{folder}/manifest.json cannot be written: {failure.strerror}"
            if error:
                checkpoint.give_up(folder, one.manifest.parts)
                error = f"there is no new checkpoint, and the job goes on: {error}"
            body = {} if error else {"folder": one.folder, "step": one.manifest.position.step}
            outbox.append((one.client, m.Reply(request=one.request, error=error, body=body)))
        return outbox

    def _send(self, outbox: Outbox) -> None:
        for name, data in encoded(outbox):
            self._socket.send_multipart([name, data])


def encoded(outbox: Outbox) -> Iterator[Tuple[bytes, bytes]]:
    """Each receiver with its message on the wire; a plan goes to everybody and is encoded once."""
    last: Optional[m.Message] = None
    data = b""
    for name, message in outbox:
        logger.debug("%s < %s", name, message)
        if message is not last:
            last, data = message, m.encode(message)
        yield name.encode(), data


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m elastic_mx.coordinator", description="The coordinator of one job")
    parser.add_argument("--name", default=JobSettings.name, help="the job's name")
    parser.add_argument("--workers", type=int, default=JobSettings.workers)
    parser.add_argument("--servers", type=int, default=JobSettings.servers)
    parser.add_argument("--transport", default=JobSettings.transport)
    parser.add_argument("--move-bytes", type=int, default=JobSettings.move_bytes)
    parser.add_argument("--slice-bytes", type=int, default=JobSettings.slice_bytes)
    parser.add_argument("--drop-in", action="store_true")
    parser.add_argument("--restore", default="", metavar="FOLDER", help="go on from the checkpoint in this folder")
    parser.add_argument("--bind", default="tcp://127.0.0.1:0", help="where to listen (default: a free loopback port)")
    parser.add_argument("--trace", action="store_true", help="print every message on stderr")
    options = vars(parser.parse_args())
    bind, trace = options.pop("bind"), options.pop("trace")
    logging.basicConfig(level=logging.DEBUG if trace else logging.WARNING, format="%(name)s %(message)s")
    try:
        coordinator = Coordinator(JobSettings(**options), bind)
    except (ValueError, checkpoint.CheckpointError, zmq.ZMQError) as error:
        sys.exit(f"elastic-mx: the coordinator cannot start at {bind}: {error}")

    def stop(*_: object) -> None:
        coordinator.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(json.dumps({"coordinator": coordinator.address}), flush=True)
    coordinator.run()


if __name__ == "__main__":
    main()
