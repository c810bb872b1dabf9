"""Runs the command as a user does, in a home of its own, and sees to it that nothing of it outlives the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent.parent
PYTHON = [sys.executable, "-m", "launcher.cli"]


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return what `condition` returns once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Shell:
    """Where a test's commands run: its own registry, and an environment that tells their processes from others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC_MX_")}
        self.environment = {**kept, "ELASTIC_MX_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        self.launched: List[Launched] = []

    def run(self, *arguments: object, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*PYTHON, *map(str, arguments)]
        env = {**self.environment, **environment}
        return subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=timeout)

    def launch(self, *arguments: object, **environment: str) -> Launched:
        job = Launched(self, [*PYTHON, "launch", *map(str, arguments)], {**self.environment, **environment})
        self.launched.append(job)
        return job

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def processes(self) -> Dict[int, str]:
        """The processes that descend from this test's commands, with their command lines."""
        mark = f"ELASTIC_MX_HOME={self.home}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def close(self) -> Dict[int, str]:
        """Kill what still runs, and return it: there should have been nothing."""
        for job in self.launched:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGTERM)
                try:
                    job.process.wait(15)
                except subprocess.TimeoutExpired:
                    job.process.kill()
                    job.process.wait()
        left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


class Launched:
    """A running `elastic-mx launch`; its output goes to files."""

    def __init__(self, shell: Shell, command: List[str], environment: Dict[str, str]) -> None:
        number = len(shell.launched)
        self._out, self._err = shell.folder / f"{number}.out", shell.folder / f"{number}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(command, env=environment, cwd=shell.folder, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until the job has printed `text`."""
        wait_until(lambda: text in self.out + self.err or self.process.poll() is not None, seconds)
        assert text in self.out + self.err, self.out + self.err

    def wait(self, seconds: float = 60, status: Optional[int] = None) -> int:
        ended = self.process.wait(seconds)
        assert status is None or ended == status, f"ended with {ended}: {self.out}{self.err}"
        return ended
