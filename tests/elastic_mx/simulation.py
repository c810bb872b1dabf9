"""A whole job in one process: the real machines of coordinator, servers and workers over channels that deliver late.

Messages on one channel keep their order; which channel delivers next, who acts and when someone joins is up to a
random number generator. A slice's value is the list of its rounds, each the contributions in the order they were
added, so that nothing that happens to an update goes unseen.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Optional, Tuple

from elastic_mx import messages as m
from elastic_mx import server_machine as sm
from elastic_mx.catalog import Catalog
from elastic_mx.coordinator_machine import CoordinatorMachine
from elastic_mx.server_machine import ServerMachine
from elastic_mx.settings import JobSettings
from elastic_mx.worker_machine import NotAMember, Ticket, WorkerMachine, WouldPass

COORDINATOR, LAUNCHER, CLIENT = "coordinator", "launcher", "client"
SLICE_BYTES = 1024
Contribution = Tuple[str, int, int]


@dataclass(frozen=True)
class Script:
    """What every worker runs: in each step, pushes of the keys whose turn it is and pulls of the same.

    Args:
        steps: how many steps.
        keys: each key's (rows, every): it is pushed in the steps that `every` divides.
        pull_all_last: push all keys, then pull all, instead of each in turn.
        waits: the worker waits for a step's pulls before its next step.
        asynchronous: each push is applied by itself.
    """

    steps: int
    keys: Tuple[Tuple[int, int], ...]
    pull_all_last: bool = False
    waits: bool = True
    asynchronous: bool = False

    def actions(self, step: int) -> List[Tuple[str, int]]:
        due = [k for k, (_, every) in enumerate(self.keys) if step % every == 0]
        if self.pull_all_last:
            return [("push", k) for k in due] + [("pull", k) for k in due]
        return [(what, k) for k in due for what in ("push", "pull")]


class Failure(AssertionError):
    """Something that must never happen."""


class SimulatedServer:
    """A server's machine and, for each slice it has, the rounds that its value consists of."""

    def __init__(self, job: Simulation, name: str) -> None:
        self.job, self.name = job, name
        self.machine: Optional[ServerMachine] = None
        self.catalog = Catalog(SLICE_BYTES)
        self.values: Dict[int, List[Tuple[Contribution, ...]]] = {}
        self.moves: Dict[int, List[m.Move]] = {}
        self.early: List[Tuple[str, Any]] = []
        job.send(name, COORDINATOR, m.Register(role="server", name=name, address=name))

    def receive(self, sender: str, message: Any) -> None:
        if isinstance(message, m.Message):
            self.control(message)
        elif self.machine is None or any(s not in self.catalog.key_of for s in message[1]):
            self.early.append((sender, message))
        else:
            self.data(sender, message)

    def control(self, message: m.Message) -> None:
        machine = self.machine
        if isinstance(message, m.Welcome):
            self.machine = ServerMachine(self.name, message.generation, message.joining, validate=True)
            self.define(message.keys)
            for worker in message.left:
                self.carry_out(self.machine.leave(worker))
            if message.joining:
                self.job.send(self.name, COORDINATOR, m.Ready())
        elif isinstance(message, m.Release):
            self.job.exit(self.name)
        elif isinstance(message, m.Left):
            assert machine is not None
            self.carry_out(machine.leave(message.worker))
        elif isinstance(message, m.KeysPlaced):
            self.define(message.keys)
        elif isinstance(message, m.Prepare):
            assert machine is not None
            self.moves[message.generation.number] = message.moves
            self.carry_out(machine.prepare(message.generation, message.moves))
            self.job.send(self.name, COORDINATOR, m.Horizon(generation=message.generation.number))
        elif isinstance(message, m.Drop):
            assert machine is not None
            self.carry_out(machine.drop(message.generation))
        elif isinstance(message, m.Commit):
            assert machine is not None
            self.carry_out(machine.commit(message.generation))

    def define(self, keys: List[m.PlacedKey]) -> None:
        assert self.machine is not None
        for placed in keys:
            key = self.catalog.add(placed)
            self.machine.define([s for s in key.slices if self.catalog.owner[s] == self.name], key.spec.asynchronous)
        early, self.early = self.early, []
        for sender, message in early:
            self.receive(sender, message)

    def data(self, sender: str, message: Any) -> None:
        kind, slices, *rest = message
        machine = self.machine
        assert machine is not None
        if kind == "push":
            generation, contributions = rest
            self.carry_out(machine.push(sender, generation, slices, contributions))
        elif kind == "pull":
            self.carry_out(machine.pull(sender, slices, rest[0]))
        elif kind == "init":
            self.carry_out(machine.init(sender, slices, [None] * len(slices)))
        elif kind == "marker":
            self.carry_out(machine.marker(sender, rest[0]))
        elif kind == "leave":
            self.carry_out(machine.leave(sender))
        elif kind == "migrate":
            generation, versions, values = rest
            moves = {move.slice: move for move in self.moves[generation]}
            self.catalog.move([moves[s] for s in slices])
            for s, value in zip(slices, values):
                if s in self.values:
                    raise Failure(f"{self.name} has slice {s} already")
                self.values[s] = value
            self.job.send(self.name, sender, ("migrated", slices))
            self.carry_out(
                machine.arrived(slices, versions, [self.catalog.key_of[s].spec.asynchronous for s in slices])
            )
        elif kind == "migrated":
            self.carry_out(machine.handed_over(slices))

    def carry_out(self, instructions: List[sm.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, sm.Apply):
                for s, round_ in zip(instruction.slices, instruction.contributions):
                    self.values[s].append(tuple(source for _, source in round_))
                    self.job.check_round(s, self.values[s])
            elif isinstance(instruction, sm.Store):
                for s in instruction.slices:
                    self.values.setdefault(s, [])
            elif isinstance(instruction, sm.Acknowledge):
                self.job.send(self.name, instruction.worker, ("applied", instruction.slices))
            elif isinstance(instruction, sm.Answer):
                values = [list(self.values[s]) for s in instruction.slices]
                self.job.send(self.name, instruction.worker, ("values", instruction.slices, values))
            elif isinstance(instruction, sm.SendSlices):
                values = [self.values.pop(s) for s in instruction.slices]
                versions = [len(value) for value in values]
                if versions != instruction.versions:
                    raise Failure(f"{self.name} has counted versions {instruction.versions}, not {versions}")
                self.job.send(
                    self.name,
                    instruction.target,
                    ("migrate", instruction.slices, instruction.generation, versions, values),
                )
                moved = {move.slice: move for move in self.moves[instruction.generation]}
                self.catalog.move([moved[s] for s in instruction.slices])
            elif isinstance(instruction, sm.ReportInForce):
                self.catalog.move(self.moves.pop(instruction.generation))
                self.job.send(
                    self.name, COORDINATOR, m.InForce(generation=instruction.generation, bytes_in=0, seconds=0)
                )


@dataclass
class Operation:
    what: str
    key: int
    ticket: Ticket
    contribution: Contribution
    expected: int
    remaining: int = 0


class SimulatedWorker:
    """A worker's machine with what its shell keeps: operations that are held, and answers that are awaited."""

    def __init__(self, job: Simulation, name: str) -> None:
        self.job, self.name = job, name
        self.machine: Optional[WorkerMachine] = None
        self.catalog = Catalog(SLICE_BYTES)
        self.todo: Deque[Tuple[str, int]] = deque()
        self.step: Optional[int] = None
        # With updates of its own, nothing makes a worker keep step with the others.
        self.steps = job.rng.randint(1, job.script.steps) if job.script.asynchronous else job.script.steps
        self.defined = False
        self.joining = False
        self.cut = -1
        self.held: Deque[Operation] = deque()
        self.in_flight: Dict[int, int] = defaultdict(int)
        self.pulls: Dict[int, Deque[Operation]] = defaultdict(deque)
        self.pushed: Dict[int, int] = defaultdict(int)
        self.begin: Optional[m.Begin] = None
        self.done = self.released = False
        self.settled: List[int] = []
        job.send(name, COORDINATOR, m.Register(role="worker", name=name))

    # ------------------------------------------------------------------------------------------ the script

    def can_act(self) -> bool:
        machine = self.machine
        if machine is None or self.done or not self.defined or machine.joining:
            return False
        return not (self.job.script.waits and not self.todo and any(machine.outstanding.values()))

    def act(self) -> bool:
        """Do the script's next thing; False if it has to wait for a commit."""
        machine = self.machine
        assert machine is not None
        if self.step is None:
            self.step = machine.begun
        while not self.todo:
            if self.step + 1 >= self.steps:
                return self.finish()
            self.step += 1
            self.todo.extend(self.job.script.actions(self.step))
        what, key = self.todo[0]
        number = self.key(key).first
        try:
            ticket = machine.begin_push([number]) if what == "push" else machine.begin_pull()
        except WouldPass:
            return False
        except NotAMember:
            self.released = True
            return self.finish()
        self.todo.popleft()
        if what == "push":
            self.pushed[key] += 1
        contribution = (self.name, ticket.step, ticket.generation)
        self.held.append(Operation(what, key, ticket, contribution, self.pushed[key]))
        machine.end_call()
        self.send_what_can_be_sent()
        return True

    def finish(self) -> bool:
        machine = self.machine
        assert machine is not None
        if any(machine.outstanding.values()) or self.held:
            return False
        self.switch()
        self.done = True
        for server in machine.addresses:
            self.job.send(self.name, server, ("leave", []))
        self.job.send(self.name, COORDINATOR, m.Goodbye(told=list(machine.addresses)))
        return True

    def key(self, number: int) -> Any:
        return self.catalog.keys[0, str(number)]

    # ------------------------------------------------------------------------------------------- operations

    def send_what_can_be_sent(self) -> None:
        machine = self.machine
        assert machine is not None
        waiting: Deque[Operation] = deque()
        for operation in self.held:
            slices = list(self.key(operation.key).slices)
            pushes = operation.what == "push"
            busy = pushes and any(self.in_flight[s] or self.pulls[s] for s in slices)
            earlier = any(o.key == operation.key and (pushes or o.what == "push") for o in waiting)
            if operation.ticket.phase != machine.routing or busy or earlier:
                waiting.append(operation)
                continue
            by_server: Dict[str, List[int]] = defaultdict(list)
            for s in slices:
                by_server[self.catalog.owner[s]].append(s)
            for server, ids in by_server.items():
                if operation.what == "push":
                    sources = [operation.contribution] * len(ids)
                    self.job.send(self.name, server, ("push", ids, operation.ticket.generation, sources))
                else:
                    self.job.send(self.name, server, ("pull", ids, self.cut))
            if operation.what == "push":
                for s in slices:
                    self.in_flight[s] += 1
                machine.completed(operation.ticket.phase)
            else:
                operation.remaining = len(slices)
                for s in slices:
                    self.pulls[s].append(operation)
        self.held = waiting
        self.switch()

    def switch(self) -> None:
        machine = self.machine
        assert machine is not None
        switch = machine.take_switch()
        if switch is None:
            return
        for server in switch.servers:
            self.job.send(self.name, server, ("marker", [], switch.generation.number))
        self.catalog.move(switch.moves)
        self.job.send(
            self.name,
            COORDINATOR,
            m.Switched(generation=switch.generation.number, position=switch.position, pushed=list(machine.order)),
        )
        self.settled.append(switch.generation.number)
        self.send_what_can_be_sent()

    # --------------------------------------------------------------------------------------------- messages

    def receive(self, sender: str, message: Any) -> None:
        if isinstance(message, m.Message):
            self.control(message)
            return
        kind, slices, *rest = message
        for i, s in enumerate(slices):
            if kind == "applied":
                self.in_flight[s] -= 1
                continue
            operation = self.pulls[s].popleft()
            self.job.check_pull(self, operation, s, rest[0][i])
            operation.remaining -= 1
            if operation.remaining == 0:
                assert self.machine is not None
                self.machine.completed(operation.ticket.phase)
        self.send_what_can_be_sent()

    def control(self, message: m.Message) -> None:
        machine = self.machine
        if isinstance(message, m.Welcome):
            self.machine = WorkerMachine(self.name, message.generation, message.joining)
            self.joining = message.joining
            for placed in message.keys:
                self.catalog.add(placed)
            specs = [
                m.KeySpec(0, str(i), (rows,), "float32", asynchronous=self.job.script.asynchronous)
                for i, (rows, _) in enumerate(self.job.script.keys)
            ]
            self.job.send(self.name, COORDINATOR, m.DefineKeys(request=1, keys=specs))
        elif isinstance(message, m.Release):
            self.done = True
            self.job.exit(self.name)
        elif isinstance(message, m.KeysPlaced):
            self.on_keys(message)
        elif machine is None:
            raise Failure(f"{self.name} got {message} before Welcome")
        elif isinstance(message, m.Prepare):
            horizon = machine.prepare(message.generation, message.moves, self.job.rng.choice((0, 1, 1, 2, 5)))
            step = -1 if machine.joining else horizon
            self.job.send(self.name, COORDINATOR, m.Horizon(generation=message.generation.number, step=step))
        elif isinstance(message, m.Drop):
            machine.drop(message.generation)
        elif isinstance(message, m.Commit):
            machine.commit(message.generation, message.step)
            self.begin_if_told()
        elif isinstance(message, m.Begin):
            self.begin = message
            self.begin_if_told()

    def on_keys(self, message: m.KeysPlaced) -> None:
        assert self.machine is not None
        for placed in message.keys:
            key = self.catalog.add(placed)
            first = not self.machine.joining and self.machine.membership(0).workers[0] == self.name
            if first and message.request:
                by_server: Dict[str, List[int]] = defaultdict(list)
                for s in key.slices:
                    by_server[self.catalog.owner[s]].append(s)
                for server, ids in by_server.items():
                    self.job.send(self.name, server, ("init", ids))
        if not message.request:
            return
        self.defined = True
        if self.machine.joining:
            self.job.send(self.name, COORDINATOR, m.Ready())

    def begin_if_told(self) -> None:
        machine = self.machine
        assert machine is not None
        if self.begin is None or machine.plan is None or machine.plan.step is None:
            return
        self.catalog.move(machine.begin(self.begin.position, self.begin.pushed))
        self.cut = self.begin.generation
        if self.begin.finished:
            self.finish()
        else:
            self.step = None
        self.begin = None


@dataclass
class Simulation:
    """One job: run it with `run`; it raises Failure or an error of a machine's at whatever must not happen."""

    script: Script
    rng: random.Random
    workers: int
    servers: int
    resizes: List[Tuple[int, Optional[int], Optional[int]]]
    lose_joiners: float = 0.0
    processes: Dict[str, Any] = field(default_factory=dict)
    channels: Dict[Tuple[str, str], Deque[Any]] = field(default_factory=dict)
    replies: Dict[int, m.Reply] = field(default_factory=dict)
    memberships: Dict[int, Tuple[str, ...]] = field(default_factory=dict)
    launches: List[Tuple[str, str]] = field(default_factory=list)
    exited: List[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = JobSettings(
            workers=self.workers,
            servers=self.servers,
            slice_bytes=SLICE_BYTES,
            move_bytes=self.rng.choice((1, 3000, 1 << 20)),
        )
        self.coordinator = CoordinatorMachine(self.settings)
        self.longest: Dict[int, int] = defaultdict(int)
        self.events = 0
        self.send(LAUNCHER, COORDINATOR, m.Register(role="launcher", name=LAUNCHER))

    def send(self, source: str, target: str, message: Any) -> None:
        self.channels.setdefault((source, target), deque()).append(message)

    def exit(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            self.exited.append(process)
            self.send(LAUNCHER, COORDINATOR, m.Exited(name=name, status=0))

    # ------------------------------------------------------------------------------------------------ running

    def run(self, limit: int = 200_000) -> None:
        """Let things happen in a random order until the job is over."""
        while not self.coordinator.job.over or any(self.channels.values()):
            self.events += 1
            if self.events > limit:
                raise Failure(f"not over after {limit} events: {self.state()}")
            choices: List[Any] = [channel for channel, waiting in self.channels.items() if waiting]
            choices += [p for p in self.processes.values() if isinstance(p, SimulatedWorker) and p.can_act()]
            choices += ["launch"] if self.launches else []
            if self.due_resize():
                choices.append("resize")
            self.rng.shuffle(choices)
            if not any(self.do(choice) for choice in choices):
                raise Failure(f"nothing can happen any more: {self.state()}")
        self.check_end()

    def do(self, choice: Any) -> bool:
        if isinstance(choice, SimulatedWorker):
            before = (choice.step, len(choice.todo), choice.done)
            return choice.act() or before != (choice.step, len(choice.todo), choice.done)
        if choice == "launch":
            role, name = self.launches.pop(0)
            if self.coordinator.job.generation is not None and self.rng.random() < self.lose_joiners:
                self.send(LAUNCHER, COORDINATOR, m.Exited(name=name, status=1))
            else:
                self.processes[name] = (SimulatedServer if role == "server" else SimulatedWorker)(self, name)
            return True
        if choice == "resize":
            _, workers, servers = self.resizes.pop(0)
            self.send(CLIENT, COORDINATOR, m.Scale(request=len(self.resizes), workers=workers, servers=servers))
            return True
        source, target = choice
        message = self.channels[choice].popleft()
        if target == COORDINATOR:
            self.deliver_to_coordinator(source, message)
        elif target == LAUNCHER:
            if isinstance(message, m.Launch):
                self.launches.append((message.role, message.name))
        elif target == CLIENT:
            self.replies[message.request] = message
        elif target in self.processes:
            self.processes[target].receive(source, message)
        return True

    def due_resize(self) -> bool:
        steps = [w.machine.begun for w in self.processes.values() if isinstance(w, SimulatedWorker) and w.machine]
        return bool(self.resizes) and max(steps, default=-1) >= self.resizes[0][0]

    def deliver_to_coordinator(self, source: str, message: m.Message) -> None:
        for target, answer in self.coordinator.handle(source, message, float(self.events)):
            self.send(COORDINATOR, target, answer)
        now, plan = self.coordinator.job.generation, self.coordinator.job.plan
        if now is not None:
            self.memberships[now.number] = now.workers
        if plan is not None:
            self.memberships[plan.generation.number] = plan.generation.workers
            for worker in list(plan.unsettled):
                process = self.processes.get(worker)
                if isinstance(process, SimulatedWorker) and plan.generation.number in process.settled:
                    process.settled.remove(plan.generation.number)
                    self.send(
                        worker,
                        COORDINATOR,
                        m.Settled(generation=plan.generation.number, stall_seconds=0, median_step_seconds=0),
                    )

    # ---------------------------------------------------------------------------------------------- invariants

    def check_round(self, s: int, rounds: List[Tuple[Contribution, ...]]) -> None:
        """The round just applied has the members' contributions of one step, in rank order, and is a new one."""
        last = rounds[-1]
        if len(rounds) <= self.longest[s]:
            raise Failure(f"slice {s} goes back to version {len(rounds)} from {self.longest[s]}")
        self.longest[s] = len(rounds)
        if self.script.asynchronous:
            return
        steps, generations = {c[1] for c in last}, {c[2] for c in last}
        if len(steps) != 1 or len(generations) != 1:
            raise Failure(f"slice {s} adds contributions of different steps: {last}")
        members = self.memberships[generations.pop()]
        if tuple(c[0] for c in last) != members:
            raise Failure(f"slice {s} adds {last}, the members are {members}")
        if len(rounds) > 1 and rounds[-2][0][1] >= last[0][1]:
            raise Failure(f"slice {s} applies step {last[0][1]} after step {rounds[-2][0][1]}")

    def check_pull(self, worker: SimulatedWorker, operation: Operation, s: int, value: List[Any]) -> None:
        """A pull has exactly this worker's pushes so far, and in a sync job nothing of a later step."""
        own = [c for round_ in value for c in round_ if c[0] == worker.name]
        if len(own) != operation.expected:
            raise Failure(f"{worker.name} pulls slice {s} with {len(own)} of its {operation.expected} pushes")
        later = {c[2] for round_ in value for c in round_ if c[1] > operation.ticket.step}
        if not self.script.asynchronous and any(worker.name in self.memberships[g] for g in later):
            raise Failure(f"{worker.name} pulls slice {s} in step {operation.ticket.step} from the future: {value}")

    def check_end(self) -> None:
        """All updates of all steps are in, once; each slice has one owner; requests were answered; loads are even."""
        owners: Dict[int, List[SimulatedServer]] = defaultdict(list)
        for server in [*self.processes.values(), *self.exited]:
            for s in server.values if isinstance(server, SimulatedServer) else ():
                owners[s].append(server)
        table = self.coordinator.job.table
        for number, spec in enumerate(table.keys):
            every = self.script.keys[int(spec.key)][1]
            expected = [step for step in range(self.script.steps) if step % every == 0]
            first = table.first_slice[number]
            for s in range(first, first + len(table.placed(number).places)):
                if len(owners[s]) != 1:
                    raise Failure(f"slice {s} has {len(owners[s])} owners")
                rounds = owners[s][0].values[s]
                if not self.script.asynchronous and [round_[0][1] for round_ in rounds] != expected:
                    raise Failure(f"slice {s} has the steps {[r[0][1] for r in rounds]}, not {expected}")
                updates = [c for round_ in rounds for c in round_]
                if len(updates) != len(set(updates)):
                    raise Failure(f"slice {s} has an update twice: {updates}")

    def state(self) -> str:
        workers = {
            p.name: (p.step, len(p.held), p.machine and dict(p.machine.outstanding), p.machine and p.machine.plan)
            for p in self.processes.values()
            if isinstance(p, SimulatedWorker)
        }
        return f"workers {workers}; plan {self.coordinator.job.plan}; story {list(self.coordinator.job.story)[-12:]}"
