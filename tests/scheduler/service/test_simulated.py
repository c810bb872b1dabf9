"""The service on a simulated cluster, by its own loop: jobs are resized, wait for room, and end in time."""

import pytest

from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster, Timings
from scheduler.service.slot import Node
from scheduler.service.spec import parse_spec


def spec(name, **fields):
    tasks = {"workers": {"max": 2}, "servers": {"max": 2, "cpus": 0.5}}
    return parse_spec({"name": name, "command": "python train.py", "epochs": 10, **tasks, **fields})


def serve(store, nodes, timings, arrivals):
    """Runs until all is done; the jobs as the record has them."""
    cluster = SimulatedCluster(nodes, lambda _, size: 0.1 * size[1], timings, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    for at, job in arrivals:
        cluster.call(1000.0 + at, lambda job=job: service.submit(job, None))
    cluster.idle = service.stop
    service.run()
    return store.jobs()


def test_a_job_alone_ends_after_its_start_its_training_and_its_end(store):
    timings = Timings(starting=4, ending=2)
    [row] = serve(store, [Node("a", (4.0, 16.0, 0.0))], timings, [(5, spec("one"))])
    assert (row.state, row.done) == ("finished", 10)
    assert row.ended_at - row.submitted_at == pytest.approx(4 + 10 / 0.2 + 2)


def test_jobs_share_the_room_and_grow_when_one_ends(store):
    timings = Timings(starting=1, growing=3, shrinking=1, stall=0.5, ending=1)
    arrivals = [(0, spec("one")), (1, spec("two")), (2, spec("three", epochs=3))]
    rows = serve(store, [Node("a", (4.0, 16.0, 0.0))], timings, arrivals)
    assert [row.state for row in rows] == ["finished"] * 3
    changes = [c for c in store.changes() if c["kind"] == "resize"]
    assert changes and all(c["outcome"] == "done" and c["stall_seconds"] == 0.5 for c in changes)
    starts = {c["job"]: c["at"] for c in store.changes() if c["kind"] == "start"}
    assert starts[3] >= min(row.ended_at for row in rows[:2]), "three began where there was no room for it"
    assert {c["seconds"] for c in changes} <= {1.0, 3.0}


def test_a_cancelled_job_gives_its_room_back(store):
    cluster = SimulatedCluster([Node("a", (2.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    for name in ("one", "two"):
        service.submit(spec(name), None)
    cluster.call(1030.0, lambda: service.cancel(store.job("one")))
    cluster.idle = service.stop
    service.run()
    one, two = store.jobs()
    assert (one.state, one.ended_at) == ("cancelled", 1030.0)
    assert (two.state, two.started_at) == ("finished", 1030.0)
