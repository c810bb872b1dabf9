"""The loop closes, with real jobs: recorded under DRF, an agent is trained, serves and learns; a bad one falls back."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from scheduler.learn import checkpoint
from scheduler.service.http import ServiceClient
from tests.launcher.harness import PYTHON, ROOT, wait_until
from tests.scheduler.service.test_service import ask, get, shell  # noqa: F401  (a fixture)

pytest.importorskip("mxnet")

LOADED_SECONDS = 240  # the learner has the lowest priority: beside others that are busy its few seconds take minutes


@contextmanager
def serving(shell, *options):  # noqa: F811
    address = shell.environment["ELASTIC_MX_SERVICE"].partition("//")[2]
    common = ["--slot", "1s", "--state", "state", "--nodes", "nodes.yaml", "--listen", address]
    with open(shell.folder / "serve.err", "wb") as errors:
        process = subprocess.Popen(
            [*PYTHON, "serve", *common, *options],
            env=shell.environment,
            cwd=shell.folder,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert b"policy" in process.stdout.readline(), (shell.folder / "serve.err").read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def submit(shell, name, epochs, most):  # noqa: F811
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", str(epochs)]
    tasks = {"workers": {"max": most, "cpus": 0.5}, "servers": {"max": most, "cpus": 0.5}}
    spec = {"name": name, "type": "digits", "command": command, "epochs": epochs, **tasks}
    ServiceClient(shell.environment["ELASTIC_MX_SERVICE"]).ask("POST", "/jobs", {"spec": spec, "key": name})


def finished(shell):  # noqa: F811
    wait_until(lambda: not get(shell, "/jobs?live=true"), LOADED_SECONDS)
    assert {job["state"] for job in get(shell, "/jobs")} == {"finished"}
    return True


@pytest.mark.timeout(600)
def test_recorded_trained_served_learnt_and_fallen_back(shell):  # noqa: F811
    with serving(shell):
        for number in range(4):
            submit(shell, f"a-{number}", 3, most=1)
        assert finished(shell)
    given = ["--from-record", "state", "--teacher", "drf", "--warmup", "2", "--validation", "1", "--out", "agent.pt"]
    ran = shell.run("train-policy", *given, timeout=LOADED_SECONDS)
    assert ran.returncode == 0 and "4 jobs of 1 types" in ran.stdout, ran.stdout + ran.stderr
    data = checkpoint.load(shell.folder / "agent.pt")

    with serving(shell, "--policy", "dl2x", "--agent", "agent.pt", "--learn"):
        wait_until(lambda: (get(shell, "/policy")["learning"] or {}).get("rounds"), LOADED_SECONDS)
        assert "policy: dl2x\nlearning dl2x: " in shell.run("nodes").stdout
        submit(shell, "b-1", 10, most=2)
        wait_until(lambda: get(shell, "/jobs/b-1")["state"] == "running", LOADED_SECONDS)
        assert (shell.folder / "serve.err").read_text() == ""

        data["network"] = {name: torch.full_like(value, float("nan")) for name, value in data["network"].items()}
        checkpoint.save(data, shell.folder / "agent.pt")  # while the job trains
        assert ask(shell, "policy", "set", "dl2x")["decides"] == "dl2x"
        wait_until(lambda: get(shell, "/policy")["fallen"], LOADED_SECONDS)
        assert finished(shell)
        told = shell.run("describe", "b-1").stdout
        assert "policy: dl2x, fallen back: dl2x gave no valid answer (ValueError: dl2x: the network's output" in told
    errors = (shell.folder / "serve.err").read_text()
    assert errors.count("\n") == 1 and "drf decides until elastic-mx policy set dl2x" in errors
