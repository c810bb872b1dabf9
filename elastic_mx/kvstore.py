"""The kvstores `dist_elastic` and `dist_elastic_async`, as MXNet calls them; the client behind them is worker.py's."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray.sparse import BaseSparseNDArray

from elastic_mx import carry, data, engine, optimizers, states, uncaught
from elastic_mx.calls import Arrays, arrays_of, dense, items_of, names_of, once, sum_of
from elastic_mx.catalog import Key
from elastic_mx.compression import Compression, from_parameters
from elastic_mx.joining import Stores
from elastic_mx.link import JobError
from elastic_mx.messages import KeySpec
from elastic_mx.settings import ProcessSettings
from elastic_mx.traffic import Item, Operation
from elastic_mx.worker import Worker
from elastic_mx.worker_machine import Ticket

NAMES = ("dist_elastic", "dist_elastic_sync", "dist_elastic_async")
DROP_IN_NAMES = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device", "dist_async", "dist_device_async")

GROUP_BYTES = 4 << 20


@dataclass
class _Group:
    """Keys of a call that go in one operation: what keeps them in order, their slices, and their range in the call."""

    keys: List[Key]
    orders: List[engine.Variable]
    slices: List[int]
    range: slice
    nbytes: int

    def add(self, one: _Group) -> None:
        self.keys += one.keys
        self.orders += [order for order in one.orders if order not in self.orders]
        self.slices += one.slices
        self.range = slice(self.range.start, self.range.stop + 1)
        self.nbytes += one.nbytes


_worker: Optional[Worker] = None


def worker() -> Worker:
    """This process's client; it is connected at the first call.

    Raises:
        JobError: the script was not started by a launcher.
    """
    global _worker
    if _worker is None:
        settings = ProcessSettings.from_environment()
        if settings is None or not settings.trace:
            uncaught.tell_in_one_line()
        if settings is None:
            raise JobError(
                "this script uses a dist_elastic store but belongs to no job: "
                "start it with elastic-mx launch -n WORKERS -s SERVERS -- python SCRIPT"
            )
        _worker = Worker(settings)
        _worker.stores = Stores(
            _worker, [n for n, c in KVStoreBase.kv_registry.items() if issubclass(c, ElasticKVStore)]
        )
        atexit.register(_close)
    return _worker


def _close() -> None:
    mx.nd.waitall()
    if _worker is not None:
        _worker.close()


def _end_as_it_went() -> None:
    """The last thing at exit: a script whose job failed under it has not succeeded, whatever it computed since."""
    if _worker is not None and _worker.failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class ElasticKVStore(KVStore):
    """A distributed kvstore whose servers and workers change while it is used; the calls are MXNet's KVStore's."""

    asynchronous = False

    def __init__(self) -> None:
        self.handle = None
        self._worker = worker()
        self.number = self._worker.add_store(self)
        self.user: Optional[weakref.ref[Any]] = carry.caller()
        self._order: Dict[str, engine.Variable] = {}
        self._known_groups: Dict[Tuple[Any, ...], List[_Group]] = {}
        self._optimizer: Any = None
        self._whole = False
        self._compression: Optional[Compression] = None
        self._updater: Any = None

    def __del__(self) -> None:
        """Nothing to free: there is no handle."""

    # ------------------------------------------------------------------------------------------- properties

    @property
    def type(self) -> str:
        return "dist_elastic_async" if self.asynchronous else "dist_elastic_sync"

    @property
    def rank(self) -> int:
        return self._worker.rank

    @property
    def num_workers(self) -> int:
        return self._worker.num_workers

    @staticmethod
    def is_capable(capability: str) -> bool:
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise mx.base.MXNetError(f"Unknown capability: {capability}")

    # ---------------------------------------------------------------------------------------------- calls

    def init(self, key: Any, value: Any) -> None:
        """Define keys with their first values; the first worker's values count."""
        self.user = self.user or carry.caller()
        names, values = names_of(key), arrays_of(key, value)
        keys = self._define([(name, arrays[0]) for name, arrays in zip(names, values)])
        self._groups(key)
        for entry, name, arrays in zip(keys, names, values):
            if self._worker.speaks_first_for(entry):
                self.init_named(name, dense(arrays[0]), self._worker.begin_pull())

    def set_optimizer(self, optimizer: Any) -> None:
        """Have the servers update the values with an optimizer; its learning rate and the like may change later.

        Raises:
            ValueError: it needs whole tensors and keys were cut into slices already.
        """
        whole = optimizers.needs_whole_tensors(optimizer)
        if whole and not self._whole and any(store == self.number for (store, _), _ in self._worker.catalog.known()):
            raise ValueError(
                f"{type(optimizer).__name__} needs whole tensors: call set_optimizer before init, not after it"
            )
        self._optimizer, self._whole = optimizer, whole
        self._updater = SimpleNamespace(optimizer=optimizer)  # where Trainer.load_states looks for it
        self._worker.set_optimizer(self.number, optimizers.describe(optimizer))

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """Compress the gradients on their way to the servers; those of some rows go as they are.

        Args:
            compression_params: ``{'type': '2bit', 'threshold': 0.5}``, MXNet's own: each number becomes one of
                -threshold, 0, threshold, and what is lost is added to the next gradient; or ``{'type': 'fp16'}``.

        Raises:
            ValueError: an unknown type or parameter, or a threshold that is not above zero.
        """
        self._compression = from_parameters(compression_params)

    def residual(self, key: Any) -> np.ndarray:
        """What 2bit compression has kept back of a key's gradients so far, of the key's shape; zeros without it."""
        [entry] = [one for group in self._groups(key) for one in group.keys]
        kept = self._worker.residual(entry)
        return np.zeros(entry.spec.shape, entry.dtype) if kept is None else kept.reshape(entry.spec.shape).copy()

    def _scalars(self, ticket: Any) -> Optional[Dict[str, float]]:
        """The optimizer's hyper-parameters for a step; they ride on its pushes."""
        if self._optimizer is None:
            return None
        return optimizers.scalars(self._optimizer, ticket.step + 1)

    def init_named(self, name: str, value: Any, ticket: Any) -> None:
        """Store a value under a key as the wire names it."""
        self._enqueue(self._alone(name), [engine.plain_copy(value)], [[]], ticket, init=True)

    def pull_named(self, name: str, out: List[Any]) -> None:
        """Pull a key as the wire names it into arrays on this worker's devices."""
        self._enqueue(self._alone(name), [], [out], self._worker.begin_pull())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Define keys and write the first worker's values, or the job's where it trains already, to `out`."""
        self.init(key, value)
        self.pull(key, out=out, priority=priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add gradients to the round of each key; returns at once."""
        key, values = once(key, arrays_of(key, value))
        self._push(self._groups(key), values, None, priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the values after this worker's pushes so far to `out`; returns at once."""
        assert out is not None
        key, targets = once(key, arrays_of(key, out))
        if any(isinstance(arrays[0], BaseSparseNDArray) for arrays in targets):
            key, targets = self._without_sparse(key, targets, ignore_sparse)
        for group in self._groups(key):
            self._enqueue(group, [], targets[group.range], self._worker.begin_pull(), priority)
        self._worker.end_call()

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull into `out`, or into the pushed arrays themselves where `out` is None."""
        targets = once(key, arrays_of(key, value if out is None else out))[1]
        key, values = once(key, arrays_of(key, value))
        self._push(self._groups(key), values, targets, priority)

    def _push(self, groups: List[_Group], values: Arrays, targets: Optional[Arrays], priority: int) -> None:
        if not groups:
            return
        ticket = self._worker.begin_push([entry for group in groups for entry in group.keys])
        if ticket is None:
            return
        for i, group in enumerate(groups):
            sources = [sum_of(arrays) for arrays in values[group.range]]
            own = self._worker.begin_more(ticket) if i else ticket
            self._enqueue(group, sources, targets[group.range] if targets else [], own, priority)
        self._worker.end_call()

    @staticmethod
    def _without_sparse(key: Any, targets: Arrays, ignore: bool) -> Tuple[List[Any], Arrays]:
        """What is left of a pull without the sparse arrays, which it ignores or refuses."""
        keys = list(key) if isinstance(key, (list, tuple)) else [key]
        pairs = []
        for one, arrays in zip(keys, targets):
            if not isinstance(arrays[0], BaseSparseNDArray):
                pairs.append((one, arrays))
            elif not ignore:
                raise ValueError(f"key {one!r} cannot be pulled into a {arrays[0].stype} array: use row_sparse_pull")
        return [one for one, _ in pairs], [arrays for _, arrays in pairs]

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write the rows `row_ids` of each key's value to `out`, row_sparse or dense; waits for them.

        Args:
            key: a key or a list of keys.
            out: an NDArray, or a list of them, for each key.
            row_ids: an int64 NDArray, or a list of them, for each of `out`; repeated and unsorted rows are fine.

        Raises:
            ValueError: the key has no such row.
        """
        assert out is not None and row_ids is not None
        keys = [entry for group in self._groups(key) for entry in group.keys]
        for entry, arrays, wanted in zip(keys, arrays_of(key, out), arrays_of(key, row_ids)):
            wanted = wanted * len(arrays) if len(wanted) == 1 else wanted
            for target, numbers in zip(arrays, wanted):
                rows = np.unique(numbers.asnumpy().astype(np.int64))
                count = entry.spec.shape[0]
                if len(rows) and not 0 <= rows[0] <= rows[-1] < count:
                    raise ValueError(
                        f"rows {rows[0]} to {rows[-1]} of key {entry.spec.key[2:]!r} were asked for, "
                        f"which has rows 0 to {count - 1}"
                    )
                values = self._worker.parts.pull_rows(entry, rows)
                if target.stype == "row_sparse":
                    mx.nd.sparse.row_sparse_array((values, rows), shape=target.shape, dtype=values.dtype).copyto(target)
                else:
                    target[:] = 0
                    target[mx.nd.array(rows, dtype="int64")] = mx.nd.array(values, dtype=values.dtype)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer states, which the servers hold, to a file; `dump_optimizer` adds the optimizer's data."""
        keys = [key for (store, name), key in self._worker.catalog.known() if store == self.number and name[1] == ":"]
        keys = [key for key in keys if key.spec.key[:2] in ("i:", "s:")]
        states.save(fname, keys, self._worker.parts.pull_states(keys), self._description() if dump_optimizer else None)

    def load_optimizer_states(self, fname: str) -> None:
        """Give the servers the optimizer states that `save_optimizer_states` wrote, on any number of servers.

        Raises:
            ValueError: the file is none of its, or of another model.
        """
        found = states.load(fname, {name: k for (n, name), k in self._worker.catalog.known() if n == self.number})
        if self._worker.rank == 0:
            self._worker.parts.push_states(found)

    def _description(self) -> Any:
        if self._optimizer is None:
            raise ValueError("this store has no optimizer: call set_optimizer first")
        return optimizers.describe(self._optimizer)

    def _barrier(self) -> None:
        """Wait until every member has called this."""
        self._worker.barrier(self.number)

    def get_num_dead_node(self, node_id: int = 0, timeout: int = 60) -> int:
        """How many of this job's processes have failed."""
        return len(self._worker.status()["dead"])

    # ----------------------------------------------------------------------------------------------- helpers

    def _define(self, named: Sequence[Tuple[str, Any]]) -> List[Key]:
        specs = [
            KeySpec(self.number, name, tuple(array.shape), np.dtype(array.dtype).name, self._whole, self.asynchronous)
            for name, array in named
        ]
        return self._worker.define(specs)

    def _groups(self, key: Any) -> List[_Group]:
        """A call's keys in operations: small ones together, for each costs the engine the same."""
        wanted = tuple(key) if isinstance(key, (list, tuple)) else (key,)
        groups = self._known_groups.get(wanted)
        if groups is None:
            groups = []
            for i, name in enumerate(names_of(list(wanted))):
                key = self._key(name)
                nbytes = sum(self._worker.catalog.size[s] for s in key.slices)
                joins = bool(groups) and groups[-1].nbytes + nbytes <= GROUP_BYTES
                order = self._order.get(name)
                if order is None:
                    order = self._order[name] = groups[-1].orders[-1] if joins else engine.Variable()
                one = _Group([key], [order], list(key.slices), slice(i, i + 1), nbytes)
                if joins:
                    groups[-1].add(one)
                else:
                    groups.append(one)
            self._known_groups[wanted] = groups
        return groups

    def _key(self, name: str) -> Key:
        """A key by its name on the wire."""
        key = self._worker.catalog.keys.get((self.number, name))
        if key is None:
            raise mx.base.MXNetError(f"key {name[2:]!r} was not initialised: call init first")
        return key

    def _alone(self, name: str) -> _Group:
        """A group of one key, by its name on the wire."""
        key, order = self._key(name), self._order.get(name)
        if order is None:
            order = self._order[name] = engine.Variable()
        return _Group([key], [order], list(key.slices), slice(0, 1), 0)

    def _enqueue(
        self,
        group: _Group,
        sources: Sequence[Any],
        targets: Arrays,
        ticket: Ticket,
        priority: int = 0,
        init: bool = False,
    ) -> None:
        """Have the engine hand an operation to the client when its arrays are ready: all keys of it together.

        Args:
            sources: the array to push for each key; none for a pull.
            targets: the arrays to pull each key into, one per device; none for a push.
        """
        scalars = self._scalars(ticket) if sources and not init else None
        pushed = group.slices if sources and not init else ()
        outs = [arrays[0] for arrays in targets if arrays]
        client = self._worker
        compression = None if init else self._compression

        def items() -> List[Item]:
            return items_of(group.keys, sources, targets)

        def start(done: Callable[[], None]) -> None:
            client.submit(Operation(items, ticket, done, pushed, init, scalars, compression))

        # Pulls of a key may pass each other, but no push.
        after, alone = ((), group.orders) if sources else (group.orders, ())
        engine.push_async(start, sources, outs, priority, after, alone)
        for arrays in targets:
            for other in arrays[1:]:
                arrays[0].copyto(other)


class ElasticAsyncKVStore(ElasticKVStore):
    """As ElasticKVStore, but each push is applied by itself, as soon as it comes."""

    asynchronous = True


def register(drop_in: bool = False) -> None:
    """Make the stores known to MXNet under their names; with `drop_in`, under those of MXNet's own as well."""
    for name in NAMES + (DROP_IN_NAMES if drop_in else ()):
        KVStoreBase.kv_registry[name] = ElasticAsyncKVStore if "async" in name else ElasticKVStore
    data.provide(_job)
    atexit.register(_end_as_it_went)
    atexit.register(lambda: engine.drain())  # importing engine may be what brought us here, with no drain yet


def _job() -> Optional[Worker]:
    """This process's job as the samplers see it; None where no launcher started the script."""
    return worker() if ProcessSettings.from_environment() is not None else None


def on_resize(callback: Callable[[Dict[str, Any]], None]) -> None:
    """Have `callback` called, on a thread of its own, with `generation`, `workers` and `servers` after a resize."""
    worker().on_resize(callback)
