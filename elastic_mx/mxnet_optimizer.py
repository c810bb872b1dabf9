"""An optimizer class of MXNet's, or of a user's, that updates slices on a server.

One instance serves all slices of a store: what MXNet keeps for all weights together, and which therefore would
depend on the servers, is set for each slice before its update.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Dict, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.optimizer import Optimizer

from elastic_mx.arrays import wrap
from elastic_mx.server_optimizer import OptimizerError, OptimizerSpec, RowSparse, SliceState

_BOOKS = ("lr_mult", "wd_mult", "idx2name", "param_dict", "_index_update_count", "_all_index_update_counts")
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
# LARS compares the learning rate with the last one; MXNet's own instance forgets that after the first weight.
_PER_SLICE = ("last_lr", "cur_lr")
# These leave a gradient alone and keep none; others get a copy.
_READERS = {
    *("adagrad", "adamax", "dcasgd", "ftml", "ftrl", "groupadagrad", "lamb", "lars", "nadam", "rmsprop"),
    *("signum", "test"),
}


class MXNetOptimizer:
    """Raises OptimizerError where the class is not to be had."""

    def __init__(self, spec: OptimizerSpec, values: Dict[str, Any]) -> None:
        self.spec = spec
        self.optimizer = _construct(_find(spec.name), values)
        for name, value in values.items():
            setattr(self.optimizer, name, value)
        self.optimizer.lr_scheduler = None
        for book in _BOOKS:
            setattr(self.optimizer, book, {})
        self.optimizer._set_current_context(0)
        self._products: List[float] = [1.0]

    def update(self, s: int, state: SliceState, weight: np.ndarray, gradient: Any) -> None:
        """Update the values of slice `s` in place; see ``ServerOptimizer.update``."""
        shape = weight.shape or (1,)
        value = wrap(weight.reshape(shape))
        if isinstance(gradient, RowSparse) and self.spec.name == "ftrl" and state.sparse:
            self._update_rows(s, state, value, gradient)
        else:
            if not state.known:
                state.native = self.optimizer.create_state_multi_precision(s, value)
            self._call(s, state, value, self._gradient(gradient, shape), state.native)
        state.known = True
        value.wait_to_read()
        mx.nd.waitall()  # before the caller writes to the gradient's memory again

    def _gradient(self, gradient: Any, shape: Any) -> Any:
        if isinstance(gradient, RowSparse):
            return mx.nd.sparse.row_sparse_array((gradient.values, gradient.rows), shape=shape)
        gradient = gradient.reshape(shape)
        if self.spec.name in _READERS and gradient.flags.c_contiguous and gradient.flags.writeable:
            return wrap(gradient)
        return mx.nd.array(gradient, dtype=gradient.dtype)

    def _call(self, s: int, state: SliceState, value: Any, gradient: Any, native: Any) -> None:
        optimizer = self.optimizer
        optimizer._index_update_count[s] = optimizer.num_update = state.count
        optimizer.lr_mult[s], optimizer.wd_mult[s] = state.factors
        optimizer.idx2name[s] = self.spec.names.get(state.key, state.key[2:])
        for name in _PER_SLICE:
            if hasattr(optimizer, name):
                setattr(optimizer, name, state.extra.get(name))
        if self.spec.name == "nadam":
            optimizer.m_schedule = self._nadam_schedule(state)
        if optimizer.aggregate_num > 0:
            optimizer.update_multi_precision([s], [value], [gradient], [native])
        else:
            optimizer.update_multi_precision(s, value, gradient, native)
        state.count = optimizer._index_update_count[s]
        for name in _PER_SLICE:
            if hasattr(optimizer, name):
                state.extra[name] = getattr(optimizer, name)

    def _update_rows(self, s: int, state: SliceState, value: Any, gradient: RowSparse) -> None:
        """An update of some rows alone, as MXNet makes it where the weights are row_sparse too."""
        if not state.known:
            state.native = self.optimizer.create_state_multi_precision(s, value)
        if not len(gradient.rows):
            state.count += 1
            return
        rows = mx.nd.array(gradient.rows, dtype="int64")
        part, *states = [mx.nd.take(array, rows) for array in (value, *state.native)]
        self._call(s, state, part, mx.nd.array(gradient.values, dtype=value.dtype), tuple(states))
        for array, changed in zip((value, *state.native), (part, *states)):
            array[rows] = changed

    def _nadam_schedule(self, state: SliceState) -> float:
        """What MXNet's Nadam has in ``m_schedule`` before this update.

        It is one product for all weights, to which each update of each weight adds a factor. For keys that are all
        updated once a step, in their order, that is a function of the update count and the place in the order.
        """
        optimizer, keys = self.optimizer, max(1, len(set(self.spec.order.values())))
        begin = int(self.spec.attributes.get("begin_num_update") or 0)
        done = state.count - begin
        while len(self._products) <= done:
            at = begin + len(self._products)
            self._products.append(self._products[-1] * _nadam_momentum(optimizer, at))
        earlier = _nadam_momentum(optimizer, state.count + 1) ** self.spec.order.get(state.key, 0)
        return float(self._products[done] ** keys * earlier)

    # ----------------------------------------------------------------------------------------------- migration

    def dump(self, s: int, state: SliceState, arrays: List[np.ndarray]) -> Any:
        """The state of slice `s` as plain data; its arrays are appended to `arrays`."""
        books = {name: flatten(book[s], arrays) for name, book in self._own_books().items() if s in book}
        return {"state": flatten(state.native, arrays), "books": books, "extra": state.extra}

    def load(self, s: int, state: SliceState, structure: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take over what `dump` returned on another server."""
        state.native, state.known = restore(structure["state"], arrays), True
        state.extra = dict(structure["extra"])
        for name, value in structure["books"].items():
            getattr(self.optimizer, name)[s] = restore(value, arrays)

    def forget(self, s: int) -> None:
        for book in (*self._own_books().values(), *(getattr(self.optimizer, name) for name in _BOOKS)):
            book.pop(s, None)

    def _own_books(self) -> Dict[str, Dict[Any, Any]]:
        """Dictionaries by index that this optimizer's class keeps beside the states."""
        return {n: b for n, b in vars(self.optimizer).items() if isinstance(b, dict) and n not in _BOOKS}


