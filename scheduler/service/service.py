"""The service's loop: observe, decide, enact, record; each slot, and at once when a job arrives or ends.

What is decided is slot.py's, how jobs are run the cluster's (cluster.py), what is kept store.py's. Changes are under
way while the loop goes on; a job that ends, refuses or does not answer costs its own change only.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

from sqlalchemy.exc import SQLAlchemyError

from scheduler.service import tables as t
from scheduler.service.cluster import DONE, Attempt, Cluster, Look, Outcome
from scheduler.service.database import reason_of
from scheduler.service.decider import Decider
from scheduler.service.keeping import Keep, finished, tidy
from scheduler.service.lead import RENEW_SECONDS, Alone, Lead, wait_for
from scheduler.service.learning import Learning
from scheduler.service.progress import Progress
from scheduler.service.slot import START, Move, Seen, Size, misfit, moves, settle, views
from scheduler.service.snapshot import pack
from scheduler.service.spec import JobSpec, SpecError
from scheduler.service.store import Deposed, JobRow, Store

CHANGE_SECONDS = 60.0  # to take another size; new processes start meanwhile


class Service:
    """What clients ask, it answers at any time; it serves jobs while it leads.

    Args:
        store, cluster, slot_seconds: the record, what runs the jobs, and how long a slot lasts.
        policy, agent, shadow, fallback, learning: for those who decide, see decider.py.
        lead: shared with the other services of the record, if there may be any.
        keep: how long what jobs leave behind is kept.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        slot_seconds: float,
        policy: str,
        agent: Optional[str] = None,
        shadow: Optional[str] = None,
        lead: Optional[Lead] = None,
        keep: Optional[Keep] = None,
        fallback: str = "drf",
        learning: Optional[Learning] = None,
    ) -> None:
        self.store, self.cluster, self.slot_seconds = store, cluster, slot_seconds
        self.lead: Lead = lead or Alone(store)
        self._record = self.lead.record  # what a leader writes
        self._totals: List[float] = []  # of all nodes, in the order of RESOURCES
        self.decider = Decider(store, self._record, policy, agent, shadow, fallback, learning)
        self._keep, self._tidied = keep or Keep(), 0.0
        self._said = ""
        self._progress = Progress(slot_seconds)
        self._poked, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._changing: Dict[int, Size] = {}  # job: the size that it is to have
        self._quiet: Dict[int, float] = {}  # job: until when it is left alone
        self._stopping: Set[int] = set()
        self._saved: Dict[int, float] = {}  # job: when its last checkpoint was asked for
        self._began = cluster.now()

    # ----------------------------------------------------------------------------------- what clients ask for

    def submit(self, spec: JobSpec, key: Optional[str]) -> Tuple[JobRow, bool]:
        """Takes a job in. Raises SpecError or Conflict, one line each, where it cannot be."""
        wrong = misfit(spec, self.cluster.nodes()) or self.cluster.refuses(spec)
        if wrong:
            raise SpecError(wrong)
        row, new = self.store.submit(spec, key, self.cluster.now())
        self.poke()
        return row, new

    def cancel(self, row: JobRow) -> bool:
        """Asks for a job's end; False where it has ended."""
        asked = self.store.change_job(row.id, wish="cancel")
        self.poke()
        return asked

    def set_policy(self, name: str) -> None:
        """Changes the policy from the next slot on; ValueError where there is none of that name."""
        self.decider.set(name, self.cluster.now())
        self.poke()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        """Ends the loop; jobs go on."""
        self._over.set()
        self._poked.set()

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serves until ``stop``, and while it leads."""
        self.lead.start(self.poke)
        while wait_for(self.lead, self._over):
            try:
                self._take_over()
                while self.lead.held and not self._over.is_set():
                    self._serve()
            except Exception as error:  # the record cannot be used, or another leads: jobs train on
                self._say(error)
                self._over.wait(RENEW_SECONDS)
            finally:
                self.decider.rest()
        self.lead.close()
        self.cluster.close()

    def _take_over(self) -> None:
        """Goes on where the service that led before ended, which may have been this one."""
        now = self.cluster.now()
        with self._lock:
            self._changing.clear()
        for known in (self._quiet, self._stopping, self._saved):
            known.clear()
        if self.lead.holder:
            self._record.tell(now, "leads", self.lead.holder)
        self._began = float(self._record.setting("began") or now)
        self._record.set("began", self._began)
        self._record.abandon_changes()
        self._progress.recall(self._record)
        self.decider.take_over(now)
        for row in self._record.jobs(live=True):
            if row.state == t.STARTING:
                self._begin_now(row, now)

    def _serve(self) -> None:
        """A slot, and the time until the next."""
        self._poked.clear()
        now = self.cluster.now()
        try:
            self.slot(now)
            self._tidy(now)
            self._said = ""
        except (Deposed, SQLAlchemyError):
            raise
        except Exception as error:  # the next slot may do better; jobs train on
            self._say(error)
            self._record.tell(now, "error", f"slot: {type(error).__name__}: {reason_of(error)}")
        jobs = [attempt_of(row) for row in self._record.jobs(live=True) if row.state != t.WAITING]
        self.cluster.wait(jobs, self.slot_seconds, self._poked)

    def _say(self, error: Exception) -> None:
        """Tells on stderr what went wrong, once."""
        line = f"elastic-mx: {type(error).__name__}: {reason_of(error)}"
        if isinstance(error, SQLAlchemyError):
            line = f"elastic-mx: the record cannot be used: {reason_of(error)}: jobs train on, it is tried again"
        if line != self._said:
            self._said = line
            print(line, file=sys.stderr, flush=True)

    def slot(self, now: float) -> None:
        """Observes, decides, enacts and records once."""
        began, nodes = time.perf_counter(), self.cluster.nodes()
        self._totals = [sum(values) for values in zip(*(node.capacity for node in nodes))]
        self.decider.take_up(self.slot_seconds, now)
        rows = self._record.jobs(live=True)
        begun = [row for row in rows if row.state != t.WAITING]
        looks = {row.id: look for row, look in zip(begun, self.cluster.observe([attempt_of(row) for row in begun]))}
        for row in begun:
            if row.state == t.STARTING and looks[row.id] == Look():  # there is nothing of it yet
                self._begin_now(row, now)
        rows = [row for row in rows if not self._ended(row, looks.get(row.id), now)]
        jobs = self._observe(rows, looks, now)
        self._save(rows, jobs, now)
        if not jobs:
            return
        observed = time.perf_counter()
        number = int((now - self._began) / self.slot_seconds)
        cluster, view = views(nodes, jobs, number, self.slot_seconds, self._progress.speeds)
        decided = self.decider.decide(cluster, view, now)
        sizes = settle(nodes, jobs, decided.answer)
        deciding = time.perf_counter()
        decision = self._record.add_decision(
            at=now,
            slot=number,
            slot_seconds=self.slot_seconds,
            policy=decided.policy,
            fallback=decided.fallback,
            shadow=decided.shadow,
            jobs=len(jobs),
            observe_ms=1000 * (observed - began),
            decide_ms=1000 * (deciding - observed),
            snapshot=pack(cluster, view, decided.answer, sizes, decided.besides),
        )
        self._enact(moves(jobs, sizes), {row.id: row for row in rows}, decision, now)
        self._record.set_decision(decision, enact_ms=1000 * (time.perf_counter() - deciding))

    def _tidy(self, now: float) -> None:
        if now - self._tidied >= self._keep.every:
            self._tidied = now
            tidy(self._record, self.cluster, self._keep, now)

    # ------------------------------------------------------------------------------------------------ observing

    def _ended(self, row: JobRow, look: Optional[Look], now: float) -> bool:
        """Whether a job is over, or over for this slot, which is noted; sees to it that one that is to end does."""
        if look is None:
            return row.wish == "cancel" and self._note_end(row, t.CANCELLED, now, None, "cancelled while it waited")
        if not (row.wish or row.state == t.ENDING):
            self._report(row, look, now)
        if not look.over:
            late = row.spec.seconds is not None and now - (row.started_at or now) > row.spec.seconds
            if (row.wish == "cancel" or late) and row.id not in self._stopping:
                self._stopping.add(row.id)
                self._record.change_job(row.id, state=t.ENDING)
                self.cluster.stop(attempt_of(row))
            return False
        if row.wish == "cancel":
            return self._note_end(row, t.CANCELLED, now, look.status, "cancelled")
        if row.state == t.ENDING:
            return self._note_end(row, t.FINISHED, now, look.status, "its time limit was reached")
        if look.status == 0:
            self._progress.finished(row, look.ended or now)
            return self._note_end(row, t.FINISHED, look.ended or now, 0, "")
        reason = look.reason or "the process that ran it was killed"
        if row.attempt <= row.spec.retries:
            self._record.change_job(row.id, state=t.WAITING, servers=0, workers=0, reason=reason)
            self._record.tell(now, "again", f"attempt {row.attempt} failed: {reason}", row.id)
            self._progress.forget(row.id)
            self._saved.pop(row.id, None)
            self.poke()
            return True
        return self._note_end(row, t.FAILED, look.ended or now, look.status, reason)

    def _report(self, row: JobRow, look: Look, now: float) -> None:
        """Writes which tasks of a job have died, each once."""
        if not look.failures:
            return
        told = {event["text"] for event in self._record.events(row.id) if event["kind"] == "task"}
        for line in look.failures:
            text = f"attempt {row.attempt}: {line}"
            if text not in told:
                self._record.tell(now, "task", text, row.id)

    def _note_end(self, row: JobRow, how: str, at: float, status: Optional[int], reason: str) -> bool:
        values: Dict[str, Any] = {"state": how, "ended_at": at, "ended_status": status, "reason": reason}
        if how == t.FINISHED and row.spec.epochs and not reason:
            values["done"] = row.spec.epochs
        if self._record.change_job(row.id, servers=0, workers=0, **values):
            self._record.tell(at, how, reason, row.id)
            if how == t.FINISHED and not reason:
                finished(row, self.cluster)
        self._progress.forget(row.id)
        self._stopping.discard(row.id)
        return True

    def _observe(self, rows: List[JobRow], looks: Dict[int, Look], now: float) -> List[Seen]:
        """The jobs as they are now; what is new is written."""
        seen = [self._see(row, looks.get(row.id), now) for row in rows]
        updates = []
        for row, job in zip(rows, seen):
            if row.state in (t.RUNNING, t.STARTING):
                updates.append({"id": row.id, "done": job.done, "service": job.service, **_size_of(job)})
        self._record.change_jobs(updates)
        trains = {row.id: looks[row.id].members for row in rows if row.id in looks and _trains(row, looks[row.id])}
        self._record.change_jobs({"id": job, "state": t.RUNNING} for job in trains)
        told = [(job, f"{servers} servers, {workers} workers") for job, (servers, workers) in trains.items()]
        self._record.tell_all(now, "running", told)
        return seen

    def _see(self, row: JobRow, look: Optional[Look], now: float) -> Seen:
        arrival = (row.submitted_at - self._began) / self.slot_seconds
        if look is None:
            return Seen(row.id, row.spec, arrival, row.done, row.service)
        size = look.tasks
        if look.answered and row.state != t.STARTING:  # its members: processes that leave live on for a moment
            size = look.members
        if _trains(row, look):
            size = look.members
        elif row.state == t.STARTING:
            size = (max(size[0], row.servers), max(size[1], row.workers))
        with self._lock:
            target = self._changing.get(row.id)
        if target:
            size = (max(size[0], target[0]), max(size[1], target[1]))
        done = max(row.done, look.epochs)
        fixed = not look.answered or not all(size) or bool(target) or row.state in (t.STARTING, t.ENDING)
        fixed = fixed or self._quiet.get(row.id, 0) > now
        rate, passed = self._progress.saw(row, size, done, not target, now)
        served = row.service + self._share(row.spec, size) * passed
        return Seen(row.id, row.spec, arrival, done, served, *size, fixed=fixed, rate=rate)

    def _save(self, rows: List[JobRow], jobs: List[Seen], now: float) -> None:
        """Has those jobs write a checkpoint for which it is time."""
        for row, job in zip(rows, jobs):
            every = row.spec.checkpoint_seconds
            if every is None or job.fixed or row.state != t.RUNNING:
                continue
            if now - self._saved.setdefault(row.id, now) >= every:
                self._saved[row.id] = now
                self.cluster.checkpoint(attempt_of(row), CHANGE_SECONDS, partial(self._was_saved, row.id))

    def _was_saved(self, job: int, outcome: Outcome) -> None:
        text = outcome.detail if outcome.outcome == DONE else f"{outcome.outcome}: {outcome.detail}"
        self.store.tell(self.cluster.now(), "checkpoint", text, job)

    def _share(self, spec: JobSpec, size: Size) -> float:
        """The dominant share of the cluster that a job has."""
        used = [size[0] * s + size[1] * w for s, w in zip(spec.servers.demand, spec.workers.demand)]
        return max((u / total for u, total in zip(used, self._totals) if total), default=0.0)

    # ------------------------------------------------------------------------------------------------- enacting

    def _enact(self, wanted: List[Move], rows: Dict[int, JobRow], decision: int, now: float) -> None:
        """Has each move made that there is room for. All is written before anything is done."""
        begun = [attempt_of(row) for row in rows.values() if row.state != t.WAITING]
        asked = [(attempt_of(rows[move.job], move.kind == START), move.size) for move in wanted]
        room = self.cluster.reserve(begun, asked)  # what lacks room: it is made by changes under way, next slot
        chosen = [(move, job) for move, (job, _) in zip(wanted, asked) if job.id in room]
        starts = {move.job: self._start(rows[move.job], move, now) for move, _ in chosen if move.kind == START}
        started = self._record.start_jobs(list(starts.values()))
        chosen = [(move, job) for move, job in chosen if move.kind != START or move.job in started]
        changes = self._record.add_changes([_change(move, decision, now) for move, _ in chosen])
        told = [(job, f"{starts[job]['servers']} servers, {starts[job]['workers']} workers") for job in sorted(started)]
        self._record.tell_all(now, "started", told)
        for (move, job), change in zip(chosen, changes):
            if move.kind == START:
                self._begin_now(replace(rows[move.job], **starts[move.job]), now)
                continue
            with self._lock:
                self._changing[job.id] = move.size
            self.cluster.resize(job, move.size, CHANGE_SECONDS, partial(self._changed, job, change))

    @staticmethod
    def _start(row: JobRow, move: Move, now: float) -> Dict[str, Any]:
        """What changes of a job that starts."""
        values = {"id": row.id, "attempt": row.attempt + 1, "started_at": row.started_at or now}
        return {**values, "servers": move.size[0], "workers": move.size[1]}

    def _begin_now(self, row: JobRow, now: float) -> None:
        """Has the cluster begin a job that is to start; if it cannot, the next slot tries again."""
        try:
            self.cluster.begin(attempt_of(row), (row.servers, row.workers))
        except OSError as error:
            self._record.tell(now, "error", f"it could not be begun yet: {error}", row.id)

    def _changed(self, job: Attempt, change: int, outcome: Outcome) -> None:
        """Notes what came of a resize."""
        pause = 1 if outcome.outcome == DONE else 2  # slots, so that no job is resized more than once in each
        self._quiet[job.id] = self.cluster.now() + pause * self.slot_seconds
        with self._lock:
            self._changing.pop(job.id, None)
        self.store.set_change(change, **vars(outcome))
        self.poke()


def attempt_of(row: JobRow, next_one: bool = False) -> Attempt:
    """The job's present attempt, or the one that is to come."""
    return Attempt(row.id, row.attempt + next_one, row.name, row.spec)


def _change(move: Move, decision: int, now: float) -> Dict[str, Any]:
    """A move as the record has it; a start is done with that it is begun."""
    row = {"at": now, "decision": decision, "job": move.job, "kind": move.kind}
    before = {"servers_before": move.before[0], "workers_before": move.before[1]}
    outcome = DONE if move.kind == START else ""
    return {**row, **before, "servers": move.size[0], "workers": move.size[1], "outcome": outcome}


def _trains(row: JobRow, look: Look) -> bool:
    """Whether a job that was starting trains by now."""
    return row.state == t.STARTING and all(look.members)


def _size_of(job: Seen) -> Dict[str, int]:
    return {"servers": job.servers, "workers": job.workers}
