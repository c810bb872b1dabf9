"""Who decides: the policy in force, the safe one it falls back to, and the agents that are learnt meanwhile.

What the policy is, and whether it has fallen, is kept in the record, so that it outlives the service and may be set at
any of several. The rule for a policy that is too slow is guard.py's, the learning learner.py's.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from scheduler.core import Allocation, ClusterView, JobsView, Policy
from scheduler.policies import LEARNED, make
from scheduler.service import tables as t
from scheduler.service.guard import Guard, Judged
from scheduler.service.learning import Learning
from scheduler.service.slot import ask
from scheduler.service.store import Store

LATEST_JOBS = 64  # that the guard is shown


def policy_of(name: str, agent: Optional[str] = None) -> Policy:
    """A policy for live jobs: DRF looks at all nodes, where the simulator's stops at the first that is full."""
    return make(name, strict=False) if name == "drf" else make(name, agent)


def in_force(store: Store) -> Tuple[Dict[str, Any], Optional[Dict[str, Any]]]:
    """The policy by the record, and that it has fallen.

    Returns:
        Its name as ``policy`` and ``at`` when it began, empty before any has; and None, or ``to`` which it fell back,
        ``why``, and ``at`` when.
    """
    found = store.settings("policy", "fallen")
    since, fallen = found.get("policy"), found.get("fallen")
    since = since if isinstance(since, dict) else {}
    return since, fallen if fallen and fallen["since"] == since.get("at") else None


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
        store: the record; ``record``: the same, for what only a leader writes.
        policy: to begin with, unless the service is started again as it was: then the record's goes on.
        agent: the file of its agent, or of the one that is learnt; None for the one that ships.
        shadow: a policy that is asked besides.
        fallback: the policy that decides instead when the one in force fails or is too slow.
        learning: a policy that is learnt meanwhile; its agent is taken up whenever it is written anew.

    Raises:
        ValueError: a policy or an agent that there is not.
    """

    def __init__(
        self,
        store: Store,
        record: Store,
        policy: str,
        agent: Optional[str] = None,
        shadow: Optional[str] = None,
        fallback: str = "drf",
        learning: Optional[Learning] = None,
        guard: Optional[Guard] = None,
    ) -> None:
        if fallback in LEARNED:
            raise ValueError(f"fallback {fallback!r} is learned itself: choose one that is not, such as drf")
        self._store, self._record, self._agent, self._learning = store, record, agent, learning
        self._guard = guard or Guard()
        self._safe = policy_of(fallback)
        self._shadow = policy_of(shadow) if shadow else None
        self._stamp = 0  # of the learnt agent that was taken up last
        self._given = self._name = policy
        self._policy = self._build(policy)
        self._since: Dict[str, Any] = {}  # the policy in force, as it was taken up
        self._fallen: Optional[Dict[str, Any]] = None

    # ------------------------------------------------------------------------------------------------- deciding

    def take_over(self, now: float) -> None:
        """Begins to decide, where this service or another did before; times in seconds since the epoch."""
        given = f"{self._given} {self._start(self._given)}".strip()
        if self._record.setting("policy given") != given or not in_force(self._record)[0]:
            self._record.set("policy given", given)
            self._begin(self._record, self._given, now)
        self._since = {}

    def take_up(self, slot_seconds: float, now: float) -> None:
        """Between slots: a policy that was set, an agent that was learnt, a verdict of the guard."""
        since, self._fallen = in_force(self._record)
        if not since:
            self.take_over(now)
            since, self._fallen = in_force(self._record)
        if since != self._since:  # set, here or at another service: its agent is read anew
            self._since, self._name = since, since["policy"]
            try:
                self._policy = self._build(self._name)
            except (ValueError, OSError, ImportError) as error:
                self._fall(f"{self._name}: {error}", now)
        if self._learning is None:
            return
        self._learning.keep_going(now, lambda line: self._record.tell(now, "learner", line))
        if self._name != self._learning.policy:
            return
        self._take_learnt(self._learning.file, now)
        if not self._fallen:
            why = self._verdict(slot_seconds, now)
            if why:
                self._fall(f"{self._name}: {why}", now)

    def decide(self, cluster: ClusterView, jobs: JobsView, now: float) -> Decided:
        """The answer for a slot. A policy that gives no valid one has fallen, until ``set`` brings it back."""
        why = ""
        if self._fallen:
            answer, why = self._safe.allocate(cluster, jobs), self._fallen["why"]
        else:
            answer, why = ask(self._policy, self._safe, cluster, jobs)
            if why:
                self._fall(why.rpartition(": ")[0], now)
        besides = ask(self._shadow, self._safe, cluster, jobs)[0] if self._shadow else None
        shadow = self._shadow.name if self._shadow else ""
        return Decided(answer, self._safe.name if why else self._name, why, shadow, besides)

    def rest(self) -> None:
        """Ends what goes on beside: another may decide from now on."""
        if self._learning:
            self._learning.close()

    # ------------------------------------------------------------------------------------- what clients ask for

    def set(self, name: str, now: float) -> None:
        """Has a policy decide from the next slot on, also one that has fallen; ValueError where there is none."""
        policy_of(name, self._file(name))
        self._begin(self._store, name, now)
        self._store.tell(now, "policy", name)

    def told(self) -> Dict[str, Any]:
        """The policy, who decides, why that is another, the shadow, how the learning goes."""
        since, fallen = in_force(self._store)
        name = since.get("policy", self._given)
        return {
            "policy": name,
            "decides": fallen["to"] if fallen else name,
            "fallen": fallen,
            "fallback": self._safe.name,
            "shadow": self._shadow.name if self._shadow else None,
            "learning": self._learnt(),
        }

    def _learnt(self) -> Optional[Dict[str, Any]]:
        if self._learning is None:
            return None
        found = self._store.setting("learning") or {}
        starts = {"policy": self._learning.policy, "rounds": 0, "written": 0, "doing": "starts"}
        return found if found.get("policy") == self._learning.policy else starts

    # --------------------------------------------------------------------------------------------------- inside

    def _begin(self, store: Store, name: str, now: float) -> None:
        store.set("policy", {"policy": name, "at": now})

    def _fall(self, why: str, now: float) -> None:
        line = f"{why}: {self._safe.name} decides until elastic-mx policy set {self._name}"
        self._fallen = {"policy": self._name, "to": self._safe.name, "why": line, "at": now, "since": self._since["at"]}
        self._record.set("fallen", self._fallen)
        self._record.tell(now, "fallback", line)
        print(f"elastic-mx: {line}", file=sys.stderr, flush=True)

    def _verdict(self, slot_seconds: float, now: float) -> str:
        estimate = self._record.setting("expected") or {}
        if estimate.get("since") != self._since["at"]:
            return ""
        expected = {int(job): slots for job, slots in estimate["jcts"].items()}
        rows = [row for row in self._record.jobs(limit=LATEST_JOBS) if row.live or row.state == t.FINISHED]
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
        """Which agent a policy was given; empty where it takes none, or there is none."""
        if self._agent:
            return digest(Path(self._agent))
        if name not in LEARNED:
            return ""
        from scheduler.learn.checkpoint import packaged  # torch, which other policies do without

        try:
            return digest(packaged(name))
        except ValueError:
            return ""

    def _take_learnt(self, file: Path, now: float) -> None:
        stamp = file.stat().st_mtime_ns if file.exists() else 0
        if stamp in (0, self._stamp):
            return
        self._stamp = stamp
        if self._file(self._name) != str(file):
            return  # learnt from another agent than the one that was given
        try:
            self._policy = self._build(self._name)
            self._record.tell(now, "agent", f"{self._name} goes on with the agent that was learnt meanwhile")
        except (ValueError, OSError) as error:
            self._record.tell(now, "agent", f"the agent that was learnt is not taken up: {error}")


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
