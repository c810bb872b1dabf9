"""The control messages between a job's processes and its coordinator, and how they are read.

Each message is a frozen struct; msgspec writes it as msgpack and, on reading, refuses what does not fit its types.
What the messages mean is told in docs/protocol.md; who acts on them, in coordinator_machine.py and client.py.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, List, Optional, Tuple, Union

import msgspec

PROTOCOL = "1"


class ProtocolError(Exception):
    """A message that this version cannot read, or that does not fit the receiver's state."""


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Any control message."""

    def __str__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(fields)})"


# ---------------------------------------------------------------------------------------------- parts of messages


class KeySpec(msgspec.Struct, frozen=True):
    """A key as a script defined it.

    `store` counts the script's stores; `whole` forbids cutting the key into slices; an `asynchronous` key is updated
    by each push alone, others when all members have pushed.
    """

    store: int
    key: str
    shape: Tuple[int, ...]
    dtype: str
    whole: bool = False
    asynchronous: bool = False


class PlacedKey(msgspec.Struct, frozen=True):
    """A key with the id of its first slice (the others follow) and each slice's (server, arena offset in bytes)."""

    spec: KeySpec
    first_slice: int
    places: List[Tuple[str, int]]


class Move(msgspec.Struct, frozen=True):
    """A slice that changes servers: from `source` to byte `offset` of the arena of `target`."""

    slice: int
    source: str
    target: str
    offset: int


class Generation(msgspec.Struct, frozen=True):
    """A membership: the names of the workers, in rank order, and of the servers with their data addresses."""

    number: int
    workers: Tuple[str, ...]
    servers: Dict[str, str]


