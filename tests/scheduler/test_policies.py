"""Every policy on the authors' workload: their figures where there are some, and what each policy promises."""

from dataclasses import replace
from pathlib import Path
from typing import List, Tuple

import numpy as np
import pytest

from scheduler.evaluate import RunResult, run
from scheduler.policies import LEARNED, make, names
from scheduler.simulator import Simulator
from scheduler.traces import dl2
from scheduler.traces.files import shipped_workload
from scheduler.traces.generate import draw_trace
from scheduler.workload import Trace, Workload

Given = Tuple[Workload, List[Trace]]


@pytest.fixture(scope="module")
def given(shared_data: Path) -> Given:
    workload = dl2.read_workload(shared_data / "dl2_small_workload.json", shared_data / "dl2_testbed_speeds.txt")
    return workload, dl2.read_traces(shared_data / "dl2_small_traces.json", workload)[:3]


def on_three_traces(name: str, given: Given) -> List[RunResult]:
    workload, traces = given
    return [run(make(name), Simulator(workload, trace)) for trace in traces]


@pytest.mark.parametrize(
    ("name", "jct", "makespan", "tolerance"),
    [
        ("drf", 110.68, 602.08, 0.01),
        ("optimus", 80.97, 412.92, 0.01),
        ("fifo", 473.75, 1095.29, 0.05),
        ("srtf", 476.24, 1080.62, 0.05),
        ("tetris", 922.11, 1013.40, 0.05),
    ],
)
def test_agrees_with_the_authors_simulator(
    name: str, jct: float, makespan: float, tolerance: float, given: Given
) -> None:
    results = on_three_traces(name, given)
    assert np.mean([r.jct.mean() for r in results]) == pytest.approx(jct, rel=tolerance)
    assert np.mean([r.makespan for r in results]) == pytest.approx(makespan, rel=tolerance)


def test_greedy_is_near_its_sketch_and_better_when_it_may_use_any_node(given: Given) -> None:
    strict = np.mean([r.jct.mean() for r in on_three_traces("greedy", given)])
    loose = np.mean([r.jct.mean() for r in on_three_traces("greedy-fit", given)])
    assert strict == pytest.approx(65.6, rel=0.02)
    assert loose < strict


def test_online_fit_comes_close_to_knowing_the_speeds(given: Given) -> None:
    known = np.mean([r.jct.mean() for r in on_three_traces("optimus", given)])
    learnt = np.mean([r.jct.mean() for r in on_three_traces("optimus-online", given)])
    assert learnt < 1.1 * known


def test_elastic_fair_share_beats_the_inelastic_gangs(given: Given) -> None:
    elastic = np.mean([r.jct.mean() for r in on_three_traces("afs", given)])
    gangs = np.mean([r.jct.mean() for r in on_three_traces("tiresias", given)])
    assert elastic < gangs


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no policy 'sjf': choose among fifo, srtf, drf"):
        make("sjf")


def test_names_are_what_the_policies_call_themselves() -> None:
    plain = [name for name in names() if name not in LEARNED]
    assert [make(name).name for name in plain] == plain


@pytest.mark.parametrize("name", ["drf", "greedy-fit", "optimus"])
def test_a_large_cluster_is_simulated_in_seconds(name: str) -> None:
    """A tenth of the largest scale, 1,000 jobs on 500 nodes, in a tenth of a few minutes."""
    small = shipped_workload()
    workload = replace(small, capacity=np.tile([16.0, 4.0, 96.0], (500, 1)))
    trace = draw_trace(workload, np.random.default_rng(0), process="poisson", rate=30.0, jobs=1000)
    result = run(make(name), Simulator(workload, trace))
    assert np.isfinite(result.jct).all()
    assert result.seconds < 30
