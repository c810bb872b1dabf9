"""The loop closes, with real jobs: recorded under DRF, an agent is trained, serves and learns; a bad one falls back."""

import signal
import subprocess
from contextlib import contextmanager

import pytest
import torch

from scheduler.learn import checkpoint
from tests.launcher.harness import PYTHON, wait_until
from tests.scheduler.service.test_service import ask, get, job, shell  # noqa: F401  (a fixture)

pytest.importorskip("mxnet")


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
        process.wait(20)
        process.stdout.close()


def run(shell, *names):  # noqa: F811
    """Submits real jobs and waits until all have ended well."""
    for name in names:
        ask(shell, "submit", job(shell, name, 3))
    wait_until(lambda: not get(shell, "/jobs?live=true"), 120)
    assert [get(shell, f"/jobs/{name}")["state"] for name in names] == ["finished"] * len(names)


@pytest.mark.timeout(240)
def test_recorded_trained_served_learnt_and_fallen_back(shell):  # noqa: F811
    with serving(shell):
        run(shell, "a-1", "a-2", "a-3", "a-4")
    ran = shell.run("train-policy", "--from-record", "state", "--warmup", "2", "--validation", "1", "--out", "agent.pt")
    assert ran.returncode == 0 and "4 jobs of 1 types" in ran.stdout, ran.stdout + ran.stderr
    with serving(shell, "--policy", "dl2x", "--agent", "agent.pt", "--learn"):
        run(shell, "b-1")
        wait_until(lambda: (get(shell, "/policy")["learning"] or {}).get("rounds", 0) >= 2, 60)
        body = get(shell, "/policy")
        assert (body["policy"], body["decides"], body["fallen"]) == ("dl2x", "dl2x", None)
        assert "learning dl2x" in shell.run("nodes").stdout

    data = checkpoint.load(shell.folder / "agent.pt")
    data["network"] = {name: torch.full_like(value, float("nan")) for name, value in data["network"].items()}
    checkpoint.save(data, shell.folder / "bad.pt")
    with serving(shell, "--policy", "dl2x", "--agent", "bad.pt"):
        run(shell, "c-1")
        for line in (
            shell.run("nodes").stdout,
            shell.run("describe", "c-1").stdout,
            shell.run("policy", "show").stdout,
        ):
            assert "policy: dl2x, fallen back: dl2x gave no valid answer" in line
        assert ask(shell, "policy", "set", "srtf")["decides"] == "srtf"
    errors = (shell.folder / "serve.err").read_text()
    assert errors.count("\n") == 1 and "drf decides until elastic-mx policy set dl2x" in errors
