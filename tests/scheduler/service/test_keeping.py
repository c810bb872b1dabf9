"""What jobs leave behind is deleted in time, and nothing else."""

from dataclasses import replace

import pytest

from scheduler.service import tables as t
from scheduler.service.keeping import Keep, finished, tidy
from scheduler.service.local import LocalCluster
from scheduler.service.nodes import this_machine
from scheduler.service.spec import parse_spec

FILES = ("1-1/logs/worker-0.log", "1-2/logs/worker-0.log", "1-checkpoint/manifest.json", "11-1/logs/worker-0.log")


@pytest.fixture
def cluster(tmp_path):
    cluster = LocalCluster(tmp_path / "jobs", this_machine())
    for name in FILES:
        (cluster.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cluster.folder / name).touch()
    yield cluster
    cluster.close()


def ended(store, at, state=t.FAILED, **fields):
    row, _ = store.submit(parse_spec({"name": f"job-{at}", "command": "true", **fields}), None, 0.0)
    store.change_job(row.id, state=state, attempt=2, ended_at=at)
    return store.job(row.name)


def left(cluster):
    return [name for name in FILES if (cluster.folder / name).exists()]


def test_what_a_job_that_ended_left_is_deleted_after_its_time(store, cluster):
    ended(store, 100.0)
    ended(store, 200.0)
    keep = Keep(jobs=50.0, record=500.0)
    tidy(store, cluster, keep, 149.0)
    assert left(cluster) == list(FILES) and [row.dropped_at for row in store.jobs()] == [None, None]
    tidy(store, cluster, keep, 151.0)
    assert left(cluster) == ["11-1/logs/worker-0.log"] and [row.dropped_at for row in store.jobs()] == [151.0, None]
    assert len(store.events()) == 2
    tidy(store, cluster, keep, 600.0)
    assert store.events() == [] and [row.dropped_at for row in store.jobs()] == [151.0, 600.0]


def test_the_checkpoint_of_a_job_that_finished_goes_at_once_unless_it_is_to_be_kept(store, cluster):
    kept = ended(store, 100.0, t.FINISHED, keep_checkpoint=True)
    finished(kept, cluster)
    assert left(cluster) == list(FILES)
    finished(replace(kept, spec=parse_spec({"name": "x", "command": "true"})), cluster)
    assert left(cluster) == [name for name in FILES if "checkpoint" not in name]


def test_what_cannot_be_deleted_is_told_once(store, cluster):
    row = ended(store, 100.0)
    (cluster.folder / "1-3").touch()  # no folder
    for now in (300.0, 301.0):
        tidy(store, cluster, Keep(jobs=50.0), now)
    assert [e["kind"] for e in store.events(row.id)] == ["submitted", "error"]
