"""What the fallback would have made of the jobs that came since a policy began: reads the record, and simulates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional

import numpy as np

from scheduler.core import Array, Policy
from scheduler.service import tables as t
from scheduler.service.hindsight import Known, fits, jcts_under
from scheduler.service.slot import Seen
from scheduler.service.snapshot import capacity_of, unpack
from scheduler.service.store import JobRow, Store

LATEST_JOBS, LATEST_DECISIONS, LATEST_EVENTS = 64, 256, 2000
KNOWN_JOBS = 1024  # that are looked through, for those that trained when the 64 began


def expected_jcts(store: Store, policy: Policy, since: float) -> Dict[int, float]:
    """By job that was submitted at or after ``since`` (the latest 64), its JCT under a policy, in slots.

    The simulation begins with the first of these jobs and what was left then of those before. A job takes as long to
    start as jobs do by the record. Empty where there is nothing to go by.
    """
    last = store.last_decision()
    if last is None:
        return {}
    data = unpack(last.snapshot)
    slot_seconds = float(data["slot_seconds"])
    rows = [row for row in store.jobs(limit=KNOWN_JOBS) if row.state not in (t.CANCELLED, t.FAILED)]
    new = [row for row in rows if row.submitted_at >= since][-LATEST_JOBS:]
    if not new:
        return {}
    start = new[0].submitted_at
    begun = store.decision_from(start)
    done = _done(unpack(begun.snapshot)) if begun is not None else {}
    tables, nodes = _tables(store, last.id), capacity_of(data)
    known = [
        _known(row, start, slot_seconds, done.get(row.id, 0.0))
        for row in rows
        if (row.ended_at is None or row.ended_at > start) and row.spec.kind in tables and fits(row.spec, nodes)
    ]
    if not known:
        return {}
    try:
        jcts = jcts_under(policy, nodes, known, tables, slot_seconds)
    except (ValueError, RuntimeError):  # a job that never fits these nodes, or never progresses: nothing to compare
        return {}
    starting = _starting(store) / slot_seconds
    judged = {row.id for row in new if row.spec.epochs or row.spec.steps}
    return {job: jct + starting for job, jct in jcts.items() if job in judged}


def _known(row: JobRow, start: float, slot_seconds: float, done: float) -> Known:
    arrival = max(row.submitted_at - start, 0.0) / slot_seconds
    job = Known(row.id, row.spec, arrival, Seen(row.id, row.spec, 0.0).epochs)
    return job if arrival else replace(job, epochs=max(job.epochs - done, 0.01 * job.epochs))


def _done(data: Dict[str, Any]) -> Dict[int, float]:
    return dict(zip(data["jobs"]["ids"], data["jobs"]["done"]))


def _tables(store: Store, last: int) -> Dict[str, Array]:
    """The speeds last reckoned, epochs per slot, by kind of job."""
    tables: Dict[str, Array] = {}
    for row in store.decisions(max(0, last - LATEST_DECISIONS), LATEST_DECISIONS):
        data = unpack(row.snapshot)
        tables.update((kind[0], np.array(kind[4], dtype=float)) for kind in data["types"])
    return tables


def _starting(store: Store) -> float:
    """How long jobs take from their start until they train, median, s."""
    began: Dict[Optional[int], float] = {}
    took: List[float] = []
    for event in store.events(limit=LATEST_EVENTS):
        if event["kind"] == "started":
            began[event["job"]] = event["at"]
        elif event["kind"] == "running" and event["job"] in began:
            took.append(event["at"] - began.pop(event["job"]))
    return float(np.median(took)) if took else 0.0
