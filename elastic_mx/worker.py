"""A worker's client: the operations of a script's kvstore, carried to the servers and back by one thread.

What belongs to which step and generation is worker_machine.py's; what MXNet calls is kvstore.py's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import zmq

from elastic_mx import messages as m
from elastic_mx import wire
from elastic_mx.catalog import Catalog, Key
from elastic_mx.data.job import Limits, Position, Retired, Share
from elastic_mx.link import ControlLink, JobError
from elastic_mx.meter import Meter
from elastic_mx.settings import JobSettings, ProcessSettings
from elastic_mx.traffic import Channel, Item, Operation, Traffic
from elastic_mx.worker_machine import NotAMember, Ticket, WorkerMachine, WouldPass

logger = logging.getLogger("elastic_mx.worker")
REPORT_SECONDS = 0.5


class Released(SystemExit):
    """This worker was removed from its job and its script pushes on: the process ends, with status 0."""


class Worker:
    """This process as a worker of its job. One instance per process; its methods may be called from any thread."""

    def __init__(self, settings: ProcessSettings) -> None:
        self.name = settings.name
        self._settings = settings
        self._context = zmq.Context()
        self._incoming: Deque[Operation] = deque()
        self._held: List[Operation] = []
        self._calls: Deque[Callable[[], None]] = deque()
        self._replies: Dict[int, m.Reply] = {}
        self._changed = threading.Condition(threading.RLock())
        self._error: Optional[BaseException] = None
        self._closing = False
        self._joined: Optional[Position] = None
        self._steps_per_epoch = 0
        self._placed: Dict[int, m.KeysPlaced] = {}
        self._request = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._awake = False
        self.meter = Meter()
        self._begin: Optional[m.Begin] = None
        self.finished = False
        self.stores: Any = None
        self.next_store = 0
        self._received = True
        self._skipping: Optional[Set[int]] = None
        self._known_at_start: Set[int] = set()
        self._link = ControlLink(self._context, settings)
        self._link.register("worker")
        welcome = self._link.receive()
        if not isinstance(welcome, m.Welcome):
            logger.warning("%s is not needed any more", self.name)
            raise Released(0)
        self.job = JobSettings(**welcome.settings)
        self.catalog = Catalog(self.job.slice_bytes)
        self._traffic = Traffic(self._context, self.name, self.catalog, self._complete)
        self.machine = WorkerMachine(self.name, welcome.generation, welcome.joining)
        for placed in welcome.keys:
            self.catalog.add(placed)
        self._restored = welcome.restored is not None
        if welcome.restored is not None:
            at = welcome.restored
            self._joined = Position(at.epoch, at.epoch_step, at.step, at.groups)
            self.machine.go_on(at)
        self.optimizers = {optimizer.store: optimizer.description for optimizer in welcome.optimizers}
        self._spoken = -1
        self._on_resize: List[Callable[[Dict[str, Any]], None]] = []
        for server, address in welcome.generation.servers.items():
            self._connect(server, address)
        self._thread = threading.Thread(target=self._run, name="elastic-mx", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------ for the script's thread

    @property
    def rank(self) -> int:
        """This worker's number among the workers of the step it is in; 0 while it is joining."""
        with self._changed:
            members = self._membership().workers
            return members.index(self.name) if self.name in members else 0

    @property
    def num_workers(self) -> int:
        with self._changed:
            return len(self._membership().workers)

    @property
    def failed(self) -> bool:
        """Whether the job can go no further on this worker; what waited for answers was let go without."""
        return isinstance(self._error, JobError)

    def _membership(self) -> m.Generation:
        machine = self.machine
        if machine.joining:
            return m.Generation(0, (self.name,), {})
        return machine.membership(max(machine.begun, 0))

    def define(self, specs: Sequence[m.KeySpec]) -> List[Key]:
        """Make keys known to the job, or learn where they are; returns them in order.

        Raises:
            JobError: a key is known with another shape or dtype.
        """
        known = [self.catalog.keys.get((spec.store, spec.key)) for spec in specs]
        if all(key is not None and key.spec == spec for key, spec in zip(known, specs)):
            return known  # type: ignore[return-value]
        with self._changed:
            self._request += 1
            request = self._request
            self._call(lambda: self._link.send(m.DefineKeys(request=request, keys=list(specs))))
            self._wait(lambda: request in self._placed)
            del self._placed[request]
            return [self.catalog.keys[spec.store, spec.key] for spec in specs]

    def join(self, limits: Limits) -> Position:
        """Become a member if this worker is none yet; see `elastic_mx.data.job.Job.join`."""
        joining = self.machine.joining or self._restored
        self._restored = False
        if joining and self.stores is not None:
            self.stores.before_ready()
            self._known_at_start = {key.first for key in self.catalog.keys.values()}
            self._received = False
        self._steps_per_epoch = limits.steps_per_epoch or self._steps_per_epoch
        ready = m.Ready(max_workers=limits.max_workers or 0)
        with self._changed:
            self._call(lambda: self._link.send(ready))
            self._wait(lambda: not self.machine.joining)
            if self._joined is None:
                self._joined = Position(step=self.machine.begun + 1, history=((0, self.num_workers),))
        if self.finished:
            logger.warning("%s: the other workers finished while it was starting; nothing is left to train", self.name)
            raise Released(0)
        if joining and self.stores is not None:
            if self.stores.gradients_are_computed():
                self._skipping = set()
            self.stores.receive()
        return self._joined

    def deal(self, step: int) -> Share:
        """The membership of `step`; see `elastic_mx.data.job.Job.deal`."""
        if not self._received:
            self._received = True
            self.stores.receive()
        with self._changed:
            generation = self._patiently(lambda: self.machine.deal(step))
        if self.name not in generation.workers or self.finished:
            raise Retired(f"{self.name} is no member at step {step}")
        return Share(generation.workers.index(self.name), len(generation.workers), generation.number)

    def epoch_began(self, epoch: int, step: int) -> None:
        with self._changed:
            self.machine.epoch_began(epoch, step)

    def step(self) -> Optional[int]:
        with self._changed:
            return self.machine.begun + 1

    def add_store(self, store: Any) -> int:
        """A script's store begins; return its number, by which its keys are told from another's."""
        number = self.next_store
        self.next_store += 1
        while self.next_store in self.stores.stores:
            self.next_store += 1
        self.stores.stores[number] = store
        return number

    def speaks_first_for(self, key: Key) -> bool:
        """Whether this worker is the one whose value a new key begins with."""
        known = self._restored or key.first in self._known_at_start
        return not self.machine.joining and self.rank == 0 and not known

    def begin_push(self, keys: Sequence[Key]) -> Optional[Ticket]:
        """A push of `keys` begins: which step and generation it belongs to.

        Returns:
            None where nothing is to be pushed: a joining worker's gradients of before it had the job's weights.

        Raises:
            Released: this worker has no part in that step.
        """
        self._must_be_member()
        numbers = [key.first for key in keys]
        if self._skipping is not None:
            if not self._skipping.intersection(numbers):
                self._skipping.update(numbers)
                return None
            self._skipping = None
        with self._changed:
            try:
                ticket = self._patiently(lambda: self.machine.begin_push(numbers))
            except NotAMember:
                self._wake()
                raise Released(0) from None
            finally:
                last_words = self._last_words()
        self._speak(last_words)
        self.meter.step_began(ticket.step, time.monotonic())
        return ticket

    def begin_last_word(self, ticket: Ticket) -> Ticket:
        """One more value goes out before the switch that `ticket` holds."""
        with self._changed:
            self.machine.hold(ticket.phase)
            return ticket

    def _last_words(self) -> Optional[Ticket]:
        """If the machine has just changed its phase and this worker speaks for the members, hold the switch.

        Called with the lock held. Returns the ticket under which to send what no push carries, before the markers.
        """
        plan, phase = self.machine.pending_switch, self.machine.routing
        if plan is None or self.stores is None or plan.generation.number == self._spoken:
            return None
        self._spoken = plan.generation.number
        before = self.machine.workers_before(plan.generation.number)
        staying = [worker for worker in before if worker in plan.generation.workers]
        if not plan.carry or (staying or before)[0] != self.name:
            return None
        self.machine.hold(phase)
        assert plan.step is not None
        return Ticket(phase, phase, plan.step - 1)

    def _speak(self, ticket: Optional[Ticket]) -> None:
        """Send what no push carries, then let the switch happen."""
        if ticket is None:
            return
        try:
            self.stores.send(ticket)
        finally:
            with self._changed:
                self.machine.completed(ticket.phase)
                self._wake()

    def begin_pull(self) -> Ticket:
        """A pull begins: how it is routed. A joining worker becomes a member first."""
        self._must_be_member()
        with self._changed:
            if self._error is not None:
                raise self._error
            return self.machine.begin_pull()

    def begin_more(self, ticket: Ticket) -> Ticket:
        """One more operation of the call that `ticket` began."""
        with self._changed:
            self.machine.begin_more(ticket)
            return ticket

    def _must_be_member(self) -> None:
        if self.machine.joining or self._restored:
            self.join(Limits())

    def end_call(self) -> None:
        """All operations of a script's call have begun."""
        with self._changed:
            late = self.machine.may_end_step() and self._must_switch_late()
            if not late:
                self.machine.end_call()
            last_words = self._last_words()
            if self.machine.pending_switch is not None:
                self._wake()
        if late:
            self.stores.snapshot()
        self._speak(last_words)

    def _must_switch_late(self) -> bool:
        """Whether weights have to be carried that are complete only once this step's update is under way."""
        plan = self.machine.plan
        assert plan is not None
        return plan.carry and self.stores is not None and bool(self.stores.updates_on_workers())

    def submit(self, operation: Operation) -> None:
        """Hand an operation over whose arrays are ready. May be called from any thread; does not block."""
        self._incoming.append(operation)
        if self.failed:  # the thread that would send it has ended
            self._let_go(self._incoming)
        else:
            self._wake()

    def pull_rows(self, key: Key, rows: np.ndarray) -> np.ndarray:
        """Rows of a key's value after this worker's pushes so far; waits for them.

        Args:
            rows: their numbers, int64, rising, without repetition.

        Returns:
            Their values, of shape (len(rows), ...).
        """
        per_slice = []
        for s, (start, stop) in zip(key.slices, key.rows):
            first, last = np.searchsorted(rows, (start, stop))
            if last > first:
                per_slice.append((s, np.ascontiguousarray(rows[first:last] - start)))
        answers = self._ask([(s, "rows", [numbers]) for s, numbers in per_slice])
        shape = key.spec.shape[1:]
        parts = [np.frombuffer(frames[0].buffer, key.dtype).reshape(-1, *shape) for _, frames in answers]
        return np.concatenate(parts) if parts else np.empty((0, *shape), key.dtype)

    def pull_states(self, keys: Sequence[Key]) -> Dict[int, Tuple[Any, List[bytes]]]:
        """The optimizer states of the slices of `keys`, by slice: a structure and the bytes of its arrays."""
        slices = [s for key in keys for s in key.slices]
        answers = self._ask([(s, "state", []) for s in slices])
        return {s: (structure, [f.bytes for f in frames]) for s, (structure, frames) in zip(slices, answers)}

    def push_states(self, states: Dict[int, Tuple[Any, List[bytes]]]) -> None:
        """Make `states`, as `pull_states` returned them, the optimizer states of those slices."""

        def send(ticket: Ticket) -> None:
            for s, (structure, arrays) in states.items():
                message = wire.LoadState(s, structure)
                self._traffic.send(self.catalog.owner[s], message, arrays)
            with self._changed:
                self.machine.completed(ticket.phase)

        self._in_turn(send)

    def _ask(self, questions: Sequence[Tuple[int, str, List[Any]]]) -> List[Tuple[Any, List[Any]]]:
        """Ask for parts of slices and wait for the answers, in order."""
        requests = list(range(self._request + 1, self._request + 1 + len(questions)))
        self._request += len(questions)

        def send(_: Ticket) -> None:
            for request, (s, what, frames) in zip(requests, questions):
                self._traffic.send(self.catalog.owner[s], wire.Ask(s, request, what), frames)

        ticket = self._in_turn(send)
        with self._changed:
            try:
                self._wait(lambda: all(request in self._traffic.answers for request in requests))
            finally:
                self.machine.completed(ticket.phase)
                self._wake()
            return [self._traffic.answers.pop(request) for request in requests]

    def _in_turn(self, send: Callable[[Ticket], None]) -> Ticket:
        """Have the client's thread call `send` after everything that the script began before.

        The ticket has to be completed, which keeps the route until then.
        """
        self._must_be_member()
        with self._changed:
            self._wait(lambda: not any(self.machine.outstanding.values()) and self.machine.pending_switch is None)
            ticket = self.machine.begin_pull()
        self._call(lambda: send(ticket))
        return ticket

    def residual(self, key: Key) -> Optional[np.ndarray]:
        """What compression has kept back of a key (flat); None where there is none. Wait for its pushes first."""
        return self._traffic.residuals.get(key.first)

    def barrier(self, store: int) -> None:
        """Wait until every member has come here: a round of a key of its own, which begins no step."""
        key = self.define([m.KeySpec(store, "b:barrier", (1,), "float32", True)])[0]
        if self.speaks_first_for(key):
            first = [Item(key, push=np.zeros(1, np.float32))]
            self.submit(Operation(lambda: first, self.begin_pull(), _nothing, init=True))
        done = threading.Event()
        round_ = [Item(key, push=np.ones(1, np.float32), pull=np.empty(1, np.float32))]
        self.submit(Operation(lambda: round_, self.begin_pull(), done.set, key.slices))
        while not done.wait(1.0):
            if self._error is not None:
                raise self._error

    def status(self) -> Dict[str, Any]:
        """The job as its coordinator sees it, see `JobState.status`."""
        with self._changed:
            self._request += 1
            request = self._request
            self._call(lambda: self._link.send(m.Status(request=request)))
            self._wait(lambda: request in self._replies)
            return self._replies.pop(request).body

    def set_optimizer(self, store: int, description: Dict[str, Any]) -> None:
        """Give a store's servers their optimizer; the first worker's word counts."""
        if self.machine.joining or self.rank != 0:
            return

        def send() -> None:
            self._link.send(m.SetOptimizer(store=store, description=description))
            for server in self._traffic.channels:
                self._traffic.send(server, wire.SetStoreOptimizer(store, description))

        self._call(send)

    def on_resize(self, callback: Callable[[Dict[str, Any]], None]) -> None:
        """Have `callback` called on the client's thread whenever a generation is in force."""
        self._on_resize.append(callback)

    def close(self, timeout: float = 30.0) -> None:
        """The script has ended and MXNet's engine is idle: wait until the operations are answered, and take leave."""
        with self._changed:
            if self._closing or self._error is not None:
                return
            self._closing = True
            self._wake()
        self._thread.join(timeout)

    # ---------------------------------------------------------------------------------------------- waiting

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait, with the lock held, until `condition`; raise what made it impossible."""
        while not condition():
            if self._error is not None:
                raise self._error
            self._changed.wait(1.0)

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        started = time.monotonic()
        while True:
            if self._error is not None:
                raise self._error
            try:
                return ask()
            except WouldPass:
                self._changed.wait(1.0)
                self.meter.blocked(time.monotonic() - started)
                started = time.monotonic()

    def _call(self, function: Callable[[], None]) -> None:
        """Have the client's thread call `function`: sockets are its alone."""
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            os.write(self._wake_write, b"\0")

    # --------------------------------------------------------------------------------------- the client's thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            logger.error("%s: %s", self.name, error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let every waiting operation go and every later call raise `error`."""
        with self._changed:
            self._error = error if isinstance(error, JobError) else JobError(f"{self.name}: {error!r}")
            self._let_go(deque([*self._traffic.unanswered(), *self._held]))
            self._let_go(self._incoming)
            self._changed.notify_all()

    @staticmethod
    def _let_go(operations: Deque[Operation]) -> None:
        """Let whatever waits for these go on; other threads may take from the same queue."""
        while operations:
            with contextlib.suppress(IndexError, RuntimeError):  # another thread took it, or it was done already
                operations.popleft().done()

    def _serve(self) -> None:
        self._poller = zmq.Poller()
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._poller.register(self._link.socket, zmq.POLLIN)
        for channel in self._traffic.channels.values():
            self._poller.register(channel.socket, zmq.POLLIN)
        next_report = 0.0
        while True:
            ready = dict(self._poller.poll(100))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            self._awake = False
            while self._calls:
                self._calls.popleft()()
            if self._link.socket in ready:
                self._drain_control()
            for channel in self._traffic.channels.values():
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
        if server not in self._traffic.channels:
            channel = self._traffic.connect(server, address)
            if hasattr(self, "_poller"):
                self._poller.register(channel.socket, zmq.POLLIN)

    # ---------------------------------------------------------------------------------------------- control

    def _drain_control(self) -> None:
        while True:
            message = self._link.receive(0)
            if message is None:
                return
            with self._changed:
                self._on_control(message)
                self._changed.notify_all()

    def _on_control(self, message: m.Message) -> None:
        machine = self.machine
        if isinstance(message, m.KeysPlaced):
            for placed in message.keys:
                self.catalog.add(placed)
            self._placed[message.request] = message
        elif isinstance(message, m.Reply):
            self._replies[message.request] = message
        elif isinstance(message, m.Prepare):
            for server, address in message.generation.servers.items():
                self._connect(server, address)
            horizon = machine.prepare(message.generation, message.moves, self.meter.margin(), message.carry)
            self._link.send(m.Horizon(generation=message.generation.number, step=-1 if machine.joining else horizon))
            self._traffic.expect(message.moves, machine.joining)
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
            for callback in self._on_resize:
                callback(
                    {
                        "generation": message.generation,
                        "workers": self.num_workers,
                        "servers": len(machine.servers),
                    }
                )
        elif isinstance(message, m.Release):
            self.finished = True
            if machine.joining:
                self._error = Released(0)

    def _begin_if_told(self) -> None:
        begin, machine = self._begin, self.machine
        if begin is None or machine.plan is None or machine.plan.step is None:
            return
        self._begin = None
        moves = machine.begin(begin.position, begin.pushed)
        self._traffic.move(moves)
        self._traffic.cut = begin.generation
        self.finished = begin.finished
        at = begin.position
        self._joined = Position(at.epoch, at.epoch_step, at.step, at.groups)

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
            if operation.ticket.phase != self.machine.routing or self._traffic.busy(operation):
                later.append(operation)
            else:
                self.meter.sent(operation.ticket.step, now)
                self._traffic.start(operation)
        self._held = later  # not before: where a start fails, `_fail` lets go of all of them
        self._traffic.flush()

    def _complete(self, operation: Operation) -> None:
        operation.done()
        with self._changed:
            self.machine.completed(operation.ticket.phase)
            self._changed.notify_all()
        self.meter.answered(operation.ticket.step, time.monotonic())

    def _receive(self, channel: Channel) -> None:
        if self._traffic.receive(channel):
            with self._changed:
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------- generations

    def _switch(self) -> None:
        with self._changed:
            switch = self.machine.take_switch()
            pushed = list(self.machine.order)
        if switch is None:
            return
        number = switch.generation.number
        for server in switch.servers:
            self._traffic.send(server, wire.Marker(number))
        self._traffic.move(switch.moves)
        position = switch.position
        self._link.send(
            m.Switched(
                generation=number,
                position=m.Position(position.epoch, position.epoch_step, position.step),
                pushed=pushed,
            )
        )
        self._take_operations()

    def _report(self) -> None:
        epochs = self.machine.epochs_trained(self._steps_per_epoch)
        self._link.send(m.Report(progress=self.meter.progress(self.machine.begun, epochs)))
        for settled in self.meter.settled(self.machine.begun, self._closing):
            self._link.send(settled)

    def _leave_if_idle(self) -> bool:
        """Take leave once nothing waits to be sent or answered; tells whether that is done."""
        if self._calls or self._incoming or self._held or self._traffic.unanswered():
            return False
        lost = sum(self.machine.outstanding.values())
        if lost:  # the engine is idle by now, so they are nowhere
            logger.error("%s: MXNet dropped %d operations after a failure of its own", self.name, lost)
            self._error = JobError(f"{self.name}: MXNet dropped {lost} operations after a failure of its own")
        self._switch()
        self._report()
        for channel in self._traffic.channels.values():
            self._traffic.send(channel.server, wire.Leave())
            channel.socket.close()
        self._link.send(m.Goodbye(told=list(self._traffic.channels)))
        self._link.socket.close()
        self._context.term()
        return True


def _nothing() -> None:
    """What to call when nobody waits for an operation."""
