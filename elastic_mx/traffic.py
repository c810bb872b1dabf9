"""A worker's traffic with the servers: keys out through its arenas, values back, many slices in one message.

When an operation may be sent, and by which generation's table, is worker_machine.py's; worker_thread.py,
which alone may touch the sockets, calls what is here.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Callable, DefaultDict, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import zmq

from elastic_mx import sockets, wire
from elastic_mx.arena import Arena, open_peer, populate_soon
from elastic_mx.catalog import Catalog, Key
from elastic_mx.compression import Compression, applies_to, pack, packed_bytes
from elastic_mx.link import JobError
from elastic_mx.messages import Move
from elastic_mx.worker_machine import Ticket

logger = logging.getLogger("elastic_mx.worker")
PIECE_BYTES = 4 << 20


class Item(NamedTuple):
    """One key of an operation: `push` is what to send of it, `pull` where to write its value.

    Both are flat arrays of the key's dtype that stay valid until the operation is done; with `rows`, `push` has those
    rows only, of shape (rows, ...).
    """

    key: Key
    push: Optional[np.ndarray] = None
    pull: Optional[np.ndarray] = None
    rows: Optional[np.ndarray] = None


@dataclass
class Operation:
    """Something a script asked for: a push, a pull, or both, of keys that are ready together.

    `items` is called once, when the arrays are ready; `done` when none of them is needed any more and all answers
    have come. `pushed` are the slices that it pushes; `remaining` counts what it waits for.
    """

    items: Callable[[], List[Item]]
    ticket: Ticket
    done: Callable[[], None]
    pushed: Sequence[int] = ()
    init: bool = False
    scalars: Optional[Dict[str, float]] = None
    compression: Optional[Compression] = None
    remaining: int = 0


# What may share a message: whether it begins slices, the generation that it counts for, the store, the step, and how
# it is compressed.
_Batch = Tuple[bool, int, int, int, Optional[Compression]]


@dataclass(eq=False)
class Channel:
    """The connection to one server: its socket, this worker's arena for it, the server's own, what is to be sent."""

    server: str
    socket: Any
    arena: Arena
    shared: bool = False
    values: Optional[np.ndarray] = None
    attached: bool = False
    pushes: Dict[_Batch, List[int]] = field(default_factory=dict)
    direct: Dict[int, np.ndarray] = field(default_factory=dict)
    packed: Dict[_Batch, List[np.ndarray]] = field(default_factory=dict)
    pulls: List[int] = field(default_factory=list)


class _Part(NamedTuple):
    """A slice of a key: its channel, its place in this worker's arena, and its range in the key, in elements."""

    slice: int
    channel: Channel
    place: np.ndarray
    start: int
    stop: int


