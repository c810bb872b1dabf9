"""The service's loop: observe, decide, enact, record; each slot, and at once when a job arrives or ends.

What is decided is slot.py's, how jobs are run local.py's, what is kept store.py's. Changes are under way in threads
while the loop goes on; a job that ends, refuses or does not answer costs its own change only.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from elastic_mx.client import Declined
from elastic_mx.link import JobError
from scheduler.core import Policy
from scheduler.policies import make
from scheduler.service import tables as t
from scheduler.service.local import LocalCluster, missing_command
from scheduler.service.slot import START, Move, Seen, Size, Speeds, ask, misfit, moves, settle, views
from scheduler.service.snapshot import pack
from scheduler.service.spec import JobSpec, SpecError
from scheduler.service.store import JobRow, Store

ANSWER_SECONDS = 2.0  # to tell how a job is
CHANGE_SECONDS = 60.0  # to take another size; new processes start meanwhile
LOOK_SECONDS = 0.2
SAFE = "drf"


def policy_of(name: str, agent: Optional[str] = None) -> Policy:
    """A policy for live jobs: DRF looks at all nodes, where the simulator's stops at the first that is full."""
    return make(name, strict=False) if name == "drf" else make(name, agent)


class Service:
    """Args: record, cluster, seconds per slot, the policy's name unless the record has one, and one to ask besides."""

    def __init__(
        self,
        store: Store,
        cluster: LocalCluster,
        slot_seconds: float,
        policy: str,
        agent: Optional[str] = None,
        shadow: Optional[str] = None,
    ) -> None:
        self.store, self.cluster, self.slot_seconds = store, cluster, slot_seconds
        self._agent = agent
        self.policy = policy_of(policy, agent)
        self.shadow = policy_of(shadow) if shadow else None
        self._safe = policy_of(SAFE)
        store.set("policy", policy)
        self._speeds = Speeds()
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="job")
        self._poked, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._changing: Dict[int, Size] = {}  # job: the size that it is to have
        self._quiet: Dict[int, float] = {}  # job: until when it is left alone
        self._stopping: Set[int] = set()
        self._before: Dict[int, Tuple[float, float, Size]] = {}  # job: when, epochs done, size, as last seen
        self._began = float(store.setting("began") or time.time())
        store.set("began", self._began)

    # ----------------------------------------------------------------------------------- what clients ask for

    def submit(self, spec: JobSpec, key: Optional[str]) -> Tuple[JobRow, bool]:
        """Takes a job in. Raises SpecError or Conflict, one line each, where it cannot be."""
        wrong = misfit(spec, self.cluster.nodes) or missing_command(spec)
        if wrong:
            raise SpecError(wrong)
        row, new = self.store.submit(spec, key, time.time())
        self.poke()
        return row, new

    def cancel(self, row: JobRow) -> bool:
        """Asks for a job's end; False where it has ended."""
        asked = self.store.change_job(row.id, wish="cancel")
        self.poke()
        return asked

    def set_policy(self, name: str) -> None:
        """Changes the policy from the next slot on; ValueError where there is none of that name."""
        policy = policy_of(name, self._agent)
        self.policy = policy
        self.store.set("policy", name)
        self.store.tell(time.time(), "policy", name)
        self.poke()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        """Ends the loop; jobs go on."""
        self._over.set()
        self._poked.set()

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Serves until ``stop``."""
        for row in self.store.jobs(live=True):
            if row.state == t.STARTING:
                self.cluster.begin(row.id, row.attempt)
        while not self._over.is_set():
            self._poked.clear()
            try:
                self.slot(time.time())
            except Exception as error:  # the next slot may do better; jobs train on
                self.store.tell(time.time(), "error", f"slot: {type(error).__name__}: {error}")
            self._wait(time.monotonic() + self.slot_seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, until: float) -> None:
        """Until the next slot, or something happens that calls for one."""
        rows = [row for row in self.store.jobs(live=True) if row.state != t.WAITING]
        while (left := until - time.monotonic()) > 0 and not self._poked.wait(min(LOOK_SECONDS, left)):
            states = (self.cluster.state(self._folder(row)) for row in rows)
            if any(state.get("ended") is not None or state.get("lost") for state in states):
                return

    def slot(self, now: float) -> None:
        """Observes, decides, enacts and records once."""
        begun = time.perf_counter()
        rows = [row for row in self.store.jobs(live=True) if not self._ended(row, now)]
        jobs = self._observe(rows, now)
        observed = time.perf_counter()
        number = int((now - self._began) / self.slot_seconds)
        cluster, view = views(self.cluster.nodes, jobs, number, self.slot_seconds, self._speeds)
        answer, fallback = ask(self.policy, self._safe, cluster, view)
        sizes = settle(self.cluster.nodes, jobs, answer)
        besides = ask(self.shadow, self._safe, cluster, view)[0] if self.shadow else None
        decided = time.perf_counter()
        if not jobs:
            return
        if fallback:
            self.store.tell(now, "fallback", fallback)
        decision = self.store.add_decision(
            at=now,
            slot=number,
            slot_seconds=self.slot_seconds,
            policy=self._safe.name if fallback else self.policy.name,
            fallback=fallback,
            shadow=self.shadow.name if self.shadow else "",
            jobs=len(jobs),
            observe_ms=1000 * (observed - begun),
            decide_ms=1000 * (decided - observed),
            snapshot=pack(cluster, view, answer, sizes, besides),
        )
        self._enact(moves(jobs, sizes), {row.id: row for row in rows}, decision, now)
        self.store.set_decision(decision, enact_ms=1000 * (time.perf_counter() - decided))

    # ------------------------------------------------------------------------------------------------ observing

    def _folder(self, row: JobRow) -> Path:
        return self.cluster.job_folder(row.id, row.attempt)

    def _ended(self, row: JobRow, now: float) -> bool:
        """Whether a job is over, which is noted; sees to it that one that is to end does."""
        if row.state == t.WAITING:
            return row.wish == "cancel" and self._note_end(row, t.CANCELLED, now, None, "cancelled while it waited")
        state = self.cluster.state(self._folder(row))
        if state.get("ended") is None and not state.get("lost"):
            late = row.spec.seconds is not None and now - (row.started_at or now) > row.spec.seconds
            if (row.wish == "cancel" or late) and row.id not in self._stopping:
                self._stopping.add(row.id)
                self.store.change_job(row.id, state=t.ENDING)
                self._pool.submit(self.cluster.stop, self._folder(row), row.name)
            return False
        status, reason = state.get("status"), state.get("reason") or ""
        if row.wish == "cancel":
            return self._note_end(row, t.CANCELLED, now, status, "cancelled")
        if row.state == t.ENDING:
            return self._note_end(row, t.FINISHED, now, status, "its time limit was reached")
        if status == 0:
            return self._note_end(row, t.FINISHED, state["ended"], 0, "")
        reason = reason or "the process that ran it was killed"
        if row.attempt <= row.spec.retries:
            self.store.change_job(row.id, state=t.WAITING, servers=0, workers=0, reason=reason)
            self.store.tell(now, "again", f"attempt {row.attempt} failed: {reason}", row.id)
            return False
        return self._note_end(row, t.FAILED, state.get("ended") or now, status, reason)

    def _note_end(self, row: JobRow, how: str, at: float, status: Optional[int], reason: str) -> bool:
        values: Dict[str, Any] = {"state": how, "ended_at": at, "ended_status": status, "reason": reason}
        if how == t.FINISHED and row.spec.epochs and not reason:
            values["done"] = row.spec.epochs
        if self.store.change_job(row.id, servers=0, workers=0, **values):
            self.store.tell(at, how, reason, row.id)
        self._before.pop(row.id, None)
        self._stopping.discard(row.id)
        return True

    def _observe(self, rows: List[JobRow], now: float) -> List[Seen]:
        """The jobs as they are now; what is new is written."""
        seen = list(self._pool.map(lambda row: self._see(row, now), rows))
        updates = []
        for row, job in zip(rows, seen):
            self._speeds.saw(job)
            if row.state in (t.RUNNING, t.STARTING):
                updates.append({"id": row.id, "done": job.done, "service": job.service, **_size_of(job)})
        self.store.change_jobs(updates)
        return seen

    def _see(self, row: JobRow, now: float) -> Seen:
        arrival = (row.submitted_at - self._began) / self.slot_seconds
        if row.state == t.WAITING:
            return Seen(row.id, row.spec, arrival, row.done, row.service)
        state = self.cluster.state(self._folder(row))
        told = self.cluster.progress(state, row.name, ANSWER_SECONDS)
        count = self.cluster.tasks(state)
        size = (count["server"], count["worker"])
        if told and row.state != t.STARTING:  # its members: processes that leave live on for a moment
            size = (len(told["servers"]), len(told["workers"]))
        if row.state == t.STARTING and told and told["workers"] and told["servers"]:
            self.store.change_job(row.id, (t.STARTING,), state=t.RUNNING)
            self.store.tell(now, "running", f"{size[0]} servers, {size[1]} workers", row.id)
        elif row.state == t.STARTING:
            size = (max(size[0], row.servers), max(size[1], row.workers))
        with self._lock:
            target = self._changing.get(row.id)
        if target:
            size = (max(size[0], target[0]), max(size[1], target[1]))
        done = max(row.done, _epochs(told, row.spec))
        fixed = not told or not all(size) or bool(target) or row.state in (t.STARTING, t.ENDING)
        fixed = fixed or self._quiet.get(row.id, 0) > now
        rate = None
        before = self._before.get(row.id)
        if before and before[2] == size and not target and now - before[0] > 0.5 and done > before[1]:
            rate = (done - before[1]) / (now - before[0]) * self.slot_seconds
        served = row.service
        if before:
            served += self._share(row.spec, size) * (now - before[0]) / self.slot_seconds
        if not before or done > before[1] or before[2] != size:
            self._before[row.id] = (now, done, size)
        return Seen(row.id, row.spec, arrival, done, served, *size, fixed=fixed, rate=rate)

    def _share(self, spec: JobSpec, size: Size) -> float:
        """The dominant share of the cluster that a job has."""
        totals = [sum(values) for values in zip(*(node.capacity for node in self.cluster.nodes))]
        used = [size[0] * s + size[1] * w for s, w in zip(spec.servers.demand, spec.workers.demand)]
        return max((u / total for u, total in zip(used, totals) if total), default=0.0)

    # ------------------------------------------------------------------------------------------------- enacting

    def _enact(self, wanted: List[Move], rows: Dict[int, JobRow], decision: int, now: float) -> None:
        folders = {self._folder(row): row.spec for row in rows.values() if row.state != t.WAITING}
        for move in wanted:
            row = rows[move.job]
            taken = self.cluster.taken(folders)
            if move.kind == START:
                attempt = row.attempt + 1
                if self.cluster.prepare(row.id, attempt, row.spec, move.size, taken):
                    continue  # room is made by changes that are under way: next slot
                values = {"attempt": attempt, "started_at": row.started_at or now}
                size = {"servers": move.size[0], "workers": move.size[1]}
                if row.wish or not self.store.change_job(row.id, (t.WAITING,), state=t.STARTING, **values, **size):
                    continue
                folders[self.cluster.job_folder(row.id, attempt)] = row.spec
                self._record(move, decision, now, outcome="done")
                self.store.tell(now, "started", f"{move.size[0]} servers, {move.size[1]} workers", row.id)
                self.cluster.begin(row.id, attempt)
            elif self.cluster.seats_for(self._folder(row), row.spec, move.size, taken):
                with self._lock:
                    self._changing[row.id] = move.size
                    self.cluster.growing.add(self._folder(row).name)
                self._pool.submit(self._resize, row, move, self._record(move, decision, now))

    def _record(self, move: Move, decision: int, now: float, **values: Any) -> int:
        row = {"at": now, "decision": decision, "job": move.job, "kind": move.kind}
        before = {"servers_before": move.before[0], "workers_before": move.before[1]}
        return self.store.add_changes([{**row, **before, "servers": move.size[0], "workers": move.size[1], **values}])[
            0
        ]

    def _resize(self, row: JobRow, move: Move, change: int) -> None:
        """Has one job take a size; whatever comes of it is this job's affair only."""
        folder = self._folder(row)
        values: Dict[str, Any] = {"outcome": "failed"}
        try:
            cost = self.cluster.resize(folder, row.name, move.size, CHANGE_SECONDS)
            values = {
                "outcome": "done",
                "seconds": (cost.get("startup_seconds") or 0.0) + (cost.get("seconds") or 0.0),
                "stall_seconds": cost.get("longest_stall_seconds"),
                "bytes_moved": cost.get("bytes_moved"),
            }
        except JobError as error:
            over = self.cluster.state(folder).get("ended") is not None
            outcome = "ended" if over else "refused" if isinstance(error, Declined) else "late"
            values = {"outcome": outcome, "detail": str(error)}
        except Exception as error:
            values = {"outcome": "failed", "detail": f"{type(error).__name__}: {error}"}
        finally:
            pause = 1 if values["outcome"] == "done" else 2  # slots, so that no job is resized more than once in each
            self._quiet[row.id] = time.time() + pause * self.slot_seconds
            with self._lock:
                self._changing.pop(row.id, None)
                self.cluster.growing.discard(folder.name)
        self.store.set_change(change, **values)
        self.poke()


def _epochs(told: Optional[Dict[str, Any]], spec: JobSpec) -> float:
    """Epochs trained, by the coordinator's word."""
    if not told:
        return 0.0
    epochs = max((float(worker.get("epochs") or 0) for worker in told["workers"]), default=0.0)
    per_epoch = spec.steps_per_epoch or spec.steps
    if epochs == 0 and per_epoch:
        return max((float(worker["step"]) for worker in told["workers"]), default=0.0) / per_epoch
    return epochs


def _size_of(job: Seen) -> Dict[str, int]:
    return {"servers": job.servers, "workers": job.workers}
