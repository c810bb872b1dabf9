"""The benchmark of policies: its shares, its claims, its table of decisions, on a workload small enough for a test."""

import json
from dataclasses import replace
from typing import List

import numpy as np
import pytest

from benchmarks import policies
from scheduler.core import JobType
from scheduler.speeds import FittedSpeed
from scheduler.workload import Arrivals, Workload

NAMES = ("drf", "optimus", "greedy-fit", "dl2x")


def tiny() -> Workload:
    kind = JobType(
        "a", (2.0, 4.0), (2.0, 0.0), epochs=80.0, model_size_mb=10.0, speed=FittedSpeed((1.0, 0.1, 0.5, 0.01, 0.0))
    )
    kinds = (kind, replace(kind, name="b", worker=(2.0, 0.0), epochs=50.0))
    arrivals = Arrivals("google", rate=1.0, jobs=6, peak=2)
    return Workload("tiny", 60.0, ("cpu", "gpu"), np.full((4, 2), 8.0), kinds, 16, 16, process=arrivals)


def test_shares_are_of_the_same_load_and_run_from_drf_to_the_bound() -> None:
    table = policies.loads(tiny(), NAMES, 1)["policies"]
    assert set(table) == {*NAMES, "bound"}
    assert table["drf"]["way"] == 0 and table["drf"]["below_drf"] == 0
    assert table["bound"]["way"] == pytest.approx(1.0)
    for name in NAMES:
        assert all(low <= jct + 1e-9 for low, jct in zip(table["bound"]["jct"], table[name]["jct"]))
    mine = table["dl2x"]
    assert mine["below_drf"] == pytest.approx(np.mean([1 - a / b for a, b in zip(mine["jct"], table["drf"]["jct"])]))


def result(dl2: float, dl2x: float, bound: float) -> dict:
    def row(jct: float) -> dict:
        return {"jct": [jct], "mean_jct": jct, "below_drf": 1 - jct / 100, "below_optimus": 1 - jct / 80}

    return {"policies": {"bound": row(bound), "greedy-fit": row(60.0), "dl2": row(dl2), "dl2x": row(dl2x)}}


@pytest.mark.parametrize(
    ("jcts", "standings"),
    [
        ((65.0, 55.0, 40.0), ["met", "met", "met", "met"]),
        ((67.0, 61.0, 40.0), ["NOT MET", "NOT MET", "NOT MET", "met"]),
        ((67.0, 59.0, 58.0), ["NOT MET", "met", "beyond the bound", "met"]),
    ],
)
def test_claims_are_met_or_not_or_beyond_what_is_possible(jcts: tuple, standings: List[str]) -> None:
    assert [standing for _, standing in policies.claims(result(*jcts))] == standings


def test_robustness_and_decisions_are_rows_that_can_be_printed(capsys: pytest.CaptureFixture) -> None:
    rows = policies.robustness(tiny(), 1)
    assert [row["case"] for row in rows][:2] == ["as estimated", "epochs ±20 %"]
    assert all(row["bound"] <= row["dl2x"] for row in rows if not row["case"].startswith(("epochs", "both")))
    policies.show_robustness(rows, 1)
    decisions = policies.decision(tiny(), ("drf", "dl2x"), jobs=5, nodes=6, slots=2)
    assert (decisions["jobs"], decisions["nodes"]) == (5, 6)
    assert 0 < decisions["policies"]["dl2x"]["median_ms"] <= decisions["policies"]["dl2x"]["longest_ms"]
    policies.show_decisions([decisions])
    assert "epochs ±20 %" in capsys.readouterr().out
    json.dumps([rows, decisions])
