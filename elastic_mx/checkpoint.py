"""The files of a job's checkpoint: one part per server, written at a cut, and a manifest that makes them one.

A folder holds ``manifest.json`` and a folder of parts per checkpoint; the manifest is replaced last, so that the
folder always holds one whole checkpoint. Who writes when is told in docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import msgspec
import numpy as np

from elastic_mx.catalog import Key
from elastic_mx.messages import KeySpec, Position

FORMAT = "elastic-mx checkpoint 1"
_LENGTH = struct.Struct("<Q")


class CheckpointError(Exception):
    """A checkpoint that cannot be read; the text names the file and what is wrong with it."""


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint is of: the keys, where the data stood, and in which folder the parts of which servers are."""

    format: str
    parts: str
    slice_bytes: int
    keys: List[KeySpec]
    position: Position
    optimizers: Dict[str, Any]
    servers: List[str] = []


class Entry(msgspec.Struct, frozen=True):
    """One slice in a part: its rows of a key, the place of its value's bytes, and its optimizer's state."""

    store: int
    key: str
    start: int
    stop: int
    value: Tuple[int, int]
    structure: Any
    arrays: List[Tuple[int, int]]


# ------------------------------------------------------------------------------------------------------- writing


class Part:
    """A server's share of a checkpoint: copied at once, written whenever there is time."""

    def __init__(self) -> None:
        self._entries: List[Entry] = []
        self._blobs: List[bytes] = []
        self._at = 0

    def add(self, key: Key, s: int, value: np.ndarray, structure: Any, arrays: Sequence[np.ndarray]) -> None:
        """Copy a slice's value (its bytes, uint8) and optimizer state."""
        start, stop = key.rows[s - key.first]
        places = [self._copy(array) for array in arrays]
        entry = Entry(key.spec.store, key.spec.key, start, stop, self._copy(value), structure, places)
        self._entries.append(entry)

    def _copy(self, array: np.ndarray) -> Tuple[int, int]:
        data = np.ascontiguousarray(array).tobytes()
        self._blobs.append(data)
        self._at += len(data)
        return self._at - len(data), len(data)

    def write(self, folder: Path, server: str) -> int:
        """Write the part of `server` and return its bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        header = msgspec.msgpack.encode(self._entries)
        with open(folder / f"{server}.part", "wb") as file:
            file.write(_LENGTH.pack(len(header)))
            file.write(header)
            file.writelines(self._blobs)
            file.flush()
            os.fsync(file.fileno())
        return _LENGTH.size + len(header) + self._at


def commit(folder: Path, manifest: Manifest) -> None:
    """Make a checkpoint whose parts are written the one that `folder` holds, and delete the one before.

    Raises:
        OSError: it cannot be written; the one before is still there.
    """
    partial = folder / "manifest.json.partial"
    with open(partial, "wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / "manifest.json")
    for other in folder.iterdir():
        if other.is_dir() and other.name.startswith("parts-") and other.name != manifest.parts:
            shutil.rmtree(other, ignore_errors=True)


def give_up(folder: Path, parts: str) -> None:
    """Delete what was written of a checkpoint that is not whole."""
    shutil.rmtree(folder / parts, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / "manifest.json.partial").unlink()


# ------------------------------------------------------------------------------------------------------- reading


def read_manifest(folder: Path) -> Manifest:
    """Read what `folder` holds.

    Raises:
        CheckpointError: there is no checkpoint, or none that this release reads.
    """
    path = folder / "manifest.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise CheckpointError(f"{folder} holds no checkpoint: {path.name} cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if found.format != FORMAT:
        raise CheckpointError(f"{path} is of format {found.format!r}, this release reads {FORMAT!r}")
    return found


class Reader:
    """Finds the slices of a checkpoint in its parts, wherever they were written."""

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        self._found: Dict[Tuple[int, str, int, int], Tuple[np.ndarray, Entry]] = {}
        parts = folder / self.manifest.parts
        for server in self.manifest.servers:
            if not (parts / f"{server}.part").exists():
                raise CheckpointError(f"the checkpoint in {folder} is not whole: {parts.name}/{server}.part is missing")
        for path in sorted(parts.glob("*.part")):
            for entry, blobs in _read_part(path):
                self._found[entry.store, entry.key, entry.start, entry.stop] = (blobs, entry)

    def slice(self, key: Key, s: int) -> Tuple[np.ndarray, Any, List[np.ndarray]]:
        """The bytes of a slice's value, the structure of its optimizer's state, and the bytes of its arrays.

        Raises:
            CheckpointError: the checkpoint lacks the slice.
        """
        start, stop = key.rows[s - key.first]
        place = (key.spec.store, key.spec.key, start, stop)
        if place not in self._found:
            raise CheckpointError(f"the checkpoint lacks rows {start} to {stop} of key {key.spec.key!r}")
        blobs, entry = self._found[place]

        def blob(at: int, length: int) -> np.ndarray:
            return blobs[at : at + length]

        return blob(*entry.value), entry.structure, [blob(*array) for array in entry.arrays]

    def has(self, key: Key) -> bool:
        """Whether the checkpoint has a value for a key: some are defined and never given one."""
        start, stop = key.rows[0]
        return (key.spec.store, key.spec.key, start, stop) in self._found


def _read_part(path: Path) -> List[Tuple[Entry, np.ndarray]]:
    """The entries of a part with the bytes that their places count in; the file is mapped, not read."""
    try:
        data = np.memmap(path, np.uint8, mode="r")
        (length,) = _LENGTH.unpack(data[: _LENGTH.size].tobytes())
        header = msgspec.msgpack.decode(data[_LENGTH.size : _LENGTH.size + length].tobytes(), type=List[Entry])
    except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    blobs = data[_LENGTH.size + length :]
    ends = [at + size for entry in header for at, size in (entry.value, *entry.arrays)]
    if ends and max(ends) > len(blobs):
        raise CheckpointError(f"{path} is damaged: it ends after {len(blobs):,} bytes of {max(ends):,}")
    return [(entry, blobs) for entry in header]
