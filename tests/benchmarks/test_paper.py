"""The paper's experiments in small: a run writes rows, figure and page, goes on where it was, and shares agents."""

import json
from pathlib import Path
from typing import List

import pytest

from benchmarks.paper import __main__ as command
from benchmarks.paper.experiments import EXPERIMENTS, named
from benchmarks.paper.runner import Runner, Store
from benchmarks.paper.settings import Budget, Experiment, Recipe, Setting, changes
from tests.benchmarks.test_policies import tiny

SMALL = Budget(traces=1, validation=1, watched=1, updates=2, warm=1, slots=8, online=1, repeats=2)
PARAMS = changes(jobs=4, hidden=8, replay=16, batch=8)


def runner(directory: Path, said: List[str]) -> Runner:
    return Runner(tiny(), SMALL, Store(directory), directory / "agents", said.append)


def small(*settings: Setting) -> Experiment:
    return Experiment("small", "Small", "axis", "12 %", lambda table: "done", "bars", settings)


def test_a_run_goes_on_where_it_was_and_runs_anew_what_was_changed(tmp_path: Path) -> None:
    drf, optimus = Setting("drf", 0, "drf"), Setting("optimus", 0, "optimus")
    said: List[str] = []
    first = runner(tmp_path, said).run(small(drf))
    assert runner(tmp_path, said).finished(small(drf, optimus)) is None
    table = runner(tmp_path, said).run(small(drf, optimus))
    assert table["drf/0"] == first["drf/0"] and len(said) == 2
    changed = Setting("drf", 0, "drf", changes(epoch_error=0.3))
    assert runner(tmp_path, said).run(small(changed))["drf/0"]["jct"] != first["drf/0"]["jct"]
    assert len(said) == 3


def test_agents_are_trained_once_and_two_phases_begin_with_the_first(tmp_path: Path) -> None:
    both = Recipe("drf", PARAMS)
    settings = [Setting("imitation", 1, Recipe("drf", PARAMS, online=None)), Setting("both", 1, both)]
    settings += [
        Setting("both", 2, both, changes(speed_variation=0.2)),
        Setting("federated", 2, Recipe("", PARAMS, (), None, 2)),
    ]
    table = runner(tmp_path, []).run(small(*settings))
    assert len(list((tmp_path / "agents").glob("*.pt"))) == 3 * SMALL.repeats
    assert table["both/1"]["jct"] == pytest.approx(sum(table["both/1"]["each"]) / 2, abs=1e-3)
    assert table["imitation/1"]["curve"] == []
    (began, _), (ended, _) = table["both/1"]["curve"]
    assert began == 0 and ended >= SMALL.slots
    assert table["both/1"]["curve"] == table["both/2"]["curve"]
    assert table["both/1"]["jct"] != table["both/2"]["jct"]
    assert all(row["jct"] > 0 for row in table.values())


def test_the_command_prints_rows_and_writes_figure_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "workloads", lambda: [tiny()])
    monkeypatch.setattr(command, "QUICK", SMALL)
    command.main(["--quick", "--json", "--only", "epochs", "--out", str(tmp_path)])
    *lines, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| epochs ") for line in lines)
    result = json.loads(last)["experiments"]["epochs"]
    assert result["paper"] and "dl2x" in result["ours"]
    assert 0 < (tmp_path / "epochs.png").stat().st_size < 100_000
    assert "![Epochs misjudged" in (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"])
    assert "choose among comparison" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_experiment_tells_its_outcome_from_its_settings_and_names_the_papers(experiment: Experiment) -> None:
    names = [setting.name for setting in experiment.settings]
    assert len(set(names)) == len(names)
    table = {name: {"jct": 10.0 + k, "curve": [[0, 12.0], [8, 11.0]]} for k, name in enumerate(names)}
    assert experiment.outcome(table) and experiment.paper
    assert named([experiment.name]) == (experiment,)
