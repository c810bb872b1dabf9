"""The kvstores `dist_elastic` and `dist_elastic_async`, as MXNet calls them; the client behind them is worker.py's."""

from __future__ import annotations

import atexit
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore, KVStoreBase

from elastic_mx import data, engine, optimizers, states
from elastic_mx.catalog import Key
from elastic_mx.joining import Stores
from elastic_mx.link import JobError
from elastic_mx.messages import KeySpec
from elastic_mx.settings import ProcessSettings
from elastic_mx.worker import Item, Operation, Worker
from elastic_mx.worker_machine import Ticket

NAMES = ("dist_elastic", "dist_elastic_sync", "dist_elastic_async")
DROP_IN_NAMES = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device", "dist_async", "dist_device_async")

GROUP_BYTES = 4 << 20

# A key of a call: with its wire name, the array to push, if any, and those to pull into, one per device.
_Wanted = Tuple[Key, str, Any, List[Any]]

_worker: Optional[Worker] = None


def worker() -> Worker:
    """This process's client; it is connected at the first call.

    Raises:
        JobError: the script was not started by a launcher.
    """
    global _worker
    if _worker is None:
        settings = ProcessSettings.from_environment()
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


class ElasticKVStore(KVStore):
    """A distributed kvstore whose servers and workers change while it is used; the calls are MXNet's KVStore's."""

    asynchronous = False

    def __init__(self) -> None:
        self.handle = None
        self._worker = worker()
        self.number = self._worker.add_store(self)
        self._order: Dict[str, Any] = {}
        self._optimizer: Any = None
        self._whole = False

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
        pairs = _pairs(key, value)
        keys = self._define([(name, arrays[0]) for name, arrays in pairs])
        for entry, (name, arrays) in zip(keys, pairs):
            if self._worker.speaks_first_for(entry):
                self.init_named(name, _dense(arrays[0]), self._worker.begin_pull())

    def set_optimizer(self, optimizer: Any) -> None:
        """Have the servers update the values with an optimizer; its learning rate and the like may change later.

        Raises:
            ValueError: it needs whole tensors and keys were cut into slices already.
        """
        whole = optimizers.needs_whole_tensors(optimizer)
        if whole and not self._whole and any(store == self.number for store, _ in self._worker.catalog.keys):
            raise ValueError(
                f"{type(optimizer).__name__} needs whole tensors: call set_optimizer before init, not after it"
            )
        self._optimizer, self._whole = optimizer, whole
        self._worker.set_optimizer(self.number, optimizers.describe(optimizer))

    def _scalars(self, ticket: Any) -> Optional[Dict[str, float]]:
        """The optimizer's hyper-parameters for a step; they ride on its pushes."""
        if self._optimizer is None:
            return None
        return optimizers.scalars(self._optimizer, ticket.step + 1)

    def init_named(self, name: str, value: Any, ticket: Any) -> None:
        """Store a value under a key as the wire names it."""
        key = self._worker.catalog.keys[self.number, name]
        self._enqueue([(key, name, engine.plain_copy(value), [])], ticket, init=True)

    def pull_named(self, name: str, out: List[Any]) -> None:
        """Pull a key as the wire names it into arrays on this worker's devices."""
        key = self._worker.catalog.keys[self.number, name]
        self._enqueue([(key, name, None, out)], self._worker.begin_pull())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Define keys and write the first worker's values, or the job's where it trains already, to `out`."""
        self.init(key, value)
        self.pull(key, out=out, priority=priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add gradients to the round of each key; returns at once."""
        pairs = _pairs(key, value)
        self._push(
            [(entry, name, _sum(arrays), []) for entry, (name, arrays) in zip(self._keys(pairs), pairs)], priority
        )

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Write the values after this worker's pushes so far to `out`; returns at once."""
        assert out is not None
        pairs = _pairs(key, out)
        wanted = []
        for entry, (name, arrays) in zip(self._keys(pairs), pairs):
            if arrays[0].stype == "default":
                wanted.append((entry, name, None, arrays))
            elif not ignore_sparse:
                raise ValueError(
                    f"key {name[2:]!r} cannot be pulled into a {arrays[0].stype} array: use row_sparse_pull"
                )
        for group in _groups(wanted):
            self._enqueue(group, self._worker.begin_pull(), priority)
        self._worker.end_call()

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull into `out`, or into the pushed arrays themselves where `out` is None."""
        pairs = _pairs(key, value)
        outs = [arrays for _, arrays in _pairs(key, value if out is None else out)]
        self._push(
            [
                (entry, name, _sum(arrays), targets)
                for entry, (name, arrays), targets in zip(self._keys(pairs), pairs, outs)
            ],
            priority,
        )

    def _push(self, wanted: List[_Wanted], priority: int) -> None:
        ticket = self._worker.begin_push([entry for entry, *_ in wanted])
        if ticket is None:
            return
        for i, group in enumerate(_groups(wanted)):
            self._enqueue(group, ticket if i == 0 else self._worker.begin_more(ticket), priority)
        self._worker.end_call()

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Write the rows `row_ids` of each key's value to `out`, row_sparse or dense; waits for them.

        Args:
            key: a key or a list of keys.
            out: an NDArray, or a list of them, for each key.
            row_ids: an int64 NDArray, or a list of them, for each of `out`; repeated and unsorted rows are fine.
        """
        assert out is not None and row_ids is not None
        pairs, ids = _pairs(key, out), [arrays for _, arrays in _pairs(key, row_ids)]
        for entry, (_, arrays), wanted in zip(self._keys(pairs), pairs, ids):
            wanted = wanted * len(arrays) if len(wanted) == 1 else wanted
            for target, numbers in zip(arrays, wanted):
                rows = np.unique(numbers.asnumpy().astype(np.int64))
                values = self._worker.pull_rows(entry, rows)
                if target.stype == "row_sparse":
                    mx.nd.sparse.row_sparse_array((values, rows), shape=target.shape, dtype=values.dtype).copyto(target)
                else:
                    target[:] = 0
                    target[mx.nd.array(rows, dtype="int64")] = mx.nd.array(values, dtype=values.dtype)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer states, which the servers hold, to a file; `dump_optimizer` adds the optimizer's data."""
        keys = [
            key for (store, name), key in self._worker.catalog.keys.items() if store == self.number and name[1] == ":"
        ]
        keys = [key for key in keys if key.spec.key[:2] in ("i:", "s:")]
        states.save(fname, keys, self._worker.pull_states(keys), self._description() if dump_optimizer else None)

    def load_optimizer_states(self, fname: str) -> None:
        """Give the servers the optimizer states that `save_optimizer_states` wrote, on any number of servers.

        Raises:
            ValueError: the file is none of its, or of another model.
        """
        found = states.load(fname, {name: k for (n, name), k in self._worker.catalog.keys.items() if n == self.number})
        if self._worker.rank == 0:
            self._worker.push_states(found)

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

    def _keys(self, pairs: Sequence[Tuple[str, List[Any]]]) -> List[Key]:
        keys = []
        for name, _ in pairs:
            known = self._worker.catalog.keys.get((self.number, name))
            if known is None:
                raise mx.base.MXNetError(f"key {name[2:]!r} was not initialised: call init first")
            keys.append(known)
        return keys

    def _enqueue(self, wanted: List[_Wanted], ticket: Ticket, priority: int = 0, init: bool = False) -> None:
        """Have the engine hand an operation to the client when its arrays are ready: all keys of it together."""
        reads = [source for _, _, source, _ in wanted if source is not None]
        writes = [arrays[0] for _, _, _, arrays in wanted if arrays]
        orders = [self._order_of(name) for _, name, _, _ in wanted]
        scalars = self._scalars(ticket) if reads and not init else None
        client = self._worker

        def start(done: Callable[[], None]) -> None:
            items = [_item(key, source, arrays) for key, _, source, arrays in wanted]
            client.submit(Operation(items, ticket, done, init, scalars))

        engine.push_async(start, reads, [*orders, *writes], priority)
        for _, _, _, arrays in wanted:
            for other in arrays[1:]:
                arrays[0].copyto(other)

    def _order_of(self, name: str) -> Any:
        """What keeps the operations of a key in order."""
        order = self._order.get(name)
        if order is None:
            order = self._order[name] = engine.Variable()
        return order


