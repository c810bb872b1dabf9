"""How cost grows with a job's size: planning, messages, throughput and memory: ``python -m benchmarks.scale``.

The coordinator's and the workers' pure machines are driven with up to 1,000 simulated workers, 100 servers and
100,000 slices through one resize that adds a tenth of each; the real thing runs with up to 8 workers and 4 servers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.common import SCRIPTS, finish, keys, machine, median, table
from benchmarks.jobs import ROOT, ElasticJob
from benchmarks.turns import Conductor, turn
from elastic_mx import messages as m
from elastic_mx.catalog import Catalog
from elastic_mx.coordinator import encoded
from elastic_mx.coordinator_machine import CoordinatorMachine
from elastic_mx.settings import JobSettings
from elastic_mx.worker_machine import WorkerMachine

WORKERS = (10, 100, 1000)
SERVERS = (10, 100)
SLICES = 100_000
KEYS = 1000
REAL = ((1, 1), (2, 2), (4, 2), (4, 4), (8, 4))
MIB = 1 << 20


class Resize:
    """One resize of a simulated job: its coordinator's machine, answered as its processes would."""

    def __init__(self, workers: int, servers: int, slices: int) -> None:
        self.machine = CoordinatorMachine(JobSettings(workers=workers, servers=servers, slice_bytes=1024))
        self.sent = self.received = self.bytes = 0
        self.seconds = self.longest = 0.0
        self._inbox: List[Tuple[str, m.Message]] = []
        self.prepare: Optional[m.Prepare] = None
        self._members: Tuple[str, ...] = ()
        self._tell("launcher", m.Register(role="launcher", name="launcher"))
        for role, count in (("server", servers), ("worker", workers)):
            for number in range(count):
                self._register(role, f"{role}-{number}")
        shape = (256 * (slices // KEYS),)
        specs = [m.KeySpec(0, f"i:{number}", shape, "float32") for number in range(KEYS)]
        self._tell("worker-0", m.DefineKeys(request=1, keys=specs))

    def _register(self, role: str, name: str) -> None:
        self._tell(name, m.Register(role=role, name=name, address=f"tcp://10.0.0.1:{len(name)}"))

    def _tell(self, sender: str, message: m.Message) -> None:
        """Hand the coordinator a message, as it comes from the wire, and encode what it sends."""
        data = m.encode(message)
        began = time.perf_counter()
        outbox = self.machine.handle(sender, m.decode_from_process(data), began)
        frames = [frame for _, frame in encoded(outbox)]
        spent = time.perf_counter() - began
        self.received += 1
        self.sent += len(outbox)
        self.bytes += len(data) + sum(map(len, frames))
        self.seconds += spent
        self.longest = max(self.longest, spent)
        self._inbox += outbox

    def run(self, workers: int, servers: int) -> Dict[str, Any]:
        """Go to a size; return what that took of the coordinator."""
        self._inbox = []
        self.sent = self.received = self.bytes = 0
        self.seconds = self.longest = 0.0
        replies: List[m.Reply] = []
        self._tell("client", m.Scale(request=1, workers=workers, servers=servers))
        while self._inbox:
            receiver, message = self._inbox.pop(0)
            self._answer(receiver, message, replies)
        assert [reply.error for reply in replies] == [""], replies
        status = self.machine.job.status()
        assert (len(status["workers"]), len(status["servers"])) == (workers, servers)
        loads = [server["bytes"] for server in status["servers"]]
        assert max(loads) - min(loads) <= 2 * 1024, "each server is within one slice of an even load"
        return {
            "messages": self.sent + self.received,
            "control_bytes": self.bytes,
            "plan_ms": 1000 * self.longest,
            "coordinator_ms": 1000 * self.seconds,
            "moves": len(self.prepare.moves) if self.prepare else 0,
        }

    def _answer(self, name: str, message: m.Message, replies: List[m.Reply]) -> None:
        """What the process `name` says to a message."""
        role = name.partition("-")[0]
        if isinstance(message, m.Launch):
            self._register(message.role, message.name)
        elif isinstance(message, m.Welcome):
            self._tell(name, m.Ready())
        elif isinstance(message, m.Prepare):
            assert self.machine.job.generation is not None
            self.prepare, self._members = message, self.machine.job.generation.workers
            self._tell(name, m.Horizon(generation=message.generation.number, step=7 if role == "worker" else -1))
        elif isinstance(message, m.Commit) and role == "server":
            self._tell(name, m.InForce(generation=message.generation, bytes_in=0, seconds=0.1))
        elif isinstance(message, m.Commit) and name in self._members:
            self._tell(name, m.Switched(generation=message.generation, position=m.Position(step=message.step)))
            self._tell(name, m.Settled(generation=message.generation, stall_seconds=0.0, median_step_seconds=0.1))
        elif isinstance(message, m.Reply):
            replies.append(message)


def route(resize: Resize, workers: int) -> Dict[str, float]:
    """Take every worker's router through the resize; milliseconds per worker, of one that also keeps the table."""
    prepare, machine = resize.prepare, resize.machine
    assert prepare is not None and machine.job.generation is not None
    members = tuple(f"worker-{n}" for n in range(workers))
    servers = {name: address for name, address in prepare.generation.servers.items()}
    before = m.Generation(0, members, servers)
    began = time.perf_counter()
    for name in members:
        router = WorkerMachine(name, before, joining=False)
        for step in range(3):
            if step == 1:
                router.commit(1, router.prepare(prepare.generation, prepare.moves, margin=1) + 1)
            ticket = router.begin_push(range(100))
            router.end_call()
            router.completed(ticket.phase)
            router.take_switch()
        assert router.routing == 1, "every router has switched"
    per_worker = 1000 * (time.perf_counter() - began) / workers
    catalog = Catalog(1024)
    for number in range(len(machine.job.table.keys)):
        catalog.add(machine.job.table.placed(number))
    began = time.perf_counter()
    catalog.move(prepare.moves)
    return {"router_ms": per_worker, "table_ms": 1000 * (time.perf_counter() - began)}


def simulate(workers: int, servers: int, slices: int) -> Dict[str, Any]:
    """One size, in this process: add a tenth of each, then take it away again."""
    resize = Resize(workers, servers, slices)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    up = resize.run(workers + max(1, workers // 10), servers + max(1, servers // 10))
    routed = route(resize, workers)
    down = resize.run(workers, servers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    processes = workers + servers + max(1, workers // 10) + max(1, servers // 10)
    return {
        "workers": workers,
        "servers": servers,
        "slices": slices,
        "processes": processes,
        "messages_per_process": up["messages"] / processes,
        "memory_mib": memory,
        "peak_memory_mib": peak,
        **up,
        "down_plan_ms": down["plan_ms"],
        **routed,
    }


def simulate_apart(workers: int, servers: int, slices: int) -> Dict[str, Any]:
    """As `simulate`, in a process of its own, so that memory is that of this size."""
    command = [sys.executable, "-m", "benchmarks.scale", "--simulate", str(workers), str(servers), str(slices)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ the real thing


def held(name: str, pid: int) -> int:
    """Bytes that a process holds: its private memory, and the arenas that it made, not those it looks into."""
    with open(f"/proc/{pid}/status") as file:
        private = next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
    arenas = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            label = os.readlink(entry).partition("/memfd:elastic-mx-")[2]
            if label.startswith((name, "state")):
                arenas += entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return private + arenas


def real(workers: int, servers: int, options: argparse.Namespace) -> Dict[str, Any]:
    """Throughput and memory of a real job that pushes and pulls with momentum SGD on the servers."""
    with Conductor() as conductor:
        env = dict(KEYS=options.keys, OPTIMIZER="sgd", transport=options.transport, **conductor.env)
        with ElasticJob(Path(SCRIPTS) / "kvstore.py", workers, servers, **env) as job:
            members = conductor.gather(workers)
            reports = [turn(members, "round", iterations=options.iterations) for _ in range(options.rounds + 1)][1:]
            pids = {name: process.pid for name, process in job.processes.items()}
            memory = {role: max(held(n, pid) for n, pid in pids.items() if n.startswith(role)) for role in ROLES}
    ms = median([max(member["ms"] for member in report) for report in reports])
    nbytes = 4 * sum(math.prod(shape) for shape in keys(options.keys))
    return {
        "workers": workers,
        "servers": servers,
        "ms": ms,
        "gigabytes_per_second": 2 * workers * nbytes / 1e6 / ms,
        "server_bytes": memory["server"],
        "worker_bytes": memory["worker"],
    }


ROLES = ("server", "worker")


def measure_real(options: argparse.Namespace) -> Dict[str, Any]:
    """The real jobs; memory is that of one with two servers beyond the same job with next to no keys."""
    runs = [real(workers, servers, options) for workers, servers in REAL if workers <= options.max_workers]
    full = next((run for run in runs if run["servers"] == 2), runs[0])
    bare = argparse.Namespace(**{**vars(options), "keys": "tiny"})
    base = real(full["workers"], full["servers"], bare)
    nbytes = 4 * sum(math.prod(shape) for shape in keys(options.keys))
    share, own = nbytes / full["servers"], 2 * nbytes  # a worker's script has the gradients and the weights itself
    return {
        "jobs": runs,
        "model_bytes": nbytes,
        "server_times_its_share": (full["server_bytes"] - base["server_bytes"]) / share,
        "worker_times_its_gradients": (full["worker_bytes"] - base["worker_bytes"] - own) / nbytes,
    }


def show(result: Dict[str, Any]) -> None:
    print(result["machine"])
    slices = result["simulated"][0]["slices"]
    print(f"\none resize of a simulated job with {slices:,} slices: a tenth more of workers and servers")
    header = ("workers", "servers", "moves", "plan ms", "all ms", "messages", "per process", "MB", "MiB", "router ms")
    columns = ["workers", "servers", "moves", "plan_ms", "coordinator_ms", "messages", "messages_per_process"]
    rows = []
    for run in result["simulated"]:
        cells = [f"{run[name]:.1f}" if isinstance(run[name], float) else run[name] for name in columns]
        more = (run["control_bytes"] / 1e6, run["peak_memory_mib"], run["router_ms"] + run["table_ms"])
        rows.append((*cells, *(f"{value:.1f}" for value in more)))
    print(table(header, rows))
    if result["real"] is None:
        return
    print(f"\nreal jobs: push and pull of {result['keys']} keys with momentum SGD, transport {result['transport']}")
    jobs = result["real"]["jobs"]
    rows = [(j["workers"], j["servers"], f"{j['ms']:.1f}", f"{j['gigabytes_per_second']:.2f}") for j in jobs]
    print(table(("workers", "servers", "ms an iteration", "GB/s pushed and pulled"), rows))
    real_ = result["real"]
    print(f"a server holds {real_['server_times_its_share']:.2f} times its share of the model")
    print(f"a worker's store holds {real_['worker_times_its_gradients']:.2f} times its gradients", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slices", type=int, default=SLICES, help=f"of the simulated jobs (default {SLICES:,})")
    parser.add_argument("--max-workers", type=int, default=8, help="of the real jobs; 0: simulated ones only")
    parser.add_argument("--max-simulated", type=int, default=max(WORKERS), help="workers of the simulated jobs")
    parser.add_argument("--keys", choices=("resnet50", "vgg16", "small", "tiny"), default="resnet50")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=2, help="iterations in a round")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--simulate", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.simulate:
        print(json.dumps(simulate(*options.simulate)))
        return
    here = machine()
    sizes = [(w, s) for w in WORKERS for s in SERVERS if w <= options.max_simulated]
    result = {
        "benchmark": "scale",
        "machine": here,
        "simulated": [simulate_apart(w, s, options.slices) for w, s in sizes],
        "keys": options.keys,
        "transport": options.transport,
        "real": measure_real(options) if options.max_workers >= 1 else None,
    }
    show(result)
    finish(result, options.json)


if __name__ == "__main__":
    main()
