"""SGD, NAG and Adam on numpy arrays, as MXNet 1.9.1's operators compute them, and faster; SGLD, reproducibly.

Each update goes over chunks that fit the cache, in the operators' own order of roundings, so the results are the
operators' to the last bit and do not depend on how the arrays are cut. What a slice is, is server_optimizer.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

CHUNK = 16384  # elements; four arrays of float32 take 256 KiB, half of a small second-level cache


@dataclass(frozen=True)
class Step:
    """The numbers of one update, rounded as MXNet's operators take them: to float32, then to the weights' dtype."""

    lr: Any
    wd: Any
    lr_wd: Any
    lr_rescale: Any
    rescale: Any
    clip: Any
    momentum: Any = None
    momentum_1: Any = None
    beta1: Any = None
    beta2: Any = None
    rest1: Any = None
    rest2: Any = None
    epsilon: Any = None


Scratch = Tuple[np.ndarray, np.ndarray]
Rule = Callable[[np.ndarray, np.ndarray, Sequence[np.ndarray], Step, Scratch], None]


def make_step(values: Mapping[str, Any], lr: float, wd: float, dtype: np.dtype) -> Step:
    """Round the hyper-parameters `values` of an update with learning rate `lr` and weight decay `wd`."""

    def rounded(value: float) -> Any:
        return dtype.type(np.float32(value))

    clip = values.get("clip_gradient")
    numbers: Dict[str, Any] = dict(
        lr=rounded(lr),
        wd=rounded(wd),
        lr_wd=rounded(lr) * rounded(wd),
        lr_rescale=rounded(lr) * rounded(values.get("rescale_grad", 1.0)),
        rescale=rounded(values.get("rescale_grad", 1.0)),
        clip=rounded(clip) if clip else None,
    )
    if "momentum" in values:
        numbers["momentum"] = rounded(values["momentum"])
        numbers["momentum_1"] = numbers["momentum"] + dtype.type(1)
    if "beta1" in values:
        one = np.float32(1)
        beta1, beta2 = np.float32(values["beta1"]), np.float32(values["beta2"])
        numbers.update(beta1=dtype.type(beta1), beta2=dtype.type(beta2), epsilon=rounded(values["epsilon"]))
        numbers.update(rest1=dtype.type(one - beta1), rest2=dtype.type(one - beta2))
    return Step(**numbers)


def adam_rate(values: Mapping[str, Any], lr: float, count: int) -> float:
    """Adam's learning rate of the `count`-th update, with its bias corrections (Kingma and Ba, end of section 2)."""
    return float(lr * (math.sqrt(1.0 - values["beta2"] ** count) / (1.0 - values["beta1"] ** count)))


def _rescaled(g: np.ndarray, step: Step, out: np.ndarray) -> np.ndarray:
    """The gradient, rescaled and clipped; `g` itself where that changes nothing."""
    if step.rescale != 1:
        g = np.multiply(g, step.rescale, out=out)
    if step.clip is not None:
        g = np.clip(g, -step.clip, step.clip, out=out)
    return g


def _lr_times(g: np.ndarray, step: Step, out: np.ndarray) -> np.ndarray:
    """The learning rate times the gradient, rescaled and clipped; in MXNet's order, which clipping changes."""
    if step.clip is None:
        return np.multiply(g, step.lr_rescale, out=out)
    return np.multiply(_rescaled(g, step, out), step.lr, out=out)


def sgd(w: np.ndarray, g: np.ndarray, _state: Sequence[np.ndarray], step: Step, scratch: Scratch) -> None:
    """``multi_sgd_update``: w -= lr * g + (lr * wd) * w."""
    t, u = scratch
    t = _lr_times(g, step, t)
    if step.lr_wd != 0:
        t += np.multiply(w, step.lr_wd, out=u)
    w -= t


def sgd_momentum(w: np.ndarray, g: np.ndarray, state: Sequence[np.ndarray], step: Step, scratch: Scratch) -> None:
    """``multi_sgd_mom_update``: m = momentum * m - (lr * wd) * w - lr * g; w += m."""
    (m,), (t, u) = state, scratch
    m *= step.momentum
    if step.lr_wd != 0:
        m -= np.multiply(w, step.lr_wd, out=u)
    m -= _lr_times(g, step, t)
    w += m


