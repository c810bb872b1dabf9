"""The service's HTTP API over a real socket, as clients meet it: tokens, several at once, and a record that fails."""

from concurrent.futures import ThreadPoolExecutor

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from scheduler.service.commands import policy
from scheduler.service.http import NoAnswer, Refused, ServiceClient, ServiceError
from scheduler.service.listen import address_of, bind, serve_api
from scheduler.service.service import Service
from scheduler.service.simulated import SimulatedCluster
from scheduler.service.slot import Node
from scheduler.service.snapshot import unpack
from scheduler.service.spec import parse_spec

TOKEN = "a-token-of-24-characters"
JOB = {"name": "one", "command": "python train.py"}


@pytest.fixture
def service(store):
    return Service(store, SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0), 10.0, "drf")


@pytest.fixture
def url(service, monkeypatch):
    listener = bind("127.0.0.1", 0)
    server = serve_api(service, listener, TOKEN)
    monkeypatch.setenv("ELASTIC_MX_TOKEN", TOKEN)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True


def test_a_client_needs_the_token(url, monkeypatch):
    assert ServiceClient(url).ask("GET", "/jobs") == []
    for wrong in ("", "another-token"):
        monkeypatch.setenv("ELASTIC_MX_TOKEN", wrong)
        with pytest.raises(ServiceError, match="the token is missing or wrong: set ELASTIC_MX_TOKEN to the service's"):
            ServiceClient(url).ask("POST", "/jobs", {"spec": JOB})
    monkeypatch.setenv("ELASTIC_MX_TOKEN", "a\nb")
    with pytest.raises(ServiceError, match="ELASTIC_MX_TOKEN: use printable ASCII characters"):
        ServiceClient(url)


def test_of_clients_that_submit_a_job_at_once_one_does(url, store):
    def submit(key):
        try:
            return ServiceClient(url).ask("POST", "/jobs", {"spec": JOB, "key": key})["new"]
        except Refused as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, ["k"] * 8))
        assert sorted(answers) == [False] * 7 + [True]
        others = list(pool.map(submit, "abcd"))
    assert set(others) == {"name: 'one' is in use by a job that is waiting: choose another, or cancel that one"}
    assert len(store.jobs()) == 1


def test_a_record_that_fails_is_told_and_the_service_answers_again_when_it_is_mended(url, store):
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs RENAME TO gone"))
    with pytest.raises(ServiceError, match=r"the service cannot use its record \(no such table: jobs\): jobs train on"):
        ServiceClient(url).ask("GET", "/jobs")
    with store.engine.begin() as connection:
        connection.execute(text("ALTER TABLE gone RENAME TO jobs"))
    assert ServiceClient(url).ask("GET", "/jobs") == []


def test_the_policy_that_a_client_sets_decides_from_the_next_slot_on(url, service):
    client = ServiceClient(url)
    with pytest.raises(Refused, match="policy: no policy 'x': choose among "):
        client.ask("PUT", "/policy", {"policy": "x"})
    assert client.ask("PUT", "/policy", {"policy": "srtf"})["policy"] == "srtf"
    client.ask("POST", "/jobs", {"spec": JOB})
    service.slot(1000.0)
    assert service.store.last_decision().policy == "srtf"


def test_of_several_services_the_first_that_answers_is_asked(url):
    with bind("127.0.0.1", 0) as silent:
        free = silent.getsockname()[1]
    client = ServiceClient(f"127.0.0.1:{free},{url}")
    assert client.ask("GET", "/jobs") == [] and client.urls[0] == f"http://{url}"
    with pytest.raises(
        NoAnswer, match=f"no service answers at http://127.0.0.1:{free} .*start one with elastic-mx serve"
    ):
        ServiceClient(f"127.0.0.1:{free}").ask("GET", "/jobs")


def test_where_a_service_cannot_listen_is_told(url, monkeypatch):
    port = url.partition(":")[2]
    with pytest.raises(
        click.ClickException, match=f"--listen: 127.0.0.1:{port} cannot be listened at: Address already in use"
    ):
        bind("127.0.0.1", int(port))
    monkeypatch.delenv("ELASTIC_MX_TOKEN")
    for wrong, reason in (
        ("8642", "is no HOST:PORT"),
        ("h:0", "is no HOST:PORT"),
        ("0.0.0.0:1", "is not loopback: set"),
    ):
        with pytest.raises(click.UsageError, match=reason):
            address_of(wrong)


def test_decisions_are_told_beside_the_shadows(store):
    cluster = SimulatedCluster([Node("a", (4.0, 16.0, 0.0))], lambda *_: 0.1, start=1000.0)
    service = Service(store, cluster, 10.0, "drf", shadow="fifo")
    listener = bind("127.0.0.1", 0)
    server = serve_api(service, listener, "")
    url = f"127.0.0.1:{listener.getsockname()[1]}"
    shown = CliRunner().invoke(policy, ["log", "--service", url])
    assert shown.output == "nothing was decided yet\n"
    service.submit(parse_spec({**JOB, "workers": {"max": 2}, "servers": {"max": 1}}), None)
    service.slot(1000.0)
    [decision] = ServiceClient(url).ask("GET", "/decisions")
    assert (decision["policy"], decision["shadow"], [job["job"] for job in decision["jobs"]]) == (
        "drf",
        "fifo",
        ["one"],
    )
    [job] = decision["jobs"]
    row, [recorded] = store.jobs()[0], store.decisions()
    assert job["had"] == [0, 0] and job["given"] == [row.servers, row.workers] != [0, 0]
    assert job["shadow"] == [part[0] for part in unpack(recorded.snapshot)["shadow"]]
    shown = CliRunner().invoke(policy, ["log", "--service", url]).output.splitlines()
    assert shown[0].split() == ["at", "policy", "job", "had", "asked", "given", "fifo"]
    sizes = ["+".join(map(str, job[name])) for name in ("had", "asked", "given", "shadow")]
    assert shown[1].split()[1:] == ["drf", "one", *sizes]
    server.should_exit = True
