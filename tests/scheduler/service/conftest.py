"""Records for the service's tests: SQLite in a folder, and PostgreSQL where it is installed."""

import uuid

import pytest
from sqlalchemy import create_engine, text

from scheduler.service.store import Store, database_url
from tests.scheduler.service import postgres


@pytest.fixture(scope="session")
def postgres_url():
    folder = postgres.programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with postgres.server(folder) as url:
        yield url


@pytest.fixture
def fresh_database(postgres_url):
    """The URL of an empty database on the server."""
    name = f"t{uuid.uuid4().hex}"
    engine = create_engine(database_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return postgres_url.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request, tmp_path):
    """Where a record may be kept."""
    return tmp_path / "state" if request.param == "sqlite" else request.getfixturevalue("fresh_database")


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state")
    yield store
    store.close()
