"""The service as a user runs it: real jobs are resized, it is killed meanwhile, and bad jobs are refused."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from scheduler.service.http import ServiceClient
from tests.launcher.harness import PYTHON, ROOT, Shell, wait_until

pytest.importorskip("mxnet")


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shell.environment["ELASTIC_MX_SERVICE"] = f"http://127.0.0.1:{port}"
    shell.environment["OMP_NUM_THREADS"] = "1"
    (tmp_path / "nodes.yaml").write_text(json.dumps([{"name": "a", "cpus": 4, "memory": "16GiB"}]))
    yield shell
    left = shell.close()
    assert not left, f"still running at the end: {left}"


@contextmanager
def service(shell):
    address = shell.environment["ELASTIC_MX_SERVICE"].partition("//")[2]
    options = ["--slot", "1s", "--state", "state", "--nodes", "nodes.yaml", "--listen", address]
    process = subprocess.Popen(
        [*PYTHON, "serve", *options], env=shell.environment, cwd=shell.folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert "policy drf" in process.stdout.readline()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        process.stdout.close()


def job(shell, name, epochs=10, **fields):
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", str(epochs)]
    tasks = {"workers": {"max": 2}, "servers": {"max": 2, "cpus": 0.5}}
    path = shell.folder / f"{name}.yaml"
    path.write_text(json.dumps({"name": name, "command": command, "epochs": epochs, **tasks, **fields}))
    return path


def ask(shell, *arguments):
    ran = shell.run(*arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def get(shell, path):
    return ServiceClient(shell.environment["ELASTIC_MX_SERVICE"]).ask("GET", path)


def state(shell, name):
    return get(shell, f"/jobs/{name}")["state"]


@pytest.mark.timeout(240)
def test_two_jobs_train_through_resizes_and_a_kill_of_the_service(shell):
    with service(shell) as first:
        assert ask(shell, "submit", job(shell, "one", 20), "--key", "k")["new"]
        assert not ask(shell, "submit", shell.folder / "one.yaml", "--key", "k")["new"]
        ask(shell, "submit", job(shell, "two"))
        wait_until(lambda: state(shell, "two") == "running", 90)
        first.kill()
        first.wait()
    pids = {name: task["pid"] for name, task in _tasks(shell).items()}
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids.values())
    with service(shell):
        wait_until(lambda: not get(shell, "/jobs?live=true"), 150)
        for name in ("one", "two"):
            body = ask(shell, "describe", name)
            assert (body["state"], body["attempt"]) == ("finished", 1), body
            assert [change["kind"] for change in body["changes"]].count("start") == 1
            assert "held-out accuracy 0.9" in shell.run("logs", name).stdout
        done = [c for c in ask(shell, "describe", "one")["changes"] if c["kind"] == "resize" and c["outcome"] == "done"]
        assert done, "job one was never resized"
        sizes = [(c["servers"], c["workers"]) != (c["servers_before"], c["workers_before"]) for c in done]
        assert all(sizes) and len(done) < 20, "resizes that change nothing"
        assert ask(shell, "nodes")[0]["cpus"] == {"all": 4.0, "used": 0.0}


def _tasks(shell, attempt="2-1"):
    state = shell.folder / "state" / "jobs" / attempt / "state.json"
    return {k: t for k, t in json.loads(state.read_text())["tasks"].items() if t["ended"] is None and t["pid"]}


@pytest.mark.timeout(120)
def test_bad_jobs_are_refused_with_one_line_and_jobs_are_cancelled(shell):
    with service(shell):
        wrong = [
            ({"colour": 1}, "colour: there is no such field"),
            ({"workers": {"min": 3, "max": 2}}, "workers: min is 3, more than max, which is 2"),
            ({"workers": {"cpus": 64}}, "workers.cpus: 64 is more than any node has (4)"),
            ({"command": "no-such-program"}, "command: 'no-such-program' does not exist"),
        ]
        for fields, reason in wrong:
            ran = shell.run("submit", job(shell, "bad", **fields))
            assert ran.returncode != 0 and ran.stderr.count("\n") == 1
            assert ran.stderr.startswith(f"Error: {shell.folder / 'bad.yaml'}, line 1: {reason}")
        assert ask(shell, "jobs", "--all") == []
        ask(shell, "submit", job(shell, "long", command="sleep 600"))
        assert "name: 'long' is in use" in shell.run("submit", shell.folder / "long.yaml").stderr
        assert ask(shell, "policy", "set", "srtf")["policy"] == "srtf"
        assert "no policy 'x'" in shell.run("policy", "set", "x").stderr
        ask(shell, "cancel", "long")
        wait_until(lambda: state(shell, "long") == "cancelled", 60)


DIES_ONCE = """
import os, pathlib, runpy, signal, sys
flag = pathlib.Path({flag!r})
if os.environ["ELASTIC_MX_NAME"] != "worker-0" and not flag.exists():
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["digits.py", "--epochs", "60"]
runpy.run_path({digits!r}, run_name="__main__")
"""


@pytest.mark.timeout(200)
def test_a_worker_that_dies_is_told_and_replaced_and_a_job_goes_on_from_its_checkpoint(shell):
    digits = str(ROOT / "examples" / "digits.py")
    script = shell.script(DIES_ONCE.format(flag=str(shell.folder / "flag"), digits=digits))
    with service(shell):
        ask(shell, "submit", job(shell, "filler", command="sleep 600", workers={"cpus": 2.5}, servers={"cpus": 0.5}))
        wait_until(lambda: state(shell, "filler") == "starting", 30)
        command = [sys.executable, str(script)]
        extra = {"retries": 1, "checkpoint": 1, "servers": {"max": 2, "cpus": 0.5}, "workers": {"max": 2, "cpus": 0.5}}
        ask(shell, "submit", job(shell, "one", 60, command=command, **extra))
        wait_until(lambda: state(shell, "one") == "running", 60)
        ask(shell, "cancel", "filler")
        wait_until(lambda: get(shell, "/jobs/one")["workers"] == 2, 60)  # worker-1 has died, worker-2 came for it
        assert (shell.folder / "flag").exists()
        wait_until(lambda: "checkpoint" in [e["kind"] for e in get(shell, "/jobs/one")["events"]], 30)
        os.kill(_tasks(shell)["worker-0"]["pid"], signal.SIGKILL)
        wait_until(lambda: state(shell, "one") == "finished", 100)
        body = get(shell, "/jobs/one")
        assert body["attempt"] == 2
        told = [event["text"] for event in body["events"] if event["kind"] == "task"]
        assert [text for text in told if "worker-1 on a ended with SIGKILL" in text]
        assert [text for text in told if "worker-0 on a ended with SIGKILL" in text]
        assert any(change["outcome"] == "refused" for change in body["changes"])
        logs = shell.run("logs", "one").stdout
        assert "held-out accuracy 0.9" in logs
        assert not (shell.folder / "state" / "jobs" / "2-checkpoint").exists()
        assert "epoch 59:" in logs and "epoch 0:" not in logs, "the second attempt began anew"
