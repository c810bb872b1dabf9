"""Files of optimizer states: what the servers hold for each slice, in msgpack, never a pickle."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import msgspec

from elastic_mx.catalog import Key

MAGIC = "elastic-mx optimizer states 1"
States = Dict[int, Tuple[Any, List[bytes]]]


class _Entry(msgspec.Struct, frozen=True):
    """The state of the rows `start` to `stop` of a key."""

    key: str
    start: int
    stop: int
    structure: Any
    arrays: List[bytes]


class _File(msgspec.Struct, frozen=True):
    magic: str
    entries: List[_Entry]
    optimizer: Any = None


def save(fname: str, keys: Sequence[Key], states: States, optimizer: Any) -> None:
    """Write the states of the slices of `keys` to a file, all of it or none."""
    entries = []
    for key in keys:
        for s, (start, stop) in zip(key.slices, key.rows):
            structure, arrays = states[s]
            entries.append(_Entry(key.spec.key, start, stop, structure, [bytes(array) for array in arrays]))
    partial = f"{fname}.partial"
    with open(partial, "wb") as file:
        file.write(msgspec.msgpack.encode(_File(MAGIC, entries, optimizer)))
    os.replace(partial, fname)


def load(fname: str, keys: Mapping[str, Key]) -> States:
    """Read a file that `save` wrote.

    Args:
        keys: the store's keys by wire name.

    Raises:
        ValueError: the file is none of `save`'s, or its keys are cut otherwise than this job's.
    """
    with open(fname, "rb") as file:
        data = file.read()
    try:
        content = msgspec.msgpack.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{fname} is no file of optimizer states: {error}") from error
    if content.magic != MAGIC:
        raise ValueError(f"{fname} is a file of {content.magic!r}, this release reads {MAGIC!r}")
    found: States = {}
    for entry in content.entries:
        key = keys.get(entry.key)
        if key is None or (entry.start, entry.stop) not in key.rows:
            raise ValueError(
                f"{fname} has rows {entry.start} to {entry.stop} of key {entry.key[2:]!r}, which this job does not cut "
                "so: load it into the same model with the same --slice-bytes"
            )
        found[key.first + key.rows.index((entry.start, entry.stop))] = (entry.structure, entry.arrays)
    return found
