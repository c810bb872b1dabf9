"""Runs one job for the service, from a folder and for a folder: outlives the service that started it.

``python -m launcher.hosted FOLDER``. What the folder holds, and who writes it:

- ``job.json`` (service): what to run, see `Order`. ``begun``: made here; a folder's job is begun once, whoever tries.
- ``seats.json`` (service): on which cores the tasks of each role are to run; a new task takes the first free seat.
- ``state.json`` (here): the coordinator's address, each task with its seat, and in the end how the job ended.
- ``logs/NAME.log`` (here): what task NAME printed, rotated by size; ``launcher.log`` is what happened to the job.
- ``lock`` (here): locked as long as this process lives.

What is started when is local.py's and supervisor.py's affair; what size a job has, the service's.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import msgspec

from elastic_mx.link import JobError
from elastic_mx.settings import JobSettings
from launcher.launch import resolve, script_of
from launcher.local import LaunchSettings, LocalJob
from launcher.logs import Log
from launcher.processes import Limits
from launcher.registry import Registry, RegistryError, born
from launcher.usage import memory_of

LOOK_SECONDS = 1.0
LAUNCHER = "launcher"
# The kernel's bound counts what was reserved and never touched; it only stops what grows between two looks.
SLACK_FACTOR, SLACK_BYTES = 3, 2 << 30


class Order(msgspec.Struct, frozen=True):
    """What to run.

    `memory_bytes` is by role, 0 for no limit; `log_bytes` is a log's size before it is rotated, `logs` how many are
    kept of a task.
    """

    name: str
    command: List[str]
    workdir: str
    environment: Dict[str, str]
    workers: int
    servers: int
    memory_bytes: Dict[str, int] = {}
    threads: Optional[int] = None
    drop_in: bool = False
    restore: str = ""
    log_bytes: int = 10 << 20
    logs: int = 3


class Seat(msgspec.Struct, frozen=True):
    """A place for a task: some cores of a node."""

    node: str
    cores: Tuple[int, ...] = ()


class Task(msgspec.Struct):
    """A process of the job: times in seconds since the epoch, `memory` in bytes as last seen."""

    role: str
    seat: Seat
    pid: int = 0
    started: float = 0.0
    ended: Optional[float] = None
    status: Optional[int] = None
    memory: int = 0
    reason: str = ""


class State(msgspec.Struct):
    """What is known of the job from outside. `status` is its exit status once it has ended, `reason` why."""

    pid: int
    born: int
    started: float
    name: str = ""
    coordinator: str = ""
    ended: Optional[float] = None
    status: Optional[int] = None
    reason: str = ""
    tasks: Dict[str, Task] = {}


class FolderHost:
    """A job's surroundings in a folder."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.gone = False
        self.order = order
        self._folder = folder
        (folder / "logs").mkdir(exist_ok=True)
        self.state = State(os.getpid(), born(os.getpid()) or 0, time.time())
        self._logs: Dict[str, Log] = {}
        self._looked = 0.0
        self.write()

    def limits(self, role: str, name: str) -> Optional[Limits]:
        seat = self._free_seat(role)
        self.state.tasks[name] = Task(role, seat)
        memory = self.order.memory_bytes.get(role, 0)
        return Limits(seat.cores, memory * SLACK_FACTOR + SLACK_BYTES if memory else 0)

    def _free_seat(self, role: str) -> Seat:
        """The first of the role's seats that no living task has."""
        try:
            seats = msgspec.json.decode((self._folder / "seats.json").read_bytes(), type=Dict[str, List[Seat]])
        except FileNotFoundError:
            seats = {}
        taken = Counter(task.seat for task in self.state.tasks.values() if task.role == role and task.ended is None)
        for seat in seats.get(role, ()):
            if taken[seat] == 0:
                return seat
            taken[seat] -= 1
        return Seat("")

    def listening(self, address: str) -> None:
        self.state.coordinator = address
        self.write()

    def began(self, role: str, name: str, pid: int) -> None:
        task = self.state.tasks[name]
        task.pid, task.started = pid, time.time()
        self.write()

    def ended(self, name: str, status: int) -> None:
        task = self.state.tasks[name]
        task.ended, task.status = time.time(), status
        self.write()

    def output(self, name: str, stream: int, data: bytes) -> None:
        self._log(name).write(data)

    def say(self, text: str) -> None:
        self.state.reason = text
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log(LAUNCHER).write(f"{when} {text}\n".encode())

    def tick(self, now: float) -> List[Tuple[str, str]]:
        """Look, once in a while, whether each task keeps to its memory."""
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        excess = []
        for name, task in self.state.tasks.items():
            limit = self.order.memory_bytes.get(task.role, 0)
            if limit and task.ended is None and task.pid:
                task.memory = memory_of(task.pid)
                if task.memory > limit and not task.reason:
                    task.reason = f"{name} uses {_mib(task.memory)} of memory, its limit is {_mib(limit)}: it is ended"
                    excess.append((name, task.reason))
        self.write()
        return excess

    def over(self, status: int, reason: str = "") -> None:
        """The job has ended; returns when that is written, however long a full disk takes."""
        self.state.ended, self.state.status = time.time(), status
        if reason:
            self.say(reason)
        while not self.write() and self._folder.exists():
            time.sleep(LOOK_SECONDS)

    def write(self) -> bool:
        """Tell how the job is; False where that cannot be written now: the next time tells all."""
        try:
            write_json(self._folder / "state.json", self.state)
        except OSError:
            return False
        return True

    def _log(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = Log(self._folder / "logs" / f"{name}.log", self.order.log_bytes, self.order.logs)
        return self._logs[name]


def write_json(path: Path, value: Any) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_bytes(msgspec.json.encode(value))
    os.replace(temporary, path)


def _mib(number: int) -> str:
    return f"{number / (1 << 20):.0f} MiB"


def run(folder: Path) -> int:
    """Run the folder's job; its exit status.

    Raises:
        JobError: it was begun before.
    """
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / "begun").touch(exist_ok=False)
        except (BlockingIOError, FileExistsError) as error:
            raise JobError(f"the job in {folder} was begun before: a folder's job is begun once") from error
        order = msgspec.json.decode((folder / "job.json").read_bytes(), type=Order)
        host = FolderHost(folder, order)
        try:
            status, reason = _run(host), ""
        except (JobError, RegistryError, ValueError, OSError) as error:
            status, reason = 1, " ".join(str(error).split())
        host.over(status, reason)
        return status


def _run(host: FolderHost) -> int:
    order = host.order
    os.chdir(order.workdir)
    os.environ["PATH"] = order.environment.get("PATH", os.environ.get("PATH", ""))
    command = resolve(order.command)
    registry = Registry()
    entry = registry.claim(order.name, order.command, order.drop_in, numbered=True)
    try:
        host.state.name = entry.name
        job = JobSettings(entry.name, order.workers, order.servers, drop_in=order.drop_in, restore=order.restore)
        script = os.path.dirname(os.path.abspath(script_of(order.command) or "script"))
        settings = LaunchSettings(
            job, command, threads=order.threads, script_folder=script, environment=order.environment
        )
        return LocalJob(settings, entry, registry, host).run()
    finally:
        registry.remove(entry)


def main() -> None:
    try:
        sys.exit(run(Path(sys.argv[1]).resolve()))
    except JobError as error:
        sys.exit(f"elastic-mx: {error}")


if __name__ == "__main__":
    main()
