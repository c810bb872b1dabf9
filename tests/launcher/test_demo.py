"""The demo and the examples, run as a user runs them, and the demo's account of what it saw."""

import json
import shlex

import pytest

from launcher.demo.story import CHANGES, Story
from tests.launcher.harness import ROOT


def status(step, workers=1, servers=1):
    return {"workers": [{"step": step - n} for n in range(workers)], "servers": [{}] * servers}


def test_throughput_is_the_samples_per_second_of_the_steps_reported_lately():
    story = Story(steps=1000, batch_size=64)
    for tick in range(41):
        story.saw(100 + tick * 0.25, status(1 + tick // 2 * 5))
    assert story.samples[0].throughput == 0.0
    assert story.samples[-1].throughput == pytest.approx(64 * 10)
    assert story.samples[-1].seconds == 10.0


def test_throughput_falls_when_no_step_is_reported():
    story = Story(steps=1000, batch_size=10)
    for tick in range(5):
        story.saw(tick, status(1 + tick * 100))
    story.saw(20, status(401 + 16))
    assert story.samples[-1].throughput == pytest.approx(10)


def test_each_change_is_due_once_the_job_is_far_enough_and_the_one_before_is_in_force():
    story = Story(steps=100, batch_size=64)
    story.saw(0, status(0))
    assert story.due() is None and story.began is None
    story.saw(1, status(99))
    for change in CHANGES:
        assert story.due() == change
        story.resized(2, {"kind": "", "workers": change.workers, "servers": change.servers})
    assert story.due() is None
    assert [(c.workers, c.servers) for c in CHANGES] == [(1, 2), (2, 2), (2, 1), (1, 1)]


@pytest.mark.timeout(300)
def test_the_demo_resizes_a_real_job_four_times_and_tells_it(shell):
    ran = shell.run("demo-resize", "--epochs", 24, "--out", "out", timeout=250)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads((shell.folder / "out" / "summary.json").read_text())
    assert summary["accuracy"] >= 0.97
    kinds = [resize["kind"] for resize in summary["resizes"]]
    assert kinds == ["+1 server", "+1 worker", "-1 server", "-1 worker"]
    assert all(kind in ran.stdout for kind in kinds) and "held-out accuracy" in ran.stdout
    steps = [resize["step"] for resize in summary["resizes"]]
    assert steps == sorted(set(steps)) and steps[0] > 0 and steps[-1] < summary["steps"] == 24 * 23
    assert summary["resizes"][0]["bytes_moved"] > 0
    assert {(point["workers"], point["servers"]) for point in summary["timeline"]} >= {(1, 1), (1, 2), (2, 2)}
    assert (shell.folder / "out" / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "[worker-1] epoch" in (shell.folder / "out" / "job.log").read_text()


@pytest.mark.timeout(200)
def test_the_demo_of_the_service_tells_jobs_and_resizes_under_both_policies(shell):
    ran = shell.run("demo", "--epochs", 14, "--policy", "srtf", "--out", "out", timeout=180)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads((shell.folder / "out" / "summary.json").read_text())
    assert (summary["policy"], summary["beside"]["policy"]) == ("srtf", "drf")
    for run in (summary, summary["beside"]):
        assert [job["name"] for job in run["jobs"]] == ["digits-1", "digits-2", "digits-3"]
        assert all(job["accuracy"] > 0.9 and job["jct_s"] > 0 for job in run["jobs"])
        assert run["timeline"]
    assert all(set(one) >= {"job", "servers", "workers", "stall_seconds"} for one in summary["resizes"])
    assert "longest stall" in ran.stdout
    assert (shell.folder / "out" / "allocation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("example", "options", "result"),
    [
        ("digits.py", ["--epochs", "3"], "held-out accuracy 0."),
        ("module.py", ["--epochs", "12", "--pause", "0.01"], "held-out accuracy 0.9"),
        ("raw_kvstore.py", ["--epochs", "12", "--pause", "0.01"], "] largest error 0.0000"),
    ],
)
def test_an_example_runs_as_its_header_says_only_for_a_shorter_time(shell, example, options, result):
    header = (ROOT / "examples" / example).read_text().split('"""')[1].splitlines()
    (line,) = [line.partition("#")[0] for line in header if line.startswith("elastic-mx launch")]
    command = shlex.split(line.replace("examples/", f"{ROOT}/examples/"))
    ran = shell.run(*command[1:], *options, timeout=90)  # of an option given twice the last counts
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(result) == (2 if "-n 2" in line else 1)
