"""What a script's stores do when membership changes: a joining worker's script gets the job's state before it computes.

Called by worker.py at the points its docstrings tell; what is brought over is carry.py's.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from elastic_mx import carry
from elastic_mx.messages import KeySpec
from elastic_mx.worker_machine import Ticket


class Stores:
    """All stores of this process's script, in the order of their numbers."""

    def __init__(self, worker: Any, names: List[str]) -> None:
        self.worker = worker
        self.names = names
        self.stores: Dict[int, Any] = {}
        self._received: Dict[int, bool] = {}
        self._snapshot: Dict[Tuple[int, str], Any] = {}

    def before_ready(self) -> None:
        """A joining worker is about to say that it is ready: make the stores that its Trainers will use.

        So that the Trainers' parameters exist, and are filled, before the first forward pass, not after it.
        """
        for trainer in carry.waiting_trainers(self.names):
            number = next((n for n, shapes in self._shapes().items() if carry.fits(trainer, shapes)), None)
            if number is None or number in self.stores:
                continue
            carry.finish_initialization(trainer, self._shapes()[number])
            self.worker.next_store = number
            trainer._init_kvstore()
            # Trainer refuses another scale than the one that it began with, and it began before its first step.
            attributes = self.worker.optimizers.get(number, {}).get("attributes", {})
            trainer._optimizer.rescale_grad = attributes.get("rescale_grad", trainer._optimizer.rescale_grad)

    def _shapes(self) -> Dict[int, Dict[str, Tuple[int, ...]]]:
        """The shapes of the job's keys, by store."""
        found: Dict[int, Dict[str, Tuple[int, ...]]] = {}
        for (store, name), key in sorted(self.worker.catalog.known()):
            found.setdefault(store, {})[name] = key.spec.shape
        return found

    def receive(self) -> None:
        """Fill what this worker's Trainers and Modules have by now with the job's state, each once."""
        for number, store in list(self.stores.items()):
            user = None if self._received.get(number) else carry.user_of(store)
            if user is None:
                continue
            self._received[number] = True
            if isinstance(user, mx.gluon.Trainer) and user._params_to_init:
                user._init_params()
            carried = carry.carried(user, create=True)
            if carried:
                self._define(store, carried)
                for item in carried:
                    store.pull_named(item.name, [item.array, *item.copies])
            if carry.updates_on_workers(user):
                counts = mx.nd.zeros((carry.number_of_indices(user) + 1,), dtype="int64")
                self.worker.define([self._counts_key(number, user)])
                store.pull_named(carry.COUNTS, [counts])
                carry.set_counts(user, counts.asnumpy())

    def snapshot(self) -> None:
        """A step has ended and what it leaves is sent later, when the next forward pass has changed statistics."""
        for number, store in list(self.stores.items()):
            user = carry.user_of(store)
            for item in carry.unpushed(user) if user is not None else ():
                self._snapshot[number, item.name] = item.array.copy()

    def send(self, ticket: Ticket) -> None:
        """This worker speaks for the members: store what no push carries, before it takes leave of a generation."""
        for store in list(self.stores.values()):
            user = carry.user_of(store)
            if user is None:
                continue
            carried = carry.carried(user)
            self._define(store, carried)
            for item in carried:
                array = self._snapshot.pop((store.number, item.name), item.array)
                store.init_named(item.name, array, self.worker.begin_last_word(ticket))
            if carry.updates_on_workers(user):
                counts = carry.counts(user, carry.number_of_indices(user))
                self.worker.define([self._counts_key(store.number, user)])
                last = self.worker.begin_last_word(ticket)
                store.init_named(carry.COUNTS, mx.nd.array(counts, dtype="int64"), last)

    def updates_on_workers(self) -> bool:
        """Whether some store's weights are updated by the workers, so that they are complete only after the step."""
        users = (carry.user_of(store) for store in list(self.stores.values()))
        return any(user is not None and carry.updates_on_workers(user) for user in users)

    def _define(self, store: Any, carried: List[carry.Carried]) -> None:
        self.worker.define(
            [
                KeySpec(store.number, c.name, tuple(c.array.shape), np.dtype(c.array.dtype).name, False)
                for c in carried
                if (store.number, c.name) not in self.worker.catalog.keys
            ]
        )

    def _counts_key(self, number: int, user: Any) -> KeySpec:
        return KeySpec(number, carry.COUNTS, (carry.number_of_indices(user) + 1,), "int64", True)

    @staticmethod
    def gradients_are_computed() -> bool:
        """Whether a Trainer's step is on the call stack: what it pushes was computed before it had these weights."""
        codes = {mx.gluon.Trainer.step.__code__, mx.gluon.Trainer.allreduce_grads.__code__}
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code in codes:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False
