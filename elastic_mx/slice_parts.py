"""Parts of slices that a script reads or writes beside its pushes and pulls: rows of values, and optimizer states."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from elastic_mx import wire
from elastic_mx.catalog import Key
from elastic_mx.worker_machine import Ticket
from elastic_mx.worker_thread import WorkerThread


class SliceParts:
    """Asks the servers for parts of slices, and gives them such, each after everything that the script began before.

    Args:
        thread: the worker's.
        must_be_member: returns once this worker is a member.
    """

    def __init__(self, thread: WorkerThread, must_be_member: Callable[[], None]) -> None:
        self._thread = thread
        self._machine, self._traffic, self._owner = thread.machine, thread.traffic, thread.catalog.owner
        self._must_be_member = must_be_member

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
                self._traffic.send(self._owner[s], message, arrays)
            with self._thread.changed:
                self._machine.completed(ticket.phase)

        self._in_turn(send)

    def _ask(self, questions: Sequence[Tuple[int, str, List[Any]]]) -> List[Tuple[Any, List[Any]]]:
        """Ask for parts of slices and wait for the answers, in order."""
        requests = [next(self._thread.requests) for _ in questions]

        def send(_: Ticket) -> None:
            for request, (s, what, frames) in zip(requests, questions):
                self._traffic.send(self._owner[s], wire.Ask(s, request, what), frames)

        ticket = self._in_turn(send)
        with self._thread.changed:
            try:
                self._thread.wait(lambda: all(request in self._traffic.answers for request in requests))
            finally:
                self._machine.completed(ticket.phase)
                self._thread.wake()
            return [self._traffic.answers.pop(request) for request in requests]

    def _in_turn(self, send: Callable[[Ticket], None]) -> Ticket:
        """Have the client's thread call `send` after everything that the script began before.

        The ticket has to be completed, which keeps the route until then.
        """
        self._must_be_member()
        with self._thread.changed:
            self._thread.wait(self._nothing_is_under_way)
            ticket = self._machine.begin_pull()
        self._thread.call(lambda: send(ticket))
        return ticket

    def _nothing_is_under_way(self) -> bool:
        return not any(self._machine.outstanding.values()) and self._machine.pending_switch is None
