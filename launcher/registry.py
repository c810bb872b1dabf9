"""Which jobs run on this machine: one JSON file a job in a folder of this user. Talks to no job itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Iterator, List, Mapping, Optional

import msgspec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class RegistryError(Exception):
    """A job cannot be found or registered; the text says what to do."""


class JobEntry(msgspec.Struct, frozen=True):
    """What is known of a running job without asking it.

    `coordinator` is its address, empty while it starts; `pid` the launcher's, `born` when that began by the kernel's
    clock (ticks since boot), by which it is told from a later process with the same pid; `started` in seconds since
    the epoch.
    """

    name: str
    pid: int
    born: int
    command: List[str]
    started: float
    coordinator: str = ""
    drop_in: bool = False


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return this user's folder: ELASTIC_MX_HOME, else in XDG_RUNTIME_DIR, else ~/.elastic-mx."""
    if environment.get("ELASTIC_MX_HOME"):
        return Path(environment["ELASTIC_MX_HOME"])
    if environment.get("XDG_RUNTIME_DIR"):
        return Path(environment["XDG_RUNTIME_DIR"]) / "elastic-mx"
    return Path.home() / ".elastic-mx"


def born(pid: int) -> Optional[int]:
    """Return when process `pid` began, in ticks since boot; None if there is none (a zombie has ended)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Registry:
    """The jobs of this user on this machine.

    Args:
        folder: where the files are; made, with mode 0700, when it is missing.

    Raises:
        RegistryError: the folder cannot be used, or belongs to another user.
    """

    def __init__(self, folder: Optional[Path] = None) -> None:
        self.folder = (folder or home()) / "jobs"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
            if status.st_uid != os.getuid():
                raise RegistryError(f"{self.folder} belongs to another user: set ELASTIC_MX_HOME to a folder of yours")
            if status.st_mode & 0o077:
                self.folder.chmod(0o700)
        except OSError as error:
            raise RegistryError(
                f"{self.folder} cannot be used ({error.strerror}): set ELASTIC_MX_HOME to a folder of yours"
            ) from error

    def jobs(self) -> List[JobEntry]:
        """Return the jobs whose launcher lives, by name; the files of others are removed."""
        with self._locked():
            entries = (self._read(path) for path in sorted(self.folder.glob("*.json")))
            return [entry for entry in entries if entry is not None]

    def find(self, name: str) -> JobEntry:
        """Return a running job.

        Raises:
            RegistryError: there is none of that name, or it has no coordinator yet.
        """
        jobs = {entry.name: entry for entry in self.jobs()}
        if name not in jobs:
            running = f"running: {', '.join(jobs)}" if jobs else "no job is running"
            raise RegistryError(f"there is no job {name!r} on this machine ({running})")
        if not jobs[name].coordinator:
            raise RegistryError(f"job {name!r} is starting and takes no requests yet: try again in a moment")
        return jobs[name]

    def claim(self, name: str, command: List[str], drop_in: bool = False, numbered: bool = False) -> JobEntry:
        """Register a job of this process under `name`; with `numbered`, under ``name-2`` and so on if it is in use.

        Raises:
            RegistryError: the name is in use, or cannot be a name.
        """
        if not NAME.fullmatch(name):
            raise RegistryError(
                f"{name!r} cannot be a job's name: use up to 63 letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit"
            )
        with self._locked():
            chosen, number = name, 1
            while (holder := self._read(self._path(chosen))) is not None:
                if not numbered:
                    raise RegistryError(
                        f"a job named {name!r} is running (pid {holder.pid}): choose another --name, "
                        f"or end it with elastic-mx stop {name}"
                    )
                number += 1
                chosen = f"{name[:58]}-{number}"
            pid = os.getpid()
            entry = JobEntry(chosen, pid, born(pid) or 0, command, time.time(), drop_in=drop_in)
            self._write(entry)
            return entry

    def update(self, entry: JobEntry, coordinator: str) -> JobEntry:
        """Note where the coordinator of a claimed job listens."""
        entry = msgspec.structs.replace(entry, coordinator=coordinator)
        with self._locked():
            self._write(entry)
        return entry

    def remove(self, entry: JobEntry) -> None:
        """Forget a job; nothing happens where its file is another's by now."""
        with self._locked():
            found = self._read(self._path(entry.name))
            if found is not None and (found.pid, found.born) == (entry.pid, entry.born):
                self._path(entry.name).unlink()

    # --------------------------------------------------------------------------------------------------- files

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read(self, path: Path) -> Optional[JobEntry]:
        """Return the live job that a file tells of; the file is removed if it tells of none."""
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=JobEntry)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            entry = None
        if entry is not None and born(entry.pid) == entry.born:
            return entry
        path.unlink()
        return None

    def _write(self, entry: JobEntry) -> None:
        temporary = self._path(entry.name).with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(entry)))
        os.replace(temporary, self._path(entry.name))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
