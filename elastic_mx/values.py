"""The numbers that a server holds: values in its arena, optimizer states, and how a round of gradients is applied.

Which round is complete is server_machine.py's, and who is told server.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple

import numpy as np

from elastic_mx.arena import Arena
from elastic_mx.catalog import Catalog

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Shared:
    """A contribution that lies in its worker's arena, at the slice's own place."""

    arena: np.ndarray


@dataclass(frozen=True)
class Sent:
    """A contribution that came in a frame: the slice's bytes (uint8)."""

    data: np.ndarray


class Values:
    """Values and optimizer states of the slices that a server owns."""

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.catalog = catalog
        self.arena = Arena(name)

    def bytes_of(self, s: int) -> np.ndarray:
        """The bytes (uint8) of slice `s`."""
        offset = self.catalog.offset[s]
        return self.arena.bytes[offset : offset + self.catalog.size[s]]

    def array(self, s: int) -> np.ndarray:
        """Slice `s` in its key's dtype, of shape ``Key.slice_shape``."""
        key = self.catalog.key_of[s]
        return self.bytes_of(s).view(key.dtype).reshape(key.slice_shape(s))

    def store(self, slices: Sequence[int], sources: Sequence[Any]) -> None:
        """Make the sources the slices' values."""
        for s, source in zip(slices, sources):
            np.copyto(self.bytes_of(s), self._resolve(s, source))

    def apply(self, slices: Sequence[int], contributions: Sequence[List[Tuple[str, Any]]]) -> None:
        """Add each slice's contributions in order and make the sum its value, or update the value with it."""
        for s, parts in zip(slices, contributions):
            dtype = self.catalog.key_of[s].dtype
            total = self.bytes_of(s).view(dtype)
            arrays = [self._resolve(s, source).view(dtype) for _, source in parts]
            add_in_order(arrays, total)

    def _resolve(self, s: int, source: Any) -> np.ndarray:
        """The bytes of a contribution to slice `s`."""
        if isinstance(source, Sent):
            return source.data
        offset = self.catalog.offset[s]
        return source.arena[offset : offset + self.catalog.size[s]]  # type: ignore[no-any-return]

    def forget(self, slices: Sequence[int], offsets: Sequence[int]) -> None:
        """Give back the memory of slices that have left."""
        for s, offset in zip(slices, offsets):
            self.arena.release(offset, self.catalog.size[s])


def add_in_order(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Write the sum of flat arrays, added from the first to the last, into `out`; chunks stay within the cache."""
    step = max(1, CHUNK_BYTES // out.itemsize)
    for start in range(0, out.size, step):
        part = out[start : start + step]
        if len(arrays) == 1:
            np.copyto(part, arrays[0][start : start + step])
            continue
        np.add(arrays[0][start : start + step], arrays[1][start : start + step], out=part)
        for array in arrays[2:]:
            np.add(part, array[start : start + step], out=part)
