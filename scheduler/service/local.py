"""The local cluster: nodes are this machine or parts of it, a job is a process that runs it from a folder.

The process (``python -m launcher.hosted FOLDER``) outlives the service, and begins a folder's job once, whoever starts
it; so a service that was killed finds its jobs by their folders. What size a job has is decided elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from elastic_mx.client import ControlClient
from elastic_mx.link import JobError
from scheduler.service.slot import Node, Room, Size
from scheduler.service.spec import GIB, JobSpec, SpecError, parse_memory, read_yaml

ROLES = ("server", "worker")
NODE_FIELDS = ("name", "cpus", "memory", "gpus", "cores")


class LocalCluster:
    """Args: the folder for the jobs' folders, and the nodes."""

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self.folder, self.nodes = folder, list(nodes)
        self.growing: Set[str] = set()  # folders of jobs whose new seats are not all taken yet
        self._started: Dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # ------------------------------------------------------------------------------------------------- looking

    def job_folder(self, job: int, attempt: int) -> Path:
        return self.folder / f"{job}-{attempt}"

    def state(self, folder: Path) -> Dict[str, Any]:
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

    @staticmethod
    def tasks(state: Mapping[str, Any]) -> Counter[str]:
        """How many tasks of each role live."""
        return Counter(task["role"] for task in state["tasks"].values() if task.get("ended") is None)

    @staticmethod
    def progress(state: Mapping[str, Any], name: str, timeout: float) -> Optional[Dict[str, Any]]:
        """The coordinator's word on the job; None where it does not answer in time."""
        if not state.get("coordinator"):
            return None
        try:
            with ControlClient(state["coordinator"], name) as client:
                return client.status(timeout)
        except JobError:
            return None

    # ----------------------------------------------------------------------------------------------- changing

    def prepare(self, job: int, attempt: int, spec: JobSpec, size: Size, taken: Sequence[Mapping[str, Any]]) -> str:
        """Writes the folder of a job that is to begin; an error's line where it has no room, else empty."""
        folder = self.job_folder(job, attempt)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._seat(folder, spec, size, taken):
            return "there is no room for it at present"
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
        }
        _write(folder / "job.json", order)
        return ""

    def begin(self, job: int, attempt: int) -> None:
        """Starts the process of a folder's job, unless it was begun before."""
        folder = self.job_folder(job, attempt)
        if (folder / "begun").exists() or not (folder / "job.json").exists():
            return
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

    def seats_for(self, folder: Path, spec: JobSpec, size: Size, taken: Sequence[Mapping[str, Any]]) -> bool:
        """Gives a running job the seats for a size; False where there is no room for it."""
        return self._seat(folder, spec, size, taken)

    def resize(self, folder: Path, name: str, size: Size, timeout: float) -> Dict[str, Any]:
        """Has a job take a size, and what that cost; JobError (Declined, NoAnswer) where it does not."""
        with ControlClient(self.state(folder).get("coordinator") or "", name) as client:
            return client.scale(workers=size[1], servers=size[0], timeout=timeout)

    def stop(self, folder: Path, name: str) -> None:
        """Tells a job to end, by its coordinator or, where that does not answer, by a signal to its process."""
        state = self.state(folder)
        if state.get("ended") is not None or state.get("lost"):
            return
        try:
            with ControlClient(state.get("coordinator") or "", name) as client:
                client.stop(5.0)
        except JobError:
            if state.get("pid") and not self._dead(folder):
                os.kill(state["pid"], signal.SIGTERM)

    def _seat(self, folder: Path, spec: JobSpec, size: Size, taken: Sequence[Mapping[str, Any]]) -> bool:
        """Writes ``seats.json`` for a size, beside the tasks ``taken`` (role, node, cores, demand, folder)."""
        room = Room(self.nodes)
        index = {node.name: k for k, node in enumerate(self.nodes)}
        load: Counter[Tuple[str, int]] = Counter()
        seats: Dict[str, List[Dict[str, Any]]] = {role: [] for role in ROLES}
        for task in taken:
            if task["node"] in index:
                room.take(task["demand"], index[task["node"]])
            load.update((task["node"], core) for core in task["cores"])
            if task["folder"] == folder.name:
                seats[task["role"]].append({"node": task["node"], "cores": list(task["cores"])})
        for role, count, tasks in (("server", size[0], spec.servers), ("worker", size[1], spec.workers)):
            while len(seats[role]) < count:
                where = room.take(tasks.demand)
                if where is None:
                    return False
                node = self.nodes[where]
                wanted = min(len(node.cores), max(1, int(_up(tasks.cpus))))
                cores = sorted(node.cores, key=lambda core: (load[node.name, core], core))[:wanted]
                load.update((node.name, core) for core in cores)
                seats[role].append({"node": node.name, "cores": sorted(cores)})
        _write(folder / "seats.json", seats)
        return True

    def taken(self, folders: Mapping[Path, JobSpec]) -> List[Dict[str, Any]]:
        """The tasks that live, with their seats; of a job that is about to begin, the seats it was given."""
        found = []
        for folder, spec in folders.items():
            demands = {"worker": spec.workers.demand, "server": spec.servers.demand}
            state = self.state(folder)
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
                pending = given.get(role, [])[have:] if have == 0 or folder.name in self.growing else []
                seats += [(role, seat) for seat in pending]
            found += [
                {"role": role, "node": s["node"], "cores": s["cores"], "demand": demands[role], "folder": folder.name}
                for role, s in seats
            ]
        return found


