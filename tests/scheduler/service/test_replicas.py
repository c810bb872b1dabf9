"""Two services on one PostgreSQL server, as a user runs them: the one that leads is killed, jobs end once."""

import json
import signal
import socket
import subprocess
import time

import pytest

from scheduler.service.http import ServiceClient
from scheduler.service.lead import TAKEOVER_SECONDS
from tests.launcher.harness import PYTHON, Shell, wait_until

JOBS = 5


class Replica:
    def __init__(self, shell, url):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.client = ServiceClient(self.address)
        options = ["--slot", "2s", "--state", url, "--jobs", "jobs", "--nodes", "nodes.yaml", "--listen", self.address]
        self.process = subprocess.Popen(
            [*PYTHON, "serve", *options], env=shell.environment, cwd=shell.folder, stdout=subprocess.PIPE, text=True
        )

    def ready(self):
        assert "policy drf" in self.process.stdout.readline()

    def get(self, path):
        return self.client.ask("GET", path)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(30)
        self.process.stdout.close()


def spec(shell, number):
    command = ["sh", "-c", f"echo $$ >> {shell.folder}/started-{number}; sleep 3"]
    tasks = {"workers": {"max": 1}, "servers": {"max": 1, "cpus": 0.1}}
    fields = {"name": f"job-{number}", "command": command, "workdir": str(shell.folder), **tasks}
    return {"spec": fields, "key": str(number)}


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    shell.environment["OMP_NUM_THREADS"] = "1"
    (tmp_path / "nodes.yaml").write_text(json.dumps([{"name": "a", "cpus": 2.2, "memory": "16GiB"}]))  # two jobs
    yield shell
    left = shell.close()
    assert not left, f"still running at the end: {left}"


@pytest.mark.timeout(180)
def test_a_leader_is_killed_and_the_other_goes_on(shell, fresh_database):
    replicas = [Replica(shell, fresh_database) for _ in range(2)]
    for replica in replicas:
        replica.ready()
    wait_until(lambda: any(replica.get("/lead")["leads"] for replica in replicas))
    leader, other = sorted(replicas, key=lambda replica: not replica.get("/lead")["leads"])
    assert other.get("/lead")["leader"] == leader.get("/lead")["this"] and not other.get("/lead")["leads"]
    for number in range(JOBS - 1):
        (other, leader)[number % 2].client.ask("POST", "/jobs", spec(shell, number))
    wait_until(lambda: len(list(shell.folder.glob("started-*"))) == 2, 60)

    leader.end(signal.SIGKILL)
    killed = time.monotonic()
    either = ServiceClient(f"{leader.address},{other.address}")
    either.ask("POST", "/jobs", spec(shell, JOBS - 1))
    assert len(other.get("/jobs?live=true")) == JOBS
    assert other.get("/nodes")[0]["tasks"] == 4, "jobs stopped because the service did"
    wait_until(lambda: other.get("/lead")["leads"], 60)
    assert time.monotonic() - killed < TAKEOVER_SECONDS + 5  # a busy machine

    wait_until(lambda: not other.get("/jobs?live=true"), 90)
    jobs = other.get("/jobs")
    assert [(job["state"], job["attempt"]) for job in jobs] == [("finished", 1)] * JOBS
    assert all((shell.folder / f"started-{number}").read_text().count("\n") == 1 for number in range(JOBS))
    assert sorted(change["job"] for change in other.get("/changes")) == [job["id"] for job in jobs]
    assert len([event for event in other.get("/events") if event["kind"] == "leads"]) == 2
    other.end(signal.SIGTERM)
