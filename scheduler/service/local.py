"""The local cluster: nodes are this machine or parts of it, a job is a process that runs it from a folder.

The process (``python -m launcher.hosted FOLDER``) outlives the service, and begins a folder's job once, whoever starts
it; so a service that was killed finds its jobs by their folders. What size a job has is decided elsewhere, what the
service asks of a cluster is cluster.py's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from elastic_mx.client import ControlClient, Declined
from elastic_mx.link import JobError
from scheduler.service.cluster import DONE, ENDED, FAILED, LATE, REFUSED, Answer, Attempt, Look, Outcome, epochs_of
from scheduler.service.slot import Node, Room, Size
from scheduler.service.spec import JobSpec, SpecError

ROLES = ("server", "worker")
ANSWER_SECONDS = 2.0  # to tell how a job is
LOOK_SECONDS = 0.2
MOST_LOG_BYTES = 1 << 20


class LocalCluster:
    """Args: the folder for the jobs' folders, and the nodes. SpecError where the folder cannot be made."""

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self.folder, self._nodes = folder, list(nodes)
        self._growing: Set[str] = set()  # folders of jobs whose new seats are not all taken yet
        self._started: Dict[str, subprocess.Popen[bytes]] = {}
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="job")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"{folder}: jobs cannot be kept there: {error.strerror}: choose another --jobs") from error

    def now(self) -> float:
        return time.time()

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def refuses(self, spec: JobSpec) -> str:
        return missing_command(spec)

    # -------------------------------------------------------------------------------------------------- observe

    def observe(self, jobs: Sequence[Attempt]) -> List[Look]:
        return list(self._pool.map(self._look, jobs))

    def _look(self, job: Attempt) -> Look:
        state = self._state(self._folder(job))
        count = Counter(task["role"] for task in state["tasks"].values() if task.get("ended") is None)
        tasks = (count["server"], count["worker"])
        look = Look(tasks, reason=state.get("reason") or "", failures=tuple(_failures(state["tasks"])))
        if state.get("ended") is not None or state.get("lost"):
            lost = bool(state.get("lost"))  # the reason is then what it said while it was well
            reason = "" if lost else look.reason
            return replace(look, ended=state.get("ended"), status=state.get("status"), lost=lost, reason=reason)
        if not state.get("coordinator"):
            return look
        try:
            with ControlClient(state["coordinator"], job.name) as client:
                told = client.status(ANSWER_SECONDS)
        except JobError:
            return look
        members = (len(told["servers"]), len(told["workers"]))
        return replace(look, members=members, answered=True, epochs=epochs_of(told, job.spec))

    def wait(self, jobs: Sequence[Attempt], seconds: float, poked: threading.Event) -> None:
        until = time.monotonic() + seconds
        folders = [self._folder(job) for job in jobs]
        while (left := until - time.monotonic()) > 0 and not poked.wait(min(LOOK_SECONDS, left)):
            states = (self._state(folder) for folder in folders)
            if any(state.get("ended") is not None or state.get("lost") for state in states):
                return

    def _folder(self, job: Attempt) -> Path:
        return self.folder / f"{job.id}-{job.number}"

    def _state(self, folder: Path) -> Dict[str, Any]:
        """What the job's process wrote of it; ``lost`` is set where that process died without a word."""
        state = _read(folder / "state.json") or {"tasks": {}}
        if state.get("ended") is None and self._dead(folder):
            state = {"tasks": {}, **_read(folder / "state.json")}  # it may have told its end meanwhile
            state["lost"] = state.get("ended") is None
        return state

    def _dead(self, folder: Path) -> bool:
        """Whether the job was begun and nobody holds its lock, or what was to begin it is gone."""
        child = self._started.get(folder.name)
        exited = child is not None and child.poll() is not None
        if not (folder / "begun").exists():
            return exited
        with open(folder / "lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a folder that was begun takes no other
            except BlockingIOError:
                return False
        return True

    # ---------------------------------------------------------------------------------------------------- enact

    def reserve(self, jobs: Sequence[Attempt], wanted: Sequence[Tuple[Attempt, Size]]) -> Set[int]:
        taken, found = self._taken(jobs), set()
        for job, size in wanted:
            folder = self._folder(job)
            mine = [task for task in taken if task["folder"] == folder.name]
            more = self._seats(job.spec, size, taken, mine)
            if more is None:
                continue
            taken += [{**seat, "folder": folder.name} for seat in more]
            seats: Dict[str, List[Dict[str, Any]]] = {role: [] for role in ROLES}
            for seat in (*mine, *more):
                seats[seat["role"]].append({"node": seat["node"], "cores": seat["cores"]})
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(folder / "seats.json", seats)
            if mine:
                self._growing.add(folder.name)
            found.add(job.id)
        return found

    def _seats(
        self, spec: JobSpec, size: Size, taken: Sequence[Mapping[str, Any]], mine: Sequence[Mapping[str, Any]]
    ) -> Optional[List[Dict[str, Any]]]:
        """Seats beside those that are taken, for what a job lacks; None where there is no room."""
        room = Room(self._nodes)
        index = {node.name: k for k, node in enumerate(self._nodes)}
        load: Counter[Tuple[str, int]] = Counter()
        for task in taken:
            if task["node"] in index:
                room.take(task["demand"], index[task["node"]])
            load.update((task["node"], core) for core in task["cores"])
        have = Counter(task["role"] for task in mine)
        more: List[Dict[str, Any]] = []
        for role, count, tasks in (("server", size[0], spec.servers), ("worker", size[1], spec.workers)):
            for _ in range(count - have[role]):
                where = room.take(tasks.demand)
                if where is None:
                    return None
                node = self._nodes[where]
                wanted = min(len(node.cores), max(1, int(_up(tasks.cpus))))
                cores = sorted(node.cores, key=lambda core: (load[node.name, core], core))[:wanted]
                load.update((node.name, core) for core in cores)
                more.append({"role": role, "node": node.name, "cores": sorted(cores), "demand": tasks.demand})
        return more

    def _taken(self, jobs: Sequence[Attempt]) -> List[Dict[str, Any]]:
        """The tasks that live, with their seats; of a job that is about to begin, the seats it was given."""
        found = []
        for job in jobs:
            folder = self._folder(job)
            demands = {"worker": job.spec.workers.demand, "server": job.spec.servers.demand}
            state = self._state(folder)
            if state.get("ended") is not None or state.get("lost"):
                continue
            seats: List[Tuple[str, Dict[str, Any]]] = [
                (task["role"], task["seat"])
                for task in state["tasks"].values()
                if task["role"] in demands and task.get("ended") is None
            ]
            given = _read(folder / "seats.json")
            for role in demands:  # seats that were given and are not taken yet
                have = sum(1 for other, _ in seats if other == role)
                pending = given.get(role, [])[have:] if have == 0 or folder.name in self._growing else []
                seats += [(role, seat) for seat in pending]
            found += [
                {"role": role, "node": s["node"], "cores": list(s["cores"]), "demand": demands[role]}
                | {"folder": folder.name}
                for role, s in seats
            ]
        return found

    def begin(self, job: Attempt, size: Size) -> None:
        folder, spec = self._folder(job), job.spec
        child = self._started.get(folder.name)
        if (folder / "begun").exists() or (child is not None and child.poll() is None):
            return
        saved = self._saved(job)
        order = {
            "name": spec.name,
            "command": spec.argv,
            "workdir": spec.workdir,
            "environment": environment_of(spec),
            "servers": size[0],
            "workers": size[1],
            "memory_bytes": {"worker": int(spec.workers.memory_bytes), "server": int(spec.servers.memory_bytes)},
            "threads": spec.threads or max(1, int(spec.workers.cpus)),
            "drop_in": spec.drop_in,
            "restore": str(saved) if (saved / "manifest.json").exists() else "",
        }
        _write(folder / "job.json", order)
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with open(folder / "launcher.out", "ab") as out:
            self._started[folder.name] = subprocess.Popen(
                [sys.executable, "-m", "launcher.hosted", str(folder)],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _saved(self, job: Attempt) -> Path:
        """Where the job's attempts keep its checkpoint."""
        return self.folder / f"{job.id}-checkpoint"

    def resize(self, job: Attempt, size: Size, seconds: float, answer: Answer) -> None:
        def scale(client: ControlClient) -> Outcome:
            cost = client.scale(workers=size[1], servers=size[0], timeout=seconds)
            took = (cost.get("startup_seconds") or 0.0) + (cost.get("seconds") or 0.0)
            return Outcome(DONE, "", took, cost.get("longest_stall_seconds"), cost.get("bytes_moved"))

        def scaled(outcome: Outcome) -> None:
            self._growing.discard(self._folder(job).name)
            answer(outcome)

        self._pool.submit(self._ask, job, scale, scaled)

    def checkpoint(self, job: Attempt, seconds: float, answer: Answer) -> None:
        def save(client: ControlClient) -> Outcome:
            began = time.monotonic()
            step = client.checkpoint(str(self._saved(job)), seconds)["step"]
            return Outcome(DONE, f"step {step} in {self._saved(job)}", time.monotonic() - began)

        self._pool.submit(self._ask, job, save, answer)

    def _ask(self, job: Attempt, request: Callable[[ControlClient], Outcome], answer: Answer) -> None:
        """Has a job do something; whatever comes of it is this job's affair only."""
        outcome = Outcome(FAILED)
        try:
            with ControlClient(self._state(self._folder(job)).get("coordinator") or "", job.name) as client:
                outcome = request(client)
        except JobError as error:
            over = self._state(self._folder(job)).get("ended") is not None
            outcome = Outcome(ENDED if over else REFUSED if isinstance(error, Declined) else LATE, str(error))
        except Exception as error:
            outcome = Outcome(FAILED, f"{type(error).__name__}: {error}")
        finally:
            answer(outcome)

    def stop(self, job: Attempt) -> None:
        self._pool.submit(self._stop, job)

    def _stop(self, job: Attempt) -> None:
        """Tells a job to end, by its coordinator or, where that does not answer, by a signal to its process."""
        folder = self._folder(job)
        state = self._state(folder)
        if state.get("ended") is not None or state.get("lost"):
            return
        try:
            with ControlClient(state.get("coordinator") or "", job.name) as client:
                client.stop(5.0)
        except JobError:
            if state.get("pid") and not self._dead(folder):
                os.kill(state["pid"], signal.SIGTERM)

    def drop_checkpoint(self, job: Attempt) -> None:
        shutil.rmtree(self._saved(job), ignore_errors=True)

    def drop(self, job: Attempt) -> str:
        try:
            for folder in self.folder.glob(f"{job.id}-*"):
                shutil.rmtree(folder)
                self._started.pop(folder.name, None)
        except OSError as error:
            return str(error)
        return ""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------ for people

    def tasks(self, job: Attempt) -> Dict[str, Dict[str, Any]]:
        tasks = self._state(self._folder(job))["tasks"]
        return {name: {**task, "node": task["seat"]["node"]} for name, task in tasks.items()}

    def logs(self, job: Attempt, offsets: Mapping[str, int]) -> Dict[str, Dict[str, Any]]:
        paths = sorted((self._folder(job) / "logs").glob("*.log"))
        return {path.stem: _piece(path, offsets.get(path.stem, 0)) for path in paths}

    def used(self, jobs: Sequence[Attempt]) -> Dict[str, List[Tuple[float, ...]]]:
        found: Dict[str, List[Tuple[float, ...]]] = {}
        for task in self._taken(jobs):
            found.setdefault(task["node"], []).append(task["demand"])
        return found


# ---------------------------------------------------------------------------------------------------------- helpers


def _up(number: float) -> int:
    return -int(-number // 1)


def _failures(tasks: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """A line for each task that ended badly; one that was told to end did not."""
    found = []
    for name, task in tasks.items():
        status = task.get("status") or 0
        if task.get("ended") is None or status in (0, -signal.SIGTERM):
            continue
        how = f"status {status}" if status > 0 else signal.Signals(-status).name
        found.append(f"{name} on {task['seat']['node']} ended with {how}" + (f": {r}" if (r := task["reason"]) else ""))
    return found


def _piece(path: Path, offset: int) -> Dict[str, Any]:
    """The text beyond an offset, and the next offset; from the start again where the log was rotated."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(offset if offset <= size else 0)
        data = file.read(MOST_LOG_BYTES)
        return {"text": data.decode(errors="replace"), "next": file.tell()}


def environment_of(spec: JobSpec) -> Dict[str, str]:
    """What a job's processes find: the service's environment, without what is the service's own, and the spec's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_MX_")}
    return {**kept, **spec.environment}


def missing_command(spec: JobSpec) -> str:
    """Why a job's command cannot be run here, naming field and value; empty if it can."""
    if not Path(spec.workdir).is_dir():
        return f"workdir: {spec.workdir!r} is no folder: make it, or name another"
    argv = spec.argv
    found = shutil.which(os.path.join(spec.workdir, argv[0]) if "/" in argv[0] else argv[0], path=_path(spec))
    if found is None:
        return f"command: {argv[0]!r} does not exist or cannot be run: give its path, or correct the name"
    script = argv[1] if Path(argv[0]).name.startswith("python") and argv[1:] and argv[1].endswith(".py") else ""
    if script and not (Path(spec.workdir) / script).is_file():
        return f"command: {script!r} does not exist in {spec.workdir}: correct it, or say workdir"
    return ""


def _path(spec: JobSpec) -> Optional[str]:
    return spec.environment.get("PATH", os.environ.get("PATH"))


def _write(path: Path, value: Any) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(value))
    os.replace(partial, path)


def _read(path: Path) -> Dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}
