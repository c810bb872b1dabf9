"""How an optimizer gets from a script to the servers and runs there: as plain data, never as a pickle.

The worker's half (`describe`, `scalars`) and the server's (`ServerOptimizer`). Which gradients are added up when is
values.py's and server_machine.py's.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.optimizer import Optimizer

from elastic_mx.messages import ProtocolError

PLAIN = (int, float, bool, str, type(None))
_SPARSE = ("adagrad", "ftrl", "groupadagrad")  # MXNet updates these row by row wherever a gradient has rows
WHOLE_TENSOR = ("lamb", "lars", "lbsgd")
_KEPT_BY_SERVER = ("num_update", "begin_num_update", "m_schedule", "aggregate_num")
_BOOKS = ("lr_mult", "wd_mult", "idx2name", "param_dict", "_index_update_count", "_all_index_update_counts")


class OptimizerError(ProtocolError):
    """An optimizer that a server cannot run."""


# --------------------------------------------------------------------------------------------- on the worker


def describe(optimizer: Any) -> Dict[str, Any]:
    """An optimizer as plain data.

    Returns:
        `name`, as registered with MXNet or as ``module:Class``; `attributes`, its plain hyper-parameters; and
        `multipliers`, the (learning rate, weight decay) factors of the keys that have some, by the key's wire name.
    """
    klass = type(optimizer)
    registered = Optimizer.opt_registry.get(klass.__name__.lower())
    builtin = registered is klass and klass.__module__.startswith("mxnet.")
    attributes = {name: value for name, value in vars(optimizer).items() if isinstance(value, PLAIN)}
    return {
        "name": klass.__name__.lower() if builtin else f"{klass.__module__}:{klass.__name__}",
        "attributes": attributes,
        "multipliers": _multipliers(optimizer),
    }


def needs_whole_tensors(optimizer: Any) -> bool:
    """Whether the optimizer uses norms over a weight, so that it must not be cut into slices."""
    return any(klass.__name__.lower() in WHOLE_TENSOR for klass in type(optimizer).__mro__)


def scalars(optimizer: Any, update: int) -> Dict[str, float]:
    """The hyper-parameters of the `update`-th update (from 1), which may change from step to step."""
    found = {
        name: float(value)
        for name, value in vars(optimizer).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in _KEPT_BY_SERVER
    }
    if optimizer.lr_scheduler is not None:
        found["lr"] = float(optimizer.lr_scheduler(update))
    return found


def _multipliers(optimizer: Any) -> Dict[str, Tuple[float, float]]:
    indices = {*optimizer.param_dict, *optimizer.lr_mult, *optimizer.wd_mult, *optimizer.idx2name}
    indices.update(optimizer.idx2name.values())
    found = {}
    for index in indices:
        factors = (_factor(optimizer, index, "lr_mult"), _factor(optimizer, index, "wd_mult"))
        if factors != (1.0, 1.0):
            found[f"i:{index}" if isinstance(index, int) else f"s:{index}"] = factors
    return found


def _factor(optimizer: Any, index: Any, book: str) -> float:
    """A multiplier as ``Optimizer._get_lrs`` and ``_get_wds`` look it up."""
    table = getattr(optimizer, book)
    if index in optimizer.param_dict:
        return float(getattr(optimizer.param_dict[index], book))
    if index in table:
        return float(table[index])
    return float(table.get(optimizer.idx2name.get(index), 1.0))


# --------------------------------------------------------------------------------------------- on the server


class ServerOptimizer:
    """A store's optimizer on a server: MXNet's own class, with one state and one update count for each slice.

    Args:
        description: what `describe` returned on a worker.
        allowed_imports: the ``module:Class`` paths that this server was started with permission to import.

    Raises:
        OptimizerError: the optimizer is not known or may not be imported.
    """

    def __init__(self, description: Dict[str, Any], allowed_imports: Sequence[str] = ()) -> None:
        self.description = description
        self.optimizer = _find(description["name"], allowed_imports)()
        self.optimizer.lr_scheduler = None
        for name, value in description["attributes"].items():
            if name != "lr_scheduler":
                setattr(self.optimizer, name, value)
        self.optimizer.lr_mult, self.optimizer.wd_mult = {}, {}
        self._states: Dict[int, Any] = {}

    def define(self, s: int, key: str) -> None:
        """Slice `s` belongs to `key` (its wire name), which may have multipliers."""
        factors = self.description["multipliers"].get(key)
        if factors is not None:
            self.optimizer.lr_mult[s], self.optimizer.wd_mult[s] = factors

    def set_scalars(self, values: Dict[str, float]) -> None:
        """Take over the hyper-parameters that came with a round of pushes."""
        vars(self.optimizer).update(values)

    def update(self, s: int, weight: np.ndarray, gradient: np.ndarray) -> None:
        """Update a slice's weights in place.

        Args:
            s: the slice.
            weight: its values, of the slice's shape.
            gradient: the sum of the round's gradients, of the same shape and dtype.
        """
        value = as_ndarray(weight)
        if s not in self._states:
            self._states[s] = self.optimizer.create_state_multi_precision(s, value)
        self._call(s, value, as_ndarray(gradient))
        value.wait_to_read()

    def update_rows(self, s: int, weight: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """As `update`, with a gradient of which only `rows` are not zero."""
        name = self.description["name"]
        if not (getattr(self.optimizer, "lazy_update", False) or name in _SPARSE):
            gradient = np.zeros(weight.shape, weight.dtype)
            gradient[rows] = values
            self.update(s, weight, gradient)
            return
        value = as_ndarray(weight)
        if s not in self._states:
            self._states[s] = self.optimizer.create_state_multi_precision(s, value)
        self._call(s, value, mx.nd.sparse.row_sparse_array((values, rows), shape=weight.shape, dtype=weight.dtype))
        value.wait_to_read()

    def _call(self, s: int, value: Any, gradient: Any) -> None:
        if self.optimizer.aggregate_num > 0:
            self.optimizer.update_multi_precision([s], [value], [gradient], [self._states[s]])
        else:
            self.optimizer.update_multi_precision(s, value, gradient, self._states[s])

    def dump(self, s: int) -> Tuple[Any, List[np.ndarray]]:
        """A slice's optimizer state as a structure of plain data and the arrays that it refers to by number."""
        arrays: List[np.ndarray] = []
        structure = {
            "count": self.optimizer._index_update_count.get(s, 0),
            "known": s in self._states,
            "state": _flatten(self._states.get(s), arrays),
            "books": {name: _flatten(book[s], arrays) for name, book in self._own_books().items() if s in book},
            "scalars": {name: vars(self.optimizer)[name] for name in _KEPT_BY_SERVER if name in vars(self.optimizer)},
        }
        return structure, arrays

    def load(self, s: int, structure: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take over what `dump` returned on another server."""
        optimizer = self.optimizer
        if structure["count"]:
            optimizer._index_update_count[s] = structure["count"]
        for name, value in structure["scalars"].items():
            if name == "num_update":
                value = max(value, optimizer.num_update)
            setattr(optimizer, name, value)
        if structure["known"]:
            self._states[s] = _restore(structure["state"], arrays)
        for name, value in structure["books"].items():
            getattr(optimizer, name)[s] = _restore(value, arrays)

    def forget(self, s: int) -> None:
        """Drop the state of a slice that has left."""
        self._states.pop(s, None)
        for book in (*self._own_books().values(), self.optimizer._index_update_count):
            book.pop(s, None)

    def _own_books(self) -> Dict[str, Dict[Any, Any]]:
        """Dictionaries by index that this optimizer's class keeps beside the states."""
        return {n: b for n, b in vars(self.optimizer).items() if isinstance(b, dict) and n not in _BOOKS}


def _find(name: str, allowed_imports: Sequence[str]) -> Any:
    module, colon, klass = name.partition(":")
    if not colon:
        if name not in Optimizer.opt_registry:
            raise OptimizerError(f"optimizer {name!r} is none of MXNet's: {', '.join(sorted(Optimizer.opt_registry))}")
        return Optimizer.opt_registry[name]
    if name not in allowed_imports:
        raise OptimizerError(
            f"optimizer {name} is not one that the servers may import: launch the job with --optimizer {name}, "
            "or update on the workers (update_on_kvstore=False)"
        )
    return getattr(importlib.import_module(module), klass)


def as_ndarray(array: np.ndarray) -> Any:
    """An NDArray over the memory of `array`; one without an axis gets one of length 1, as MXNet wants."""
    return mx.nd.from_numpy(array.reshape(array.shape or (1,)), zero_copy=True)


def _flatten(state: Any, arrays: List[np.ndarray]) -> Any:
    if isinstance(state, (tuple, list)):
        return {"parts": [_flatten(part, arrays) for part in state]}
    if isinstance(state, dict):
        return {"entries": {name: _flatten(part, arrays) for name, part in state.items()}}
    if isinstance(state, mx.nd.NDArray):
        arrays.append(state.asnumpy())
        return {"array": len(arrays) - 1, "shape": list(state.shape), "dtype": np.dtype(state.dtype).name}
    if isinstance(state, PLAIN):
        return {"plain": state}
    raise OptimizerError(f"an optimizer state of type {type(state).__name__} cannot be moved")


def _restore(structure: Any, arrays: Sequence[np.ndarray]) -> Any:
    if "parts" in structure:
        return tuple(_restore(part, arrays) for part in structure["parts"])
    if "entries" in structure:
        return {name: _restore(part, arrays) for name, part in structure["entries"].items()}
    if "array" in structure:
        data = np.asarray(arrays[structure["array"]]).view(np.uint8).reshape(-1)
        value = data.view(structure["dtype"]).reshape(structure["shape"])
        return mx.nd.array(value, dtype=structure["dtype"])
    return structure["plain"]
