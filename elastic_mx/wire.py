"""The data messages between workers and servers: a small msgpack header, then the tensors' bytes as raw frames.

With shared memory there are no tensor frames: the bytes lie in the sender's arena, where the table says. With tcp
the frames hold the slices' bytes in the header's order, each slice whole within one frame.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import msgspec
import numpy as np

from elastic_mx.compression import Compression
from elastic_mx.messages import ProtocolError
from elastic_mx.table import aligned


class Data(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Any data message."""

    def __str__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(fields)})"


class Attach(Data, frozen=True):
    """A worker offers its gradient arena: file descriptor `fd` of process `pid`, whose first bytes are `nonce`."""

    pid: int
    fd: int
    nonce: bytes


class Attached(Data, frozen=True):
    """A server's answer, with its own arena; `shared` tells whether it could open the worker's."""

    shared: bool
    pid: int
    fd: int
    nonce: bytes


class Init(Data, frozen=True):
    """The first values of slices, or new values for slices that no push carries."""

    slices: List[int]


class Push(Data, frozen=True):
    """Gradients for slices, belonging to a step of `generation`.

    `encoding` is '' for plain values; 'rows' for some rows of each slice: two frames a slice, the rows' numbers
    within the slice (int64, rising) and their values; 'packed' for values compressed as `compression` says, those of
    all slices in one frame.
    """

    generation: int
    slices: List[int]
    scalars: Optional[Dict[str, float]] = None
    encoding: str = ""
    compression: Optional[Compression] = None


class Pull(Data, frozen=True):
    """Asks for the values of slices after this worker's pushes so far; at the cut of generation `cut` if not -1."""

    slices: List[int]
    cut: int = -1


class Ask(Data, frozen=True):
    """Asks for a part of what belongs to a slice, after this worker's pushes so far.

    `what` is 'rows' (their numbers within the slice are the frame, int64) or 'state' (of its optimizer).
    """

    slice: int
    request: int
    what: str


class LoadState(Data, frozen=True):
    """Makes `structure`, with the frames as its arrays, the optimizer state of a slice."""

    slice: int
    structure: Any


class Marker(Data, frozen=True):
    generation: int


class Leave(Data, frozen=True):
    """No more pushes come from this worker."""


class Values(Data, frozen=True):
    """The values of `slices`, answering this worker's oldest pull of each.

    Before that, this worker's oldest push of each slice of `applied` became part of its value.
    """

    slices: List[int]
    applied: List[int] = []


class Part(Data, frozen=True):
    """Answers Ask: the rows' values in one frame, or a state's `structure` and its arrays."""

    request: int
    structure: Any = None


class SetStoreOptimizer(Data, frozen=True):
    store: int
    description: Dict[str, Any]


class Migrate(Data, frozen=True):
    """Slices that change owner with `generation`: versions, optimizers of their stores, and optimizer states.

    `states` tells each slice's state as (structure, sizes of its arrays); the frames are value, then state arrays,
    slice by slice.
    """

    generation: int
    slices: List[int]
    versions: List[int]
    states: List[Any]
    optimizers: Dict[int, Dict[str, Any]]


class Migrated(Data, frozen=True):
    generation: int
    slices: List[int]


class Failed(Data, frozen=True):
    """The server could not do what the worker asked; the worker's script is to end with `reason`."""

    reason: str


ToServer = Union[Attach, Init, Push, Pull, Ask, LoadState, Marker, Leave, SetStoreOptimizer, Migrate, Migrated]
ToWorker = Union[Attached, Values, Part, Failed]

_encoder = msgspec.msgpack.Encoder()
_to_server = msgspec.msgpack.Decoder(ToServer)
_to_worker = msgspec.msgpack.Decoder(ToWorker)


def encode(message: Data) -> bytes:
    return _encoder.encode(message)


def decode_to_server(data: Any) -> Data:
    """Read a header that came to a server. Raises ProtocolError where it is none."""
    return _decode(_to_server, data)


def decode_to_worker(data: Any) -> Data:
    """Read a header that came to a worker. Raises ProtocolError where it is none."""
    return _decode(_to_worker, data)


def _decode(decoder: Any, data: Any) -> Data:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a data header of {len(data)} bytes cannot be read: {error}") from error


def locate(frames: Sequence[Any], sizes: Sequence[int], who: str) -> List[Tuple[int, int]]:
    """Where in the frames slices of `sizes` bytes lie, in order; each begins at a whole cache line.

    Returns:
        For each the number of its frame and its offset in it.

    Raises:
        ProtocolError: the frames do not hold exactly these slices.
    """
    places: List[Tuple[int, int]] = []
    lengths = [len(frame) for frame in frames]
    number, length, at = -1, 0, 0
    for size in sizes:
        start = aligned(at)
        if size and (start >= length or at == 0):
            number += 1
            if at != length or number == len(lengths):
                raise _misfit(frames, sizes, who)
            length, start = lengths[number], 0
        if size and start + size > length:
            raise _misfit(frames, sizes, who)
        places.append((max(number, 0), start if size else 0))
        at = start + size if size else at
    if at != length or number + 1 != len(lengths):
        raise _misfit(frames, sizes, who)
    return places


def split_frames(frames: Sequence[Any], sizes: Sequence[int], who: str) -> List[np.ndarray]:
    """The slices of `sizes` bytes that the frames hold, as uint8 arrays, without copying. Raises as `locate`."""
    places = locate(frames, sizes, who)
    arrays = [np.frombuffer(frame, np.uint8) for frame in frames] or [np.empty(0, np.uint8)]
    return [arrays[number][start : start + size] for (number, start), size in zip(places, sizes)]


def _misfit(frames: Sequence[Any], sizes: Sequence[int], who: str) -> ProtocolError:
    return ProtocolError(
        f"{who} sent frames of {[len(frame) for frame in frames]} bytes for slices of {list(sizes)} bytes: "
        "use one release of elastic-mx for all of a job's processes"
    )


def runs(slices: Sequence[int], offset: Any, size: Any) -> List[Tuple[int, int]]:
    """The byte ranges that slices cover in an arena, with those that lie side by side joined.

    Args:
        slices: slice ids; each run covers consecutive ones of them.
        offset: maps a slice id to its byte offset; a slice begins at a whole cache line.
        size: maps a slice id to its bytes.
    """
    found: List[Tuple[int, int]] = []
    for s in slices:
        start, stop = offset[s], offset[s] + size[s]
        if start == stop:  # nothing of it travels
            continue
        if found and start == aligned(found[-1][1]):
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