# ---------------------------------------------------------------------------------------------------------- helpers


def _up(number: float) -> int:
    return -int(-number // 1)


def environment_of(spec: JobSpec) -> Dict[str, str]:
    """What a job's processes find: the service's environment, without what is the service's own, and the spec's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_MX_")}
    return {**kept, **spec.environment}


def missing_command(spec: JobSpec) -> str:
    """Why a job's command cannot be run here, naming field and value; empty if it can."""
    if not Path(spec.workdir).is_dir():
        return f"workdir: {spec.workdir!r} is no folder"
    argv = spec.argv
    found = shutil.which(os.path.join(spec.workdir, argv[0]) if "/" in argv[0] else argv[0], path=_path(spec))
    if found is None:
        return f"command: {argv[0]!r} does not exist or cannot be run"
    script = argv[1] if Path(argv[0]).name.startswith("python") and argv[1:] and argv[1].endswith(".py") else ""
    if script and not (Path(spec.workdir) / script).is_file():
        return f"command: {script!r} does not exist in {spec.workdir}"
    return ""


def _path(spec: JobSpec) -> Optional[str]:
    return spec.environment.get("PATH", os.environ.get("PATH"))


def this_machine() -> List[Node]:
    """This machine as one node: the cores that this process may use, and its memory."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return [Node("local", (float(len(cores)), memory, 0.0), cores)]


def read_nodes(path: Path) -> List[Node]:
    """Nodes from a YAML list of name, cpus, memory, gpus (0), and cores (any).

    Raises:
        SpecError: the file is no such list; one line.
    """
    rows = read_yaml(path)
    rows = rows.get("nodes") if isinstance(rows, Mapping) else rows
    if not isinstance(rows, list) or not rows:
        raise SpecError(f"{path}: a list of nodes is needed, each with name, cpus and memory")
    nodes = []
    for number, row in enumerate(rows):
        where = f"{path}: node {number}"
        if not isinstance(row, Mapping) or not {"name", "cpus", "memory"} <= set(row):
            raise SpecError(f"{where}: name, cpus and memory are needed, not {row!r}")
        unknown = sorted(set(map(str, row)) - set(NODE_FIELDS))
        if unknown:
            raise SpecError(f"{where}: there is no field {unknown[0]!r}: there are {', '.join(NODE_FIELDS)}")
        try:
            capacity = (float(row["cpus"]), parse_memory(row["memory"]) / GIB, float(row.get("gpus", 0)))
            cores = tuple(int(core) for core in row.get("cores", ()))
        except (TypeError, ValueError) as error:
            raise SpecError(f"{where}: {error}") from error
        if not set(cores) <= os.sched_getaffinity(0):
            raise SpecError(f"{where}: cores {list(cores)} are not all there: {sorted(os.sched_getaffinity(0))} are")
        nodes.append(Node(str(row["name"]), capacity, cores))
    if len({node.name for node in nodes}) < len(nodes):
        raise SpecError(f"{path}: two nodes have the same name")
    return nodes


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
