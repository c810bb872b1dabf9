"""The servers' half of an optimizer: updates slices in place, and moves their states.

The worker's half is optimizers.py. SGD, NAG, Adam and SGLD run on numpy (updates.py), without importing MXNet; all
others run as MXNet's own class (mxnet_optimizer.py). Which gradients are added up when is values.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import msgspec
import numpy as np

from elastic_mx import updates
from elastic_mx.arena import Arena
from elastic_mx.messages import ProtocolError
from elastic_mx.table import aligned

Place = Callable[[int], Tuple[int, int]]
_LAZY = ("sgd", "ccsgd", "adam")


class OptimizerError(ProtocolError):
    """An optimizer that a server cannot run."""


class OptimizerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer as plain data.

    `name`: as registered with MXNet, or ``module:Class``. `attributes`: its hyper-parameters. By the keys' names on
    the wire: `multipliers` of (learning rate, weight decay), `names` of parameters, `order` within a step.
    """

    name: str
    attributes: Dict[str, Any]
    multipliers: Dict[str, Tuple[float, float]] = {}
    names: Dict[str, str] = {}
    order: Dict[str, int] = {}
    seed: int = 0


class RowSparse(NamedTuple):
    """A gradient of some rows of a slice: `rows`, int64, rising from 0 within the slice; `values`, (rows, ...)."""

    rows: np.ndarray
    values: np.ndarray


@dataclass
class SliceState:
    """What an optimizer keeps of a slice: how often it was updated, and its state, as numpy or MXNet arrays."""

    key: str
    count: int
    factors: Tuple[float, float] = (1.0, 1.0)
    sparse: bool = False
    dtype: Optional[np.dtype] = None
    offset: int = 0
    nbytes: int = 0
    slots: int = 0
    native: Any = None
    known: bool = False
    extra: Dict[str, Any] = field(default_factory=dict)


class Run:
    """An update of slices that lie side by side, to be made piece by piece; see `ServerOptimizer.begin_run`."""

    def __init__(self, rule: updates.Rule, step: updates.Step, weight: np.ndarray, state: Sequence[np.ndarray]) -> None:
        self._rule, self._step, self._weight, self._state = rule, step, weight, state

    def update(self, start: int, gradient: np.ndarray) -> None:
        """Update the elements from `start` with `gradient` (flat, of the weights' dtype); each element once."""
        stop = start + gradient.size
        state = [array[start:stop] for array in self._state]
        updates.run(self._rule, self._step, self._weight[start:stop], gradient, state)


