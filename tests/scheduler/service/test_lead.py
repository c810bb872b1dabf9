"""One of several services leads: one that no longer does changes nothing, and what it left is taken up."""

import threading

import pytest

from scheduler.service.decider import Decider
from scheduler.service.lead import LEASE, Lease, wait_for
from scheduler.service.service import Service, attempt_of
from scheduler.service.simulated import SimulatedCluster
from scheduler.service.slot import Node
from scheduler.service.spec import parse_spec
from scheduler.service.store import Deposed, Store


def spec(name):
    return parse_spec({"name": name, "command": "python train.py", "epochs": 10})


def test_what_a_leader_writes_is_refused_once_another_leads(where):
    store = Store(where)
    assert store.lead(LEASE, "a", 0.0, 10)
    record = store.under(LEASE, "a")
    record.tell(1.0, "test", "while it leads")
    assert store.lead(LEASE, "b", 11.0, 10)
    with pytest.raises(Deposed, match="b leads by now, not a"):
        record.tell(12.0, "test", "when it leads no more")
    store.tell(12.0, "test", "as anybody")
    assert [event["text"] for event in store.events()] == ["while it leads", "as anybody"]
    store.close()


def test_a_leader_that_was_halted_starts_no_job(store):
    cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf", lead=Lease(store, "a"))
    row, _ = service.submit(spec("one"), None)
    assert store.lead(LEASE, "a", 0.0, 10) and store.lead(LEASE, "b", 11.0, 10)
    with pytest.raises(Deposed):
        service.slot(1000.0)
    assert store.job("one") == row and cluster.used([]) == {} and store.decisions() == []


def test_of_two_services_one_leads_and_the_other_takes_over_when_it_leaves(where):
    stores, poked = [Store(where) for _ in range(2)], threading.Event()
    first, second = (Lease(store, name) for store, name in zip(stores, "ab"))
    first.start(threading.Event().set)
    assert wait_for(first, threading.Event())
    second.start(poked.set)
    assert poked.wait(20) and not second.held
    poked.clear()
    stores[0].submit(spec("one"), None, 0.0)
    assert poked.wait(20), "a service is not told of a job that another took in"
    first.close()
    assert wait_for(second, threading.Event()) and not first.held
    second.close()
    for store in stores:
        store.close()


def test_a_job_whose_service_was_killed_before_it_began_is_begun_by_the_next(store):
    row, _ = store.submit(spec("one"), None, 1000.0)
    store.change_job(row.id, state="starting", attempt=1, servers=1, workers=2)
    cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf")
    assert cluster.reserve([], [(attempt_of(row, True), (1, 2))]) == {row.id}
    cluster.idle = service.stop
    service.run()
    assert (store.job("one").state, store.job("one").attempt) == ("finished", 1)


def test_one_that_takes_over_goes_on_with_the_policy_that_was_set_and_closes_what_was_under_way(store):
    def serve(policy):
        cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
        service = Service(store, cluster, 10.0, policy)
        cluster.idle = service.stop
        service.run()
        return service.decider.told()["policy"]

    assert serve("drf") == "drf"
    Decider(store, store, "drf").set("srtf", 1000.0)
    row, _ = store.submit(spec("one"), None, 1000.0)
    decision = store.add_decision(
        at=2.0, slot=0, slot_seconds=10.0, policy="drf", jobs=1, observe_ms=1.0, decide_ms=1.0, snapshot=b"x"
    )
    sizes = {"servers_before": 1, "workers_before": 1, "servers": 1, "workers": 2}
    store.add_changes([{"at": 2.0, "decision": decision, "job": row.id, "kind": "resize", **sizes}])
    assert serve("drf") == "srtf", "started as it was before"
    change = store.changes()[0]
    assert (change["outcome"], change["detail"]) == ("late", "the service that asked for it ended meanwhile")
    assert serve("fifo") == "fifo", "started otherwise"
