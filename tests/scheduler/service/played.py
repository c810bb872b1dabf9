"""A record as a service would write it, made within a second: its own functions decide, jobs progress by a curve."""

from __future__ import annotations

from dataclasses import replace
from typing import List

from scheduler.core import Policy
from scheduler.service import tables as t
from scheduler.service.learning import Learning, Tell
from scheduler.service.slot import Node, Seen, Speeds, ask, curve, settle, views
from scheduler.service.snapshot import pack
from scheduler.service.spec import JobSpec, parse_spec
from scheduler.service.store import Store

NODES = [Node("a", (4.0, 16.0, 0.0)), Node("b", (4.0, 16.0, 0.0))]
SLOT_SECONDS = 10.0


class Still(Learning):
    """The learner's files without its process, for tests that learn in their own."""

    def keep_going(self, now: float, tell: Tell) -> None:
        pass


def spec(number: int, epochs: float = 6.0, **fields: object) -> JobSpec:
    tasks = {"workers": {"max": 4}, "servers": {"max": 2, "cpus": 0.5}}
    return parse_spec({"name": f"job-{number}", "command": "true", "epochs": epochs, **tasks, **fields})


def play(store: Store, policy: Policy, safe: Policy, count: int = 6, every: int = 2, start: float = 0.0) -> int:
    """Runs ``count`` jobs, one arriving every so many slots from ``start`` (seconds) on; the decisions written."""
    if store.setting("began") is None:
        store.set("began", start)
    began, speeds, jobs, slot, number = float(store.setting("began")), Speeds(), [], 0, 0
    first = len(store.jobs())
    while number < count or jobs:
        now = start + slot * SLOT_SECONDS
        if number < count and slot % every == 0:
            made = spec(first + number, 4.0 + number % 3)
            row, _ = store.submit(made, None, now)
            store.change_job(row.id, started_at=now, state=t.RUNNING)
            jobs.append(Seen(row.id, made, (now - began) / SLOT_SECONDS))
            number += 1
        jobs = _slot(store, policy, safe, speeds, jobs, slot, now) if jobs else []
        slot += 1
    return len(store.decisions(limit=10_000))


def _slot(
    store: Store, policy: Policy, safe: Policy, speeds: Speeds, jobs: List[Seen], slot: int, now: float
) -> List[Seen]:
    for job in jobs:
        speeds.saw(job.spec.kind, job.size, job.rate or 0.0)
    cluster, view = views(NODES, jobs, slot, SLOT_SECONDS, speeds)
    answer, why = ask(policy, safe, cluster, view)
    sizes = settle(NODES, jobs, answer)
    times = {"at": now, "slot": slot, "slot_seconds": SLOT_SECONDS, "observe_ms": 0.0, "decide_ms": 0.0}
    name = safe.name if why else policy.name
    store.add_decision(**times, policy=name, fallback=why, jobs=len(jobs), snapshot=pack(cluster, view, answer, sizes))
    left = []
    for job, (servers, workers) in zip(jobs, sizes):
        rate = 0.25 * float(curve(servers, workers))
        after = replace(job, servers=servers, workers=workers, rate=rate or None, done=job.done + rate)
        if after.done < after.epochs:
            left.append(after)
        else:
            store.change_job(job.id, state=t.FINISHED, done=after.done, ended_at=now + SLOT_SECONDS)
    return left
