"""The service's HTTP API (FastAPI; its OpenAPI is at /docs). It asks the service and the record; it decides nothing."""

from __future__ import annotations

import hmac
from typing import Any, Dict, List, Optional

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import SQLAlchemyError

from scheduler.policies import names
from scheduler.service.database import reason_of
from scheduler.service.lead import LEASE
from scheduler.service.service import Service, attempt_of
from scheduler.service.snapshot import sizes_of, unpack
from scheduler.service.spec import SpecError, parse_spec
from scheduler.service.store import Conflict, JobRow

MOST_DECISIONS = 1000  # in one answer


class Submission(BaseModel):
    """A job, and a key of the client's by which a repetition is known."""

    model_config = ConfigDict(extra="forbid")
    spec: Dict[str, Any]
    key: Optional[str] = None


class PolicyName(BaseModel):
    model_config = ConfigDict(extra="forbid")
    policy: str


def job_body(row: JobRow) -> Dict[str, Any]:
    """A job as clients see it; times in seconds since the epoch."""
    fields = ("id", "name", "state", "wish", "submitted_at", "started_at", "ended_at", "attempt", "ended_status")
    body = {name: getattr(row, name) for name in (*fields, "reason", "done", "servers", "workers", "dropped_at")}
    jct = row.ended_at - row.submitted_at if row.ended_at else None
    return {**body, "jct_s": jct, "epochs": row.spec.epochs, "priority": row.spec.priority}


def create_app(service: Service, token: str = "") -> FastAPI:
    """Args: the service, and the token that every request must bear, if any."""

    def allowed(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "the token is missing or wrong: set ELASTIC_MX_TOKEN to the service's")

    app = FastAPI(title="elastic-mx", dependencies=[Depends(allowed)])
    store = service.store

    @app.exception_handler(SQLAlchemyError)
    def no_record(_: Request, error: SQLAlchemyError) -> JSONResponse:
        line = f"the service cannot use its record ({reason_of(error)}): jobs train on, try again when that is mended"
        return JSONResponse({"detail": line}, 503)

    def found(name: str) -> JobRow:
        row = store.job(name)
        if row is None:
            raise HTTPException(404, f"there is no job {name!r}: elastic-mx jobs lists those there are")
        return row

    @app.post("/jobs")
    def submit(body: Submission) -> Dict[str, Any]:
        try:
            row, new = service.submit(parse_spec(body.spec), body.key)
        except SpecError as error:
            raise HTTPException(422, str(error)) from error
        except Conflict as error:
            raise HTTPException(409, str(error)) from error
        return {**job_body(row), "new": new}

    @app.get("/jobs")
    def jobs(live: Optional[bool] = None, limit: int = 1000) -> List[Dict[str, Any]]:
        return [job_body(row) for row in store.jobs(live, limit)]

    @app.get("/jobs/{name}")
    def describe(name: str) -> Dict[str, Any]:
        row = found(name)
        return {
            **job_body(row),
            "spec": row.spec.plain(),
            "tasks": service.cluster.tasks(attempt_of(row)),
            "policy": service.decider.told(),
            "changes": store.changes(row.id),
            "events": store.events(row.id),
        }

    @app.post("/jobs/{name}/cancel")
    def cancel(name: str) -> Dict[str, Any]:
        row = found(name)
        if not service.cancel(row):
            raise HTTPException(409, f"job {name!r} is {row.state} already")
        return job_body(found(name))

    @app.get("/jobs/{name}/logs")
    def logs(name: str, offsets: str = "") -> Dict[str, Any]:
        """What each task printed beyond the offsets (``task:bytes,...``) that a client has, and whether it is all."""
        row = found(name)
        parts = [part.rsplit(":", 1) for part in offsets.split(",") if ":" in part]
        have = {name: int(at) for name, at in parts if at.isdigit()}
        pieces = service.cluster.logs(attempt_of(row), have)
        return {"logs": pieces, "live": row.live, "dropped_at": row.dropped_at}

    @app.get("/nodes")
    def nodes() -> List[Dict[str, Any]]:
        rows = [row for row in store.jobs(live=True) if row.attempt]
        used_of = service.cluster.used([attempt_of(row) for row in rows])
        bodies = []
        for node in service.cluster.nodes():
            mine = used_of.get(node.name, [])
            used = [sum(demand[k] for demand in mine) for k in range(3)]
            sizes = zip(("cpus", "memory_gib", "gpus"), node.capacity, used)
            body = {name: {"all": round(most, 3), "used": round(now, 3)} for name, most, now in sizes}
            bodies.append({"name": node.name, "alive": node.alive, "tasks": len(mine), **body})
        return bodies

    @app.get("/policy")
    def policy() -> Dict[str, Any]:
        """The policy, who decides at present and why, and how the learning goes."""
        return {**service.decider.told(), "known": list(names())}

    @app.put("/policy")
    def set_policy(body: PolicyName) -> Dict[str, Any]:
        try:
            service.set_policy(body.policy)
        except (ValueError, OSError, ImportError) as error:
            raise HTTPException(422, f"policy: {error}") from error
        return policy()

    @app.get("/decisions")
    def decisions(limit: int = 20) -> List[Dict[str, Any]]:
        """The latest decisions, oldest first: by job, what it had, was asked and given; what the shadow had asked."""
        rows = [(row, sizes_of(unpack(row.snapshot))) for row in store.latest_decisions(min(limit, MOST_DECISIONS))]
        called = store.names(one["job"] for _, sizes in rows for one in sizes)
        fields = ("id", "at", "slot", "policy", "fallback", "shadow")
        return [
            {
                **{name: getattr(row, name) for name in fields},
                "jobs": [{**one, "job": called.get(one["job"], str(one["job"]))} for one in sizes],
            }
            for row, sizes in rows
        ]

    @app.get("/lead")
    def lead() -> Dict[str, Any]:
        """Which of several services on the record decides; each of them answers every request."""
        mine = service.lead
        leader = store.leader(LEASE, store.clock()) if mine.holder else None
        return {"leads": mine.held, "leader": leader, "this": mine.holder or None}

    @app.get("/changes")
    def changes(since: int = 0, limit: int = 1000) -> List[Dict[str, Any]]:
        return store.changes(limit=limit, since=since)

    @app.get("/events")
    def events(since: int = 0, limit: int = 1000) -> List[Dict[str, Any]]:
        return store.events(limit=limit, since=since)

    return app
