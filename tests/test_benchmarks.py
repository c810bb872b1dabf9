"""Each benchmark runs on a tiny size and reports what it promises; what the figures are, `make bench` tells."""

import json
import math
import os
import subprocess
import sys

import pytest

from benchmarks.common import keys
from benchmarks.jobs import ROOT
from benchmarks.report import HEAD, section, sections

SMALLEST = ("--workers=1", "--servers=1", "--rounds=1")


def run(name, *arguments):
    """Run a benchmark and return the JSON of its last line; it must have printed a table as well."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
        check=True,
    )
    *lines, last = done.stdout.splitlines()
    assert any(line.startswith("|--") for line in lines)
    result = json.loads(last)
    assert "cores" in result["machine"]
    return result


def test_the_keys_are_those_of_the_models():
    sizes = {name: sum(math.prod(shape) for shape in keys(name)) for name in ("resnet50", "vgg16")}
    assert sizes == {"resnet50": 25_557_032, "vgg16": 138_357_544}
    assert len(keys("resnet50")) == 161


def test_kvstore_measures_both_sides():
    result = run("kvstore", "--keys=tiny", "--transport=tcp", "--optimizer=sgd", *SMALLEST)
    assert result["elastic_ms"] > 0 and result["pslite_ms"] > 0
    assert result["speedup"] == pytest.approx(result["pslite_ms"] / result["elastic_ms"])


def test_training_measures_both_sides():
    result = run("training", "--models", "lstm", "--batch=1", "--steps=1", *SMALLEST)
    [lstm] = result["models"]
    assert lstm["speedup"] == pytest.approx(lstm["pslite_ms"] / lstm["elastic_ms"])
    assert 0 <= lstm["elastic_waiting"] < 1


def test_resize_makes_changes_and_the_restart():
    result = run("resize", "--keys=tiny", "--compute-ms=5", "--together", *SMALLEST)
    assert [event["kind"] for event in result["events"]] == ["+server +worker", "-server -worker"]
    for event in result["events"]:
        assert event["stall_ms"] >= 0 and event["median_step_ms"] >= 5 and event["in_force_ms"] > 0
        assert event["bytes_moved"] > 0
    assert result["checkpoint_restart_s"] > 0


def test_scale_simulates_and_runs_real_jobs():
    result = run("scale", "--slices=2000", "--max-simulated=10", "--max-workers=1", "--keys=tiny", "--rounds=1")
    assert [(run["workers"], run["servers"]) for run in result["simulated"]] == [(10, 10), (10, 100)]
    assert all(run["messages_per_process"] < 8 for run in result["simulated"])
    assert result["real"]["jobs"][0]["ms"] > 0


@pytest.mark.timeout(160)
def test_jobs_arrive_at_random_while_the_service_is_killed_and_use_every_sample_once_per_epoch():
    result = run("ten_jobs", "--jobs=3", "--within=6", "--epochs", "40", "120", "--kills", "9", "--cpus=1.5")
    assert (result["finished"], result["kills"], result["left"], result["problems"]) == (3, 1, 0, [])
    assert result["resizes"] > 0 and min(job["accuracy"] for job in result["jobs"]) > 0.9


@pytest.mark.timeout(160)
def test_live_runs_the_same_jobs_in_simulation_with_what_it_measured():
    result = run("live", "--jobs=2", "--within=3", "--epochs", "20", "30", "--slot=1")
    assert result["jobs"] == len(result["each"]) == 2
    assert result["simulated_mean_jct_s"] == pytest.approx(result["live_mean_jct_s"], rel=0.4)
    assert all(row["speed"] > 0 for row in result["epochs_per_s"]) and result["timings_s"]["starting"] > 0


def test_what_a_report_holds_stands_until_its_benchmark_has_run_again(tmp_path):
    path = tmp_path / "RESULTS.md"
    assert sections(path) == {}
    written = {f"python -m benchmarks.{name} --x": section((name, "--x"), "## no title", 3) for name in ("a", "b")}
    path.write_text("\n".join([HEAD, *written.values()]))
    assert sections(path) == written