def sgd_single(w: np.ndarray, g: np.ndarray, _state: Sequence[np.ndarray], step: Step, scratch: Scratch) -> None:
    """``sgd_update``, which NAG without momentum is: w = (1 - lr * wd) * w - lr * g."""
    t = _lr_times(g, step, scratch[0])
    if step.lr_wd != 0:
        w *= w.dtype.type(1) - step.lr_wd
    w -= t


def nag(w: np.ndarray, g: np.ndarray, state: Sequence[np.ndarray], step: Step, scratch: Scratch) -> None:
    """``nag_mom_update``: with m' = momentum * m, w += (momentum + 1) * (m' - lr * (g + wd * w)) - m';
    m = m' - lr * (g + wd * w), where w is the new one: the operator works in place and reads it back.
    """
    (m,), (t, u) = state, scratch
    g = _rescaled(g, step, t)
    m *= step.momentum
    _nag_gradient(w, g, step, u)
    np.subtract(m, u, out=u)
    u *= step.momentum_1
    w -= m
    w += u
    m -= _nag_gradient(w, g, step, u)


def _nag_gradient(w: np.ndarray, g: np.ndarray, step: Step, out: np.ndarray) -> np.ndarray:
    np.multiply(w, step.wd, out=out)
    out += g
    out *= step.lr
    return out


def adam(w: np.ndarray, g: np.ndarray, state: Sequence[np.ndarray], step: Step, scratch: Scratch) -> None:
    """``adam_update``: g += wd * w, then clipped; m and v are its running moments; w -= lr * m / (sqrt(v) + eps)."""
    (m, v), (t, u) = state, scratch
    if step.rescale != 1:
        g = np.multiply(g, step.rescale, out=t)
    if step.wd != 0:
        g = np.add(g, np.multiply(w, step.wd, out=u), out=t)
    if step.clip is not None:
        g = np.clip(g, -step.clip, step.clip, out=t)
    m *= step.beta1
    m += np.multiply(g, step.rest1, out=u)
    v *= step.beta2
    np.multiply(g, step.rest2, out=u)
    u *= g
    v += u
    np.sqrt(v, out=u)
    u += step.epsilon
    np.multiply(m, step.lr, out=t)
    t /= u
    w -= t


def run(rule: Rule, step: Step, w: np.ndarray, g: np.ndarray, state: Sequence[np.ndarray]) -> None:
    """Update the flat arrays `w` and `state` in place with the flat gradient `g`, chunk by chunk.

    `w` of float16 has its float32 master copy as the last of `state`; `g` has the dtype of `w`.
    """
    master: Optional[np.ndarray] = None
    target = w
    if w.dtype == np.float16:
        *own, master = state
        state, target = own, master
    size = min(CHUNK, max(1, w.size))
    first, second, wide = (np.empty(size, target.dtype) for _ in range(3))
    for start in range(0, w.size, CHUNK):
        stop = min(start + CHUNK, w.size)
        part: List[np.ndarray] = [array[start:stop] for array in state]
        gradient = g[start:stop]
        if master is not None:
            np.copyto(wide[: stop - start], gradient)
            gradient = wide[: stop - start]
        rule(target[start:stop], gradient, part, step, (first[: stop - start], second[: stop - start]))
        if master is not None:
            np.copyto(w[start:stop], target[start:stop], casting="same_kind")


def sgld(w: np.ndarray, g: np.ndarray, values: Mapping[str, Any], lr: float, wd: float, seed: Sequence[int]) -> None:
    """Stochastic gradient Langevin dynamics: w -= lr / 2 * (g + wd * w), plus normal noise of variance `lr`.

    The noise is a function of `seed`, so a run can be repeated, whichever server holds the slice.
    """
    g = g * w.dtype.type(values.get("rescale_grad", 1.0))
    if values.get("clip_gradient") is not None:
        np.clip(g, -values["clip_gradient"], values["clip_gradient"], out=g)
    w -= w.dtype.type(lr / 2) * (g + w.dtype.type(wd) * w)
    w += np.random.default_rng(list(seed)).normal(0.0, math.sqrt(lr), w.shape).astype(w.dtype)