class ServerOptimizer:
    """A store's optimizer on a server, with one state and one update count for each slice.

    Args:
        description: what ``optimizers.describe`` returned on a worker.
        allowed_imports: the ``module:Class`` paths that this server was started with permission to import.
        place: tells a slice's (offset, length) in bytes in the server's arena; states are laid out like it, so that
            slices that lie side by side are updated in one run. Without it each slice gets a place of its own.

    Raises:
        OptimizerError: the description is none, or the optimizer is not known or may not be imported.
    """

    def __init__(
        self, description: Dict[str, Any], allowed_imports: Sequence[str] = (), place: Optional[Place] = None
    ) -> None:
        try:
            self.spec = msgspec.convert(description, OptimizerSpec)
        except msgspec.ValidationError as error:
            raise OptimizerError(f"not the description of an optimizer: {error}") from error
        self.description = description
        self.values: Dict[str, Any] = dict(self.spec.attributes)
        self._last_scalars: Optional[Dict[str, float]] = None
        self._said: Dict[str, float] = {}
        self._slices: Dict[int, SliceState] = {}
        self._place = place
        self._free = 0
        self._arenas: Dict[Tuple[int, int], Arena] = {}
        self._steps: Dict[Tuple[Any, ...], updates.Step] = {}
        self._mxnet: Any = None
        if ":" in self.spec.name:
            self._check_allowed(allowed_imports)
        elif not self._on_numpy():
            self._native()  # an unknown name is refused now, not at the first update

    def define(self, s: int, key: str, sparse: bool = False) -> None:
        """Slice `s` belongs to `key` (its wire name), whose weights MXNet holds as row_sparse where `sparse`."""
        begin = int(self.spec.attributes.get("begin_num_update") or 0)
        self._slices[s] = SliceState(key, begin, self.spec.multipliers.get(key, (1.0, 1.0)), sparse)

    def set_scalars(self, values: Dict[str, float]) -> None:
        """Take over the hyper-parameters that came with a round of pushes, where they changed."""
        if values is self._last_scalars or values == self._last_scalars:
            return
        for name, value in values.items():
            if self._said.get(name, self.values.get(name)) != value:
                self.values[name] = value
                if self._mxnet is not None:
                    setattr(self._mxnet.optimizer, name, value)
            self._said[name] = value
        self._last_scalars = values
        self._steps.clear()

    def count(self, s: int) -> int:
        """How often slice `s` was updated, from the optimizer's ``begin_num_update``."""
        return self._slices[s].count

    def factors(self, s: int) -> Tuple[float, float]:
        """By what the learning rate and the weight decay of slice `s` are multiplied."""
        return self._slices[s].factors

    # ------------------------------------------------------------------------------------------------ updates

    def begin_run(self, slices: Sequence[int], weight: np.ndarray) -> Optional[Run]:
        """Begin an update of slices that lie side by side in the arena, in that order.

        Args:
            weight: their values, flat, as they lie in the arena.

        Returns:
            What makes the update, piece by piece; None where this optimizer, dtype or mixture of slices (update
            counts or multipliers that differ) needs `update` for each.
        """
        rule = self._rule(weight.dtype)
        if rule is None:
            return None
        states = [self._slices[s] for s in slices]
        first = states[0]
        if any(state.count != first.count or state.factors != first.factors for state in states):
            return None
        at = 0
        for s, state in zip(slices, states):
            if state.slots < self._slots(weight.dtype):
                self._create(s, state, weight[at:])
            if len(slices) > 1:
                assert self._place is not None, "without places no slices lie side by side"
                at += aligned(self._place(s)[1]) // weight.itemsize
            state.count += 1
        step = self._step(first, weight.dtype)
        arrays = [self._array(first, k, weight.size) for k in range(self._slots(weight.dtype))]
        return Run(rule, step, weight, arrays)

    def update(self, s: int, weight: np.ndarray, gradient: Any) -> None:
        """Update a slice's weights in place.

        Args:
            s: the slice.
            weight: its values, of the slice's shape, C-contiguous.
            gradient: the sum of the round's gradients, of the same shape and dtype, or a RowSparse.
        """
        state = self._slices[s]
        if weight.size == 0:
            state.count += 1
        elif self.spec.name == "sgld" and weight.dtype != np.float16:
            state.count += 1
            lr, wd = self._rates(state)
            updates.sgld(weight, dense(gradient, weight), self.values, lr, wd, (self.spec.seed, s, state.count))
        elif self._rule(weight.dtype) is None:
            self._native().update(s, state, weight, gradient)
        elif isinstance(gradient, RowSparse) and self._lazy(weight.dtype):
            self._update_rows(s, weight, gradient)
        else:
            run = self.begin_run([s], weight.reshape(-1))
            assert run is not None
            run.update(0, np.ascontiguousarray(dense(gradient, weight)).reshape(-1))

    def update_rows(self, s: int, weight: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """As `update`, with a gradient of which only `rows` are not zero; see RowSparse."""
        self.update(s, weight, RowSparse(rows, values))

    def _update_rows(self, s: int, weight: np.ndarray, gradient: RowSparse) -> None:
        """The lazy update: rows without a gradient, and their state, stay as they are."""
        flat = weight.reshape(-1)
        if self.begin_run([s], flat) is None or not len(gradient.rows):
            return
        state, rows = self._slices[s], gradient.rows
        rule = self._rule(weight.dtype)
        assert rule is not None
        arrays = [self._array(state, k, flat.size).reshape(weight.shape) for k in range(self._slots(weight.dtype))]
        gathered = [array[rows] for array in (weight, *arrays)]
        w, *parts = [array.reshape(-1) for array in gathered]
        updates.run(rule, self._step(state, weight.dtype), w, np.ascontiguousarray(gradient.values).reshape(-1), parts)
        for array, part in zip((weight, *arrays), gathered):
            array[rows] = part

    # -------------------------------------------------------------------------------------- the way on numpy

    def _on_numpy(self) -> bool:
        return self.spec.name in ("sgd", "ccsgd", "nag", "adam", "sgld")

    def _rule(self, dtype: np.dtype) -> Optional[updates.Rule]:
        """What updates weights of `dtype` on numpy; None where MXNet does."""
        name = self.spec.name
        if dtype == np.float16:
            if not self.values.get("multi_precision"):
                return None
        elif dtype not in (np.float32, np.float64):
            return None
        if name in ("sgd", "ccsgd"):
            return updates.sgd_momentum if self.values["momentum"] > 0 else updates.sgd
        if name == "nag":
            return updates.nag if self.values["momentum"] > 0 else updates.sgd_single
        return updates.adam if name == "adam" else None

    def _lazy(self, dtype: np.dtype) -> bool:
        """Whether MXNet's class updates only the rows that a row_sparse gradient has."""
        wanted = self.spec.name in _LAZY and self.values.get("lazy_update", False)
        return bool(wanted) and (dtype != np.float16 or self.spec.name == "adam")

    def _slots(self, dtype: np.dtype) -> int:
        """State arrays per weight: momentum, or mean and variance, then the master copy of float16 weights."""
        own = 2 if self.spec.name == "adam" else int(self.values["momentum"] > 0)
        return own + (dtype == np.float16)

    def _create(self, s: int, state: SliceState, weight: np.ndarray) -> None:
        """Make the state arrays that `state` does not have yet; `weight` begins with the slice's values."""
        if self._place is not None:
            state.offset, state.nbytes = self._place(s)
        elif not state.nbytes:
            state.offset, state.nbytes = self._free, weight.nbytes
            self._free += -(-weight.nbytes // 64) * 64
        state.dtype = weight.dtype
        size = state.nbytes // weight.itemsize
        had, state.slots = state.slots, self._slots(weight.dtype)
        for k in range(had, state.slots):
            self._array(state, k, size)[:] = 0
        if weight.dtype == np.float16 and had < state.slots:
            self._array(state, state.slots - 1, size)[:] = weight[:size]

    def _array(self, state: SliceState, slot: int, size: int) -> np.ndarray:
        """`size` elements of a state array, from the slice's place on."""
        assert state.dtype is not None
        dtype = np.dtype(np.float32) if state.dtype == np.float16 else state.dtype
        ratio = dtype.itemsize // state.dtype.itemsize
        arena = self._arenas.get((slot, ratio))
        if arena is None:
            arena = self._arenas[slot, ratio] = Arena(f"state-{slot}")
        start = state.offset * ratio
        return arena.bytes[start : start + size * dtype.itemsize].view(dtype)

    def _rates(self, state: SliceState) -> Tuple[float, float]:
        lr, wd = self.values["lr"], self.values["wd"]
        return lr * state.factors[0], wd * state.factors[1]

    def _step(self, state: SliceState, dtype: np.dtype) -> updates.Step:
        """The rounded numbers of the update that `state.count` counts."""
        adam = self.spec.name == "adam"
        key = (dtype, state.factors, state.count if adam else 0)
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) > 100:
                self._steps.clear()
            lr, wd = self._rates(state)
            if adam:
                lr = updates.adam_rate(self.values, lr, state.count)
            wide = np.dtype(np.float32) if dtype == np.float16 else dtype
            step = self._steps[key] = updates.make_step(self.values, lr, wd, wide)
        return step

    # ---------------------------------------------------------------------------------------- the way of MXNet

    def _check_allowed(self, allowed_imports: Sequence[str]) -> None:
        if self.spec.name not in allowed_imports:
            raise OptimizerError(
                f"optimizer {self.spec.name} is not one that the servers may import: launch the job with "
                f"--optimizer {self.spec.name}, or update on the workers (update_on_kvstore=False)"
            )

    def _native(self) -> Any:
        if self._mxnet is None:
            from elastic_mx.mxnet_optimizer import MXNetOptimizer

            self._mxnet = MXNetOptimizer(self.spec, self.values)
        return self._mxnet

    # ----------------------------------------------------------------------------------------------- migration

    def dump(self, s: int) -> Tuple[Any, List[np.ndarray]]:
        """A slice's state as plain data and the arrays that it refers to by number.

        The arrays are valid until the slice is updated or forgotten.
        """
        state = self._slices[s]
        structure: Dict[str, Any] = {"count": state.count}
        if state.slots:
            assert state.dtype is not None
            structure["slots"], structure["dtype"] = state.slots, state.dtype.name
            size = state.nbytes // state.dtype.itemsize
            return structure, [self._array(state, k, size) for k in range(state.slots)]
        arrays: List[np.ndarray] = []
        if state.known:
            structure["native"] = self._native().dump(s, state, arrays)
        return structure, arrays

    def load(self, s: int, structure: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take over what `dump` returned on another server; the arrays may come as bytes (uint8)."""
        state = self._slices[s]
        state.count, state.slots = structure["count"], structure.get("slots", 0)
        state.native, state.known = None, False
        if state.slots:
            state.dtype = np.dtype(structure["dtype"])
            wide = np.dtype(np.float32) if state.dtype == np.float16 else state.dtype
            values = [np.frombuffer(array, np.uint8).view(wide) for array in arrays]
            if self._place is not None:
                state.offset, state.nbytes = self._place(s)
            else:
                state.offset, state.nbytes = self._free, values[0].size * state.dtype.itemsize
                self._free += -(-state.nbytes // 64) * 64
            for k, value in enumerate(values):
                self._array(state, k, value.size)[:] = value
        elif "native" in structure:
            self._native().load(s, state, structure["native"], arrays)

    def forget(self, s: int) -> None:
        """Drop the state of a slice that has left."""
        state = self._slices[s]
        if state.slots:
            for (slot, ratio), arena in self._arenas.items():
                if slot < state.slots:
                    arena.release(state.offset * ratio, state.nbytes * ratio)
        if self._mxnet is not None:
            self._mxnet.forget(s)
        self.define(s, state.key, state.sparse)


def dense(gradient: Any, weight: np.ndarray) -> np.ndarray:
    """A gradient of the shape of `weight`; a RowSparse becomes zeros where it has no rows."""
    if not isinstance(gradient, RowSparse):
        return gradient
    full = np.zeros_like(weight)
    full[gradient.rows] = gradient.values
    return full
