"""The server process: carries out what server_machine.py decides, on the numbers that values.py holds.

Run as ``python -m elastic_mx.server`` with the environment that settings.py reads; `elastic-mx launch` does that.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import zmq

from elastic_mx import checkpoint, sockets, wire
from elastic_mx import messages as m
from elastic_mx import server_machine as sm
from elastic_mx.arena import open_peer, populate_soon
from elastic_mx.catalog import Catalog
from elastic_mx.link import ControlLink, JobError
from elastic_mx.settings import JobSettings, ProcessSettings
from elastic_mx.values import Contribution, Values

logger = logging.getLogger("elastic_mx.server")
WRITER_POLL_MS = 20
REPLY_BYTES = 1 << 20
MIGRATION_BYTES = 4 << 20


@dataclass
class Reply:
    """What a worker is to be told, in one message with what else becomes ready meanwhile."""

    applied: List[int] = field(default_factory=list)
    slices: List[int] = field(default_factory=list)
    nbytes: int = 0
    stable: bool = True


class Server:
    """One parameter server of a job, from its registration until it is released."""

    def __init__(self, settings: ProcessSettings, bind: str = "tcp://127.0.0.1:*") -> None:
        self.name = settings.name
        self._context = zmq.Context()
        self._data = sockets.data_socket(self._context, zmq.ROUTER)
        self._data.bind(bind)
        self._link = ControlLink(self._context, settings)
        self._link.register("server", self._data.last_endpoint.decode())
        self._peers: Dict[str, Any] = {}
        self._arenas: Dict[str, Any] = {}
        self._shared: Dict[str, Contribution] = {}
        self._early: List[Tuple[bytes, List[Any]]] = []
        self._replies: Dict[str, Reply] = {}
        self._moves: Dict[int, Dict[int, m.Move]] = {}
        self._left_at: Dict[int, int] = {}
        self._allowed = settings.optimizers
        self._bytes_in = 0
        self._cut_at = 0.0
        self._released = False
        self._writer: Optional[threading.Thread] = None
        self._unsaved = ""
        self.machine: Optional[sm.ServerMachine] = None

    # ------------------------------------------------------------------------------------------------- control

    def run(self) -> None:
        """Serve until the coordinator releases this process."""
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        poller.register(self._data, zmq.POLLIN)
        while not self._released:
            ready = dict(poller.poll(None if self._writer is None else WRITER_POLL_MS))
            if self._writer is not None and not self._writer.is_alive() and self.machine is not None:
                self._writer = None
                self._carry_out(self.machine.saved())
            if self._link.socket in ready:
                message = self._link.receive(0)
                if message is not None:
                    self._on_control(message)
            if self.machine is None:
                continue
            for peer in [p for p in self._peers.values() if p in ready]:
                self._on_peer(peer)
            for _ in range(64):
                try:
                    identity, *frames = self._data.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._on_data(identity.bytes, frames)
            for worker in list(self._replies):
                self._send_reply(worker)
            for peer in self._peers.values():
                if peer not in poller:
                    poller.register(peer, zmq.POLLIN)
        self._context.destroy(linger=1000)

    def _on_control(self, message: m.Message) -> None:
        if isinstance(message, m.Welcome):
            self._settings = JobSettings(**message.settings)
            self.catalog = Catalog(self._settings.slice_bytes)
            self.values = Values(self.name, self.catalog)
            self.machine = sm.ServerMachine(self.name, message.generation, message.joining)
            self._on_keys(message.keys)
            if message.restored is not None:
                self._restore(message)
            for optimizer in message.optimizers:
                self._set_optimizer(optimizer.store, optimizer.description)
            for worker in message.left:
                self._carry_out(self.machine.leave(worker))
            if message.joining:
                self._link.send(m.Ready())
        elif isinstance(message, m.Release):
            self._released = True
        elif self.machine is None:
            logger.warning("%s before Welcome", message)
        elif isinstance(message, m.Left):
            self._carry_out(self.machine.leave(message.worker))
        elif isinstance(message, m.KeysPlaced):
            self._on_keys(message.keys)
        elif isinstance(message, m.SetOptimizer):
            self._set_optimizer(message.store, message.description)
        elif isinstance(message, m.Prepare):
            self._moves[message.generation.number] = {move.slice: move for move in message.moves}
            self._carry_out(self.machine.prepare(message.generation, message.moves, message.checkpoint))
            self._connect_peers(message.generation)
            self._link.send(m.Horizon(generation=message.generation.number))
            coming = [move for move in message.moves if move.target == self.name]
            populate_soon([(self.values.arena, move.offset, self.catalog.size[move.slice]) for move in coming])
        elif isinstance(message, m.Drop):
            self._moves.pop(message.generation, None)
            self._carry_out(self.machine.drop(message.generation))
        elif isinstance(message, m.Commit):
            self._carry_out(self.machine.commit(message.generation))

    def _on_keys(self, keys: Sequence[m.PlacedKey]) -> None:
        assert self.machine is not None
        for placed in keys:
            key = self.catalog.add(placed)
            self.values.define(key)
            mine = [s for s in key.slices if self.catalog.owner[s] == self.name]
            self.machine.define(mine, key.spec.asynchronous)
        early, self._early = self._early, []
        for identity, frames in early:
            self._on_data(identity, frames)

    def _connect_peers(self, generation: m.Generation) -> None:
        for server, address in generation.servers.items():
            if server not in self._peers and server != self.name:
                peer = sockets.data_socket(self._context, zmq.DEALER, self.name)
                peer.connect(address)
                self._peers[server] = peer

    # ---------------------------------------------------------------------------------------------------- data

    def _on_data(self, identity: bytes, frames: List[Any]) -> None:
        assert self.machine is not None
        sender = identity.decode()
        try:
            message = wire.decode_to_server(frames[0].buffer)
            slices = getattr(message, "slices", None) or [s for s in [getattr(message, "slice", None)] if s is not None]
            if any(s not in self.catalog.key_of for s in slices):
                self._early.append((identity, frames))
                return
            logger.debug("%s > %s", sender, message)
            self._carry_out(self._dispatch(sender, message, frames[1:]))
        except (m.ProtocolError, sm.InvalidEvent) as error:
            logger.error("%s", error)
            self._reply(sender, wire.Failed(str(error).splitlines()[0]))

    def _dispatch(self, sender: str, message: wire.Data, frames: Sequence[Any]) -> List[sm.Instruction]:
        machine = self.machine
        assert machine is not None
        if isinstance(message, wire.Push):
            sources = self._sources(sender, message, frames)
            return machine.push(sender, message.generation, message.slices, sources)
        if isinstance(message, wire.Pull):
            return machine.pull(sender, message.slices, message.cut)
        if isinstance(message, wire.Init):
            return machine.init(sender, message.slices, self._sources(sender, message, frames))
        if isinstance(message, wire.Ask):
            rows = np.frombuffer(frames[0].buffer, np.int64) if message.what == "rows" else None
            return machine.ask(sender, message.slice, message.request, rows)
        if isinstance(message, wire.Marker):
            return machine.marker(sender, message.generation)
        if isinstance(message, wire.Leave):
            return machine.leave(sender)
        if isinstance(message, wire.Attach):
            self._attach(sender, message)
        elif isinstance(message, wire.SetStoreOptimizer):
            self._set_optimizer(message.store, message.description)
        elif isinstance(message, wire.LoadState):
            arrays = [np.frombuffer(frame.buffer, np.uint8) for frame in frames]
            self.values.load_states([message.slice], [[message.structure, len(arrays)]], arrays)
        elif isinstance(message, wire.Migrate):
            return self._receive_slices(sender, message, frames)
        return []

    def _attach(self, sender: str, message: wire.Attach) -> None:
        """Open a worker's arena, unless the job says tcp."""
        arena = open_peer(message.pid, message.fd, message.nonce) if self._settings.transport != "tcp" else None
        if arena is not None:
            self._arenas[sender] = arena
        else:
            sockets.keep_freed_memory()
        own = self.values.arena
        self._reply(sender, wire.Attached(arena is not None, os.getpid(), own.fd, own.nonce))

    def _sources(self, sender: str, message: Any, frames: Sequence[Any]) -> List[Any]:
        """Where the values of each slice of an Init or Push are."""
        slices = message.slices
        scalars = getattr(message, "scalars", None)
        if getattr(message, "encoding", "") == "rows":
            if len(frames) != 2 * len(slices):
                raise m.ProtocolError(f"{sender} sent {len(frames)} frames of rows for {len(slices)} slices")
            buffers = [frame.buffer for frame in frames]
            return [self.values.rows(s, buffers[2 * i], buffers[2 * i + 1], scalars) for i, s in enumerate(slices)]
        if getattr(message, "encoding", "") == "packed":
            data = np.concatenate([np.frombuffer(frame.buffer, np.uint8) for frame in frames] or [np.empty(0, "u1")])
            return self.values.packed(slices, data, message.compression, scalars)
        if not frames and sender in self._arenas:
            shared = self._shared.get(sender)
            if shared is None or shared.scalars != scalars:
                shared = self._shared[sender] = Contribution(self._arenas[sender], self.catalog.offset, scalars)
            return [shared] * len(slices)
        buffers = [np.frombuffer(frame.buffer, np.uint8) for frame in frames] or [np.empty(0, np.uint8)]
        places = wire.locate([frame.buffer for frame in frames], [self.catalog.size[s] for s in slices], sender)
        by_frame = [Contribution(buffer, {}, scalars) for buffer in buffers]
        for s, (number, at) in zip(slices, places):
            by_frame[number].at[s] = at  # type: ignore[index]
        return [by_frame[number] for number, _ in places]

    def _set_optimizer(self, store: int, description: Dict[str, Any]) -> None:
        self.values.set_optimizer(store, description, self._allowed)

    # -------------------------------------------------------------------------------------------- instructions

    def _carry_out(self, instructions: List[sm.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, sm.Apply):
                self.values.apply(instruction.slices, instruction.contributions)
            elif isinstance(instruction, sm.Answer):
                self._answer(instruction.worker, instruction.slices)
            elif isinstance(instruction, sm.AnswerPart):
                self._answer_part(instruction)
            elif isinstance(instruction, sm.Acknowledge):
                self._reply_to(instruction.worker).applied.extend(instruction.slices)
            elif isinstance(instruction, sm.Store):
                self.values.store(instruction.slices, instruction.sources)
            elif isinstance(instruction, sm.SendSlices):
                for worker in list(self._replies):
                    self._send_reply(worker)
                self._send_slices(instruction)
            elif isinstance(instruction, sm.Forget):
                self.values.forget(instruction.slices, [self._left_at.pop(s) for s in instruction.slices])
            elif isinstance(instruction, sm.SaveSlices):
                self._save(instruction)
            elif isinstance(instruction, sm.ReportInForce):
                self._report(instruction.generation)

    def _reply_to(self, worker: str) -> Reply:
        reply = self._replies.get(worker)
        if reply is None:
            reply = self._replies[worker] = Reply()
        return reply

    def _answer(self, worker: str, slices: List[int]) -> None:
        """Values for a worker; large ones go at once."""
        assert self.machine is not None
        reply, size = self._reply_to(worker), self.catalog.size
        reply.slices.extend(slices)
        reply.nbytes += sum([size[s] for s in slices])
        # The next round needs this worker's push, which comes after these values, unless no round waits for it.
        asynchronous = self.catalog.key_of[slices[0]].spec.asynchronous
        reply.stable = reply.stable and not asynchronous and self.machine.waits_for(worker)
        if reply.nbytes >= REPLY_BYTES or not reply.stable:
            self._send_reply(worker)

    def _send_reply(self, worker: str) -> None:
        reply = self._replies.pop(worker)
        message = wire.Values(reply.slices, reply.applied)
        if worker in self._arenas:
            self._reply(worker, message)
            return
        arena = self.values.arena.bytes
        ranges = wire.runs(reply.slices, self.catalog.offset, self.catalog.size)
        self._reply(worker, message, [arena[start:stop] for start, stop in ranges], reply.stable)

    def _answer_part(self, instruction: sm.AnswerPart) -> None:
        s, request, rows = instruction.slice, instruction.request, instruction.what
        if rows is None:
            [(structure, _)], arrays = self.values.dump_states([s])
            frames = [np.ascontiguousarray(array).data.cast("B") for array in arrays]
            self._reply(instruction.worker, wire.Part(request, structure), frames)
        else:
            self._reply(instruction.worker, wire.Part(request), [np.ascontiguousarray(self.values.array(s)[rows])])

    def _reply(self, worker: str, message: wire.Data, frames: Sequence[Any] = (), stable: bool = False) -> None:
        logger.debug("%s < %s", worker, message)
        sockets.send(self._data, [worker.encode(), wire.encode(message)], frames, stable)

    def _send_slices(self, instruction: sm.SendSlices) -> None:
        """Send slices to their new owner, some at a time, so that it can serve others in between."""
        self._cut_at = self._cut_at or time.monotonic()
        versions = dict(zip(instruction.slices, instruction.versions))
        piece: List[int] = []
        nbytes = 0
        for s in instruction.slices:
            piece.append(s)
            nbytes += self.catalog.size[s]
            if nbytes >= MIGRATION_BYTES:
                self._send_piece(instruction, piece, versions)
                piece, nbytes = [], 0
        if piece:
            self._send_piece(instruction, piece, versions)

    def _send_piece(self, instruction: sm.SendSlices, slices: List[int], versions: Dict[int, int]) -> None:
        states, arrays = self.values.dump_states(slices)
        optimizers = {store: optimizer.description for store, optimizer in self.values.optimizers.items()}
        message = wire.Migrate(instruction.generation, slices, [versions[s] for s in slices], states, optimizers)
        ranges = wire.runs(slices, self.catalog.offset, self.catalog.size)
        values = [self.values.arena.bytes[start:stop] for start, stop in ranges]
        frames = [*values, *(array.data.cast("B") for array in arrays)]
        # Nothing writes to them any more, and their memory is kept until the new owner has them.
        sockets.send(self._peers[instruction.target], [wire.encode(message)], frames, stable=True)
        moves = self._moves[instruction.generation]
        for s in slices:
            self._left_at[s] = self.catalog.offset[s]
        self.catalog.move([moves[s] for s in slices])

    def _save(self, instruction: sm.SaveSlices) -> None:
        """Copy the slices now, for they change with the next round, and write them beside the work."""
        part = checkpoint.Part()
        for s in instruction.slices:
            [(structure, _)], arrays = self.values.dump_states([s])
            part.add(self.catalog.key_of[s], s, self.values.bytes_of(s), structure, arrays)

        def write() -> None:
            try:
                part.write(Path(instruction.folder), self.name)
            except OSError as error:
                self._unsaved = f"{self.name} cannot write its part in {instruction.folder}: {error.strerror}"

        self._writer = threading.Thread(target=write, daemon=True)
        self._writer.start()

    def _restore(self, welcome: m.Welcome) -> None:
        """Take this server's slices from the checkpoint that the job goes on from."""
        assert self.machine is not None
        for optimizer in welcome.optimizers:
            self._set_optimizer(optimizer.store, optimizer.description)
        reader = checkpoint.Reader(Path(self._settings.restore))
        found = [s for s in self.machine.slices if reader.has(self.catalog.key_of[s])]
        for s in found:
            value, structure, arrays = reader.slice(self.catalog.key_of[s], s)
            self.values.store([s], [Contribution(value, {s: 0})])
            self.values.load_states([s], [[structure, len(arrays)]], arrays)
        self._carry_out(self.machine.restore(found))

    def _receive_slices(self, sender: str, message: wire.Migrate, frames: Sequence[Any]) -> List[sm.Instruction]:
        assert self.machine is not None
        for store, description in message.optimizers.items():
            self._set_optimizer(store, description)
        moves = self._moves[message.generation]
        self.catalog.move([moves[s] for s in message.slices])
        sizes = [self.catalog.size[s] for s in message.slices]
        buffers = [frame.buffer for frame in frames]
        first_state = len(buffers) - sum(count for _, count in message.states)
        pieces = wire.split_frames(buffers[:first_state], sizes, sender)
        self.values.store(message.slices, [Contribution(piece, {s: 0}) for s, piece in zip(message.slices, pieces)])
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers[first_state:]]
        self.values.load_states(message.slices, message.states, arrays)
        self._bytes_in += sum(sizes)
        self._reply(sender, wire.Migrated(message.generation, message.slices))
        asynchronous = [self.catalog.key_of[s].spec.asynchronous for s in message.slices]
        return self.machine.arrived(message.slices, message.versions, asynchronous)

    def _on_peer(self, peer: Any) -> None:
        assert self.machine is not None
        message = wire.decode_to_server(peer.recv())
        if isinstance(message, wire.Migrated):
            self._carry_out(self.machine.handed_over(message.slices))

    def _report(self, generation: int) -> None:
        """The generation is in force here; the seconds are those from the first slice sent to the last received."""
        self.catalog.move(list(self._moves.pop(generation).values()))
        seconds = time.monotonic() - self._cut_at if self._cut_at else 0.0
        self._link.send(
            m.InForce(generation=generation, bytes_in=self._bytes_in, seconds=seconds, unsaved=self._unsaved)
        )
        self._bytes_in, self._cut_at, self._unsaved = 0, 0.0, ""


def main() -> None:
    settings = ProcessSettings.from_environment()
    if settings is None:
        sys.exit("elastic-mx: a server is started by elastic-mx launch; ELASTIC_MX_COORDINATOR is not set")
    logging.basicConfig(
        level=logging.DEBUG if settings.trace else logging.WARNING, format="%(name)s %(message)s", stream=sys.stderr
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Server(settings).run()
    except (JobError, m.ProtocolError, checkpoint.CheckpointError) as error:
        sys.exit(f"elastic-mx: {error}")
    except (OSError, zmq.ZMQError) as error:
        sys.exit(f"elastic-mx: {settings.name} cannot go on: {error.strerror}")


if __name__ == "__main__":
    main()
