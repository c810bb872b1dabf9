"""The record's database: which one a folder or URL names, how it is opened, and the versions of its schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Union

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

BUSY_SECONDS = 20
CUT_OFF = {  # how long a server that is silent is waited for
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
IDLE_SECONDS = 10  # a service that is halted in the midst of a transaction holds its locks no longer than that
MIGRATION_LOCK = 0x656C6D78  # any number that nobody else takes


class StoreError(RuntimeError):
    """The record cannot be used; one line that says why."""


def reason_of(error: BaseException) -> str:
    """What a database, or anything else, complains of, on one line without the statement that it was given."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def database_url(where: Union[str, Path]) -> URL:
    """The URL of a folder's SQLite file (the folder is made), or of the database that is named.

    Raises:
        StoreError: it is no such URL.
    """
    if "://" not in str(where):
        folder = Path(where)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: the record cannot be kept there: {error.strerror}") from error
        return URL.create("sqlite", database=str(folder.resolve() / "record.db"))
    try:
        url = make_url(str(where))
    except ArgumentError as error:
        raise StoreError(f"{str(where)!r} is no URL of a database: sqlite and postgresql are known") from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"{url.get_backend_name()!r} is no database of ours: sqlite and postgresql are known")
    return url


def engine_of(url: URL) -> Engine:
    try:
        if url.get_backend_name() != "sqlite":
            return _postgresql(url)
    except (NoSuchModuleError, ImportError) as error:
        raise StoreError(f"the driver for {url.drivername} is missing: pip install 'elastic-mx[service]'") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not in the driver
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Any) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    if url.database and os.path.exists(url.database):
        return engine
    with engine.connect():
        os.chmod(str(url.database), 0o600)
    return engine


def _postgresql(url: URL) -> Engine:
    unsaid = {name: value for name, value in CUT_OFF.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=unsaid)

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        connection.commit()

    return engine


def migrate(engine: Engine, version: str = "head") -> None:
    """Brings the tables to this version, or an earlier one; of several at once, one does the work.

    Raises:
        StoreError: a later version has written the record.
    """
    from alembic import command
    from alembic.util import CommandError

    config = _migrations()
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, version)
        except CommandError as error:
            raise StoreError(
                f"{engine.url.render_as_string()}: a later version of elastic-mx has written this record ({error}): "
                "use that version, or another --state"
            ) from error


def expect_version(engine: Engine, shown: str) -> None:
    """Refuses a record of another version; StoreError."""
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    wanted = ScriptDirectory.from_config(_migrations()).get_current_head()
    if found is None:
        raise StoreError(f"{shown}: there is no record: give the --state of an elastic-mx serve")
    if found != wanted:
        raise StoreError(
            f"{shown}: the record has schema version {found}, this elastic-mx reads {wanted}: "
            "elastic-mx serve brings an older one to this version; a later one needs a later elastic-mx"
        )


def _migrations() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    return config
