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


def item_of(key: Key, source: Any, arrays: Sequence[Any]) -> Item:
    """What the client needs of a key, taken within the engine's operation.

    Raises:
        JobError: the arrays are not of the key's size and dtype.
    """
    try:
        pull = engine.flat_view(arrays[0], key.elements, key.dtype, writable=True) if arrays else None
        if source is None:
            return Item(key, None, pull)
        if isinstance(source, BaseSparseNDArray):
            values, rows = engine.row_sparse_views(source)
            return Item(key, values, pull, rows)
        return Item(key, engine.flat_view(source, key.elements, key.dtype), pull)
    except ValueError as error:
        raise JobError(f"key {key.spec.key[2:]!r} of shape {key.spec.shape}: {error}") from error


def dense(array: Any) -> Any:
    return array if array.stype == "default" else array.tostype("default")
