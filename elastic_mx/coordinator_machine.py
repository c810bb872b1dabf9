"""The coordinator's decisions: who is a member, which plan is under way, and from which step it is in force.

A pure machine: `handle` takes a message (and the time) and returns the messages to send. Sockets and clocks are
coordinator.py's, the assignment of slices is table.py's, and the rules are told in docs/protocol.md.
"""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

from elastic_mx import messages as m
from elastic_mx.checkpoint import FORMAT, Manifest
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


@dataclass
class Plan:
    """The generation that is being brought in, and how far that is."""

    generation: m.Generation
    moves: List[m.Move]
    started: float
    awaited: Set[str]
    checkpoints: List[Tuple[str, int, str]] = field(default_factory=list)
    position: m.Position = field(default_factory=m.Position)
    horizon: int = -1
    step: Optional[int] = None
    begun: bool = False
    unswitched: Set[str] = field(default_factory=set)
    unsettled: Set[str] = field(default_factory=set)
    moving: Set[str] = field(default_factory=set)
    bytes_in: int = 0
    migration_seconds: float = 0.0
    stall_seconds: float = 0.0
    median_step_seconds: float = 0.0
    in_force_at: Optional[float] = None


class CoordinatorMachine:
    """All that one job's coordinator knows and decides."""

    def __init__(self, settings: JobSettings, restored: Optional[Manifest] = None) -> None:
        self.settings = settings
        self.restored = restored
        self.checkpoints: List[Tuple[str, int, str]] = []
        self.manifests: List[Tuple[str, Manifest]] = []
        self.processes: Dict[str, Process] = {}
        self.launchers: List[str] = []
        self.launched: Dict[str, str] = {}
        self.deferred: List[m.Register] = []
        self.generation: Optional[m.Generation] = None
        self.first_steps: List[Tuple[int, int]] = []
        self.table = Table([], settings.slice_bytes)
        self.plan: Optional[Plan] = None
        self.target = {"worker": settings.workers, "server": settings.servers}
        self.requests: List[Tuple[str, int, float]] = []
        self.resizes: List[Dict[str, Any]] = []
        self.finished: Set[str] = set()
        self.optimizers: Dict[int, m.SetOptimizer] = {}
        self.dead: Set[str] = set()
        self.gone: Set[str] = set()
        self.over = False
        self.story: Deque[str] = deque(maxlen=STORY_LENGTH)
        self._next = {"worker": 0, "server": 0}
        self._last_generation = 0
        self._out: Outbox = []

    # ------------------------------------------------------------------------------------------------ events

    def handle(self, sender: str, message: m.Message, now: float) -> Outbox:
        """Take a message from process `sender` at time `now` (seconds, any origin); return what to send to whom.

        Raises:
            InvalidTransition: the message cannot be right in this state. Nothing has changed then.
        """
        self._out = []
        self.story.append(f"{sender}: {message}")
        if sender in self.gone:
            if isinstance(message, m.Register):
                self._send(sender, m.Release(reason="it is not needed any more"))
            return self._out
        getattr(self, "_on_" + type(message).__name__.lower())(sender, message, now)
        self._advance(now)
        return self._out

    def _on_register(self, sender: str, message: m.Register, now: float) -> None:
        if message.protocol != m.PROTOCOL:
            self._send(
                sender,
                m.Refused(
                    reason=f"{sender} speaks protocol {message.protocol}, this job {m.PROTOCOL}: "
                    "use one release of elastic-mx for all of a job's processes"
                ),
            )
        elif message.role == "launcher":
            self.launchers.append(sender)
            for name, role in self.launched.items():
                if name not in self.processes:
                    self._send(sender, m.Launch(role=role, name=name))
            self._launch_missing()
        elif message.role == "client":
            pass
        elif message.role not in ("server", "worker"):
            self._send(sender, m.Refused(reason=f"{sender} registers as {message.role!r}, which is no role"))
        elif sender in self.processes:
            self._send(sender, m.Refused(reason=f"this job has a process named {sender!r} already"))
        elif self.plan is not None and self.generation is not None:
            self.deferred.append(message)
        else:
            self._admit(message)

    def _admit(self, message: m.Register) -> None:
        process = Process(message.name, message.role, message.address)
        self.processes[message.name] = process
        self.launched[message.name] = message.role
        number = message.name.rpartition("-")[2]
        if number.isdigit():
            self._next[message.role] = max(self._next[message.role], int(number) + 1)
        if self.generation is not None:
            if self.over:
                self._send(process.name, m.Release(reason="the job is over"))
                return
            self._welcome(process, joining=True)

    def _welcome(self, process: Process, joining: bool) -> None:
        assert self.generation is not None
        self._send(
            process.name,
            m.Welcome(
                name=process.name,
                joining=joining,
                generation=self.generation,
                settings=self.settings.to_dict(),
                keys=self.table.all_placed(),
                optimizers=list(self.optimizers.values()),
                restored=self.restored.position if self.restored and not joining else None,
            ),
        )

    def _on_ready(self, sender: str, message: m.Ready, now: float) -> None:
        process = self._process(sender)
        process.ready = True
        if message.max_workers:
            process.max_workers = message.max_workers

    def _on_definekeys(self, sender: str, message: m.DefineKeys, now: float) -> None:
        self._process(sender)
        assert self.generation is not None
        among = [s for s in self.generation.servers if self.plan is None or s in self.plan.generation.servers]
        known = len(self.table.keys)
        numbers = []
        for spec in message.keys:
            try:
                self.table.define(spec, among)
            except ValueError as error:
                self._send(sender, m.Refused(reason=str(error)))
                return
            numbers.append(self.table.index[spec.store, spec.key])
        if len(self.table.keys) > known:
            news = self._placed(range(known, len(self.table.keys)))
            for name, process in self.processes.items():
                if process.role == "server":
                    self._send(name, news)
        self._send(sender, self._placed(numbers, message.request))

    def _placed(self, numbers: Any, request: int = 0) -> m.KeysPlaced:
        assert self.generation is not None
        return m.KeysPlaced(
            request=request,
            generation=self.generation.number,
            keys=[self.table.placed(number) for number in numbers],
        )

    def _on_horizon(self, sender: str, message: m.Horizon, now: float) -> None:
        if self.plan is None or self.plan.generation.number != message.generation:
            return  # it answers a plan that was dropped
        plan = self.plan
        plan.awaited.discard(sender)
        plan.horizon = max(plan.horizon, message.step)

    def _on_switched(self, sender: str, message: m.Switched, now: float) -> None:
        plan = self._planned(message.generation, f"{sender} switches to")
        plan.unswitched.discard(sender)
        self._begin(plan, message.position, message.pushed)

    def _begin(self, plan: Plan, position: m.Position, pushed: List[int], finished: bool = False) -> None:
        """Tell the joining workers where to begin, as soon as the first member knows."""
        if plan.begun:
            return
        plan.begun = True
        assert plan.step is not None
        since = [i for i, (step, _) in enumerate(self.first_steps) if step <= position.epoch_step]
        groups = [*self.first_steps[since[-1] if since else 0 :], (plan.step, len(plan.generation.workers))]
        plan.position = position = m.Position(position.epoch, position.epoch_step, plan.step, tuple(groups))
        for name in self._joining(plan):
            self._send(
                name,
                m.Begin(generation=plan.generation.number, position=position, pushed=pushed, finished=finished),
            )

    def _on_settled(self, sender: str, message: m.Settled, now: float) -> None:
        if self.plan is not None and self.plan.generation.number == message.generation:
            self.plan.unsettled.discard(sender)
            self.plan.stall_seconds = max(self.plan.stall_seconds, message.stall_seconds)
            self.plan.median_step_seconds = max(self.plan.median_step_seconds, message.median_step_seconds)

    def _on_inforce(self, sender: str, message: m.InForce, now: float) -> None:
        plan = self._planned(message.generation, f"{sender} reports in force")
        plan.moving.discard(sender)
        plan.bytes_in += message.bytes_in
        plan.migration_seconds = max(plan.migration_seconds, message.seconds)

    def _on_setoptimizer(self, sender: str, message: m.SetOptimizer, now: float) -> None:
        """Keep a store's optimizer for servers that come later; those there have it from the worker directly."""
        self.optimizers[message.store] = message
        for name, process in self.processes.items():
            if process.role == "server":
                self._send(name, message)

    def _on_report(self, sender: str, message: m.Report, now: float) -> None:
        self._process(sender).progress = message.progress

    def _on_goodbye(self, sender: str, message: m.Goodbye, now: float) -> None:
        self.finished.add(self._process(sender).name)
        if self.settings.drop_in and self.generation is not None and sender in self.generation.workers:
            # Its script dealt itself fewer samples; the others go on without it.
            self.target["worker"] = max(1, self.target["worker"] - 1)
        if self.plan is not None:
            self.plan.awaited.discard(sender)
            self.plan.unswitched.discard(sender)
            self.plan.unsettled.discard(sender)

    def _on_exited(self, sender: str, message: m.Exited, now: float) -> None:
        """A process is gone: a member that failed ends the job, a joining process costs its plan at most."""
        name, status = message.name, message.status
        counts = self._counts_on(name)
        self.gone.add(name)
        role = self.launched.pop(name, None)
        self.processes.pop(name, None)
        self.deferred = [register for register in self.deferred if register.name != name]
        if status:
            self.dead.add(name)
        if counts and status:
            self._end(f"{name} failed with status {status}", status)
        if counts or role is None or name in self.finished or self.over:
            return
        if self.plan is not None and name in (*self.plan.generation.workers, *self.plan.generation.servers):
            self._drop_plan()
        self.target[role] = self._size(role, self.plan.generation if self.plan is not None else None)
        self._answer(error=f"{name} ended with status {status} before it joined; the job goes on without it")

    def _counts_on(self, name: str) -> bool:
        """Whether the job cannot go on without the process: a member, by a committed plan, or to begin with."""
        generations = [self.generation]
        if self.plan is not None and self.plan.step is not None:
            generations.append(self.plan.generation)
        return any(g is None or name in g.workers or name in g.servers for g in generations)

    def _on_scale(self, sender: str, message: m.Scale, now: float) -> None:
        wanted = {"worker": message.workers, "server": message.servers}
        error = self._why_not(wanted)
        if error:
            self._send(sender, m.Reply(request=message.request, error=error))
            return
        self.target.update({role: size for role, size in wanted.items() if size is not None})
        self.requests.append((sender, message.request, now))
        self._launch_missing()

    def _why_not(self, wanted: Dict[str, Optional[int]]) -> str:
        if self._finished() or self.over:
            return f"job {self.settings.name!r} has finished training; there is nothing left to resize"
        for role, size in wanted.items():
            if size is not None and size < 1:
                return f"{role}s={size} is too few: a job needs at least 1 {role} (to end it: elastic-mx stop)"
        limits = [p.max_workers for p in self.processes.values() if p.max_workers]
        workers = wanted["worker"]
        if limits and workers is not None and workers > min(limits):
            return f"workers={workers} is too many: this job's batches can be shared among at most {min(limits)}"
        return ""

    def _on_checkpoint(self, sender: str, message: m.Checkpoint, now: float) -> None:
        error = self._why_not({"worker": None, "server": None})
        if error:
            self._send(sender, m.Reply(request=message.request, error=error))
        else:
            self.checkpoints.append((sender, message.request, message.folder))

    def _on_status(self, sender: str, message: m.Status, now: float) -> None:
        self._send(sender, m.Reply(request=message.request, body=self.status()))

    def _on_stop(self, sender: str, message: m.Stop, now: float) -> None:
        self._end("the job was stopped", -signal.SIGTERM)
        self._send(sender, m.Reply(request=message.request))

    # --------------------------------------------------------------------------------------------- progress

    def _advance(self, now: float) -> None:
        """Do whatever the state now allows."""
        if self.generation is None:
            self._form_first_generation(now)
            return
        plan = self.plan
        if plan is not None:
            if plan.step is None and not plan.awaited:
                self._commit(plan)
            if plan.step is not None:
                self._conclude(plan, now)
        if self.plan is None and not self.over:
            deferred, self.deferred = self.deferred, []
            for register in deferred:
                self._admit(register)
            if self._finished():
                self._end("every worker has finished")
            else:
                self._launch_missing()
                self._start_plan(now)

    def _form_first_generation(self, now: float) -> None:
        found = {
            role: sorted((p.name for p in self.processes.values() if p.role == role), key=_by_number)
            for role in self.target
        }
        if any(len(found[role]) < size for role, size in self.target.items()):
            return
        workers, servers = (found[role][: self.target[role]] for role in ("worker", "server"))
        for name in [*self.processes]:
            if name not in (*workers, *servers):
                self._dismiss(name)
        self.generation = m.Generation(0, tuple(workers), {s: self.processes[s].address for s in servers})
        self.table = Table(servers, self.settings.slice_bytes)
        self.first_steps = [(0, len(workers))]
        if self.restored is not None:
            self._restore(self.restored, len(workers))
        for name in (*servers, *workers):
            self._welcome(self.processes[name], joining=False)
        self._advance(now)

    def _restore(self, manifest: Manifest, workers: int) -> None:
        """Define what the checkpoint holds, and go on counting steps where it stood."""
        assert self.generation is not None
        for spec in manifest.keys:
            self.table.define(spec, list(self.generation.servers))
        for store, description in manifest.optimizers.items():
            self.optimizers[int(store)] = m.SetOptimizer(store=int(store), description=description)
        self.first_steps = [*manifest.position.groups, (manifest.position.step, workers)]

    def _launch_missing(self) -> None:
        """Ask the launcher for what the target needs beyond the members and what is starting."""
        if self.plan is not None or not self.launchers or self.over:
            return
        for role in ("server", "worker"):
            have = self._size(role) + len(self._starting(role))
            for _ in range(self.target[role] - have):
                name = f"{role}-{self._next[role]}"
                self._next[role] += 1
                self.launched[name] = role
                self._send(self.launchers[-1], m.Launch(role=role, name=name))

    def _starting(self, role: str) -> List[str]:
        """Processes of `role` that were launched or have registered and are no members."""
        members = {*self.generation.workers, *self.generation.servers} if self.generation else set()
        return [n for n, r in self.launched.items() if r == role and n not in members and not self._has_finished(n)]

    def _start_plan(self, now: float) -> None:
        """Begin the next generation once everything that it needs is ready."""
        assert self.generation is not None
        sizes = {"worker": list(self.generation.workers), "server": list(self.generation.servers)}
        for role, members in sizes.items():
            starting = self._starting(role)
            surplus = max(0, len(members) + len(starting) - self.target[role])
            for name in starting[max(0, len(starting) - surplus) :]:
                self._dismiss(name)
                starting.remove(name)
            if any(name not in self.processes or not self.processes[name].ready for name in starting):
                return
            sizes[role] = (members + starting)[: self.target[role]]
        if (tuple(sizes["worker"]), sizes["server"]) == (self.generation.workers, list(self.generation.servers)):
            if len(sizes["worker"]) == self.target["worker"] and len(sizes["server"]) == self.target["server"]:
                self._answer()
            if not self.checkpoints:
                return
        self._last_generation += 1
        generation = m.Generation(
            self._last_generation,
            tuple(sizes["worker"]),
            {s: self.processes[s].address for s in sizes["server"]},
        )
        concerned = self._concerned(generation)
        workers = {w for w in self.generation.workers if not self._has_finished(w)}
        self.plan = Plan(
            generation,
            self.table.plan(sizes["server"]),
            now,
            awaited={n for n in concerned if not self._has_finished(n)},
            unswitched=set(workers),
            unsettled={w for w in workers if w in generation.workers},
            moving={*self.generation.servers, *generation.servers},
        )
        self.plan.checkpoints, self.checkpoints = self.checkpoints[:1], self.checkpoints[1:]
        folder = "".join(f"{place}/{_parts(generation.number)}" for _, _, place in self.plan.checkpoints)
        carry = bool(folder) or bool(self._joining(self.plan))
        prepare = m.Prepare(generation=generation, moves=self.plan.moves, checkpoint=folder, carry=carry)
        for name in concerned:
            self._send(name, prepare)

    def _dismiss(self, name: str) -> None:
        """Send away a process that was starting and is not wanted any more; what it still says does not count."""
        self.gone.add(name)
        self.launched.pop(name, None)
        if name in self.processes:
            del self.processes[name]
        self._send(name, m.Release(reason="it is not needed any more"))

    def _concerned(self, generation: m.Generation) -> List[str]:
        assert self.generation is not None
        now = self.generation
        return list(dict.fromkeys([*now.servers, *generation.servers, *now.workers, *generation.workers]))

    def _joining(self, plan: Plan) -> List[str]:
        assert self.generation is not None
        return [w for w in plan.generation.workers if w not in self.generation.workers]

    def _commit(self, plan: Plan) -> None:
        plan.step = plan.horizon + 1
        for name in self._concerned(plan.generation):
            self._send(name, m.Commit(generation=plan.generation.number, step=plan.step))

    def _conclude(self, plan: Plan, now: float) -> None:
        """Finish a committed plan when all workers have switched, all slices arrived and the cost is known."""
        assert self.generation is not None and plan.step is not None
        if not plan.unswitched:
            self._begin(plan, m.Position(step=plan.step), [], finished=True)
        if plan.unswitched or plan.moving:
            return
        if plan.in_force_at is None:
            plan.in_force_at = now
        if plan.unsettled:
            return
        leaving = [s for s in self.generation.servers if s not in plan.generation.servers]
        self.finished.update(w for w in self.generation.workers if w not in plan.generation.workers)
        before = self.generation
        self.table.carry_out(plan.moves, list(plan.generation.servers))
        self.generation = plan.generation
        self.first_steps.append((plan.step, len(plan.generation.workers)))
        self.plan = None
        for name in self._concerned(before):
            self._send(name, m.NewGeneration(generation=self.generation.number))
        for name in leaving:
            self.finished.add(name)
            self._send(name, m.Release(reason="its slices are with other servers"))
        for client, request, folder in plan.checkpoints:
            self.manifests.append((folder, self._manifest(plan)))
            self._send(client, m.Reply(request=request, body={"folder": folder, "step": plan.step}))
        if set(_members(before)) == set(_members(plan.generation)):
            return
        self.resizes.append(self._cost(plan, before))
        if all(self.target[role] == self._size(role) for role in self.target):
            self._answer(self.resizes[-1])

    def _manifest(self, plan: Plan) -> Manifest:
        """What makes the parts that the servers wrote a checkpoint."""
        optimizers = {str(store): optimizer.description for store, optimizer in self.optimizers.items()}
        return Manifest(
            FORMAT,
            _parts(plan.generation.number),
            self.settings.slice_bytes,
            self.table.keys,
            plan.position,
            optimizers,
        )

    def _cost(self, plan: Plan, before: m.Generation) -> Dict[str, Any]:
        """What `scale` prints of a resize; all durations in seconds."""
        assert plan.in_force_at is not None
        changes = [
            f"{'+' if after > count else '-'}{abs(after - count)} {role}"
            for role, count, after in (
                ("server", len(before.servers), len(plan.generation.servers)),
                ("worker", len(before.workers), len(plan.generation.workers)),
            )
            if after != count
        ]
        return {
            "generation": plan.generation.number,
            "kind": ", ".join(changes),
            "step": plan.step,
            "bytes_moved": plan.bytes_in,
            "startup_seconds": plan.started - min([plan.started, *(asked for _, _, asked in self.requests)]),
            "seconds": plan.in_force_at - plan.started,
            "migration_seconds": plan.migration_seconds,
            "longest_stall_seconds": plan.stall_seconds,
            "median_step_seconds": plan.median_step_seconds,
            "workers": len(plan.generation.workers),
            "servers": len(plan.generation.servers),
        }

    def _drop_plan(self) -> None:
        """Undo a plan that was not committed; its number is not used again."""
        assert self.plan is not None and self.plan.step is None
        self.table.drop(self.plan.moves)
        dropped, self.plan = self.plan, None
        self.checkpoints = [*dropped.checkpoints, *self.checkpoints]
        for name in self._concerned(dropped.generation):
            if name in self.processes:
                self._send(name, m.Drop(generation=dropped.generation.number))

    def _answer(self, body: Optional[Dict[str, Any]] = None, error: str = "") -> None:
        """Answer every request for a size."""
        if body is None:
            body = {"workers": self._size("worker"), "servers": self._size("server"), "kind": "none"}
        for client, request, _ in self.requests:
            self._send(client, m.Reply(request=request, body=body, error=error))
        self.requests = []

    # --------------------------------------------------------------------------------------------- the end

    def _finished(self) -> bool:
        """Whether the scripts of all workers that the job depends on have ended."""
        if self.generation is None:
            return False
        workers = self.generation.workers
        if self.settings.drop_in:
            workers = tuple(w for w in workers if _by_number(w)[1] < self.settings.workers) or workers
        return all(self._has_finished(w) for w in workers)

    def _has_finished(self, name: str) -> bool:
        return name in self.finished

    def _end(self, reason: str, status: int = 0) -> None:
        if self.over:
            return
        self.over = True
        for client, request, _ in [*self.checkpoints, *(self.plan.checkpoints if self.plan else [])]:
            self._send(client, m.Reply(request=request, error=f"job {self.settings.name!r}: {reason}"))
        self._answer(error=f"job {self.settings.name!r}: {reason}")
        for name in [*self.processes, *self.launchers]:
            self._send(name, m.Release(reason=reason, status=status))

    # --------------------------------------------------------------------------------------------- helpers

    def status(self) -> Dict[str, Any]:
        """The job as `elastic-mx status --json` prints it."""
        generation = self.generation or m.Generation(0, (), {})
        workers = []
        for name in generation.workers:
            progress = self.processes[name].progress if name in self.processes else None
            workers.append(
                {
                    "name": name,
                    "step": progress.step if progress else 0,
                    "step_seconds": progress.step_seconds if progress else None,
                    "samples": progress.samples if progress else 0,
                    "epochs": progress.epochs if progress else 0.0,
                    "finished": self._has_finished(name),
                }
            )
        return {
            "name": self.settings.name,
            "state": self._state(),
            "generation": generation.number,
            "workers": workers,
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

    def _state(self) -> str:
        if self.generation is None:
            return "starting"
        if self.over:
            return "over"
        return "resizing" if self.plan is not None or self.requests else "training"

    def _size(self, role: str, of: Optional[m.Generation] = None) -> int:
        """How many processes of a role a generation has, the present one if none is given."""
        generation = of or self.generation
        if generation is None:
            return 0
        return len(generation.workers if role == "worker" else generation.servers)

    def _process(self, name: str) -> Process:
        if name not in self.processes:
            raise InvalidTransition(f"{name!r} is no process of this job", self.story)
        return self.processes[name]

    def _planned(self, number: int, who: str) -> Plan:
        if self.plan is None or self.plan.generation.number != number:
            current = self.plan.generation.number if self.plan else "none"
            raise InvalidTransition(f"{who} generation {number}, the plan is {current}", self.story)
        return self.plan

    def _send(self, name: str, message: m.Message) -> None:
        self._out.append((name, message))


def _members(generation: m.Generation) -> Tuple[str, ...]:
    return (*generation.workers, *generation.servers)


def _parts(generation: int) -> str:
    """The name of the folder for the parts of the checkpoint that generation `generation` begins with."""
    return f"parts-{generation}"


def _by_number(name: str) -> Tuple[str, int]:
    head, _, number = name.rpartition("-")
    return head, int(number) if number.isdigit() else 0
