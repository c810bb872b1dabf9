"""The numbers that a server holds: values in its arena, optimizer states, and how a round of gradients is applied.

Which round is complete is server_machine.py's, and who is told server.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from elastic_mx.arena import Arena
from elastic_mx.catalog import Catalog, Key
from elastic_mx.compression import KINDS, Compression, packed_bytes, unpack
from elastic_mx.messages import ProtocolError
from elastic_mx.server_optimizer import ServerOptimizer
from elastic_mx.table import aligned
from elastic_mx.updates import CHUNK

CHUNK_BYTES = 256 * 1024
MOST_RUNS = 1000


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a worker gives to slices: slice s lies at ``buffer[at[s]:]`` (uint8).

    That is the worker's arena, with the slices' own places, or a frame. One object serves all slices that lie in it
    as they lie in the server's arena, so that slices side by side are added in one go.
    """

    buffer: np.ndarray
    at: Mapping[int, int]
    scalars: Optional[Dict[str, float]] = None


@dataclass(frozen=True, eq=False)
class SomeRows:
    """A contribution of some rows: their numbers within the slice (int64, rising) and values, of shape (rows, ...)."""

    rows: np.ndarray
    values: np.ndarray
    scalars: Optional[Dict[str, float]] = None


class Values:
    """Values and optimizer states of the slices that a server owns."""

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.catalog = catalog
        self.arena = Arena(name)
        self.optimizers: Dict[int, ServerOptimizer] = {}
        self._gradient = np.empty(0, np.uint8)
        self._runs: Dict[Tuple[int, ...], List[List[int]]] = {}
        self._runs_at = -1

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
        start = 0
        for i in range(1, len(slices) + 1):
            if i < len(slices) and contributions[i] == contributions[start]:
                continue
            sources = [source for _, source in contributions[start]]
            if any(isinstance(source, SomeRows) for source in sources):
                for s in slices[start:i]:
                    self._apply_rows(s, sources)
            else:
                for side_by_side in self._side_by_side(slices[start:i]):
                    self._apply(side_by_side, sources)
            start = i

    def _side_by_side(self, slices: Sequence[int]) -> List[List[int]]:
        """The slices in runs that lie in the arena without more than a cache line's rest between them, of one kind."""
        if self._runs_at != self.catalog.changes:
            self._runs.clear()
            self._runs_at = self.catalog.changes
        key = tuple(slices)
        runs = self._runs.get(key)
        if runs is None:
            runs, end, kind = [], -1, None
            for s in slices:
                spec = self.catalog.key_of[s].spec
                optimizer = self.optimizers.get(spec.store)
                factors = optimizer.factors(s) if optimizer is not None else None
                this = (spec.dtype, spec.store, spec.key[:2], factors)
                if self.catalog.offset[s] == end and this == kind:
                    runs[-1].append(s)
                else:
                    runs.append([s])
                end, kind = aligned(self.catalog.offset[s] + self.catalog.size[s]), this
            if len(self._runs) >= MOST_RUNS:
                self._runs.clear()
            self._runs[key] = runs
        return runs

    def _apply(self, slices: Sequence[int], sources: Sequence[Contribution]) -> None:
        """As `apply`, for slices side by side whose contributions are the same objects."""
        key, offset = self.catalog.key_of[slices[0]], self.catalog.offset
        start, last = offset[slices[0]], slices[-1]
        length = offset[last] + self.catalog.size[last] - start
        weight = self.arena.bytes[start : start + length].view(key.dtype)
        arrays = []
        for source in sources:
            at = source.at[slices[0]]
            arrays.append(source.buffer[at : at + length].view(key.dtype))
        optimizer = self.optimizers.get(key.spec.store)
        if optimizer is None or not updated(key):
            add_in_order(arrays, weight)
            return
        if sources[0].scalars:
            optimizer.set_scalars(sources[0].scalars)
        run = optimizer.begin_run(slices, weight)
        if run is None:
            for s in slices:
                optimizer.update(s, self.array(s), self._sum(s, sources))
            return
        for at in range(0, weight.size, CHUNK):
            run.update(at, self._sum_of([array[at : at + CHUNK] for array in arrays]))

    def rows(self, s: int, rows: Any, values: Any, scalars: Optional[Dict[str, float]]) -> SomeRows:
        """A contribution of some rows of slice `s`, from the bytes of their numbers and values.

        Raises:
            ProtocolError: they do not fit the slice.
        """
        key = self.catalog.key_of[s]
        shape = key.slice_shape(s)
        numbers = np.frombuffer(rows, np.int64)
        found = np.frombuffer(values, key.dtype)
        if found.size != len(numbers) * math.prod(shape[1:]):
            raise ProtocolError(
                f"{len(numbers)} rows of slice {s} of key {key.spec.key!r} come with {found.size} numbers"
            )
        if len(numbers) and not (0 <= numbers[0] <= numbers[-1] < shape[0] and (np.diff(numbers) > 0).all()):
            raise ProtocolError(
                f"the row numbers for slice {s} of key {key.spec.key!r} are not rising within {shape[0]}"
            )
        return SomeRows(numbers, found.reshape(len(numbers), *shape[1:]), scalars)

    def packed(
        self,
        slices: Sequence[int],
        data: np.ndarray,
        compression: Optional[Compression],
        scalars: Optional[Dict[str, float]],
    ) -> List[Contribution]:
        """Contributions to slices from their compressed values (uint8), one after the other.

        Raises:
            ProtocolError: they do not fit the slices.
        """
        counts = [self.catalog.size[s] // self.catalog.key_of[s].dtype.itemsize for s in slices]
        if compression is None or compression.kind not in KINDS:
            raise ProtocolError(f"values of slices {list(slices)} are compressed by {compression}, which is not known")
        ends = np.cumsum([packed_bytes(count, compression) for count in counts]).tolist()
        if data.size != (ends[-1] if ends else 0):
            raise ProtocolError(f"{data.size} compressed bytes came for slices {list(slices)}, not {ends[-1:]}")
        found = []
        for s, start, end in zip(slices, [0, *ends], ends):
            buffer = np.empty(self.catalog.size[s], np.uint8)
            unpack(data[start:end], compression, buffer.view(self.catalog.key_of[s].dtype))
            found.append(Contribution(buffer, {s: 0}, scalars))
        return found

    def _apply_rows(self, s: int, sources: Sequence[Any]) -> None:
        """As `apply`, for a slice whose contributions are rows, all of them or some."""
        key = self.catalog.key_of[s]
        optimizer = self.optimizers.get(key.spec.store) if updated(key) else None
        if optimizer is not None and sources[0].scalars:
            optimizer.set_scalars(sources[0].scalars)
        if optimizer is not None and all(isinstance(source, SomeRows) for source in sources):
            optimizer.update_rows(s, self.array(s), *add_rows(sources))
            return
        total = np.zeros(key.slice_shape(s), key.dtype)
        for source in sources:
            if isinstance(source, SomeRows):
                total[source.rows] += source.values
            else:
                total += self._resolve(s, source).view(key.dtype).reshape(total.shape)
        if optimizer is not None:
            optimizer.update(s, self.array(s), total)
        else:
            np.copyto(self.array(s), total)

    def _sum(self, s: int, sources: Sequence[Contribution]) -> np.ndarray:
        """The sum of a round's gradients, of the slice's shape; valid until the next one."""
        key = self.catalog.key_of[s]
        return self._sum_of([self._resolve(s, source).view(key.dtype) for source in sources]).reshape(
            key.slice_shape(s)
        )

    def _sum_of(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of flat arrays, added from the first to the last; valid until the next one."""
        if len(arrays) == 1:
            return arrays[0]
        nbytes = arrays[0].nbytes
        if len(self._gradient) < nbytes:
            self._gradient = np.empty(nbytes, np.uint8)
        total = self._gradient[:nbytes].view(arrays[0].dtype)
        add_in_order(arrays, total)
        return total

    def set_optimizer(self, store: int, description: Dict[str, Any], allowed_imports: Sequence[str]) -> None:
        """Update the values of a store with an optimizer from now on; the first description counts."""
        if store in self.optimizers:
            return
        self.optimizers[store] = optimizer = ServerOptimizer(description, allowed_imports, self._place)
        self._runs.clear()
        for s, key in self.catalog.key_of.items():
            if key.spec.store == store:
                optimizer.define(s, key.spec.key)

    def _place(self, s: int) -> Tuple[int, int]:
        return self.catalog.offset[s], self.catalog.size[s]

    def define(self, key: Key) -> None:
        """A key was added to the catalog."""
        optimizer = self.optimizers.get(key.spec.store)
        if optimizer is not None:
            for s in key.slices:
                optimizer.define(s, key.spec.key)

    def dump_states(self, slices: Sequence[int]) -> Tuple[List[Any], List[np.ndarray]]:
        """The optimizer states of slices: a structure for each, and all their arrays in order."""
        structures: List[Any] = []
        arrays: List[np.ndarray] = []
        for s in slices:
            optimizer = self.optimizers.get(self.catalog.key_of[s].spec.store)
            structure, own = optimizer.dump(s) if optimizer is not None else (None, [])
            structures.append([structure, len(own)])
            arrays.extend(own)
        return structures, arrays

    def load_states(self, slices: Sequence[int], structures: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        """Take over what `dump_states` returned on another server."""
        at = 0
        for s, (structure, count) in zip(slices, structures):
            if structure is not None:
                self.optimizers[self.catalog.key_of[s].spec.store].load(s, structure, arrays[at : at + count])
            at += count

    def _resolve(self, s: int, source: Contribution) -> np.ndarray:
        """The bytes of a contribution to slice `s`."""
        at = source.at[s]
        return source.buffer[at : at + self.catalog.size[s]]

    def forget(self, slices: Sequence[int], offsets: Sequence[int]) -> None:
        """Give back the memory of slices that have left."""
        for s, offset in zip(slices, offsets):
            self.arena.release(offset, self.catalog.size[s])
            optimizer = self.optimizers.get(self.catalog.key_of[s].spec.store)
            if optimizer is not None:
                optimizer.forget(s)


def updated(key: Key) -> bool:
    """Whether an optimizer updates this key: those that carry states and statistics it does not."""
    return key.spec.key[:2] in ("i:", "s:")


def add_rows(sources: Sequence[SomeRows]) -> Tuple[np.ndarray, np.ndarray]:
    """The rows that any of the contributions has, rising, and the sums of their values from first to last."""
    numbers = np.unique(np.concatenate([source.rows for source in sources]))
    total = np.zeros((len(numbers), *sources[0].values.shape[1:]), sources[0].values.dtype)
    for source in sources:
        total[np.searchsorted(numbers, source.rows)] += source.values
    return numbers, total


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
