"""What a server or a worker knows of the slices: key, rows, bytes, owner and place, by the coordinator's word.

The coordinator's own book, with what is free and how plans are made, is table.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Dict, List, Sequence, Tuple

import numpy as np

from elastic_mx.messages import KeySpec, Move, PlacedKey
from elastic_mx.table import row_bytes, slice_rows


@dataclass(frozen=True)
class Key:
    """A key and its slices: ids from `first` up to `first + len(rows)`, with their row ranges."""

    spec: KeySpec
    first: int
    rows: List[Tuple[int, int]]
    dtype: np.dtype
    elements: int

    @property
    def slices(self) -> range:
        return range(self.first, self.first + len(self.rows))

    def slice_shape(self, s: int) -> Tuple[int, ...]:
        """Shape of slice `s`: its rows and the key's other axes; the key's own shape where it has no axis."""
        start, stop = self.rows[s - self.first]
        return (stop - start, *self.spec.shape[1:]) if self.spec.shape else ()


class Catalog:
    """All slices of a job, by id."""

    def __init__(self, slice_bytes: int) -> None:
        self.slice_bytes = slice_bytes
        self.keys: Dict[Tuple[int, str], Key] = {}
        self.key_of: Dict[int, Key] = {}
        self.size: Dict[int, int] = {}
        self.owner: Dict[int, str] = {}
        self.offset: Dict[int, int] = {}
        self.changes = 0

    def known(self) -> List[Tuple[Tuple[int, str], Key]]:
        """All keys by (store, name), to look through while another thread may add some."""
        return list(self.keys.items())

    def add(self, placed: PlacedKey) -> Key:
        """Enter a key as the coordinator placed it; a known one stays as it is."""
        spec = placed.spec
        known = self.keys.get((spec.store, spec.key))
        if known is not None:
            return known
        rows = slice_rows(spec, self.slice_bytes)
        key = Key(spec, placed.first_slice, rows, np.dtype(spec.dtype), prod(spec.shape))
        self.keys[spec.store, spec.key] = key
        self.changes += 1
        per_row = row_bytes(spec)
        for s, (start, stop), (owner, offset) in zip(key.slices, key.rows, placed.places):
            self.key_of[s] = key
            self.size[s] = (stop - start) * per_row
            self.owner[s], self.offset[s] = owner, offset
        return key

    def move(self, moves: Sequence[Move]) -> None:
        """Carry out a plan's moves."""
        self.changes += 1
        for move in moves:
            self.owner[move.slice] = move.target
            self.offset[move.slice] = move.offset
