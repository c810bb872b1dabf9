"""What no push carries, brought from a member to the workers that join: running statistics, and where the workers
update, weights and optimizer states.

MXNet's Trainer and Module hold these; they are found when they make a store or define its keys. When a step belongs
to which generation is worker_machine.py's.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

COUNTS = "u:counts"


class Carried(NamedTuple):
    """An array that travels under `name`; `array` is an NDArray on a device of this worker, `copies` its twins."""

    name: str
    array: Any
    copies: List[Any]


def user_of(store: Any) -> Optional[Any]:
    """The Trainer or Module that uses `store`, if there is one."""
    user = store.user() if store.user is not None else None
    return user if user is not None and user._kvstore is store else None


def caller() -> Optional[weakref.ref[Any]]:
    """The Trainer or Module that is calling, if one is: whoever makes a store or defines its keys will use it.

    Looking for users when membership changes would go through all objects of the process, which takes a tenth of a
    second, while others wait.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            one = frame.f_locals.get("self")
            if isinstance(one, (mx.gluon.Trainer, mx.module.Module)):
                return weakref.ref(one)
        frame = frame.f_back
    return None


def waiting_trainers(names: Sequence[str]) -> List[Any]:
    """The Trainers of this process that will use a store called one of `names` and have not created it yet."""
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, mx.gluon.Trainer)
        and not thing._kv_initialized
        and str(thing._kvstore_params.get("kvstore", "")).lower() in names
    ]


def fits(trainer: Any, shapes: Dict[str, Tuple[int, ...]]) -> bool:
    """Whether a store with keys of these shapes can be this trainer's; 0 in a parameter's shape is not known yet."""
    if not shapes:
        return False
    for i, parameter in enumerate(trainer._params):
        shape = shapes.get(f"i:{i}")
        own = parameter.shape
        if shape is None or own is None or len(own) != len(shape):
            return False
        if any(mine not in (0, -1, theirs) for mine, theirs in zip(own, shape)):
            return False
    return True


def finish_initialization(trainer: Any, shapes: Dict[str, Tuple[int, ...]]) -> None:
    """Give parameters that wait for a first forward pass the job's shapes, so that they exist before it."""
    for i, parameter in enumerate(trainer._params):
        if parameter._deferred_init:
            parameter.shape = shapes[f"i:{i}"]
            parameter._finish_deferred_init()


def updates_on_workers(user: Any) -> bool:
    """Whether this Trainer or Module updates its weights itself."""
    return not user._update_on_kvstore


def carried(user: Any, create: bool = False) -> List[Carried]:
    """What a Trainer or Module has that no push carries.

    Args:
        user: the Trainer or Module.
        create: make optimizer states that do not exist yet, so that they can be filled.
    """
    found = list(unpushed(user))
    if updates_on_workers(user):
        weights = list(_weights(user))
        found += [Carried(f"w:{index}", arrays[0], arrays[1:]) for index, arrays in weights]
        found += _states(user, weights, create)
    return found


def unpushed(user: Any) -> Iterator[Carried]:
    """What training changes without ever pushing it: running statistics."""
    if isinstance(user, mx.gluon.Trainer):
        for i, parameter in enumerate(user._params):
            if parameter.grad_req == "null" and parameter._data is not None:
                arrays = parameter.list_data()
                yield Carried(f"i:{i}", arrays[0], arrays[1:])
    else:
        for name, arrays in zip(user._aux_names, user._exec_group.aux_arrays):
            yield Carried(f"a:{name}", arrays[0], arrays[1:])


def _weights(user: Any) -> Iterator[Tuple[int, List[Any]]]:
    """The weights that are pushed, with their index."""
    if isinstance(user, mx.gluon.Trainer):
        for i, parameter in enumerate(user._params):
            if parameter.grad_req != "null":
                yield i, parameter.list_data()
    else:
        for i, (arrays, gradients) in enumerate(zip(user._exec_group.param_arrays, user._exec_group.grad_arrays)):
            if gradients[0] is not None:
                yield i, arrays


def _updaters(user: Any) -> List[Any]:
    return user._updaters if isinstance(user, mx.gluon.Trainer) else [user._updater]


def _states(user: Any, weights: Sequence[Tuple[int, List[Any]]], create: bool) -> List[Carried]:
    """Optimizer states; a Module has one updater for all devices, with an index of its own for each."""
    found = []
    for index, arrays in weights:
        twins = []
        for device, array in enumerate(arrays):
            trainer = isinstance(user, mx.gluon.Trainer)
            updater = user._updaters[device] if trainer else user._updater
            own = index if trainer else index * len(arrays) + device
            if own not in updater.states and create:
                updater.states[own] = updater.optimizer.create_state_multi_precision(own, array)
                updater.states_synced[own] = True
            twins.append(list(_flatten(updater.states.get(own))))
        for j, parts in enumerate(zip(*twins)):
            found.append(Carried(f"u:{index}:{j}", parts[0], list(parts[1:])))
    return found


def _flatten(state: Any) -> Iterator[Any]:
    if isinstance(state, (list, tuple)):
        for part in state:
            yield from _flatten(part)
    elif isinstance(state, mx.nd.NDArray):
        yield state


def counts(user: Any, size: int) -> np.ndarray:
    """How often each weight was updated, by index, and in the last place the optimizer's number of updates."""
    optimizer = _updaters(user)[0].optimizer
    found = np.zeros(size + 1, np.int64)
    for index, count in optimizer._index_update_count.items():
        found[index] = count
    found[size] = optimizer.num_update
    return found


def set_counts(user: Any, found: np.ndarray) -> None:
    """Take over what `counts` returned in another worker."""
    for updater in _updaters(user):
        optimizer = updater.optimizer
        for table in (*optimizer._all_index_update_counts.values(), optimizer._index_update_count):
            table.update({i: int(count) for i, count in enumerate(found[:-1]) if count})
        optimizer.num_update = int(found[-1])


def number_of_indices(user: Any) -> int:
    """How many indices the optimizer of a Trainer or Module may have."""
    if isinstance(user, mx.gluon.Trainer):
        return len(user._params)
    arrays = user._exec_group.param_arrays
    return len(arrays) * max(1, len(arrays[0]) if arrays else 1)
