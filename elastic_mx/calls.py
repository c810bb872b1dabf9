"""What a call of MXNet's KVStore was given: its keys as the wire names them, and its arrays, key by key."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
from mxnet.ndarray.sparse import BaseSparseNDArray

from elastic_mx import engine
from elastic_mx.catalog import Key
from elastic_mx.link import JobError
from elastic_mx.traffic import Item

# For each key of a call its arrays, one per device.
Arrays = List[List[Any]]


def names_of(key: Any) -> List[str]:
    """A call's keys as the wire names them: int and str do not collide."""
    keys = key if isinstance(key, (list, tuple)) else [key]
    return [f"i:{one}" if isinstance(one, int) else f"s:{one}" for one in keys]


def arrays_of(key: Any, value: Any) -> Arrays:
    """A call's arrays for each of its keys, one per device."""
    values = value if isinstance(key, (list, tuple)) else [value]
    if isinstance(key, (list, tuple)) and len(key) != len(value):
        raise ValueError(f"{len(key)} keys but {len(value)} values")
    return [list(one) if isinstance(one, (list, tuple)) else [one] for one in values]


def once(key: Any, arrays: Arrays) -> Tuple[Any, Arrays]:
    """A call's keys without repetition: as in MXNet, a key given twice has the arrays of both places."""
    if not isinstance(key, (list, tuple)) or len(set(key)) == len(key):
        return key, arrays
    merged: Dict[Any, List[Any]] = {}
    for one, own in zip(key, arrays):
        merged.setdefault(one, []).extend(own)
    return list(merged), list(merged.values())


def sum_of(arrays: Sequence[Any]) -> Any:
    """The sum of a key's values on several devices, on the first's."""
    return arrays[0] if len(arrays) == 1 else mx.nd.add_n(*[array.as_in_context(mx.cpu()) for array in arrays])


def items_of(keys: Sequence[Key], sources: Sequence[Any], targets: Arrays) -> List[Item]:
    """What the client needs of the keys of an operation, taken within the engine's.

    Args:
        sources: the array to push for each key; none for a pull.
        targets: the arrays to pull each key into, one per device; none for a push.

    Raises:
        JobError: an array is not of its key's size and dtype.
    """
    nothing: List[Any] = [None] * len(keys)
    pulls = [_view(key, own[0], True) if own else None for key, own in zip(keys, targets)] if targets else nothing
    if any(isinstance(source, BaseSparseNDArray) for source in sources):
        return [_item(key, source, pull) for key, source, pull in zip(keys, sources, pulls)]
    pushes = [_view(key, source, False) for key, source in zip(keys, sources)] if sources else nothing
    return list(map(Item, keys, pushes, pulls))


def _item(key: Key, source: Any, pull: Any) -> Item:
    if not isinstance(source, BaseSparseNDArray):
        return Item(key, _view(key, source, False), pull)
    values, rows = engine.row_sparse_views(source)
    return Item(key, values, pull, rows)


def _view(key: Key, array: Any, writable: bool) -> Any:
    try:
        return engine.flat_view(array, key.elements, key.dtype, writable)
    except ValueError as error:
        raise JobError(f"key {key.spec.key[2:]!r} of shape {key.spec.shape}: {error}") from error


def dense(array: Any) -> Any:
    return array if array.stype == "default" else array.tostype("default")
