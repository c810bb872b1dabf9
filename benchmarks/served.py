"""Runs the service with real jobs on digits, for benchmarks and tests: submits them on time, kills and restarts it.

Two nodes, each bound to one core. What the jobs used, and whether anything of them is left, is checked here as well.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from benchmarks.jobs import ROOT
from scheduler.service.http import ServiceClient, ServiceError

SCRIPT = Path(__file__).parent / "scripts" / "served_digits.py"
SAMPLES = 1437
LAST_LINES = 12
MARK = "ELASTIC_MX_SERVED"
ACCURACY = re.compile(r"held-out accuracy ([0-9.]+)")
WORKERS = {"max": 3, "cpus": 0.5, "memory": "768MiB"}  # small ones, so that ten jobs have room and share it anew often
SERVERS = {"max": 3, "cpus": 0.25, "memory": "384MiB"}


@dataclass(frozen=True)
class Arrival:
    """A job that is submitted ``at`` seconds after the beginning."""

    at: float
    name: str
    epochs: int


def arrivals(count: int, within: float, least: int, most: int, seed: int) -> List[Arrival]:
    """Jobs of random lengths (epochs) at random times."""
    rng = np.random.RandomState(seed)
    times = sorted(rng.uniform(0, within, count))
    return [
        Arrival(float(at) - times[0], f"digits-{k}", int(rng.randint(least, most + 1))) for k, at in enumerate(times)
    ]


def nodes(cpus: float = 4) -> List[Dict[str, Any]]:
    """Two nodes that share this machine's cores evenly; each promises more than it has, so tasks share cores."""
    cores = sorted(os.sched_getaffinity(0))
    halves = (cores[: (len(cores) + 1) // 2], cores[len(cores) // 2 :])
    return [{"name": name, "cpus": cpus, "memory": "16GiB", "cores": half} for name, half in zip("ab", halves)]


class Served:
    """A service in a folder; a context manager that ends it and its jobs."""

    def __init__(self, folder: Path, policy: str, slot: float, cpus: float = 4) -> None:
        self.folder, self._policy, self._slot = folder, policy, slot
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.client = ServiceClient(self._address)
        self._mark = uuid.uuid4().hex
        self._process: Optional[subprocess.Popen[str]] = None
        (folder / "nodes.yaml").write_text(json.dumps(nodes(cpus)))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> None:
        command = [sys.executable, "-m", "launcher.cli", "serve", "--policy", self._policy, "--slot", f"{self._slot}s"]
        command += ["--state", str(self.state), "--nodes", str(self.folder / "nodes.yaml"), "--listen", self._address]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: self._mark}
        environment["ELASTIC_MX_HOME"] = str(self.folder / "home")
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "policy" not in line:
            raise RuntimeError(f"the service with policy {self._policy} did not start: it said {line!r}")

    def kill(self) -> None:
        """SIGKILL; the jobs go on."""
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process = None

    def submit(self, job: Arrival) -> None:
        used = self.folder / "used" / job.name
        used.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(SCRIPT), "--epochs", str(job.epochs)]
        fields = {"command": command, "workdir": str(ROOT), "epochs": job.epochs, "environment": {"USED": str(used)}}
        spec = {"name": job.name, **fields, "workers": WORKERS, "servers": SERVERS}
        self.client.ask("POST", "/jobs", {"spec": spec, "key": job.name})

    def jobs(self) -> List[Dict[str, Any]]:
        return list(self.client.ask("GET", "/jobs"))

    def run(self, jobs: Sequence[Arrival], kills: Sequence[float] = (), longest: float = 900.0) -> List[Dict[str, Any]]:
        """Submits jobs on time, kills and restarts the service at times, and waits until all have ended: the jobs.

        Raises:
            RuntimeError: they have not after so many seconds, or one failed.
        """
        began = time.time()
        todo: List[Tuple[float, Optional[Arrival]]] = [(job.at, job) for job in jobs] + [(at, None) for at in kills]
        todo.sort(key=lambda item: item[0])
        while todo or any(job["ended_at"] is None for job in self.jobs()):
            now = time.time() - began
            if now > longest:
                raise RuntimeError(f"after {longest:g} s there are still jobs: {self._told()}")
            if todo and now >= todo[0][0]:
                job = todo.pop(0)[1]
                if job is not None:
                    self.submit(job)
                else:
                    self.kill()
                    self.start()
            time.sleep(min(0.5, max(0.01, todo[0][0] - now) if todo else 0.5))
        failed = [job for job in self.jobs() if job["state"] != "finished"]
        if failed:
            raise RuntimeError("\n".join([f"not every job finished: {self._told()}", *map(self._last_words, failed)]))
        return self.jobs()

    def _told(self) -> str:
        return ", ".join(f"{job['name']} {job['state']} {job['reason']}".strip() for job in self.jobs())

    def _last_words(self, job: Dict[str, Any]) -> str:
        """What a job's tasks printed last."""
        logs = self.client.ask("GET", f"/jobs/{job['name']}/logs")["logs"]
        lines = [
            f"[{name}] {line}" for name, piece in logs.items() for line in piece["text"].splitlines()[-LAST_LINES:]
        ]
        return "\n".join(lines)

    def resizes(self) -> List[Dict[str, Any]]:
        changes = self.client.ask("GET", "/changes?limit=100000")
        return [one for one in changes if one["kind"] == "resize" and one["outcome"] == "done"]

    def accuracy(self, name: str) -> float:
        pieces = self.client.ask("GET", f"/jobs/{name}/logs")["logs"]
        found = [float(value) for piece in pieces.values() for value in ACCURACY.findall(piece["text"])]
        if not found:
            raise RuntimeError(f"job {name} has printed no accuracy")
        return min(found)

    def misused(self, job: Arrival) -> List[str]:
        """A line for each epoch in which not every sample was used exactly once."""
        used: Dict[int, Counter[int]] = {}
        for path in (self.folder / "used" / job.name).iterdir():
            for line in path.read_text().splitlines():
                epoch, *indices = map(int, line.split())
                used.setdefault(epoch, Counter()).update(indices)
        wrong = []
        for epoch in range(job.epochs):
            have = used.get(epoch, Counter())
            if sorted(have) != list(range(SAMPLES)) or set(have.values()) != {1}:
                twice = sum(count > 1 for count in have.values())
                wrong.append(f"{job.name} epoch {epoch}: {SAMPLES - len(have)} samples unused, {twice} more than once")
        return wrong

    def left(self) -> List[int]:
        """The processes of the jobs and of the service that still run."""
        mark, found = f"{MARK}={self._mark}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            try:
                deadline = time.time() + 30
                while (live := [job for job in self.jobs() if job["ended_at"] is None]) and time.time() < deadline:
                    for job in live:
                        if not job["wish"]:
                            self.client.ask("POST", f"/jobs/{job['name']}/cancel")
                    time.sleep(0.3)
            except ServiceError as error:
                print(f"the jobs could not be ended: {error}", file=sys.stderr)
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
        deadline = time.time() + 10
        while self.left() and time.time() < deadline:
            time.sleep(0.1)
