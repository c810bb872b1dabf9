"""The common update rules in NumPy: SGD with and without momentum, NAG and Adam, in place, chunk by chunk.

They give what MXNet's own operators give, to rounding, without MXNet in the server process, so that a new server is
there at once. Every other optimizer runs as MXNet's own, in optimizers.py.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

CHUNK_BYTES = 128 * 1024
Arrays = Sequence[np.ndarray]


class FusedOptimizer:
    """A store's optimizer on a server, for slices of float32 or float64. The interface is ServerOptimizer's."""

    def __init__(self, description: Dict[str, Any]) -> None:
        self.description = description
        self._values: Dict[str, Any] = dict(description["attributes"])
        self._rule, self._slots = _RULES[description["name"]]
        self._factors: Dict[int, Tuple[float, float]] = {}
        self._states: Dict[int, List[np.ndarray]] = {}
        self._counts: Dict[int, int] = {}
        self._scratch = np.empty(CHUNK_BYTES // 4, np.float32)

    def define(self, s: int, key: str) -> None:
        """Slice `s` belongs to `key` (its wire name), which may have multipliers."""
        factors = self.description["multipliers"].get(key)
        if factors is not None:
            self._factors[s] = tuple(factors)

    def set_scalars(self, values: Dict[str, float]) -> None:
        """Take over the hyper-parameters that came with a round of pushes."""
        self._values.update(values)

    def update(self, s: int, weight: np.ndarray, gradient: np.ndarray) -> None:
        """Update a slice's weights in place with the sum of the round's gradients, of the same shape and dtype."""
        states = self._states.get(s)
        if states is None:
            states = self._states[s] = [np.zeros(weight.size, weight.dtype) for _ in range(self._slots(self._values))]
        count = self._counts[s] = self._counts.get(s, 0) + 1
        lr_mult, wd_mult = self._factors.get(s, (1.0, 1.0))
        values = {**self._values, "lr": self._values["lr"] * lr_mult, "wd": self._values["wd"] * wd_mult}
        if self._scratch.dtype != weight.dtype:
            self._scratch = np.empty(CHUNK_BYTES // weight.itemsize, weight.dtype)
        flat, flat_gradient = weight.reshape(-1), gradient.reshape(-1)
        step = CHUNK_BYTES // weight.itemsize
        for start in range(0, flat.size, step):
            part = slice(start, start + step)
            w = flat[part]
            g = np.multiply(flat_gradient[part], _scalar(values["rescale_grad"], w), out=self._scratch[: w.size])
            self._rule(w, g, [state[part] for state in states], values, count)

    def update_rows(self, s: int, weight: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """As `update`, with a gradient of which only `rows` are not zero; a lazy optimizer leaves the others alone."""
        if not self._values.get("lazy_update"):
            gradient = np.zeros(weight.shape, weight.dtype)
            gradient[rows] = values
            self.update(s, weight, gradient)
            return
        part = weight[rows]
        states = self._states.get(s)
        if states is None:
            states = [np.zeros(weight.size, weight.dtype) for _ in range(self._slots(self._values))]
        of_rows = [state.reshape(weight.shape) for state in states]
        self._states[s] = [state[rows].reshape(-1) for state in of_rows]
        self.update(s, part, values)
        for state, changed in zip(of_rows, self._states[s]):
            state[rows] = changed.reshape(part.shape)
        self._states[s] = states
        weight[rows] = part

    def dump(self, s: int) -> Tuple[Any, List[np.ndarray]]:
        """A slice's state: its update count and the arrays of its slots."""
        states = self._states.get(s, [])
        return {"count": self._counts.get(s, 0), "dtype": states[0].dtype.name if states else "float32"}, states

    def load(self, s: int, structure: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take over what `dump` returned on another server; the arrays' bytes are copied."""
        if structure["count"]:
            self._counts[s] = structure["count"]
            self._states[s] = [np.array(array.view(structure["dtype"])) for array in arrays]

    def forget(self, s: int) -> None:
        """Drop the state of a slice that has left."""
        self._states.pop(s, None)
        self._counts.pop(s, None)


def fusable(description: Dict[str, Any], dtype: str) -> bool:
    """Whether these rules serve an optimizer for keys of `dtype`."""
    attributes = description["attributes"]
    plain = not attributes.get("multi_precision") or dtype != "float16"
    return description["name"] in _RULES and dtype in ("float32", "float64") and plain


def _scalar(value: float, like: np.ndarray) -> Any:
    return like.dtype.type(value)


def _clip(g: np.ndarray, values: Dict[str, Any]) -> None:
    limit = values.get("clip_gradient")
    if limit is not None and limit > 0:
        np.clip(g, -_scalar(limit, g), _scalar(limit, g), out=g)


def _sgd(w: np.ndarray, g: np.ndarray, states: Arrays, values: Dict[str, Any], count: int) -> None:
    """MXNet's multi_sgd_update and multi_sgd_mom_update, which its SGD uses: m = momentum m - lr (g + wd w); w += m."""
    _clip(g, values)
    _decay(w, g, values)
    g *= _scalar(values["lr"], w)
    if not states:
        w -= g
        return
    momentum = states[0]
    momentum *= _scalar(values["momentum"], w)
    momentum -= g
    w += momentum


def _nag(w: np.ndarray, g: np.ndarray, states: Arrays, values: Dict[str, Any], count: int) -> None:
    """MXNet's nag_mom_update: n = momentum m - lr (g + wd w); w += momentum n - lr (g + wd w).

    What it keeps as the next m is n with the decay of the new w, and so does this.
    """
    if not states:
        _sgd(w, g, states, values, count)
        return
    _clip(g, values)
    momentum, factor, lr = states[0], _scalar(values["momentum"], w), _scalar(values["lr"], w)
    momentum *= factor
    g *= lr
    momentum -= g
    decay = lr * _scalar(values["wd"], w)
    step = factor * (momentum - decay * w) - decay * w - g
    w += step
    if decay:
        momentum -= decay * w


def _adam(w: np.ndarray, g: np.ndarray, states: Arrays, values: Dict[str, Any], count: int) -> None:
    """MXNet's adam_update, with the bias corrections of update `count` in the learning rate."""
    _decay(w, g, values)
    _clip(g, values)
    mean, variance = states
    beta1, beta2, one = values["beta1"], values["beta2"], _scalar(1, w)
    mean *= _scalar(beta1, w)
    mean += (one - _scalar(beta1, w)) * g
    np.multiply(g, g, out=g)
    variance *= _scalar(beta2, w)
    g *= one - _scalar(beta2, w)
    variance += g
    np.sqrt(variance, out=g)
    g += _scalar(values["epsilon"], w)
    np.divide(mean, g, out=g)
    g *= _scalar(values["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count), w)
    w -= g


def _decay(w: np.ndarray, g: np.ndarray, values: Dict[str, Any]) -> None:
    if values["wd"]:
        g += _scalar(values["wd"], w) * w


def _momentum_slot(values: Dict[str, Any]) -> int:
    return 1 if values.get("momentum") else 0


def _two_slots(values: Dict[str, Any]) -> int:
    return 2


_RULES: Dict[str, Any] = {"sgd": (_sgd, _momentum_slot), "nag": (_nag, _momentum_slot), "adam": (_adam, _two_slots)}
