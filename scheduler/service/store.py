"""The record: jobs, decisions, changes and events in SQLite or PostgreSQL. What to write is for its callers.

Every method is one short transaction and may be called from any thread, and of several services on one record.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from scheduler.service import tables as t
from scheduler.service.database import StoreError, database_url, engine_of, expect_version, migrate, reason_of
from scheduler.service.spec import JobSpec

DAMAGED = ("file is not a database", "database disk image is malformed")  # in SQLite's words


class Deposed(RuntimeError):
    """Another service leads."""


class Conflict(ValueError):
    """A submission that contradicts another; one line."""


@dataclass(frozen=True)
class JobRow:
    """A job as the record has it; see tables.Job."""

    id: int
    name: str
    spec: JobSpec
    state: str
    wish: str
    submitted_at: float
    started_at: Optional[float]
    ended_at: Optional[float]
    attempt: int
    ended_status: Optional[int]
    reason: str
    handle: Dict[str, Any]
    done: float
    service: float
    servers: int
    workers: int
    dropped_at: Optional[float]

    @property
    def live(self) -> bool:
        return self.state in t.LIVE


class Store:
    """Args: a folder for SQLite, or a database's URL. Migrates to this version, unless it is opened ``as_it_is``.

    Raises:
        StoreError: it cannot be opened, a later version has written it, or, as it is, there is none of this version.
    """

    def __init__(self, where: Union[str, Path], as_it_is: bool = False) -> None:
        if as_it_is and "://" not in str(where) and not (Path(where) / "record.db").is_file():
            raise StoreError(f"{where}: there is no record: give the --state of an elastic-mx serve")
        self.url = database_url(where)
        self._lease: Optional[Tuple[str, str]] = None
        try:
            self.engine = engine_of(self.url)
            if as_it_is:
                expect_version(self.engine, self.shown)
            else:
                migrate(self.engine)
        except (DBAPIError, OSError) as error:
            remedy = ""
            if self.url.get_backend_name() == "sqlite" and reason_of(error) in DAMAGED:
                remedy = ": put a copy in its place, or move it away to begin anew"
            raise StoreError(f"{self.shown}: the record cannot be opened: {reason_of(error)}{remedy}") from error

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.difference_update_query(["password"]).render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that is written at its end. In SQLite it waits for other writers at its beginning."""
        with self.engine.connect().execution_options(writes=True) as connection:
            with Session(connection, expire_on_commit=False) as session, session.begin():
                if self._lease is not None:
                    self._expect_lead(session, *self._lease)
                yield session
            connection.commit()

    def under(self, lease: str, holder: str) -> Store:
        """This record for one that leads: what is written through it is refused (Deposed) once another leads."""
        led = copy.copy(self)
        led._lease = (lease, holder)
        return led

    @staticmethod
    def _expect_lead(session: Session, lease: str, holder: str) -> None:
        """Keeps the lease where it is until the transaction is over."""
        query = select(t.Lease.holder).where(t.Lease.name == lease).with_for_update(read=True)
        found = session.scalar(query)
        if found != holder:
            raise Deposed(f"{found or 'no service'} leads by now, not {holder}")

    def clock(self) -> float:
        """The time, s since the epoch, on which all services of the record agree."""
        if self.url.get_backend_name() == "sqlite":
            return time.time()  # they are on one machine
        with self.reading() as session:
            return float(session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)

    # ---------------------------------------------------------------------------------------------------- jobs

    def submit(self, spec: JobSpec, key: Optional[str], now: float) -> Tuple[JobRow, bool]:
        """Takes a job in, once: the job, and whether it is new. A repetition is known by its key.

        Raises:
            Conflict: the name is in use, or the key was used for another job.
        """
        text_of_it = json.dumps(spec.plain(), sort_keys=True)
        digest = hashlib.sha256(text_of_it.encode()).hexdigest()
        try:
            with self.writing() as session:
                row = t.Job(name=spec.name, key=key, digest=digest, spec=text_of_it, submitted_at=now)
                session.add(row)
                session.flush()
                session.add(t.Event(at=now, job=row.id, kind="submitted", text=f"priority {spec.priority}"))
                return _row(row), True
        except IntegrityError as error:
            return self._repeated(spec, key, digest, error)

    def _repeated(self, spec: JobSpec, key: Optional[str], digest: str, error: IntegrityError) -> Tuple[JobRow, bool]:
        with self.reading() as session:
            if key is not None:
                row = session.scalar(select(t.Job).where(t.Job.key == key))
                if row is not None and row.digest == digest:
                    return _row(row), False
                if row is not None:
                    raise Conflict(f"key: {key!r} was used for job {row.name!r}, which is another") from error
            row = session.scalar(select(t.Job).where(t.Job.name == spec.name, t.Job.state.in_(t.LIVE)))
            if row is None:
                raise error
            raise Conflict(
                f"name: {spec.name!r} is in use by a job that is {row.state}: choose another, or cancel that one"
            ) from error

    def jobs(self, live: Optional[bool] = None, limit: Optional[int] = None) -> List[JobRow]:
        """Jobs by submission; only those that have (not) ended if ``live`` says so, and of these the latest."""
        query = select(t.Job).order_by(t.Job.id.desc())
        if live is not None:
            query = query.where(t.Job.state.in_(t.LIVE) if live else t.Job.state.not_in(t.LIVE))
        with self.reading() as session:
            return [_row(row) for row in session.scalars(query.limit(limit))][::-1]

    def job(self, name: str) -> Optional[JobRow]:
        """The latest job of that name."""
        with self.reading() as session:
            row = session.scalar(select(t.Job).where(t.Job.name == name).order_by(t.Job.id.desc()).limit(1))
            return None if row is None else _row(row)

    def change_job(self, job: int, among: Sequence[str] = t.LIVE, **values: Any) -> bool:
        """Sets fields of a job whose state is among the given ones; False if it is in another by now."""
        if "handle" in values:
            values["handle"] = json.dumps(values["handle"])
        query = update(t.Job).where(t.Job.id == job, t.Job.state.in_(among)).values(**values)
        with self.writing() as session:
            return bool(session.execute(query).rowcount)  # type: ignore[attr-defined]

    def change_jobs(self, changes: Iterable[Dict[str, Any]]) -> None:
        """Sets fields of many jobs at once; each dict has the ``id`` and the fields."""
        rows = list(changes)
        if rows:
            with self.writing() as session:
                session.execute(update(t.Job), rows)

    def start_jobs(self, starts: Sequence[Dict[str, Any]]) -> Set[int]:
        """Has waiting jobs start, which fields tell how (``id`` and others): those that still waited.

        A job that was cancelled meanwhile does not start.
        """
        wait = (t.Job.id.in_([start["id"] for start in starts]), t.Job.state == t.WAITING, t.Job.wish == "")
        with self.writing() as session:
            found = set(session.scalars(select(t.Job.id).where(*wait).with_for_update()))
            rows = [{**start, "state": t.STARTING} for start in starts if start["id"] in found]
            if rows:
                session.execute(update(t.Job), rows)
            return found

    def jobs_to_drop(self, before: float, limit: int) -> List[JobRow]:
        """Jobs that ended before a time and whose logs and checkpoints were not deleted yet, the oldest first."""
        ended = (t.Job.state.not_in(t.LIVE), t.Job.dropped_at.is_(None), t.Job.ended_at <= before)
        with self.reading() as session:
            return [_row(row) for row in session.scalars(select(t.Job).where(*ended).order_by(t.Job.id).limit(limit))]

    def set_dropped(self, job: int, at: float) -> None:
        with self.writing() as session:
            session.execute(update(t.Job).where(t.Job.id == job).values(dropped_at=at))

    # -------------------------------------------------------------------------------------- decisions and events

    def add_decision(self, **values: Any) -> int:
        """Writes a decision (fields of tables.Decision); its number."""
        with self.writing() as session:
            row = t.Decision(**{"fallback": "", "shadow": "", "enact_ms": 0.0, **values})
            session.add(row)
            session.flush()
            return row.id

    def set_decision(self, decision: int, **values: Any) -> None:
        with self.writing() as session:
            session.execute(update(t.Decision).where(t.Decision.id == decision).values(**values))

    def add_changes(self, rows: Sequence[Dict[str, Any]]) -> List[int]:
        """Writes changes (fields of tables.Change); their numbers."""
        if not rows:
            return []
        with self.writing() as session:
            changes = [t.Change(**{"outcome": "", "detail": "", **row}) for row in rows]
            session.add_all(changes)
            session.flush()
            return [change.id for change in changes]

    def set_change(self, change: int, **values: Any) -> None:
        with self.writing() as session:
            session.execute(update(t.Change).where(t.Change.id == change).values(**values))

    def abandon_changes(self) -> None:
        """Notes of changes under way that nobody will tell any more what came of them."""
        values = {"outcome": "late", "detail": "the service that asked for it ended meanwhile"}
        with self.writing() as session:
            session.execute(update(t.Change).where(t.Change.outcome == "").values(**values))

    def changes(self, job: Optional[int] = None, limit: int = 1000, since: int = 0) -> List[Dict[str, Any]]:
        """The latest changes (of a job), oldest first."""
        query = select(t.Change).where(t.Change.id > since).order_by(t.Change.id.desc()).limit(limit)
        if job is not None:
            query = query.where(t.Change.job == job)
        with self.reading() as session:
            return [_plain(row) for row in session.scalars(query)][::-1]

    def decisions(self, since: int = 0, limit: int = 100) -> List[t.Decision]:
        """Decisions after number ``since``, oldest first, with their snapshots."""
        query = select(t.Decision).where(t.Decision.id > since).order_by(t.Decision.id).limit(limit)
        with self.reading() as session:
            rows = list(session.scalars(query))
            session.expunge_all()
            return rows

    def decision_from(self, at: float) -> Optional[t.Decision]:
        """The first decision at or after a time."""
        with self.reading() as session:
            row = session.scalar(select(t.Decision).where(t.Decision.at >= at).order_by(t.Decision.id).limit(1))
            session.expunge_all()
            return row

    def latest_decisions(self, limit: int) -> List[t.Decision]:
        """The latest so many, oldest first."""
        last = self.last_decision()
        return self.decisions(max(0, last.id - limit), limit) if last else []

    def names(self, jobs: Iterable[int]) -> Dict[int, str]:
        """Of jobs by their numbers."""
        with self.reading() as session:
            rows = session.execute(select(t.Job.id, t.Job.name).where(t.Job.id.in_(sorted(set(jobs)))))
            return {job: name for job, name in rows}

    def last_decision(self) -> Optional[t.Decision]:
        with self.reading() as session:
            row = session.scalar(select(t.Decision).order_by(t.Decision.id.desc()).limit(1))
            session.expunge_all()
            return row

    def tell(self, now: float, kind: str, what: str, job: Optional[int] = None) -> None:
        """Writes an event."""
        self.tell_all(now, kind, [(job, what)])

    def tell_all(self, now: float, kind: str, events: Sequence[Tuple[Optional[int], str]]) -> None:
        """Writes events of a kind: of which job, and what."""
        if events:
            with self.writing() as session:
                session.add_all(t.Event(at=now, job=job, kind=kind, text=what) for job, what in events)

    def events(self, job: Optional[int] = None, limit: int = 100, since: int = 0) -> List[Dict[str, Any]]:
        """The latest events (of a job), oldest first."""
        query = select(t.Event).where(t.Event.id > since).order_by(t.Event.id.desc()).limit(limit)
        if job is not None:
            query = query.where(t.Event.job == job)
        with self.reading() as session:
            return [_plain(row) for row in session.scalars(query)][::-1]

    def prune(self, before: float) -> int:
        """Forgets decisions, changes and events from before that time; how many decisions. Jobs stay."""
        old = select(t.Decision.id).where(t.Decision.at < before)
        with self.writing() as session:
            session.execute(delete(t.Change).where(t.Change.decision.in_(old)))
            session.execute(delete(t.Event).where(t.Event.at < before))
            gone = session.execute(delete(t.Decision).where(t.Decision.at < before))
            return int(gone.rowcount)  # type: ignore[attr-defined]

    def size(self) -> int:
        """How large the record is on disk, bytes."""
        if self.url.get_backend_name() == "sqlite":
            path = Path(str(self.url.database))
            return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())
        with self.reading() as session:
            return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)

    # ----------------------------------------------------------------------------------------- settings and lease

    def setting(self, name: str, default: Any = None) -> Any:
        with self.reading() as session:
            value = session.scalar(select(t.Setting.value).where(t.Setting.name == name))
            return default if value is None else json.loads(value)

    def settings(self, *names: str) -> Dict[str, Any]:
        """Those of several that are there, as they were at one moment."""
        with self.reading() as session:
            rows = session.execute(select(t.Setting.name, t.Setting.value).where(t.Setting.name.in_(names)))
            return {name: json.loads(value) for name, value in rows}

    def set(self, name: str, value: Any) -> None:
        with self.writing() as session:
            session.merge(t.Setting(name=name, value=json.dumps(value)))

    def news(self) -> Tuple[Any, ...]:
        """Differs from what it was before when a client has asked for something: a job, its end, another policy."""
        wishes = select(func.count()).where(t.Job.state.in_(t.LIVE), t.Job.wish != "").scalar_subquery()
        policy = select(t.Setting.value).where(t.Setting.name == "policy").scalar_subquery()
        with self.reading() as session:
            return tuple(session.execute(select(func.max(t.Job.id), wishes, policy)).one())

    def lead(self, name: str, holder: str, now: float, seconds: float) -> bool:
        """Takes or renews a lease; False where another holds it. ``now`` is that of ``clock``."""
        mine = (t.Lease.holder == holder) | (t.Lease.until < now)
        query = update(t.Lease).where(t.Lease.name == name, mine).values(holder=holder, until=now + seconds)
        try:
            with self.writing() as session:
                if session.execute(query).rowcount:  # type: ignore[attr-defined]
                    return True
                if session.scalar(select(func.count()).select_from(t.Lease).where(t.Lease.name == name)):
                    return False
                session.add(t.Lease(name=name, holder=holder, until=now + seconds))
            return True
        except IntegrityError:
            return False

    def leader(self, name: str, now: float) -> Optional[str]:
        """Who holds a lease now."""
        with self.reading() as session:
            return session.scalar(select(t.Lease.holder).where(t.Lease.name == name, t.Lease.until >= now))

    def resign(self, name: str, holder: str) -> None:
        """Gives a lease back."""
        with self.writing() as session:
            session.execute(delete(t.Lease).where(t.Lease.name == name, t.Lease.holder == holder))


# ------------------------------------------------------------------------------------------------------- helpers


def _row(row: t.Job) -> JobRow:
    values = {name: getattr(row, name) for name in JobRow.__dataclass_fields__ if name not in ("spec", "handle")}
    return JobRow(spec=_spec(row.spec), handle=json.loads(row.handle), **values)


@functools.lru_cache(4096)  # a slot reads all jobs several times, and their specs never change
def _spec(text_of_it: str) -> JobSpec:
    return JobSpec.model_validate_json(text_of_it)


def _plain(row: Any) -> Dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}
