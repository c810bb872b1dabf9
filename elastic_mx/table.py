"""Which slices a key has, which server owns each, and the moves that lead to a new set of servers.

Pure bookkeeping of the coordinator: who is told of it, and when, is planning.py's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from math import prod
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from elastic_mx.messages import KeySpec, Move, PlacedKey

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to a whole number of cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def row_bytes(spec: KeySpec) -> int:
    """Bytes of one row (one index of the first axis) of a key; of the whole value where it has no axis."""
    return prod(spec.shape[1:]) * np.dtype(spec.dtype).itemsize


def slice_rows(spec: KeySpec, slice_bytes: int) -> List[Tuple[int, int]]:
    """The row ranges of a key's slices: whole rows, at most `slice_bytes` each, even to within one row.

    A function of the key alone, so that sums and updates do not depend on the servers. A key without an axis is one
    row; a key of no elements has one empty slice.
    """
    rows = spec.shape[0] if spec.shape else 1
    if spec.whole or rows <= 1:
        return [(0, rows)]
    per_slice = max(1, slice_bytes // max(1, row_bytes(spec)))
    count = -(-rows // per_slice)
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


@dataclass
class ArenaMap:
    """What is free in one server's arena: first fit, in multiples of a cache line."""

    end: int = 0
    free: List[Tuple[int, int]] = field(default_factory=list)

    def allocate(self, nbytes: int) -> int:
        """Return the offset of `nbytes` free bytes, and take them."""
        size = aligned(nbytes)
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= size:
                if stop - start == size:
                    del self.free[i]
                else:
                    self.free[i] = (start + size, stop)
                return start
        self.end += size
        return self.end - size

    def release(self, offset: int, nbytes: int) -> None:
        """Give back what `allocate(nbytes)` returned as `offset`; neighbouring free ranges become one."""
        size = aligned(nbytes)
        if size == 0:
            return
        insort(self.free, (offset, offset + size))
        i = bisect_right(self.free, (offset, offset + size)) - 1
        for j in (i, i - 1):
            if 0 <= j < len(self.free) - 1 and self.free[j][1] == self.free[j + 1][0]:
                self.free[j : j + 2] = [(self.free[j][0], self.free[j + 1][1])]


class Table:
    """The assignment of all slices to servers, each with its place in the server's arena."""

    def __init__(self, servers: Iterable[str], slice_bytes: int) -> None:
        self.slice_bytes = slice_bytes
        self.keys: List[KeySpec] = []
        self.first_slice: List[int] = []
        self.index: Dict[Tuple[int, str], int] = {}
        self.size: List[int] = []
        self.owner: List[str] = []
        self.offset: List[int] = []
        self.load: Dict[str, int] = dict.fromkeys(servers, 0)
        self.count: Dict[str, int] = dict.fromkeys(servers, 0)
        self._arena: Dict[str, ArenaMap] = {server: ArenaMap() for server in self.load}
        self._all_placed: Optional[List[PlacedKey]] = None

    def define(self, spec: KeySpec, among: Sequence[str]) -> PlacedKey:
        """Place a key's slices on the least loaded of the servers `among`; a known key keeps its places.

        Raises:
            ValueError: the key is known with another shape or dtype.
        """
        known = self.index.get((spec.store, spec.key))
        if known is not None:
            have = self.keys[known]
            if (have.shape, have.dtype) != (spec.shape, spec.dtype):
                raise ValueError(
                    f"key {spec.key!r} of store {spec.store} is {have.shape} {have.dtype} in this job, "
                    f"not {spec.shape} {spec.dtype}: every worker must define the same model"
                )
            return self.placed(known)
        number = len(self.keys)
        self._all_placed = None
        self.keys.append(spec)
        self.index[spec.store, spec.key] = number
        self.first_slice.append(len(self.size))
        heap = [(self.load[server], i, server) for i, server in enumerate(among)]
        heapq.heapify(heap)
        for start, stop in slice_rows(spec, self.slice_bytes):
            nbytes = (stop - start) * row_bytes(spec)
            _, i, server = heap[0]
            self.size.append(nbytes)
            self.owner.append(server)
            self.offset.append(self._arena[server].allocate(nbytes))
            self.load[server] += nbytes
            self.count[server] += 1
            heapq.heapreplace(heap, (self.load[server], i, server))
        return self.placed(number)

    def placed(self, number: int) -> PlacedKey:
        """Key `number` with its places."""
        first = self.first_slice[number]
        last = self.first_slice[number + 1] if number + 1 < len(self.keys) else len(self.size)
        return PlacedKey(self.keys[number], first, [(self.owner[s], self.offset[s]) for s in range(first, last)])

    def all_placed(self) -> List[PlacedKey]:
        """All keys with their places; the same list, not to be changed, until the table changes."""
        if self._all_placed is None:
            self._all_placed = [self.placed(number) for number in range(len(self.keys))]
        return self._all_placed

    def plan(self, servers: Sequence[str]) -> List[Move]:
        """The moves that make `servers` the owners of everything, in slice order, with their places taken.

        No single move can bring two servers closer together afterwards, so each load is within one slice of the
        mean. A server either gives or receives and no slice moves twice, so the bytes moved are the minimum for the
        loads reached.
        """
        for server in servers:
            self._arena.setdefault(server, ArenaMap())
        targets = choose_targets(self.size, self.owner, servers)
        return [
            Move(s, self.owner[s], target, self._arena[target].allocate(self.size[s]))
            for s, target in sorted(targets.items())
        ]

    def drop(self, moves: Sequence[Move]) -> None:
        """Give back the places that a plan took which is not carried out."""
        for move in moves:
            self._arena[move.target].release(move.offset, self.size[move.slice])

    def carry_out(self, moves: Sequence[Move], servers: Sequence[str]) -> None:
        """Make a plan's result the assignment; its old places are free again."""
        self._all_placed = None
        for move in moves:
            self._arena[move.source].release(self.offset[move.slice], self.size[move.slice])
            self.owner[move.slice] = move.target
            self.offset[move.slice] = move.offset
        self.load = dict.fromkeys(servers, 0)
        self.count = dict.fromkeys(servers, 0)
        for server, nbytes in zip(self.owner, self.size):
            self.load[server] += nbytes
            self.count[server] += 1
        self._arena = {server: self._arena[server] for server in servers}


