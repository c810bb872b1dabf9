"""The commands as a user types them: what they print, and one clear line for what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from click.testing import CliRunner, Result

from launcher.cli import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def given_files(shared_data: Path) -> List[object]:
    return [
        "--workload",
        shared_data / "dl2_small_workload.json",
        "--traces",
        shared_data / "dl2_small_traces.json",
        "--speeds",
        shared_data / "dl2_testbed_speeds.txt",
    ]


def test_simulate_prints_the_json_of_the_given_files(shared_data: Path) -> None:
    result = invoke("simulate", *given_files(shared_data), "--policies", "drf,greedy", "--first", 2, "--json")
    assert result.exit_code == 0, result.output
    policies = json.loads(result.stdout)["policies"]
    assert list(policies) == ["drf", "greedy"]
    assert policies["drf"]["mean_jct"] == pytest.approx((140.25 + 85.94) / 2, abs=0.01)
    assert {"makespan", "decision_ms", "seconds"} <= set(policies["drf"])
    assert policies["drf"]["seconds"] < 28 / 20  # a hundredth is for an idle machine; this one may be busy


def test_simulate_without_files_uses_the_shipped_workload_and_a_seed() -> None:
    first = invoke("simulate", "--policies", "drf", "--draw", 1, "--json")
    again = invoke("simulate", "--policies", "drf", "--draw", 1, "--json")
    other = invoke("simulate", "--policies", "drf", "--draw", 1, "--json", "--seed", 1)
    jct = [json.loads(result.stdout)["policies"]["drf"]["mean_jct"] for result in (first, again, other)]
    assert jct[0] == jct[1] != jct[2]


def test_simulate_prints_a_table_with_the_share_of_the_way_to_the_bound() -> None:
    result = invoke("simulate", "--policies", "drf,greedy-fit", "--draw", 1, "--jobs", 10)
    assert result.exit_code == 0, result.output
    for word in ("mean JCT", "median", "p90", "bound", "makespan", "utilisation", "fairness", "resizes", "decision ms"):
        assert word in result.stdout
    assert "greedy-fit" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "sjf"], "no policy 'sjf': choose among"),
        (["--policies", ","], "--policies names none"),
        (["--policies", "drf,drf"], "names 'drf' more than once"),
        (["--workload", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--speeds", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--epoch-error", "2"], "epoch_error is 2.0, must be a fraction"),
        (["--resize-cost", "free"], "resize cost 'free' is not known"),
        (["--resize-cost", "-3"], "resize cost '-3' is not known: give"),
        (["--slots", "3"], "jobs are unfinished after 3 slots"),
        (["--process", "dl2"], "has no arrivals for peak 3"),
        (["--first", "0"], "--first is 0"),
    ],
)
def test_mistakes_get_one_clear_line(arguments: List[str], message: str) -> None:
    result = invoke("simulate", "--policies", "drf", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_an_agent_that_is_none_or_of_no_named_policy_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    from scheduler.learn import checkpoint

    rubbish = tmp_path / "rubbish.pt"
    rubbish.write_bytes(b"not a checkpoint")
    result = invoke("simulate", "--policies", "drf", "--agent", rubbish)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "rubbish.pt is not an agent: give a file made by elastic-mx train-policy" in result.stderr
    other = tmp_path / "other.pt"
    checkpoint.save({"policy": "dl2x", "features": "f"}, other)
    result = invoke("simulate", "--policies", "drf", "--agent", other)
    assert "is for policy 'dl2x', which --policies does not name" in result.stderr
    result = invoke("simulate", "--policies", "drf,dl2x", "--agent", other)
    assert "reads feature set 'f', this version computes" in result.stderr
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_slot": -3}, "arrival_slot is -3, must be 0 or more"),
        ({"epochs": 0}, "epochs is 0, must be above 0"),
        ({"model": "alexnet"}, "model is 'alexnet', must be one of resnet-50"),
        ({"id": 2}, "id is 2, as in a job before it"),
    ],
)
def test_a_bad_trace_is_named_by_line_and_field(change: dict, message: str, shared_data: Path, tmp_path: Path) -> None:
    jobs = [{"id": k, "arrival_slot": k, "model": "wlm", "epochs": 10} for k in (2, 3)]
    jobs[1].update(change)
    traces = tmp_path / "traces.json"
    traces.write_text(json.dumps([jobs], indent=1), encoding="utf-8")
    files = given_files(shared_data)
    files[3] = traces
    result = invoke("simulate", *files, "--policies", "drf")
    assert result.exit_code == 1
    assert "traces.json, line 1" in result.stderr
    assert message in result.stderr


def test_a_job_that_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    result = invoke("simulate", "--policies", "drf", "--draw", 1, "--json")
    assert result.exit_code == 0
    from scheduler.traces.files import shipped_workload
    from scheduler.traces.native import write

    write(workload, shipped_workload())
    workload.write_text(workload.read_text(encoding="utf-8").replace("{cpu: 4, gpu: 1,", "{cpu: 4, gpu: 9,", 1))
    result = invoke("simulate", "--workload", workload, "--policies", "drf")
    assert result.exit_code == 1
    assert "job type 'resnet-50' can never fit: one worker needs cpu 4, gpu 9" in result.stderr


def test_help_is_fast_and_imports_neither_the_simulator_nor_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from launcher.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "print(sorted(m for m in ('numpy', 'torch', 'mxnet', 'scheduler') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_scheduler_imports_neither_mxnet_nor_torch() -> None:
    code = (
        "import sys, scheduler.commands\n"
        "from scheduler.policies import make\n"
        "for name in ('drf', 'optimus', 'greedy', 'afs'): make(name)\n"
        "print(sorted(m for m in ('torch', 'mxnet') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
