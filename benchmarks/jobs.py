"""Starts jobs as processes on loopback, elastic ones and MXNet's own, gone at the end; for benchmarks and tests.

It plays the launcher in the plainest way; `elastic-mx launch` is launcher/'s.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import zmq

from elastic_mx import messages as m
from elastic_mx.link import ControlLink
from elastic_mx.settings import ProcessSettings

ROOT = Path(__file__).resolve().parent.parent


def _environment(**env: Any) -> Dict[str, str]:
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {**common, **{key: str(value) for key, value in env.items()}}


class ElasticJob:
    """An elastic job whose workers run a script; a context manager that ends whatever still runs.

    Args:
        script: the workers' script.
        workers: how many to start with.
        servers: how many to start with.
        out: a folder; each worker finds ``OUT=out/NAME`` in its environment.
        env: upper-case names go to the processes' environment, others are options of the coordinator.
    """

    def __init__(
        self, script: Path, workers: int = 1, servers: int = 1, out: Optional[Path] = None, **env: Any
    ) -> None:
        self.script, self.out = script, out
        self.env = {key: value for key, value in env.items() if key.isupper()}
        options = [f"--{key.replace('_', '-')}={value}" for key, value in env.items() if not key.isupper()]
        self.processes: Dict[str, subprocess.Popen] = {}
        self.exits: Dict[str, int] = {}
        self.replies: Dict[int, m.Reply] = {}
        self._requests: List[m.Message] = []
        self._changed = threading.Condition()
        self._over = False
        self.coordinator = self._start(
            "coordinator", "-m", "elastic_mx.coordinator", f"--workers={workers}", f"--servers={servers}", *options
        )
        assert self.coordinator.stdout is not None
        self.address = json.loads(self.coordinator.stdout.readline())["coordinator"]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _start(self, name: str, *command: str, **env: str) -> subprocess.Popen:
        stdout = subprocess.PIPE if name == "coordinator" else None
        return subprocess.Popen(
            [sys.executable, *command], env=_environment(**self.env, **env), stdout=stdout, text=True
        )

    def _serve(self) -> None:
        """Play the launcher: start what the coordinator asks for, tell what ended, pass requests on."""
        context = zmq.Context()
        link = ControlLink(context, ProcessSettings(self.address, "launcher"))
        link.register("launcher")
        while not self._over:
            while self._requests:
                link.send(self._requests.pop(0))
            message = link.receive(0.02)
            if isinstance(message, m.Launch):
                settings = ProcessSettings(self.address, message.name, trace=bool(os.environ.get("TRACE")))
                command = ["-m", "elastic_mx.server"] if message.role == "server" else [str(self.script)]
                out = {"OUT": str(self.out / message.name)} if self.out else {}
                self.processes[message.name] = self._start(message.name, *command, **settings.to_environment(), **out)
            elif isinstance(message, m.Reply):
                with self._changed:
                    self.replies[message.request] = message
                    self._changed.notify_all()
            for name, process in list(self.processes.items()):
                if name not in self.exits and process.poll() is not None:
                    link.send(m.Exited(name=name, status=process.returncode))
                    with self._changed:
                        self.exits[name] = process.returncode
                        self._changed.notify_all()
        link.socket.close()
        context.term()

    def send(self, message: m.Message) -> None:
        self._requests.append(message)

    def reply(self, request: int, timeout: float = 60) -> m.Reply:
        """Wait for the answer to a request that was sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: request in self.replies, timeout), f"no reply to request {request}"
            return self.replies[request]

    def request(self, message: m.Message, timeout: float = 60) -> m.Reply:
        self.send(message)
        return self.reply(message.request, timeout)  # type: ignore[attr-defined]

    def scale(self, number: int, workers: Optional[int] = None, servers: Optional[int] = None) -> m.Reply:
        return self.request(m.Scale(request=number, workers=workers, servers=servers))

    def status(self, number: int = 0) -> Dict[str, Any]:
        self.replies.pop(number, None)
        return self.request(m.Status(request=number)).body

    def wait_for_step(self, step: int, timeout: float = 60) -> None:
        """Wait until every worker has begun `step`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            workers = self.status(-1)["workers"]
            if workers and all(w["step"] >= step for w in workers):
                return
            time.sleep(0.05)
        raise AssertionError(f"step {step} was not reached: {self.status(-1)}")

    def wait(self, timeout: float = 60) -> Dict[str, int]:
        """Wait until all processes have ended by themselves; return their exit statuses."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: bool(self.processes) and len(self.exits) == len(self.processes), timeout
            )
        assert done, f"still running: {sorted(set(self.processes) - set(self.exits))}; ended: {self.exits}"
        return self.exits

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over = True
        self._thread.join(5)
        _end([*self.processes.values(), self.coordinator])
        if self.coordinator.stdout is not None:
            self.coordinator.stdout.close()


class NativeJob:
    """A job under MXNet's own parameter server; a context manager that ends whatever still runs.

    Args:
        script: the workers' script; it finds ``KVSTORE=dist_sync`` in its environment.
        workers: how many.
        servers: how many.
        out: a folder; worker n finds ``OUT=out/worker-n`` in its environment.
        env: what else the processes find in their environment.
    """

    def __init__(
        self, script: Path, workers: int = 1, servers: int = 1, out: Optional[Path] = None, **env: Any
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {
            **env,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": workers,
            "DMLC_NUM_SERVER": servers,
            "KVSTORE": "dist_sync",
        }
        self.processes: Dict[str, subprocess.Popen] = {}
        for name in ["scheduler", *(f"server-{n}" for n in range(servers))]:
            # A process of these roles serves while it imports mxnet, and ends there.
            role = name.partition("-")[0]
            command = [sys.executable, "-c", "import elastic_mx, mxnet"]
            self.processes[name] = subprocess.Popen(command, env=_environment(**common, DMLC_ROLE=role))
        for rank in range(workers):
            name = f"worker-{rank}"
            here = {**common, "DMLC_ROLE": "worker", **({"OUT": out / name} if out else {})}
            self.processes[name] = subprocess.Popen([sys.executable, str(script)], env=_environment(**here))

    def wait(self, timeout: float = 90) -> None:
        """Wait until the workers have ended by themselves; raises AssertionError where one failed."""
        deadline = time.monotonic() + timeout
        for name, process in self.processes.items():
            if name.startswith("worker"):
                status = process.wait(max(0.1, deadline - time.monotonic()))
                assert status == 0, f"{name} of the native job ended with status {status}"

    def __enter__(self) -> NativeJob:
        return self

    def __exit__(self, *_: Any) -> None:
        _end(list(self.processes.values()))


def _end(processes: List[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