class Traffic:
    """The channels of one worker, and the operations that are under way on them.

    Args:
        name: the worker's.
        completed: called when an operation is done.
    """

    def __init__(self, context: Any, name: str, catalog: Catalog, completed: Callable[[Operation], None]) -> None:
        self.name = name
        self.catalog = catalog
        self.channels: Dict[str, Channel] = {}
        self.cut = -1
        self.residuals: Dict[int, np.ndarray] = {}
        self.answers: Dict[int, Tuple[Any, List[Any]]] = {}
        self._context = context
        self._completed = completed
        self._in_flight: Dict[int, Optional[Operation]] = {}
        self._pulls: DefaultDict[int, Deque[Tuple[Operation, np.ndarray]]] = defaultdict(deque)
        self._parts: Dict[int, List[_Part]] = {}
        self._theirs: Dict[int, np.ndarray] = {}
        self._scalars: Dict[_Batch, Optional[Dict[str, float]]] = {}
        self._gathered = 0

    def connect(self, server: str, address: str) -> Channel:
        """Open the channel to a server, and offer it this worker's arena."""
        socket = sockets.data_socket(self._context, zmq.DEALER, self.name)
        socket.connect(address)
        channel = self.channels[server] = Channel(server, socket, Arena(f"{self.name}-{server}"))
        self.send(server, wire.Attach(os.getpid(), channel.arena.fd, channel.arena.nonce))
        return channel

    def send(self, server: str, message: wire.Data, frames: Sequence[Any] = ()) -> None:
        """Send a server a message whose frames may change afterwards."""
        logger.debug("%s < %s", server, message)
        sockets.send(self.channels[server].socket, [wire.encode(message)], frames, stable=False)

    def expect(self, moves: Sequence[Move], joining: bool) -> None:
        """Have the memory ready that a plan leads to, so that no step waits for it: all of it for a joining worker."""
        places = {move.slice: (move.target, move.offset) for move in moves}
        if joining:
            here = self.catalog
            places = {**{s: (here.owner[s], here.offset[s]) for s in here.owner}, **places}
        size = self.catalog.size
        populate_soon([(self.channels[server].arena, at, size[s]) for s, (server, at) in places.items()])

    def move(self, moves: Sequence[Move]) -> None:
        """Route by what `moves` lead to."""
        self.catalog.move(moves)
        for move in moves:
            self._parts.pop(self.catalog.key_of[move.slice].first, None)
            self._theirs.pop(move.slice, None)

    def unanswered(self) -> List[Operation]:
        """The operations that wait for values, or for servers to have read their arrays."""
        pulling = [operation for pulls in self._pulls.values() for operation, _ in pulls]
        pushing = [operation for operation in self._in_flight.values() if operation is not None]
        return list({id(operation): operation for operation in [*pulling, *pushing]}.values())

    # ------------------------------------------------------------------------------------------------------ out

    def busy(self, operation: Operation) -> bool:
        """Whether the last push of one of its slices still lies in the arena, waiting for the other workers."""
        return not self._in_flight.keys().isdisjoint(operation.pushed)

    def start(self, operation: Operation) -> None:
        """Put what the operation pushes into messages, ask for what it pulls; `flush` sends them."""
        items = operation.items()
        if not operation.init:
            self._in_flight.update(dict.fromkeys(operation.pushed))
        if operation.pushed or operation.init:
            self._push(operation, items)
        pulls = self._pulls
        for item in items:
            target = item.pull
            if target is None:
                continue
            parts = self._parts.get(item.key.first) or self._route(item.key)
            operation.remaining += len(parts)
            for s, channel, _, start, stop in parts:
                pulls[s].append((operation, target[start:stop]))
                channel.pulls.append(s)
        if not operation.remaining:
            self._completed(operation)

    def _route(self, key: Key) -> List[_Part]:
        """Where the slices of a key go; kept until one of them moves."""
        parts = []
        elements = self.catalog.size[key.first] // key.dtype.itemsize // max(1, key.rows[0][1] - key.rows[0][0])
        for s, (start, stop) in zip(key.slices, key.rows):
            channel, offset = self.channels[self.catalog.owner[s]], self.catalog.offset[s]
            place = channel.arena.bytes[offset : offset + self.catalog.size[s]].view(key.dtype)
            parts.append(_Part(s, channel, place, start * elements, stop * elements))
        self._parts[key.first] = parts
        return parts

    def _push(self, operation: Operation, items: List[Item]) -> None:
        """Copy keys into the arenas, or have large slices sent from where they lie; early ones can be added early."""
        ticket, store = operation.ticket, items[0].key.spec.store
        for item in items:
            parts = self._parts.get(item.key.first) or self._route(item.key)
            values, compression = item.push, operation.compression
            assert values is not None
            if item.rows is not None:
                self._send_rows(operation, item, parts)
                continue
            if compression is not None and not applies_to(item.key.dtype, compression):
                compression = None
            batch = (operation.init, ticket.generation, store, ticket.step, compression)
            self._scalars[batch] = operation.scalars
            for s, channel, place, start, stop in parts:
                if compression is not None:
                    packed = self._pack(item.key, values, start, stop, compression)
                    channel.packed.setdefault(batch, []).append(packed)
                elif channel.shared or operation.init or place.nbytes < sockets.SMALL_BYTES:
                    place[...] = values[start:stop]  # a third of np.copyto's time, where it is short
                else:
                    channel.direct[s] = values[start:stop].view(np.uint8)
                    self._in_flight[s] = operation
                    operation.remaining += 1
                channel.pushes.setdefault(batch, []).append(s)
                self._gathered += place.nbytes
                if self._gathered >= PIECE_BYTES:
                    self.flush()
                    self._scalars[batch] = operation.scalars

    def _pack(self, key: Key, values: np.ndarray, start: int, stop: int, compression: Compression) -> np.ndarray:
        """A slice of a key compressed; what is lost stays here, by key, wherever its slices go."""
        residual = self.residuals.get(key.first)
        if residual is None and compression.keeps_residual:
            residual = self.residuals[key.first] = np.zeros(key.elements, key.dtype)
        packed = np.empty(packed_bytes(stop - start, compression), np.uint8)
        pack(values[start:stop], None if residual is None else residual[start:stop], compression, packed)
        return packed

    def _send_rows(self, operation: Operation, item: Item, parts: List[_Part]) -> None:
        """Send some rows of a key, to each of its slices those that it has."""
        rows, values = item.rows, item.push
        assert rows is not None and values is not None
        for part, (start, stop) in zip(parts, item.key.rows):
            first, last = np.searchsorted(rows, (start, stop))
            message = wire.Push(operation.ticket.generation, [part.slice], operation.scalars, "rows")
            frames = [np.ascontiguousarray(rows[first:last] - start), np.ascontiguousarray(values[first:last])]
            self.send(part.channel.server, message, frames)

    def flush(self) -> None:
        """Send what has gathered: to each server its pushes, then the pulls that they answer."""
        for channel in self.channels.values():
            for batch, slices in channel.pushes.items():
                init, generation, _, _, compression = batch
                scalars = self._scalars[batch]
                if compression is not None:
                    push = wire.Push(generation, slices, scalars, "packed", compression)
                    self.send(channel.server, push, [np.concatenate(channel.packed[batch])])
                    continue
                message = wire.Init(slices) if init else wire.Push(generation, slices, scalars)
                self._send_slices(channel, message, slices)
            if channel.pulls:
                self.send(channel.server, wire.Pull(channel.pulls, self.cut))
            channel.pushes, channel.direct, channel.packed, channel.pulls = {}, {}, {}, []
        self._scalars.clear()
        self._gathered = 0

    def _send_slices(self, channel: Channel, message: wire.Data, slices: Sequence[int]) -> None:
        logger.debug("%s < %s", channel.server, message)
        init = isinstance(message, wire.Init)
        # Values that begin a slice are not acknowledged, so the next push could overwrite them in the arena.
        frames = self._frames(channel, slices) if init or not channel.shared else []
        sockets.send(channel.socket, [wire.encode(message)], frames, stable=not init)

    def _frames(self, channel: Channel, slices: Sequence[int]) -> List[np.ndarray]:
        """The bytes of slices in order: those sent from where they lie, and between them ranges of the arena."""
        frames: List[np.ndarray] = []
        for direct, group in itertools.groupby(slices, channel.direct.__contains__):
            if direct:
                frames += [channel.direct[s] for s in group]
            else:
                ranges = wire.runs(list(group), self.catalog.offset, self.catalog.size)
                frames += [channel.arena.bytes[start:stop] for start, stop in ranges]
        return frames

    # ------------------------------------------------------------------------------------------------------- in

    def receive(self, channel: Channel) -> bool:
        """Take in what has come from a server; tells whether a question was answered (see `answers`).

        Raises:
            JobError: the server could not do what it was asked.
        """
        answered = False
        while True:
            try:
                frames = channel.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return answered
            message = wire.decode_to_worker(frames[0].buffer)
            logger.debug("> %s", message)
            if isinstance(message, wire.Values):
                done = self._receive_values(channel, message.slices, frames[1:])
                for s in message.applied:
                    operation = self._in_flight.pop(s, None)
                    if operation is not None:
                        operation.remaining -= 1
                        if not operation.remaining:
                            done.append(operation)
                for operation in done:
                    self._completed(operation)
            elif isinstance(message, wire.Part):
                self.answers[message.request] = (message.structure, frames[1:])
                answered = True
            elif isinstance(message, wire.Attached):
                channel.attached = True
                channel.shared = message.shared
                if message.shared:
                    channel.values = open_peer(message.pid, message.fd, message.nonce)
                else:
                    sockets.keep_freed_memory()
            elif isinstance(message, wire.Failed):
                raise JobError(message.reason)

    def _receive_values(self, channel: Channel, slices: Sequence[int], frames: Sequence[Any]) -> List[Operation]:
        """Write what has come to where it was asked for; returns the operations that wait for nothing any more."""
        if frames or channel.values is None:
            sizes = [self.catalog.size[s] for s in slices]
            buffers = [frame.buffer for frame in frames]
            pieces = wire.split_frames(buffers, sizes, f"server {channel.server}")
        else:
            theirs = self._theirs
            pieces = [theirs[s] if s in theirs else self._their_place(channel, s) for s in slices]
        done, waiting = [], self._pulls
        for s, piece in zip(slices, pieces):
            operation, target = waiting[s].popleft()
            target[...] = piece if piece.dtype is target.dtype else piece.view(target.dtype)
            operation.remaining -= 1
            if not operation.remaining:
                done.append(operation)
        return done

    def _their_place(self, channel: Channel, s: int) -> np.ndarray:
        """The place of a slice in its server's arena."""
        assert channel.values is not None
        offset = self.catalog.offset[s]
        place = channel.values[offset : offset + self.catalog.size[s]].view(self.catalog.key_of[s].dtype)
        self._theirs[s] = place
        return place
