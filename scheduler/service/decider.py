"""Who decides: the policy in force, the safe one it falls back to, and the agents that are learnt meanwhile.

What the policy is, and whether it has fallen, is kept in the record, so that it outlives the service and may be
changed from any of several. The rule for a policy that is too slow is guard.py's, the learning learner.py's.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.policies import make
from scheduler.service import tables as t
from scheduler.service.guard import Guard, Judged
from scheduler.service.learning import Learning
from scheduler.service.slot import ask
from scheduler.service.store import Store

LEARNED = ("dl2", "dl2x")
LATEST_JOBS = 64  # that the guard is shown


def policy_of(name: str, agent: Optional[str] = None) -> Policy:
    """A policy for live jobs: DRF looks at all nodes, where the simulator's stops at the first that is full."""
    return make(name, strict=False) if name == "drf" else make(name, agent)


@dataclass(frozen=True)
class Decided:
    """An answer, whose it is, why it is not the set policy's (empty if it is); the shadow's name and answer."""

    answer: Allocation
    policy: str
    fallback: str
    shadow: str
    besides: Optional[Allocation]


class Decider:
    """Asks the policy that is in force.

    Args:
        store: holds ``policy`` (a name), ``since`` (which agent of it began when) and ``fallen`` (null, or why the
            fallback decides instead). A service that is started again as it was goes on as it was.
        policy: to begin with.
        now: seconds since the epoch.
        agent: the file of its agent, or of the one that is learnt; None for the one that ships.
        shadow: a policy that is asked besides.
        fallback: the policy that decides instead when the one in force fails or is too slow.
        learning: a policy that is learnt meanwhile; its agent is taken up whenever it is written anew.
    """

    def __init__(
        self,
        store: Store,
        policy: str,
        now: float,
        agent: Optional[str] = None,
        shadow: Optional[str] = None,
        fallback: str = "drf",
        learning: Optional[Learning] = None,
        guard: Optional[Guard] = None,
    ) -> None:
        if fallback in LEARNED:
            raise ValueError(f"fallback {fallback!r} is learned itself: choose one that is not, such as drf")
        self._store, self._agent, self._learning = store, agent, learning
        self._guard = guard or Guard()
        self._safe = policy_of(fallback)
        self._shadow = policy_of(shadow) if shadow else None
        self._stamp = 0  # of the learnt agent that was taken up last
        self._name = policy
        self._policy = self._build(policy)
        since = store.setting("since") or {}
        if (since.get("policy"), since.get("agent")) != (policy, self._digest(policy)):
            self._begin(policy, now)
        self._fallen = store.setting("fallen")

    # ------------------------------------------------------------------------------------------------- deciding

    def decide(self, cluster: ClusterView, jobs: JobsView, now: float) -> Decided:
        """The answer for a slot. A policy that gives no valid one has fallen, until ``set`` brings it back."""
        why = ""
        if self._fallen or self._policy.name == self._safe.name:
            answer = self._safe.allocate(cluster, jobs)
            why = self._fallen["why"] if self._fallen else ""
        else:
            answer, why = ask(self._policy, self._safe, cluster, jobs)
            if why:
                self._fall(why.rpartition(": ")[0], now)
        besides = ask(self._shadow, self._safe, cluster, jobs)[0] if self._shadow else None
        shadow = self._shadow.name if self._shadow else ""
        return Decided(answer, self._safe.name if why else self._name, why, shadow, besides)

    def take_up(self, slot_seconds: float, now: float) -> None:
        """Between slots: another policy that was set, an agent that was learnt, a verdict of the guard."""
        name, fallen = self._store.setting("policy", self._name), self._store.setting("fallen")
        if name != self._name or (self._fallen and not fallen):
            self._policy, self._name = self._build(name), name
        self._fallen = fallen
        if self._learning is None:
            return
        self._learning.keep_going(now, lambda line: self._store.tell(now, "learner", line))
        if self._name != self._learning.policy:
            return
        self._take_learnt(self._learning.file, now)
        if not self._fallen:
            why = self._verdict(slot_seconds, now)
            if why:
                self._fall(f"{self._name}: {why}", now)

    def set(self, name: str, now: float) -> None:
        """Has a policy decide from the next slot on, also one that has fallen; ValueError where there is none."""
        self._build(name)
        self._store.tell(now, "policy", name)
        self._begin(name, now)

    def told(self) -> Dict[str, Any]:
        """For clients: the policy, who decides, why that is another, the shadow, how the learning goes."""
        fallen, name = self._store.setting("fallen"), self._store.setting("policy")
        return {
            "policy": name,
            "decides": fallen["to"] if fallen else name,
            "fallen": fallen,
            "fallback": self._safe.name,
            "shadow": self._shadow.name if self._shadow else None,
            "learning": self._store.setting("learning") if self._learning else None,
        }

    # --------------------------------------------------------------------------------------------------- inside

    def _begin(self, name: str, now: float) -> None:
        self._store.set("since", {"policy": name, "agent": self._digest(name), "at": now})
        self._store.set("expected", {})
        self._store.set("policy", name)
        self._store.set("fallen", None)

    def _fall(self, why: str, now: float) -> None:
        line = f"{why}: {self._safe.name} decides until elastic-mx policy set {self._name}"
        self._store.set("fallen", {"policy": self._name, "to": self._safe.name, "why": line, "at": now})
        self._store.tell(now, "fallback", line)
        print(f"elastic-mx: {line}", file=sys.stderr, flush=True)
        self._fallen = self._store.setting("fallen")

    def _verdict(self, slot_seconds: float, now: float) -> str:
        expected = {int(job): slots for job, slots in self._store.setting("expected", {}).items()}
        if not expected:
            return ""
        rows = [row for row in self._store.jobs(limit=LATEST_JOBS) if row.live or row.state == t.FINISHED]
        jobs = [Judged(row.id, row.submitted_at, row.ended_at) for row in rows]
        return self._guard.judge(jobs, expected, slot_seconds, now)

    def _build(self, name: str) -> Policy:
        file = self._file(name)
        if self._learning is not None and file == str(self._learning.file):
            self._stamp = self._learning.file.stat().st_mtime_ns
        return policy_of(name, file)

    def _file(self, name: str) -> Optional[str]:
        """The agent's file: the learnt one, if it was learnt from the one that was given."""
        learnt = self._learning.file if self._learning and name == self._learning.policy else None
        if learnt is not None and learnt.exists() and made_from(learnt) == self._start(name):
            return str(learnt)
        return self._agent

    def _start(self, name: str) -> str:
        from scheduler.learn.checkpoint import packaged

        return digest(Path(self._agent) if self._agent else packaged(name))

    def _digest(self, name: str) -> str:
        return self._start(name) if name in LEARNED else ""

    def _take_learnt(self, file: Path, now: float) -> None:
        stamp = file.stat().st_mtime_ns if file.exists() else 0
        if stamp in (0, self._stamp):
            return
        self._stamp = stamp
        if self._file(self._name) != str(file):
            return  # learnt from another agent than the one that was given
        try:
            self._policy = self._build(self._name)
            self._store.tell(now, "agent", f"{self._name} goes on with the agent that was learnt meanwhile")
        except (ValueError, OSError) as error:
            self._store.tell(now, "agent", f"the agent that was learnt is not taken up: {error}")


def digest(path: Path) -> str:
    """Of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def made_from(path: Path) -> str:
    """The digest of the agent that a learnt one began with; empty where it is none."""
    from scheduler.learn.checkpoint import load

    try:
        return str(load(path).get("made", {}).get("start", ""))
    except ValueError:
        return ""
