"""The tables of the record, as SQLAlchemy 2 has them. How they come to be is in migrations/, who uses them in store.py.

Times are seconds since the epoch, in UTC; sizes are numbers of servers and workers.
"""

from __future__ import annotations

from typing import Optional

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

WAITING, STARTING, RUNNING, ENDING = "waiting", "starting", "running", "ending"
FINISHED, FAILED, CANCELLED = "finished", "failed", "cancelled"
LIVE = (WAITING, STARTING, RUNNING, ENDING)
LIVE_ONLY = text("state IN ('waiting', 'starting', 'running', 'ending')")


class Base(DeclarativeBase):
    pass


class Job(Base):
    """A job that was submitted.

    Attributes:
        name: unique among the jobs that have not ended.
        key: the client's, by which a submission that is repeated is known again.
        digest: of the spec, by which another job under the same key is told from a repetition.
        spec: JSON, see spec.py.
        state: waiting, starting, running, ending, finished, failed or cancelled.
        attempt: how often it was started; an attempt is begun once at most.
        wish: what its owner asked for since: empty, or ``cancel``.
        ended_status: of its last attempt, an exit status.
        handle: JSON, how the cluster finds it.
        done: epochs trained; ``service``: dominant share of the cluster times slots.
        servers, workers: size as last seen.
        dropped_at: when its logs and checkpoint were deleted; null while there may be any.
    """

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(63), index=True)
    key: Mapped[Optional[str]] = mapped_column(String(200), unique=True)
    digest: Mapped[str] = mapped_column(String(64))
    spec: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(20), index=True, default=WAITING)
    wish: Mapped[str] = mapped_column(String(20), default="")
    submitted_at: Mapped[float] = mapped_column(Float)
    started_at: Mapped[Optional[float]] = mapped_column(Float)
    ended_at: Mapped[Optional[float]] = mapped_column(Float)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    ended_status: Mapped[Optional[int]] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(Text, default="")
    handle: Mapped[str] = mapped_column(Text, default="{}")
    done: Mapped[float] = mapped_column(Float, default=0.0)
    service: Mapped[float] = mapped_column(Float, default=0.0)
    servers: Mapped[int] = mapped_column(Integer, default=0)
    workers: Mapped[int] = mapped_column(Integer, default=0)
    dropped_at: Mapped[Optional[float]] = mapped_column(Float)

    __table_args__ = (
        Index("one_live_job_per_name", "name", unique=True, sqlite_where=LIVE_ONLY, postgresql_where=LIVE_ONLY),
    )


class Decision(Base):
    """One slot's decision, or one between slots because a job arrived or ended.

    Attributes:
        slot: number of the slot.
        policy: that decided; ``fallback`` says why it was not the one that was asked for.
        shadow: the policy that was asked besides, if any.
        snapshot: what was observed and decided, see snapshot.py.
        observe_ms, decide_ms, enact_ms: how long each took.
    """

    __tablename__ = "decisions"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float, index=True)
    slot: Mapped[int] = mapped_column(Integer)
    slot_seconds: Mapped[float] = mapped_column(Float)
    policy: Mapped[str] = mapped_column(String(40))
    fallback: Mapped[str] = mapped_column(Text, default="")
    shadow: Mapped[str] = mapped_column(String(40), default="")
    jobs: Mapped[int] = mapped_column(Integer)
    observe_ms: Mapped[float] = mapped_column(Float)
    decide_ms: Mapped[float] = mapped_column(Float)
    enact_ms: Mapped[float] = mapped_column(Float, default=0.0)
    snapshot: Mapped[bytes] = mapped_column(LargeBinary)


class Change(Base):
    """What a decision changed for one job, and what came of it.

    Attributes:
        kind: ``start``, ``resize`` or ``stop``.
        outcome: empty while under way, then ``done``, ``refused``, ``late``, ``ended`` or ``failed``.
        seconds: until it was in force; ``stall_seconds``, ``bytes_moved``: what the job tells of the cost.
    """

    __tablename__ = "changes"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    decision: Mapped[int] = mapped_column(ForeignKey("decisions.id"), index=True)
    job: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str] = mapped_column(String(10))
    servers_before: Mapped[int] = mapped_column(Integer)
    workers_before: Mapped[int] = mapped_column(Integer)
    servers: Mapped[int] = mapped_column(Integer)
    workers: Mapped[int] = mapped_column(Integer)
    outcome: Mapped[str] = mapped_column(String(10), default="")
    detail: Mapped[str] = mapped_column(Text, default="")
    seconds: Mapped[Optional[float]] = mapped_column(Float)
    stall_seconds: Mapped[Optional[float]] = mapped_column(Float)
    bytes_moved: Mapped[Optional[int]] = mapped_column(BigInteger)


class Event(Base):
    """Something worth telling: of a job, or (``job`` is null) of the service."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    job: Mapped[Optional[int]] = mapped_column(ForeignKey("jobs.id"), index=True)
    kind: Mapped[str] = mapped_column(String(20))
    text: Mapped[str] = mapped_column(Text)


class Setting(Base):
    """What may change while the service runs, and what it keeps for itself, as JSON by name."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class Lease(Base):
    """Who leads: of several services on one record, one schedules."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    holder: Mapped[str] = mapped_column(String(200))
    until: Mapped[float] = mapped_column(Float)