def _nadam_momentum(optimizer: Any, t: int) -> float:
    return float(optimizer.beta1 * (1.0 - 0.5 * (pow(0.96, t * optimizer.schedule_decay))))


def _find(name: str) -> Any:
    module, colon, klass = name.partition(":")
    if not colon:
        if name not in Optimizer.opt_registry:
            raise OptimizerError(f"optimizer {name!r} is none of MXNet's: {', '.join(sorted(Optimizer.opt_registry))}")
        return Optimizer.opt_registry[name]
    found: Any = importlib.import_module(module)
    for part in klass.split("."):
        found = getattr(found, part)
    return found


def _construct(klass: Any, values: Dict[str, Any]) -> Any:
    """An instance, with what its constructor insists on taken from the attributes of that name."""
    required = [
        name
        for name, parameter in inspect.signature(klass).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    missing = [name for name in required if name not in values]
    if missing:
        raise OptimizerError(
            f"{klass.__name__} needs {', '.join(missing)} to be constructed: keep it in an attribute of that name"
        )
    return klass(**{name: values[name] for name in required})


def flatten(state: Any, arrays: List[np.ndarray]) -> Any:
    """An optimizer state as plain data; arrays are appended to `arrays` and referred to by number."""
    if isinstance(state, mx.nd.NDArray):
        arrays.append(state.asnumpy())
        return {"array": len(arrays) - 1, "shape": list(state.shape), "dtype": np.dtype(state.dtype).name}
    if isinstance(state, (tuple, list)):
        return {type(state).__name__: [flatten(part, arrays) for part in state]}
    if isinstance(state, dict):
        return {"dict": [[name, flatten(part, arrays)] for name, part in state.items()]}
    if state is None or isinstance(state, (bool, int, float, str)):
        return {"plain": state}
    raise OptimizerError(f"an optimizer state of type {type(state).__name__} cannot be moved between servers")


def restore(structure: Any, arrays: Sequence[np.ndarray]) -> Any:
    """What `flatten` was given."""
    if "array" in structure:
        data = np.frombuffer(arrays[structure["array"]], np.uint8)
        return mx.nd.array(data.view(structure["dtype"]).reshape(structure["shape"]), dtype=structure["dtype"])
    if "dict" in structure:
        return {name: restore(part, arrays) for name, part in structure["dict"]}
    if "plain" in structure:
        return structure["plain"]
    ((kind, parts),) = structure.items()
    return (tuple if kind == "tuple" else list)(restore(part, arrays) for part in parts)
