"""The launcher's decisions: what to start, what an ended process means, whom to end next, and the exit status.

A pure machine: an event in, a list of instructions out; local.py and its kin carry them out. Whether the job can go on
without a process is the coordinator's to judge (coordinator_machine.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple, Union

from elastic_mx import messages as m

COORDINATOR = "coordinator"
GRACE_SECONDS = 10.0
LEAVE_SECONDS = 60.0
CHECK_SECONDS = 1.0
START_SECONDS = 30.0


@dataclass(frozen=True)
class Start:
    """Start a process of `role` under `name`."""

    role: str
    name: str


@dataclass(frozen=True)
class Signal:
    """Send a signal to a process and all that it started."""

    name: str
    number: int


@dataclass(frozen=True)
class Tell:
    """Send a message to the coordinator."""

    message: m.Message


@dataclass(frozen=True)
class Say:
    """Tell the user in one line."""

    text: str


@dataclass(frozen=True)
class Finish:
    """Nothing runs any more: the launcher ends with `status`."""

    status: int


Instruction = Union[Start, Signal, Tell, Say, Finish]


@dataclass
class Child:
    """A process that was started. `status` is its exit status once it has ended, negative for a signal."""

    role: str
    status: Optional[int] = None
    ended_in: str = ""


class Supervisor:
    """One job's processes, from the first to the last.

    The job is in one of these phases: `running`; `leaving` (the scripts have ended and their processes go by
    themselves); `ending` (workers are told to go, then servers); `closing` (only the coordinator is left); `over`.

    Args:
        workers: how many workers the job starts with.
        drop_in: the job is over when those workers are done, whoever joined later.
    """

    def __init__(self, workers: int, drop_in: bool = False) -> None:
        self.children: Dict[str, Child] = {}
        self.phase = "running"
        self._initial = {f"worker-{number}" for number in range(workers)}
        self._drop_in = drop_in
        self._members: Optional[Set[str]] = None
        self._status: Optional[int] = None
        self._cause: Optional[int] = None
        self._role = "worker"
        self._deadline: Optional[float] = None
        self._killed = False
        self._mute: Optional[float] = None  # since when the coordinator was not heard at all
        self._heard = False
        self._checks: Dict[str, float] = {}
        self._judged_by: Dict[str, float] = {}
        self._request = 0
        self._fences: Dict[int, str] = {}

    # -------------------------------------------------------------------------------------------------- events

    def started(self, role: str, name: str) -> None:
        """A process runs: the shell started it."""
        self.children[name] = Child(role)

    def asked(self, message: m.Launch) -> List[Instruction]:
        """The coordinator asks for a process."""
        self._heard = True
        if self.phase != "running" or message.name in self.children:
            return []
        return [Start(message.role, message.name)]

    def exited(self, name: str, status: int, now: float) -> List[Instruction]:
        """A process has ended."""
        child = self.children[name]
        child.status, child.ended_in = status, self.phase
        if self.phase != "running":
            return self._proceed(now)
        if name == COORDINATOR:
            return self._fail(f"the coordinator ended ({m.spoken(status)}); the job cannot go on", status or 1, now)
        told: List[Instruction] = [Tell(m.Exited(name=name, status=status))]
        if status:
            self._judged_by[name] = now + GRACE_SECONDS
            return [*told, self._fence(name)]
        self._checks[name] = now + CHECK_SECONDS
        return [*told, *self._end_if_alone(now)]

    def released(self, message: m.Release, now: float) -> List[Instruction]:
        """The coordinator says that the job is over, and why."""
        if self.phase != "running":
            return []
        if message.status == 0:
            self.phase, self._status, self._deadline = "leaving", 0, now + LEAVE_SECONDS
            for name in self._judged_by:  # it failed as the job ended, and nobody will judge that any more
                self.children[name].ended_in = self.phase
            late = [n for n in self._running("worker") if self._drop_in and n not in self._initial]
            return [self._fence(""), *(Signal(name, signal.SIGTERM) for name in late), *self._proceed(now)]
        if message.status == -signal.SIGTERM:
            return [Say(message.reason), *self._end(None, now)]
        return self._fail(message.reason, message.status, now)

    def answered(self, reply: m.Reply, now: float) -> List[Instruction]:
        """The coordinator told the job's state, after it heard of a process's end."""
        name = self._fences.pop(reply.request, None)
        if name is None:
            return []
        finished = {w["name"]: w.get("finished", False) for w in reply.body["workers"]}
        self._members = {*finished, *(s["name"] for s in reply.body["servers"])}
        self._judged_by.pop(name, None)
        if not name or self.phase != "running":
            return []
        status = self.children[name].status
        if status:
            told = Say(f"{name} ended with {m.spoken(status)}, but the job did not count on it and goes on")
            return [told, *self._end_if_alone(now)]
        if reply.body.get("state") == "starting":
            return self._fail(f"{name} ended before the job began: did its script use a dist_elastic store?", 1, now)
        if name in self._members and not finished.get(name, False):
            return self._fail(f"{name} ended without taking leave of the job: the others would wait for it", 1, now)
        return []

    def _end_if_alone(self, now: float) -> List[Instruction]:
        """End the job when all workers have ended, and none of them in a way that the coordinator has yet to judge."""
        return [] if self._running("worker") or self._judged_by else self._end(0, now)

    def signalled(self, number: int, now: float) -> List[Instruction]:
        """The user signals the launcher: the workers get the same signal; a second time, everything is killed."""
        if self.phase in ("running", "leaving"):
            self._cause = number
            return [Say(f"got {signal.Signals(number).name}, ending the job"), *self._end(None, now, number)]
        if self.phase == "ending" and not self._killed:
            return self._kill(self._alive())
        return []

    def refused(self, reason: str, now: float) -> List[Instruction]:
        """The coordinator and this launcher do not understand each other."""
        return self._fail(reason, 1, now) if self.phase == "running" else []

    def tick(self, now: float) -> List[Instruction]:
        """Time has passed."""
        if self.phase == "running":
            due = [name for name, at in self._checks.items() if now >= at]
            for name in due:
                del self._checks[name]
            self._mute = now if self._mute is None else self._mute
            if not self._heard and now - self._mute >= START_SECONDS:
                mute = f"the coordinator runs and was not heard in {START_SECONDS:g} s: is the loopback network up?"
                return self._fail(mute, 1, now)
            late = [name for name, at in self._judged_by.items() if now >= at]
            if late:
                status = self.children[late[0]].status or 1
                return self._fail(f"{late[0]} ended with {m.spoken(status)} and the coordinator is silent", status, now)
            return [self._fence(name) for name in due]
        if self._deadline is None or now < self._deadline:
            return []
        if self.phase == "leaving":
            names = ", ".join(self._running("worker"))
            return [Say(f"{names}: still there {LEAVE_SECONDS:g} s after the end of training"), *self._end(0, now)]
        self._deadline = now + GRACE_SECONDS
        return self._kill(self._running(self._role))

    # ------------------------------------------------------------------------------------------------- the end

    def _fail(self, reason: str, status: int, now: float) -> List[Instruction]:
        return [Say(reason), *self._end(status, now)]

    def _end(self, status: Optional[int], now: float, number: int = signal.SIGTERM) -> List[Instruction]:
        """Begin to end what runs, workers first. `status` None: as the workers take it."""
        self.phase, self._status, self._deadline = "ending", status, now + GRACE_SECONDS
        return [*(Signal(name, number) for name in self._running("worker")), *self._proceed(now)]

    def _proceed(self, now: float) -> List[Instruction]:
        """Go on to the next role when all processes of one have ended."""
        if self.phase == "leaving" and not self._running("worker"):
            self.phase, self._deadline = "ending", now + GRACE_SECONDS
            self._role = "server"
        if self.phase == "ending" and self._role == "worker" and not self._running("worker"):
            self._role, self._deadline = "server", now + GRACE_SECONDS
            signals = [Signal(name, signal.SIGTERM) for name in self._running("server")]
            return [*self._tell_stop(), *signals, *self._proceed(now)]
        if self.phase == "ending" and self._role == "server" and not self._running("server"):
            self.phase, self._role, self._deadline = "closing", COORDINATOR, now + GRACE_SECONDS
            return [*(Signal(name, signal.SIGTERM) for name in self._running(COORDINATOR)), *self._proceed(now)]
        if self.phase == "closing" and not self._alive():
            self.phase = "over"
            status, name = self._exit_status()
            told = [Say(f"{name} ended with {m.spoken(self.children[name].status or 0)}")] if name else []
            return [*told, Finish(status)]
        return []

    def _tell_stop(self) -> List[Instruction]:
        """Have the coordinator answer whoever waits for it; it knows already where it ended the job itself."""
        self._request += 1
        return [Tell(m.Stop(request=self._request))] if self._running(COORDINATOR) else []

    def _kill(self, names: List[str]) -> List[Instruction]:
        self._killed = True
        return [Signal(name, signal.SIGKILL) for name in names]

    def _exit_status(self) -> Tuple[int, str]:
        """The job's exit status: what it failed with, else the first failure among its processes' own statuses.

        With it the process that failed when all scripts had ended, of which no line has told yet; else no name.
        """
        status, untold = self._status, ""
        if not status:
            own = ((self._own_status(name), name) for name in self.children)
            status, name = next((found for found in own if found[0]), (0, ""))
            untold = name if self._status == 0 else ""
        return status if status >= 0 else 128 - status, untold

    def _own_status(self, name: str) -> int:
        """A process's exit status as far as it is the job's."""
        child = self.children[name]
        if child.role == "server":
            # It gave up by itself, perhaps when all workers had sent their last; a signal's status is negative.
            return max(0, child.status or 0) if self._members is None or name in self._members else 0
        if child.role != "worker" or not child.status or child.ended_in == "running":
            return 0
        if self._status is None:
            killed = child.status == -signal.SIGKILL and self._killed
            return -(self._cause or signal.SIGTERM) if killed else child.status
        counted = self._initial if self._members is None or self._drop_in else self._members
        return child.status if name in counted else 0

    # ------------------------------------------------------------------------------------------------- helpers

    def _fence(self, name: str) -> Instruction:
        """Ask for the job's state: when it comes, the coordinator has judged the end of process `name`."""
        self._request += 1
        self._fences[self._request] = name
        return Tell(m.Status(request=self._request))

    def _running(self, role: str) -> List[str]:
        return [name for name, child in self.children.items() if child.role == role and child.status is None]

    def _alive(self) -> List[str]:
        return [name for name, child in self.children.items() if child.status is None]

    def summary(self) -> Dict[str, Any]:
        """The state in a form to print: phase, and each process's role and status."""
        return {"phase": self.phase, **{name: (child.role, child.status) for name, child in self.children.items()}}