class ElasticAsyncKVStore(ElasticKVStore):
    """As ElasticKVStore, but each push is applied by itself, as soon as it comes."""

    asynchronous = True


def register(drop_in: bool = False) -> None:
    """Make the stores known to MXNet under their names; with `drop_in`, under those of MXNet's own as well."""
    for name in NAMES + (DROP_IN_NAMES if drop_in else ()):
        KVStoreBase.kv_registry[name] = ElasticAsyncKVStore if "async" in name else ElasticKVStore
    data.provide(_job)


def _job() -> Optional[Worker]:
    """This process's job as the samplers see it; None where no launcher started the script."""
    return worker() if ProcessSettings.from_environment() is not None else None


def on_resize(callback: Callable[[Dict[str, Any]], None]) -> None:
    """Have `callback` called, on a thread of the store, with `generation`, `workers` and `servers` after a resize."""
    worker().on_resize(callback)


def _pairs(key: Any, value: Any) -> List[Tuple[str, List[Any]]]:
    """A call's keys with their arrays, one per device; keys as the wire names them: int and str do not collide."""
    if isinstance(key, (list, tuple)):
        if len(key) != len(value):
            raise ValueError(f"{len(key)} keys but {len(value)} values")
        return [pair for k, v in zip(key, value) for pair in _pairs(k, v)]
    name = f"i:{key}" if isinstance(key, int) else f"s:{key}"
    return [(name, list(value) if isinstance(value, (list, tuple)) else [value])]


def _sum(arrays: Sequence[Any]) -> Any:
    """The sum of a key's values on several devices, on the first's."""
    return arrays[0] if len(arrays) == 1 else mx.nd.add_n(*[array.as_in_context(mx.cpu()) for array in arrays])


def _groups(wanted: Sequence[_Wanted]) -> Iterator[List[_Wanted]]:
    """A call's keys in operations: small ones together, for each costs the engine the same."""
    group: List[_Wanted] = []
    size = 0
    for one in wanted:
        nbytes = int(np.prod(one[0].spec.shape)) * one[0].dtype.itemsize
        if group and size + nbytes > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += nbytes
    if group:
        yield group


def _item(key: Key, source: Any, arrays: Sequence[Any]) -> Item:
    """What the client needs of a key, taken within the engine's operation."""
    pull = engine.writable_view(arrays[0]).reshape(-1) if arrays else None
    if source is None:
        return Item(key, pull=pull)
    if source.stype == "row_sparse":
        values, rows = engine.row_sparse_views(source)
        return Item(key, values, pull, rows)
    return Item(key, engine.view(source).reshape(-1), pull)


def _dense(array: Any) -> Any:
    return array if array.stype == "default" else array.tostype("default")
