"""The record, on SQLite and on a real PostgreSQL server: submissions, leases, several services, versions."""

import threading

import pytest
from sqlalchemy import inspect, text

from scheduler.service import tables as t
from scheduler.service.database import engine_of, migrate
from scheduler.service.spec import parse_spec
from scheduler.service.store import Conflict, Store, StoreError, database_url


def spec(name="digits", **fields):
    return parse_spec({"name": name, "command": "python train.py", **fields})


@pytest.fixture
def kept(where):
    store = Store(where)
    yield store
    store.close()


def test_the_tables_are_those_of_the_migrations(kept):
    found = inspect(kept.engine)
    for table in t.Base.metadata.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}, table.name
        assert {i["name"] for i in found.get_indexes(table.name)} >= {i.name for i in table.indexes}, table.name


def test_a_submission_is_taken_once(kept):
    first, new = kept.submit(spec(), "key", 1.0)
    again, new_again = kept.submit(spec(), "key", 2.0)
    assert (new, new_again) == (True, False) and again == first
    assert [(e["kind"], e["job"]) for e in kept.events()] == [("submitted", first.id)]


def test_a_key_stands_for_one_job_and_a_name_for_one_that_has_not_ended(kept):
    first, _ = kept.submit(spec(), "key", 1.0)
    with pytest.raises(Conflict, match="key: 'key' was used for job 'digits', which is another"):
        kept.submit(spec("other"), "key", 2.0)
    with pytest.raises(Conflict, match="name: 'digits' is in use by a job that is waiting"):
        kept.submit(spec(), "another key", 2.0)
    assert kept.change_job(first.id, state=t.FINISHED, ended_at=3.0)
    second, new = kept.submit(spec(), None, 4.0)
    assert new and second.id != first.id and kept.job("digits") == second
    assert [row.id for row in kept.jobs(live=True)] == [second.id]
    assert [row.id for row in kept.jobs(live=False)] == [first.id]


def test_a_job_that_has_ended_changes_no_more(kept):
    row, _ = kept.submit(spec(), None, 1.0)
    assert kept.change_job(row.id, state=t.CANCELLED)
    assert not kept.change_job(row.id, state=t.RUNNING)
    assert kept.job("digits").state == t.CANCELLED


def test_of_many_clients_at_once_with_one_key_one_submits(kept):
    results, errors = [], []

    def submit():
        try:
            results.append(kept.submit(spec(), "key", 1.0))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(new for _, new in results) == 1 and len({row.id for row, _ in results}) == 1


def test_of_two_services_one_leads_until_it_is_silent(kept, where):
    other = Store(where)
    assert kept.lead("scheduler", "a", 0.0, 10) and not other.lead("scheduler", "b", 5.0, 10)
    assert kept.lead("scheduler", "a", 9.0, 10) and kept.leader("scheduler", 18.0) == "a"
    assert other.lead("scheduler", "b", 20.0, 10) and not kept.lead("scheduler", "a", 21.0, 10)
    other.resign("scheduler", "b")
    assert kept.leader("scheduler", 21.0) is None and kept.lead("scheduler", "a", 21.0, 10)
    other.close()


def test_several_services_may_begin_on_an_empty_record_at_once(where):
    stores, errors = [], []

    def open_it():
        try:
            stores.append(Store(where))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(stores) == 4
    for store in stores:
        store.close()


def test_what_was_changed_is_told_by_job(kept):
    row, _ = kept.submit(spec(), None, 1.0)
    decision = kept.add_decision(
        at=2.0, slot=0, slot_seconds=30.0, policy="drf", jobs=1, observe_ms=1.0, decide_ms=1.0, snapshot=b"x"
    )
    sizes = {"servers_before": 0, "workers_before": 0, "servers": 1, "workers": 2}
    (change,) = kept.add_changes([{"at": 2.0, "decision": decision, "job": row.id, "kind": "start", **sizes}])
    kept.set_change(change, outcome="done", seconds=1.5, bytes_moved=5_000_000_000)
    (found,) = kept.changes(row.id)
    assert (found["outcome"], found["seconds"], found["bytes_moved"], found["workers"]) == ("done", 1.5, 5e9, 2)
    assert kept.changes(row.id + 1) == []
    assert [d.id for d in kept.decisions()] == [decision] and kept.last_decision().snapshot == b"x"
    assert kept.prune(3.0) == 1 and kept.changes() == [] and kept.job("digits") is not None


def test_settings_are_kept(kept, where):
    kept.set("policy", {"name": "drf"})
    kept.set("policy", {"name": "dl2x"})
    other = Store(where)
    assert other.setting("policy") == {"name": "dl2x"} and other.setting("none", 7) == 7
    assert other.size() > 0
    other.close()


def test_a_record_of_the_first_version_is_brought_to_this_one(where):
    engine = engine_of(database_url(where))
    migrate(engine, "0001")
    first = dict.fromkeys(("state", "wish", "reason"), "") | dict.fromkeys(("attempt", "servers", "workers"), 0)
    row = {**first, "name": "old", "digest": "", "spec": spec("old").model_dump_json(), "submitted_at": 1.0}
    row |= {"state": t.FINISHED, "handle": "{}", "done": 0.0, "service": 0.0}
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO jobs ({', '.join(row)}) VALUES (:{', :'.join(row)})"), row)
    engine.dispose()
    store = Store(where)
    assert store.job("old").spec == spec("old") and store.job("old").dropped_at is None
    store.close()


def test_a_record_of_a_later_version_is_left_alone(kept, where):
    with kept.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="a later version of elastic-mx has written this record") as caught:
        Store(where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("mysql://host/db", "'mysql' is no database of ours: sqlite and postgresql are known"),
        ("://", "'://' is no URL of a database"),
        ("postgresql://nobody:secret@127.0.0.1:1/db", "the record cannot be opened"),
        ("postgresql://nobody@127.0.0.1:1/db?password=secret", "the record cannot be opened"),
    ],
)
def test_a_record_that_cannot_be_is_told_in_one_line(url, line):
    with pytest.raises(StoreError) as caught:
        Store(url)
    assert line in str(caught.value) and "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_the_file_is_its_owners_alone(tmp_path):
    store = Store(tmp_path / "state")
    path = database_url(tmp_path / "state").database
    store.close()
    import os

    assert os.stat(path).st_mode & 0o077 == 0