def choose_targets(size: Sequence[int], owner: Sequence[str], servers: Sequence[str]) -> Dict[int, str]:
    """The new owner of each slice that has to move so that `servers` own all and their loads are even.

    Args:
        size: bytes of each slice.
        owner: the server that has each slice now.
        servers: the servers that are to have them.
    """
    load = dict.fromkeys(servers, 0)
    held: Dict[str, List[Tuple[int, int]]] = {server: [] for server in servers}
    orphans: List[Tuple[int, int]] = []
    for s, (nbytes, server) in enumerate(zip(size, owner)):
        if server in load:
            load[server] += nbytes
            held[server].append((nbytes, s))
        else:
            orphans.append((nbytes, s))
    for slices in held.values():
        slices.sort()
    order = {server: i for i, server in enumerate(servers)}
    targets: Dict[int, str] = {}
    receivers: Set[str] = set()

    lightest = [(nbytes, order[server], server) for server, nbytes in load.items()]
    heapq.heapify(lightest)

    def move_to_lightest(s: int, nbytes: int) -> None:
        server = lightest[0][2]
        targets[s] = server
        receivers.add(server)
        load[server] += nbytes
        heapq.heapreplace(lightest, (load[server], order[server], server))

    for nbytes, s in sorted(orphans, key=lambda item: (-item[0], item[1])):
        move_to_lightest(s, nbytes)

    mean = sum(size) / len(servers)
    givers = [(-load[server], order[server], server) for server in servers if server not in receivers]
    heapq.heapify(givers)
    gave = set()
    while givers and lightest:
        if lightest[0][2] in gave:
            heapq.heappop(lightest)
            continue
        _, rank, source = heapq.heappop(givers)
        if source in receivers:
            continue
        i = _best_slice(held[source], load[source], load[lightest[0][2]], mean)
        if i is None:
            continue
        nbytes, s = held[source].pop(i)
        gave.add(source)
        load[source] -= nbytes
        move_to_lightest(s, nbytes)
        heapq.heappush(givers, (-load[source], rank, source))
    return targets


def _best_slice(slices: List[Tuple[int, int]], heavy: int, light: int, mean: float) -> Optional[int]:
    """Which of the (bytes, slice), sorted, brings loads `heavy` and `light` closest to the mean; None if none does.

    The largest that leaves neither on the other side of the mean, else the smallest that still narrows the gap.
    """
    within = bisect_right(slices, (min(heavy - mean, mean - light), 1 << 62)) - 1
    if within >= 0 and slices[within][0] > 0:
        return within
    smallest = bisect_right(slices, (0, 1 << 62))
    if smallest < len(slices) and slices[smallest][0] < heavy - light:
        return smallest
    return None
