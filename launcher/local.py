"""Runs one job in processes of this machine: does what supervisor.py decides, and tells it what happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import zmq

import elastic_mx
from elastic_mx import messages as m
from elastic_mx.client import ControlClient
from elastic_mx.link import JobError
from elastic_mx.settings import JobSettings, ProcessSettings
from launcher.host import Host, Terminal
from launcher.processes import Processes
from launcher.registry import JobEntry, Registry
from launcher.supervisor import COORDINATOR, Finish, Instruction, Say, Signal, Start, Supervisor, Tell

START_SECONDS = 30.0
TICK_MS = 100
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SITE_FOLDER = Path(__file__).with_name("site")  # its sitecustomize.py prepares the workers


@dataclass(frozen=True)
class LaunchSettings:
    """What `elastic-mx launch` was asked for.

    Args:
        job: what all processes of the job agree on.
        command: a worker's command line; the program is found.
        port: the coordinator's port on loopback, 0 for any.
        threads: compute threads of each process, None to leave it to the environment.
        trace: print every message of the protocol.
        optimizers: the ``module:Class`` paths of optimizers that the servers may import.
        script_folder: where the servers look for the modules of those optimizers.
        environment: what the processes find in their environment, besides what tells them their job.
    """

    job: JobSettings
    command: Sequence[str]
    port: int = 0
    threads: Optional[int] = None
    trace: bool = False
    optimizers: Tuple[str, ...] = ()
    script_folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class LocalJob:
    """A job on this machine, from its first process to its last.

    Args:
        settings: what to run.
        entry: the job's claimed name; its coordinator is filled in once it listens.
        registry: where `entry` is kept.
        host: where the output goes and what the processes may use; this terminal if not given.
    """

    def __init__(
        self, settings: LaunchSettings, entry: JobEntry, registry: Registry, host: Optional[Host] = None
    ) -> None:
        self._settings, self._entry, self._registry = settings, entry, registry
        self._supervisor = Supervisor(settings.job.workers, settings.job.drop_in)
        self._host = host or Terminal()
        self._early = {1: b"", 2: b""}
        self._client: Optional[ControlClient] = None
        self._signals: List[int] = []
        self._deaf = False
        self._status: Optional[int] = None

    def run(self) -> int:
        """Run the job and return its exit status; every process of it is gone then.

        Raises:
            JobError: it cannot start; the reason.
        """
        mark = f"{self._entry.name}:{uuid.uuid4().hex}"
        with self._watched_signals() as wakeup, Processes(mark, self._on_output) as processes:
            self._processes = processes
            try:
                address = self._start_coordinator()
                self._client = ControlClient(address, self._entry.name, role="launcher", name="launcher")
                self._registry.update(self._entry, address)
                self._host.listening(address)
                self._host.say(self._description(address))
                self._loop(wakeup)
            finally:
                if self._client is not None:
                    self._client.close()
        assert self._status is not None
        return self._status

    def _description(self, address: str) -> str:
        job = self._settings.job
        return (
            f"job {self._entry.name}: workers={job.workers} servers={job.servers} transport={job.transport} "
            f"slice_bytes={job.slice_bytes} threads={self._settings.threads or 'as the environment says'}"
            f"{' drop_in' if job.drop_in else ''}{f' restore={job.restore}' if job.restore else ''} "
            f"coordinator={address}"
        )

    # ------------------------------------------------------------------------------------------ the coordinator

    def _start_coordinator(self) -> str:
        """Start the coordinator and return the address that it prints."""
        job = self._settings.job
        command = [sys.executable, "-m", "elastic_mx.coordinator"]
        command += [f"--name={self._entry.name}", f"--workers={job.workers}", f"--servers={job.servers}"]
        command += [f"--transport={job.transport}", f"--slice-bytes={job.slice_bytes}"]
        command += [f"--bind=tcp://127.0.0.1:{self._settings.port or '*'}"]
        command += [f"--restore={job.restore}"] if job.restore else []
        command += ["--drop-in"] if job.drop_in else []
        command += ["--trace"] if self._settings.trace else []
        self._begin(COORDINATOR, COORDINATOR, command, self._own_environment())
        deadline = time.monotonic() + START_SECONDS
        while b"\n" not in self._early[1]:
            if self._signals or time.monotonic() > deadline:
                raise JobError("the job was ended before it began" if self._signals else "the coordinator is silent")
            if self._processes.poll():
                reason = self._early[2].decode(errors="replace").strip().splitlines()
                raise JobError(reason[-1].replace("elastic-mx: ", "") if reason else "the coordinator ended at once")
            time.sleep(0.01)
        line, _, rest = self._early[1].partition(b"\n")
        try:
            address = json.loads(line)["coordinator"]
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"the coordinator begins with {line!r} instead of its address") from error
        self._host.output(COORDINATOR, 1, rest)
        self._host.output(COORDINATOR, 2, self._early[2])
        return str(address)

    def _own_environment(self) -> Dict[str, str]:
        """The environment of our own programs: they run on this interpreter, and see this package."""
        root = str(Path(elastic_mx.__file__).resolve().parent.parent)
        theirs = self._settings.script_folder if self._settings.optimizers else ""
        path = [p for p in (self._settings.environment.get("PYTHONPATH"), root, theirs) if p]
        return {**self._environment(), "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}

    def _environment(self) -> Dict[str, str]:
        environment = {"PYTHONUNBUFFERED": "1", **self._settings.environment}
        if self._settings.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._settings.threads)
        return environment

    # ------------------------------------------------------------------------------------------------ the loop

    def _loop(self, wakeup: int) -> None:
        assert self._client is not None
        while self._status is None:
            poller = zmq.Poller()
            for source in (wakeup, self._client.socket, *self._processes.descriptors()):
                poller.register(source, zmq.POLLIN)
            ready = dict(poller.poll(TICK_MS))
            if wakeup in ready:
                os.read(wakeup, 4096)
            now = time.monotonic()
            while self._signals:
                self._carry_out(self._supervisor.signalled(self._signals.pop(0), now))
            for name, status in self._processes.poll():
                self._host.ended(name, status)
                self._carry_out(self._supervisor.exited(name, status, now))
            self._receive(now)
            self._carry_out(self._supervisor.tick(now))
            for name, reason in self._host.tick(now):
                self._host.say(reason)
                self._processes.signal(name, signal.SIGKILL)
            if self._host.gone and not self._deaf:
                self._deaf = True
                self._signals.append(signal.SIGTERM)

    def _receive(self, now: float) -> None:
        """Hear what the coordinator has sent."""
        assert self._client is not None
        while True:
            try:
                message = self._client.receive(0)
            except (JobError, m.ProtocolError) as error:
                self._carry_out(self._supervisor.refused(f"the coordinator: {error}", now))
                continue
            if message is None:
                return
            if isinstance(message, m.Launch):
                self._carry_out(self._supervisor.asked(message))
            elif isinstance(message, m.Release):
                self._carry_out(self._supervisor.released(message, now))
            elif isinstance(message, m.Reply):
                self._carry_out(self._supervisor.answered(message, now))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._start(instruction.role, instruction.name)
            elif isinstance(instruction, Signal):
                self._processes.signal(instruction.name, instruction.number)
            elif isinstance(instruction, Tell):
                assert self._client is not None
                self._client.send(instruction.message)
            elif isinstance(instruction, Say):
                self._host.say(instruction.text)
            elif isinstance(instruction, Finish):
                self._status = instruction.status

    def _start(self, role: str, name: str) -> None:
        assert self._client is not None
        settings = ProcessSettings(self._client.address, name, self._settings.trace, self._settings.optimizers)
        try:
            if role == "server":
                command: Sequence[str] = [sys.executable, "-m", "elastic_mx.server"]
                self._begin(role, name, command, {**self._own_environment(), **settings.to_environment()})
            else:
                environment = {**self._environment(), **settings.to_environment()}
                path = [str(SITE_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
                environment["PYTHONPATH"] = os.pathsep.join(path)
                environment["ELASTIC_MX_DROP_IN"] = "1" if self._settings.job.drop_in else ""
                self._begin(role, name, self._settings.command, environment)
        except OSError as error:
            self._host.say(f"{name} cannot be started: {error}")
            self._carry_out(self._supervisor.exited(name, 127, time.monotonic()))

    def _begin(self, role: str, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._supervisor.started(role, name)
        pid = self._processes.start(name, command, environment, self._host.limits(role, name))
        self._host.began(role, name, pid)

    # -------------------------------------------------------------------------------------- output and signals

    def _on_output(self, name: str, stream: int, data: bytes) -> None:
        if self._client is None:  # the coordinator starts: what it prints is for this process
            self._early[stream] += data
        else:
            self._host.output(name, stream, data)

    @contextlib.contextmanager
    def _watched_signals(self) -> Iterator[int]:
        """Take note of signals instead of dying; yields a descriptor that wakes the loop at one or at a child's end."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before: Dict[int, Any] = {}

        def note(number: int, frame: Optional[FrameType]) -> None:
            if number != signal.SIGCHLD:
                self._signals.append(number)

        for watched in (*FORWARDED, signal.SIGCHLD):
            if watched != signal.SIGHUP or signal.getsignal(watched) != signal.SIG_IGN:  # nohup stays in force
                before[watched] = signal.signal(watched, note)
        previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield read
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(read)
            os.close(write)