class Position(msgspec.Struct, frozen=True):
    """Where the job's data stands: `epoch` began with step `epoch_step`; the worker begins with step `step`.

    `groups` are the (first step, number of workers) of the memberships since the epoch began, for samplers whose
    global batch grows with the workers.
    """

    epoch: int = 0
    epoch_step: int = 0
    step: int = 0
    groups: Tuple[Tuple[int, int], ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """What a worker reports of itself: steps begun, seconds per step (a running median).

    `epochs` is how many it has trained, with the part of the one under way; 0 where nobody has said how long one is.
    """

    step: int
    step_seconds: float
    epochs: float = 0.0


# ----------------------------------------------------------------------------------------- process to coordinator


class Register(Message, frozen=True):
    """A server, worker, launcher or client says who it is. Its `address` is where its data socket listens."""

    role: str
    name: str
    address: str = ""
    pid: int = 0
    host: str = ""
    protocol: str = PROTOCOL


class Ready(Message, frozen=True):
    """A new process needs nothing more. `max_workers` is how many workers the sampler can share a batch among."""

    max_workers: int = 0


class SetOptimizer(Message, frozen=True):
    """The optimizer of a store, described in plain data (optimizers.py); passed on to every server."""

    store: int
    description: Dict[str, Any]


class DefineKeys(Message, frozen=True):
    """A worker defines keys. Defining a known key again is how a joining worker learns where it is."""

    request: int
    keys: List[KeySpec]


class Horizon(Message, frozen=True):
    """The answer to Prepare: the furthest step that this worker begins or deals for before it hears the commit."""

    generation: int
    step: int = -1


class Switched(Message, frozen=True):
    """A worker routes by `generation` from its step on; `position` is where its data stands there.

    `pushed` are the first slices of the keys that were ever pushed, in the order of their first pushes.
    """

    generation: int
    position: Position
    pushed: List[int] = []


class Settled(Message, frozen=True):
    """What a worker noticed of a generation change: its longest extra wait in the steps around it."""

    generation: int
    stall_seconds: float
    median_step_seconds: float


class Report(Message, frozen=True):
    progress: Progress


class InForce(Message, frozen=True):
    """A server has all slices of its table, and those that left it were acknowledged.

    `unsaved`: why it could not write its part of the plan's checkpoint; empty where it could, or none was asked for.
    """

    generation: int
    bytes_in: int
    seconds: float
    unsaved: str = ""


class Goodbye(Message, frozen=True):
    """A worker's script has ended. `told`: the servers to which it has sent the end of its channel."""

    told: List[str] = []


class Exited(Message, frozen=True):
    """The launcher saw a process end: `status` is its exit status, negative for a signal."""

    name: str
    status: int


def spoken(status: int) -> str:
    """An exit status as text; a signal by its name."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


class Scale(Message, frozen=True):
    """Asks for a size; None leaves that number as it is. Answered by Reply once it is in force."""

    request: int
    workers: Optional[int] = None
    servers: Optional[int] = None


class Checkpoint(Message, frozen=True):
    """Asks for a checkpoint at the next cut, in `folder`. Answered by Reply once it is written."""

    request: int
    folder: str


class Status(Message, frozen=True):
    request: int


class Stop(Message, frozen=True):
    """Asks for the end of the job. Answered by Reply when every process was told."""

    request: int


# ----------------------------------------------------------------------------------------- coordinator to process


class Welcome(Message, frozen=True):
    """The answer to Register. `joining`: the job trains already and the process becomes a member later.

    `keys` and `optimizers` are those known so far; `restored` is where the data stood in the checkpoint that the job
    goes on from, if it does; `left` are the members that have ended already.
    """

    name: str
    joining: bool
    generation: Generation
    settings: Dict[str, Any]
    keys: List[PlacedKey] = []
    optimizers: List[SetOptimizer] = []
    restored: Optional[Position] = None
    left: List[str] = []


class Left(Message, frozen=True):
    """Tells a server that a worker has ended which never had a channel to it."""

    worker: str


class Refused(Message, frozen=True):
    """The answer to a Register or a message that cannot be accepted."""

    reason: str


class KeysPlaced(Message, frozen=True):
    """Answers DefineKeys for the worker that asked (its `request`), and tells everyone else of new keys (request 0)."""

    request: int
    generation: int
    keys: List[PlacedKey]


class Prepare(Message, frozen=True):
    """The plan. With `checkpoint`, a folder for the parts, each server writes what it holds at the cut.

    `carry`: at the cut the servers need what no push carries, for a joining worker or the checkpoint.
    """

    generation: Generation
    moves: List[Move]
    checkpoint: str = ""
    carry: bool = False


class Commit(Message, frozen=True):
    """Generation `generation` takes over at step `step`. A joining worker takes part from there."""

    generation: int
    step: int


class Begin(Message, frozen=True):
    """Tells a joining worker where the data stands, as the first member to switch saw it.

    `finished`: the members' scripts ended before the generation's first step; nothing is left to train.
    """

    generation: int
    position: Position = Position()
    pushed: List[int] = []
    finished: bool = False


class Drop(Message, frozen=True):
    """The plan for `generation` is given up before its commit; its number is not used again."""

    generation: int


class NewGeneration(Message, frozen=True):
    """Generation `generation` is in force everywhere."""

    generation: int


class Launch(Message, frozen=True):
    """Tells the launcher to start a process."""

    role: str
    name: str


class Release(Message, frozen=True):
    """The receiver's work for this job is over; it exits.

    To a launcher: the job is over. `status` is 0 where its scripts came to their end; else how it ended, as a
    process's exit status (negative for a signal), and what still runs is to be ended.
    """

    reason: str = ""
    status: int = 0


class Reply(Message, frozen=True):
    """Answers a Scale, Status or Stop: `error` is empty when it was carried out."""

    request: int
    error: str = ""
    body: Dict[str, Any] = {}


FromProcess = Union[
    Register,
    Ready,
    DefineKeys,
    Horizon,
    Switched,
    Settled,
    SetOptimizer,
    Report,
    InForce,
    Goodbye,
    Exited,
    Scale,
    Checkpoint,
    Status,
    Stop,
]
FromCoordinator = Union[
    Welcome,
    Refused,
    KeysPlaced,
    Prepare,
    Commit,
    Drop,
    Begin,
    NewGeneration,
    SetOptimizer,
    Left,
    Launch,
    Release,
    Reply,
]

_encoder = msgspec.msgpack.Encoder()
_from_process = msgspec.msgpack.Decoder(FromProcess)
_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_from_process(data: bytes) -> Message:
    """Read what a process sent to the coordinator. Raises ProtocolError where it is none of its messages."""
    return _decode(_from_process, data)


def decode_from_coordinator(data: bytes) -> Message:
    """Read what the coordinator sent. Raises ProtocolError where it is none of its messages."""
    return _decode(_from_coordinator, data)


def _decode(decoder: Any, data: bytes) -> Message:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a control message of {len(data)} bytes cannot be read: {error}") from error
