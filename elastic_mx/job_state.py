"""What a job's coordinator knows: processes, the generation in force, the plan under way, requests; and what follows.

What changes it is told in coordinator_machine.py, message by message, and in planning.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

from elastic_mx import messages as m
from elastic_mx.checkpoint import Manifest
from elastic_mx.settings import JobSettings
from elastic_mx.table import Table

Outbox = List[Tuple[str, m.Message]]
STORY_LENGTH = 50


class InvalidTransition(Exception):
    """A message that cannot be right in the state that the job is in; tells what led there."""

    def __init__(self, what: str, story: Deque[str]) -> None:
        super().__init__("\n  ".join([what + "; the story so far:", *story]))


@dataclass
class Process:
    """A server or a worker as the coordinator knows it."""

    name: str
    role: str
    address: str = ""
    ready: bool = False
    max_workers: int = 0
    progress: Optional[m.Progress] = None


@dataclass(frozen=True)
class Written:
    """What the servers wrote at a cut, and who asked for it; `error` tells why it is no checkpoint."""

    client: str
    request: int
    folder: str
    manifest: Manifest
    error: str


@dataclass
class Plan:
    """The generation that is being brought in, and how far that is. Times as `CoordinatorMachine.handle` takes them."""

    generation: m.Generation
    moves: List[m.Move]
    started: float
    awaited: Set[str]  # whose Horizon is still to come
    checkpoints: List[Tuple[str, int, str]] = field(default_factory=list)  # as JobState.checkpoints
    position: m.Position = field(default_factory=m.Position)
    horizon: int = -1
    step: Optional[int] = None  # the scaling clock, once committed
    begun: bool = False  # the joining workers were told where to begin
    unswitched: Set[str] = field(default_factory=set)  # workers that still route by the generation before
    unsettled: Set[str] = field(default_factory=set)  # workers that have not told what the change cost them
    moving: Set[str] = field(default_factory=set)  # servers that send or await slices
    bytes_in: int = 0
    unsaved: str = ""  # why a server could not write its part of the checkpoint
    migration_seconds: float = 0.0
    stall_seconds: float = 0.0
    median_step_seconds: float = 0.0
    in_force_at: Optional[float] = None


@dataclass
class JobState:
    """All that one job's coordinator knows, and the messages that wait to be sent."""

    settings: JobSettings
    restored: Optional[Manifest] = None  # what the job goes on from
    generation: Optional[m.Generation] = None  # None until the first has formed
    plan: Optional[Plan] = None
    concluded: List[Plan] = field(default_factory=list)  # those before it that the resize under way took
    processes: Dict[str, Process] = field(default_factory=dict)  # those that have registered
    launchers: List[str] = field(default_factory=list)
    launched: Dict[str, str] = field(default_factory=dict)  # the role of each process that was started or came
    finished: Set[str] = field(default_factory=set)  # whose work here is done, though they may still run
    dead: Set[str] = field(default_factory=set)  # that ended with a status other than 0
    gone: Set[str] = field(default_factory=set)  # that ended or were sent away: what they say does not count
    requests: List[Tuple[str, int, float]] = field(default_factory=list)  # for a size: client, request, when
    checkpoints: List[Tuple[str, int, str]] = field(default_factory=list)  # asked for: client, request, folder
    written: List[Written] = field(default_factory=list)  # to be completed, and answered
    resizes: List[Dict[str, Any]] = field(default_factory=list)  # what each cost, for `status`
    optimizers: Dict[int, m.SetOptimizer] = field(default_factory=dict)  # by store
    first_steps: List[Tuple[int, int]] = field(default_factory=list)  # of each generation: its step, its workers
    over: bool = False
    run: str = "0"  # tells this run's checkpoints from those that a folder holds of others
    story: Deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    out: Outbox = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = Table([], self.settings.slice_bytes)
        self.target = {"worker": self.settings.workers, "server": self.settings.servers}

    def send(self, name: str, message: m.Message) -> None:
        self.out.append((name, message))

    def answer(self, body: Optional[Dict[str, Any]] = None, error: str = "") -> None:
        """Answer every request for a size."""
        if body is None:
            body = {"workers": self.size("worker"), "servers": self.size("server"), "kind": "none"}
        for client, request, _ in self.requests:
            self.send(client, m.Reply(request=request, body=body, error=error))
        self.requests = []

    # -------------------------------------------------------------------------------------------- who is who

    def process(self, name: str) -> Process:
        """A process that has registered. Raises InvalidTransition where none of that name has."""
        if name not in self.processes:
            raise InvalidTransition(f"{name!r} is no process of this job", self.story)
        return self.processes[name]

    def planned(self, number: int, who: str) -> Plan:
        """The plan for generation `number`. Raises InvalidTransition, saying `who`, where another or none is made."""
        if self.plan is None or self.plan.generation.number != number:
            current = self.plan.generation.number if self.plan else "none"
            raise InvalidTransition(f"{who} generation {number}, the plan is {current}", self.story)
        return self.plan

    def size(self, role: str, of: Optional[m.Generation] = None) -> int:
        """How many processes of a role a generation has, the present one if none is given."""
        generation = of or self.generation
        if generation is None:
            return 0
        return len(generation.workers if role == "worker" else generation.servers)

    def starting(self, role: str) -> List[str]:
        """Processes of `role` that were launched or have registered and are no members."""
        now = set(members(self.generation)) if self.generation else set()
        return [n for n, r in self.launched.items() if r == role and n not in now and n not in self.finished]

    def concerned(self, generation: m.Generation) -> List[str]:
        """The members of the generation in force and of `generation`, each once."""
        assert self.generation is not None
        now = self.generation
        return list(dict.fromkeys([*now.servers, *generation.servers, *now.workers, *generation.workers]))

    def joining(self, plan: Plan) -> List[str]:
        """The workers that become members by `plan`."""
        assert self.generation is not None
        return [w for w in plan.generation.workers if w not in self.generation.workers]

    def counts_on(self, name: str) -> bool:
        """Whether the job cannot go on without the process: a member, by a committed plan, or to begin with."""
        generations = [self.generation]
        if self.plan is not None and self.plan.step is not None:
            generations.append(self.plan.generation)
        return any(g is None or name in members(g) for g in generations)

    def has_finished(self) -> bool:
        """Whether the scripts of all workers that the job depends on have ended."""
        if self.generation is None:
            return False
        workers = self.generation.workers
        if self.settings.drop_in:
            workers = tuple(w for w in workers if by_number(w)[1] < self.settings.workers) or workers
        return self.finished.issuperset(workers)

    # ------------------------------------------------------------------------------------------ what it tells

    def why_not(self, wanted: Dict[str, Optional[int]]) -> str:
        """Why the job cannot have `wanted` processes of each role (None: as many as now); '' where it can."""
        if self.has_finished() or self.over:
            return f"job {self.settings.name!r} has finished training; there is nothing left to resize"
        for role, size in wanted.items():
            if size is not None and size < 1:
                return f"{role}s={size} is too few: a job needs at least 1 {role} (to end it: elastic-mx stop)"
        limits = [p.max_workers for p in self.processes.values() if p.max_workers]
        workers = wanted["worker"]
        if limits and workers is not None and workers > min(limits):
            return f"workers={workers} is too many: this job's batches can be shared among at most {min(limits)}"
        return ""

    def status(self) -> Dict[str, Any]:
        """The job as `elastic-mx status --json` prints it."""
        generation = self.generation or m.Generation(0, (), {})
        return {
            "name": self.settings.name,
            "state": self._phase(),
            "generation": generation.number,
            "workers": [self._worker_status(name) for name in generation.workers],
            "servers": [
                {"name": name, "slices": self.table.count.get(name, 0), "bytes": self.table.load.get(name, 0)}
                for name in generation.servers
            ],
            "target": {"workers": self.target["worker"], "servers": self.target["server"]},
            "keys": len(self.table.keys),
            "resizes": self.resizes,
            "drop_in": self.settings.drop_in,
            "dead": sorted(self.dead),
        }

    def _worker_status(self, name: str) -> Dict[str, Any]:
        progress = self.processes[name].progress if name in self.processes else None
        return {
            "name": name,
            "step": progress.step if progress else 0,
            "step_seconds": progress.step_seconds if progress else None,
            "epochs": progress.epochs if progress else 0.0,
            "finished": name in self.finished,
        }

    def _phase(self) -> str:
        if self.generation is None:
            return "starting"
        if self.over:
            return "over"
        return "resizing" if self.plan is not None or self.requests else "training"


def members(generation: m.Generation) -> Tuple[str, ...]:
    return (*generation.workers, *generation.servers)


def by_number(name: str) -> Tuple[str, int]:
    """What to sort names such as `worker-10` by."""
    head, _, number = name.rpartition("-")
    return head, int(number) if number.isdigit() else 0
