"""A script's side of a worker's client: which step and membership its calls belong to, and what they wait for.

What belongs to which step and generation is worker_machine.py's; worker_thread.py carries the operations to the servers
and back; what MXNet calls is kvstore.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import numpy as np

from elastic_mx import messages as m
from elastic_mx import wire
from elastic_mx.catalog import Key
from elastic_mx.data.job import Limits, Position, Retired, Share
from elastic_mx.settings import ProcessSettings
from elastic_mx.slice_parts import SliceParts
from elastic_mx.traffic import Item, Operation
from elastic_mx.worker_machine import NotAMember, Ticket
from elastic_mx.worker_thread import Released, WorkerThread

logger = logging.getLogger("elastic_mx.worker")


class Worker:
    """This process as a worker of its job. One instance per process; its methods may be called from any thread."""

    def __init__(self, settings: ProcessSettings) -> None:
        self.name = settings.name
        self._thread = WorkerThread(settings)
        self._changed = self._thread.changed
        self.machine, self.catalog, self.meter = self._thread.machine, self._thread.catalog, self._thread.meter
        self.parts = SliceParts(self._thread, self._must_be_member)
        self.stores: Any = None
        self.next_store = 0
        welcome = self._thread.welcome
        self.optimizers = {optimizer.store: optimizer.description for optimizer in welcome.optimizers}
        self._restored = welcome.restored is not None
        self._received = True
        self._skipping: Optional[Set[int]] = None
        self._known_at_start: Set[int] = set()
        self._spoken = -1
        self._thread.start()

    @property
    def rank(self) -> int:
        """This worker's number among the workers of the step it is in; 0 while it is joining."""
        with self._changed:
            members = self.machine.present_members()
            return members.index(self.name) if self.name in members else 0

    @property
    def num_workers(self) -> int:
        with self._changed:
            return len(self.machine.present_members())

    @property
    def failed(self) -> bool:
        """Whether the job can go no further on this worker; what waited for answers was let go without."""
        return self._thread.failed

    def define(self, specs: Sequence[m.KeySpec]) -> List[Key]:
        """Make keys known to the job, or learn where they are; returns them in order.

        Raises:
            JobError: a key is known with another shape or dtype.
        """
        known = [self.catalog.keys.get((spec.store, spec.key)) for spec in specs]
        if all(key is not None and key.spec == spec for key, spec in zip(known, specs)):
            return known  # type: ignore[return-value]
        with self._changed:
            request = next(self._thread.requests)
            self._thread.tell(m.DefineKeys(request=request, keys=list(specs)))
            self._thread.wait(lambda: request in self._thread.placed)
            del self._thread.placed[request]
            return [self.catalog.keys[spec.store, spec.key] for spec in specs]

    def join(self, limits: Limits) -> Position:
        """Become a member if this worker is none yet; see `elastic_mx.data.job.Job.join`."""
        joining = self.machine.joining or self._restored
        self._restored = False
        if joining and self.stores is not None:
            self.stores.before_ready()
            self._known_at_start = {key.first for _, key in self.catalog.known()}
            self._received = False
        self._thread.steps_per_epoch = limits.steps_per_epoch or self._thread.steps_per_epoch
        ready = m.Ready(max_workers=limits.max_workers or 0)
        with self._changed:
            self._thread.tell(ready)
            self._thread.wait(lambda: not self.machine.joining)
            if self._thread.joined is None:
                self._thread.joined = Position(step=self.machine.begun + 1, history=((0, self.num_workers),))
        if self._thread.finished:
            logger.warning("%s: the other workers finished while it was starting; nothing is left to train", self.name)
            raise Released(0)
        if joining and self.stores is not None:
            if self.stores.gradients_are_computed():
                self._skipping = set()
            self.stores.receive()
        return self._thread.joined

    def deal(self, step: int) -> Share:
        """The membership of `step`; see `elastic_mx.data.job.Job.deal`."""
        if not self._received:
            self._received = True
            self.stores.receive()
        with self._changed:
            generation = self._thread.patiently(lambda: self.machine.deal(step))
        if self.name not in generation.workers or self._thread.finished:
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
                ticket = self._thread.patiently(lambda: self.machine.begin_push(numbers))
            except NotAMember:
                self._thread.wake()
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
                self._thread.wake()

    def begin_pull(self) -> Ticket:
        """A pull begins: how it is routed. A joining worker becomes a member first."""
        self._must_be_member()
        with self._changed:
            self._thread.raise_error()
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
                self._thread.wake()
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
        self._thread.submit(operation)

    def residual(self, key: Key) -> Optional[np.ndarray]:
        """What compression has kept back of a key (flat); None where there is none. Wait for its pushes first."""
        return self._thread.traffic.residuals.get(key.first)

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
            self._thread.raise_error()

    def status(self) -> Dict[str, Any]:
        """The job as its coordinator sees it, see `JobState.status`."""
        with self._changed:
            request = next(self._thread.requests)
            self._thread.tell(m.Status(request=request))
            self._thread.wait(lambda: request in self._thread.replies)
            return self._thread.replies.pop(request).body

    def set_optimizer(self, store: int, description: Dict[str, Any]) -> None:
        """Give a store's servers their optimizer; the first worker's word counts."""
        if self.machine.joining or self.rank != 0:
            return

        def send() -> None:
            self._thread.link.send(m.SetOptimizer(store=store, description=description))
            for server in self._thread.traffic.channels:
                self._thread.traffic.send(server, wire.SetStoreOptimizer(store, description))

        self._thread.call(send)

    def on_resize(self, callback: Callable[[Dict[str, Any]], None]) -> None:
        """Have `callback` called, on a thread of its own, whenever a generation is in force."""
        self._thread.on_resize.add(callback)

    def close(self, timeout: float = 30.0) -> None:
        """The script has ended and MXNet's engine is idle: wait until the operations are answered, and take leave."""
        self._thread.close(timeout)


def _nothing() -> None:
    """What to call when nobody waits for an operation."""
