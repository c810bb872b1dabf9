"""Local processes: started in sessions of their own, their output read, their ends seen, nothing of them left.

What to start and whom to signal is supervisor.py's to decide; what becomes of the output, output.py's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

PR_SET_PDEATHSIG = 1
DRAIN_SECONDS = 1.0
MARK = "ELASTIC_MX_JOB"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """What a process may use: it runs on these cores only, and cannot take more private memory than `memory_bytes`."""

    cores: Tuple[int, ...] = ()
    memory_bytes: int = 0


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    streams: Dict[int, int] = field(default_factory=dict)
    ended_at: Optional[float] = None


class Processes:
    """The processes of one job on this machine. To be used from one thread, which must outlive them.

    Three nets keep anything from being left: a process that ends takes its session with it; all die with this
    process, however it ends (the kernel sees to it); and a warden process then kills whatever carries the mark.

    Args:
        mark: what tells this job's processes from others: set in the environment of each.
        on_output: called with a process's name, 1 for stdout or 2 for stderr, and bytes as they come; with no bytes
            at the end of that stream.
    """

    def __init__(self, mark: str, on_output: Callable[[str, int, bytes], None]) -> None:
        self._mark = mark
        self._on_output = on_output
        self._running: Dict[str, _Running] = {}
        warden = [sys.executable, "-I", "-S", str(Path(__file__).with_name("warden.py")), f"{MARK}={mark}"]
        self._warden = subprocess.Popen(warden, stdin=subprocess.PIPE, start_new_session=True, cwd="/")

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], limits: Optional[Limits] = None
    ) -> int:
        """Start a process and return its number.

        Raises:
            OSError: the operating system cannot start it.
        """
        parent = os.getpid()
        limits = limits or Limits()

        def die_with_parent() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            if limits.cores:
                os.sched_setaffinity(0, limits.cores)
            if limits.memory_bytes:
                resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))

        process = subprocess.Popen(
            command,
            env={**environment, MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None and process.stderr is not None
        streams = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
        for descriptor in streams:
            os.set_blocking(descriptor, False)
        self._running[name] = _Running(process, streams)
        return process.pid

    def signal(self, name: str, number: int) -> None:
        """Signal a process and its group; nothing happens where it has ended."""
        running = self._running.get(name)
        if running is not None and running.ended_at is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, number)

    def descriptors(self) -> List[int]:
        """The file descriptors to wait on for output."""
        return [descriptor for running in self._running.values() for descriptor in running.streams]

    def poll(self) -> List[Tuple[str, int]]:
        """Pass on what was output; return the processes that have ended, with their statuses (negative: signal)."""
        ended = []
        for name, running in list(self._running.items()):
            if running.ended_at is None and _has_ended(running.process.pid):
                running.ended_at = time.monotonic()
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait()
            self._read(name, running)
            if running.ended_at is None:
                continue
            if not running.streams or time.monotonic() - running.ended_at > DRAIN_SECONDS:
                self._forget(name, running)
                ended.append((name, running.process.returncode))
        return ended

    def _read(self, name: str, running: _Running) -> None:
        for descriptor, stream in list(running.streams.items()):
            with contextlib.suppress(BlockingIOError):
                data = os.read(descriptor, 1 << 16)
                self._on_output(name, stream, data)
                if not data:
                    del running.streams[descriptor]

    def _forget(self, name: str, running: _Running) -> None:
        for stream in running.streams.values():
            self._on_output(name, stream, b"")
        for pipe in (running.process.stdout, running.process.stderr):
            assert pipe is not None
            pipe.close()
        del self._running[name]

    def close(self) -> None:
        """Kill what is left, whatever session it made for itself, and return when it is gone."""
        for name in list(self._running):
            self.signal(name, signal.SIGKILL)
        assert self._warden.stdin is not None
        self._warden.stdin.close()
        self._warden.wait()
        for running in self._running.values():
            running.process.communicate()
        self._running.clear()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not waited for yet, so that its number cannot be another's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
