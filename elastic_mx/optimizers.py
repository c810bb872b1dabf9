"""The worker's half of an optimizer that runs on the servers: described as plain data, never as a pickle.

`describe` once, `scalars` with every push. The servers' half is server_optimizer.py.
"""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

import msgspec
from mxnet.optimizer import Optimizer

from elastic_mx.server_optimizer import OptimizerSpec

# Optimizers of MXNet that use norms over a whole weight.
WHOLE_TENSOR = ("lamb", "lars")
# What MXNet's base class keeps beside hyper-parameters; multipliers and names travel resolved.
_BOOKS = {
    *("lr_scheduler", "sym_info", "allow_np_array", "num_update", "aggregate_num", "idx2name", "param_dict"),
    *("lr_mult", "wd_mult", "_index_update_count", "_all_index_update_counts"),
}
# Numbers that are the servers' own: they change as updates are made, and on the worker never do.
_NOT_SCALARS = _BOOKS | {"begin_num_update", "m_schedule", "skip", "last_lr", "cur_lr", "lbmult", "admult"}


def describe(optimizer: Any, seed: int = 0) -> Dict[str, Any]:
    """An optimizer as plain data.

    Args:
        seed: of the noise of SGLD.

    Returns:
        An OptimizerSpec in builtin types. A class of MXNet's own goes by its registered name, another one by its
        import path, which the servers must have been started with permission to import.

    Raises:
        TypeError: it is none of MXNet's optimizers.
        ValueError: the class cannot be imported elsewhere, or an attribute is no plain data.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{optimizer!r} is no mxnet.optimizer.Optimizer: make one with mx.optimizer.create")
    klass = type(optimizer)
    registered = Optimizer.opt_registry.get(klass.__name__.lower())
    builtin = registered is klass and klass.__module__.startswith("mxnet.")
    if not builtin and (klass.__module__ == "__main__" or "<locals>" in klass.__qualname__):
        raise ValueError(
            f"optimizer class {klass.__qualname__} is defined in the script: servers cannot import it; "
            "move it to the top level of a module, or update on the workers (update_on_kvstore=False)"
        )
    spec = OptimizerSpec(
        name=klass.__name__.lower() if builtin else f"{klass.__module__}:{klass.__qualname__}",
        attributes={n: _plain(klass, n, value) for n, value in vars(optimizer).items() if n not in _BOOKS},
        multipliers=_multipliers(optimizer),
        names={_wire_name(index): name for index, name in optimizer.idx2name.items()},
        order=_order(optimizer),
        seed=seed,
    )
    return msgspec.to_builtins(spec)


def needs_whole_tensors(optimizer: Any) -> bool:
    """Whether a weight must stay whole on one server, because its parts are not updated independently.

    A class that is not MXNet's own says that it works element by element with an attribute ``elementwise = True``.
    """
    name = type(optimizer).__name__.lower()
    if Optimizer.opt_registry.get(name) is type(optimizer) and type(optimizer).__module__.startswith("mxnet."):
        return name in WHOLE_TENSOR or (name == "lbsgd" and optimizer.warmup_strategy == "lars")
    return not getattr(optimizer, "elementwise", False)


def scalars(optimizer: Any, num_update: int) -> Dict[str, float]:
    """The hyper-parameters that may change from step to step, for the `num_update`-th update (the first is 1).

    The learning rate is what the optimizer's ``lr_scheduler`` says, where it has one: schedulers stay on the worker.
    """
    found = {
        name: float(value)
        for name, value in vars(optimizer).items()
        if isinstance(value, (float, int)) and name not in _NOT_SCALARS and value.__class__ is not bool
    }
    if optimizer.lr_scheduler is not None:
        found["lr"] = float(optimizer.lr_scheduler(num_update))
    return found


def _plain(klass: Any, name: str, value: Any) -> Any:
    """`value` with numpy's scalars as Python's; ValueError where it is no plain data."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(klass, name, part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, (int, str)) for key in value):
        return {key: _plain(klass, name, part) for key, part in value.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise ValueError(
        f"{klass.__name__}.{name} is a {type(value).__name__}: only numbers, strings, lists and dicts of them reach "
        "the servers; make it one of these, or update on the workers (update_on_kvstore=False)"
    )


def _wire_name(index: Any) -> str:
    return f"i:{index}" if isinstance(index, int) else f"s:{index}"


def _order(optimizer: Any) -> Dict[str, int]:
    """Where each key comes in a step, which Nadam's momentum schedule depends on: it is one for all weights."""
    indices: List[Any] = sorted(i for i, p in optimizer.param_dict.items() if getattr(p, "grad_req", "write") != "null")
    names = [_wire_name(index) for index in indices or sorted(optimizer.idx2name)]
    found = {name: position for position, name in enumerate(names)}
    if not indices:  # Module names keys by their parameters
        found.update((_wire_name(optimizer.idx2name[i]), at) for at, i in enumerate(sorted(optimizer.idx2name)))
    return found


def _multipliers(optimizer: Any) -> Dict[str, Tuple[float, float]]:
    """The (learning rate, weight decay) factors of the keys that have some."""
    indices: Set[Any] = {*optimizer.param_dict, *optimizer.lr_mult, *optimizer.wd_mult, *optimizer.idx2name}
    indices.update(optimizer.idx2name.values())
    found = {}
    for index in indices:
        factors = (_factor(optimizer, index, "lr_mult"), _factor(optimizer, index, "wd_mult"))
        if factors != (1.0, 1.0):
            found[_wire_name(index)] = factors
    return found


def _factor(optimizer: Any, index: Any, book: str) -> float:
    """A multiplier as ``Optimizer._get_lrs`` and ``_get_wds`` look it up."""
    table = getattr(optimizer, book)
    if index in optimizer.param_dict:
        return float(getattr(optimizer.param_dict[index], book))
    if index in table:
        return float(table[index])
    return float(table.get(optimizer.idx2name.get(index), 1.0))
