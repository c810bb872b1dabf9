"""The thread of a worker's client: it alone touches the sockets, sends what is ready and takes in what comes.

What belongs to which step and generation is worker_machine.py's, how slices travel traffic.py's. The script's thread
comes in through worker.py.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

import zmq

from elastic_mx import messages as m
from elastic_mx import wire
from elastic_mx.callbacks import Callbacks
from elastic_mx.catalog import Catalog
from elastic_mx.data.job import Position
from elastic_mx.link import ControlLink, JobError
from elastic_mx.meter import Meter
from elastic_mx.settings import JobSettings, ProcessSettings
from elastic_mx.traffic import Channel, Operation, Traffic
from elastic_mx.worker_machine import WorkerMachine, WouldPass

logger = logging.getLogger("elastic_mx.worker")
REPORT_SECONDS = 0.5


class Released(SystemExit):
    """This worker was removed from its job and its script pushes on: the process ends, with status 0."""


class Forked(JobError):
    """This process is a fork of a worker: it has the worker's arrays, but neither its thread nor its channels."""


class WorkerThread:
    """One worker's connections to its job, and the thread that serves them from `start` on.

    The machine and what a script waits for are shared with its thread: `changed` is their lock, and is notified when
    any of it changes. Public methods may be called from any thread.

    Raises:
        Released: the job has no need of this worker.
        JobError: the coordinator refuses it.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self.name = settings.name
        self.changed = threading.Condition(threading.RLock())
        self.error: Optional[BaseException] = None
        self.requests = itertools.count(1)  # numbers for questions, so that answers are told apart
        self.placed: Dict[int, m.KeysPlaced] = {}
        self.replies: Dict[int, m.Reply] = {}
        self.joined: Optional[Position] = None  # where the script begins, once that is known
        self.finished = False  # the job has ended, or goes on without this worker
        self.steps_per_epoch = 0
        self.on_resize = Callbacks()
        self._incoming: Deque[Operation] = deque()
        self._held: List[Operation] = []
        self._calls: Deque[Callable[[], None]] = deque()
        self._closing = False
        self._begin: Optional[m.Begin] = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._awake = False
        self._context = zmq.Context()
        self.link = ControlLink(self._context, settings)
        self.link.register("worker")
        welcome = self.link.receive()
        if not isinstance(welcome, m.Welcome):
            logger.warning("%s is not needed any more", self.name)
            raise Released(0)
        self.welcome = welcome
        self.meter = Meter()
        self.catalog = Catalog(JobSettings(**welcome.settings).slice_bytes)
        for placed in welcome.keys:
            self.catalog.add(placed)
        self.machine = WorkerMachine(self.name, welcome.generation, welcome.joining)
        if welcome.restored is not None:
            self._begin_at(welcome.restored)
            self.machine.go_on(welcome.restored)
        self.traffic = Traffic(self._context, self.name, self.catalog, self._complete)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._poller.register(self.link.socket, zmq.POLLIN)
        for server, address in welcome.generation.servers.items():
            self._connect(server, address)
        self._thread = threading.Thread(target=self._run, name="elastic-mx", daemon=True)

    def start(self) -> None:
        self._thread.start()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """This process was just forked from the worker's: whatever needs the job raises from now on."""
        self.changed._at_fork_reinit()  # type: ignore[attr-defined]  # a thread that is not here may have held it
        self.error = Forked(
            f"process {os.getpid()} was forked from {self.name} and has no part in its job: "
            "use the store in the script's own process"
        )

    # ------------------------------------------------------------------------------------ for other threads

    @property
    def failed(self) -> bool:
        """Whether the job can go no further on this worker; what waited for answers was let go without."""
        return isinstance(self.error, JobError) and not isinstance(self.error, Forked)

    def submit(self, operation: Operation) -> None:
        """Hand an operation over whose arrays are ready; does not block."""
        self._incoming.append(operation)
        if self.failed:  # the thread that would send it has ended
            self._let_go(self._incoming)
        else:
            self.wake()

    def raise_error(self) -> None:
        """Raise what ended this worker's part in the job, if something has."""
        if self.error is not None:
            raise self.error

    def call(self, function: Callable[[], None]) -> None:
        """Have this thread call `function`; does not wait for it."""
        self._calls.append(function)
        self.wake()

    def tell(self, message: m.Message) -> None:
        """Have this thread send a message to the coordinator."""
        self.call(lambda: self.link.send(message))

    def wake(self) -> None:
        """Have this thread look at what has changed."""
        if not self._awake:
            self._awake = True
            os.write(self._wake_write, b"\0")

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait, with the lock held, until `condition`; raise what made it impossible."""
        while not condition():
            self.raise_error()
            self.changed.wait(1.0)

    def patiently(self, ask: Callable[[], Any]) -> Any:
        """Ask the machine, with the lock held, again and again until it answers."""
        started = time.monotonic()
        while True:
            self.raise_error()
            try:
                return ask()
            except WouldPass:
                self.changed.wait(1.0)
                self.meter.blocked(time.monotonic() - started)
                started = time.monotonic()

    def close(self, timeout: float) -> None:
        """Take leave once all operations are answered; wait for that, at most `timeout` seconds."""
        with self.changed:
            if self._closing or self.error is not None:
                return
            self._closing = True
            self.wake()
        self._thread.join(timeout)

    # -------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            logger.error("%s: %s", self.name, error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let every waiting operation go and every later call raise `error`."""
        with self.changed:
            self.error = error if isinstance(error, JobError) else JobError(f"{self.name}: {error!r}")
            self._let_go(deque([*self.traffic.unanswered(), *self._held]))
            self._let_go(self._incoming)
            self.changed.notify_all()

    @staticmethod
    def _let_go(operations: Deque[Operation]) -> None:
        """Let whatever waits for these go on; other threads may take from the same queue."""
        while operations:
            with contextlib.suppress(IndexError, RuntimeError):  # another thread took it, or it was done already
                operations.popleft().done()

    def _serve(self) -> None:
        next_report = 0.0
        while True:
            ready = dict(self._poller.poll(100))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            self._awake = False
            while self._calls:
                self._calls.popleft()()
            if self.link.socket in ready:
                self._drain_control()
            for channel in self.traffic.channels.values():
                if channel.socket in ready:
                    self._receive(channel)
            self._take_operations()
            self._switch()
            now = time.monotonic()
            if now >= next_report:
                self._report()
                next_report = now + REPORT_SECONDS
            if self._closing and self._leave_if_idle():
                return

    def _connect(self, server: str, address: str) -> None:
        if server not in self.traffic.channels:
            channel = self.traffic.connect(server, address)
            self._poller.register(channel.socket, zmq.POLLIN)

    # ---------------------------------------------------------------------------------------------- control

    def _drain_control(self) -> None:
        while True:
            message = self.link.receive(0)
            if message is None:
                return
            with self.changed:
                self._on_control(message)
                self.changed.notify_all()

    def _on_control(self, message: m.Message) -> None:
        machine = self.machine
        if isinstance(message, m.KeysPlaced):
            for placed in message.keys:
                self.catalog.add(placed)
            if message.request:
                self.placed[message.request] = message
        elif isinstance(message, m.Reply):
            self.replies[message.request] = message
        elif isinstance(message, m.Prepare):
            for server, address in message.generation.servers.items():
                self._connect(server, address)
            horizon = machine.prepare(message.generation, message.moves, self.meter.margin(), message.carry)
            self.link.send(m.Horizon(generation=message.generation.number, step=-1 if machine.joining else horizon))
            self.traffic.expect(message.moves, machine.joining)
        elif isinstance(message, m.Drop):
            machine.drop(message.generation)
        elif isinstance(message, m.Commit):
            machine.commit(message.generation, message.step)
            self.meter.change_at(message.generation, message.step)
            self._begin_if_told()
        elif isinstance(message, m.Begin):
            self._begin = message
            self._begin_if_told()
        elif isinstance(message, m.NewGeneration):
            workers, servers = len(machine.present_members()), len(machine.servers)
            self.on_resize.tell({"generation": message.generation, "workers": workers, "servers": servers})
        elif isinstance(message, m.Release):
            self.finished = True
            if machine.joining:
                self.error = Released(0)

    def _begin_if_told(self) -> None:
        begin, machine = self._begin, self.machine
        if begin is None or machine.plan is None or machine.plan.step is None:
            return
        self._begin = None
        moves = machine.begin(begin.position, begin.pushed)
        self.traffic.move(moves)
        self.traffic.cut = begin.generation
        self.finished = begin.finished
        self._begin_at(begin.position)

    def _begin_at(self, at: m.Position) -> None:
        self.joined = Position(at.epoch, at.epoch_step, at.step, at.groups)

    # ------------------------------------------------------------------------------------------- operations

    def _take_operations(self) -> None:
        """Send what is ready, many keys in one message; hold what belongs to a later phase."""
        for _ in range(len(self._incoming)):
            self._held.append(self._incoming.popleft())
        if not self._held:
            return
        now = time.monotonic()
        later = []
        for operation in self._held:
            if operation.ticket.phase != self.machine.routing or self.traffic.busy(operation):
                later.append(operation)
            else:
                self.meter.sent(operation.ticket.step, now)
                self.traffic.start(operation)
        self._held = later  # not before: where a start fails, `_fail` lets go of all of them
        self.traffic.flush()

    def _complete(self, operation: Operation) -> None:
        operation.done()
        with self.changed:
            self.machine.completed(operation.ticket.phase)
            self.changed.notify_all()
        self.meter.answered(operation.ticket.step, time.monotonic())

    def _receive(self, channel: Channel) -> None:
        if self.traffic.receive(channel):
            with self.changed:
                self.changed.notify_all()

    # ------------------------------------------------------------------------------------------- generations

    def _switch(self) -> None:
        with self.changed:
            switch = self.machine.take_switch()
            pushed = list(self.machine.order) if switch is not None else []
        if switch is None:
            return
        number = switch.generation.number
        for server in switch.servers:
            self.traffic.send(server, wire.Marker(number))
        self.traffic.move(switch.moves)
        self.link.send(m.Switched(generation=number, position=switch.position, pushed=pushed))
        self._take_operations()

    def _report(self) -> None:
        epochs = self.machine.epochs_trained(self.steps_per_epoch)
        self.link.send(m.Report(progress=self.meter.progress(self.machine.begun, epochs)))
        for settled in self.meter.settled(self.machine.begun, self._closing):
            self.link.send(settled)

    def _leave_if_idle(self) -> bool:
        """Take leave once nothing waits to be sent or answered; tells whether that is done."""
        if self._calls or self._incoming or self._held or self.traffic.unanswered():
            return False
        lost = sum(self.machine.outstanding.values())
        if lost:  # the engine is idle by now, so they are nowhere
            logger.error("%s: MXNet dropped %d operations after a failure of its own", self.name, lost)
            self.error = JobError(f"{self.name}: MXNet dropped {lost} operations after a failure of its own")
        self._switch()
        self._report()
        for channel in self.traffic.channels.values():
            self.traffic.send(channel.server, wire.Leave())
            channel.socket.close()
        self.link.send(m.Goodbye(told=list(self.traffic.channels)))
        self.link.socket.close()
        self._context.term()
        return True
