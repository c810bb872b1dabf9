"""The agents that come with the package: they load, decide without options, and beat what they must."""

from pathlib import Path

import numpy as np
import pytest

from scheduler.evaluate import run
from scheduler.learn import checkpoint
from scheduler.learn.scenario import TEST, Scenario
from scheduler.policies import LEARNED, make
from scheduler.traces.files import open_workload


@pytest.mark.parametrize("policy", LEARNED)
def test_the_shipped_agent_is_small_and_is_what_a_policy_uses_without_one(policy: str) -> None:
    path = checkpoint.packaged(policy)
    assert path.stat().st_size < 4_000_000
    assert checkpoint.load(path)["policy"] == policy
    assert make(policy).name == policy


def test_dl2x_beats_optimus_on_drawn_traces_of_the_shipped_workload() -> None:
    scenario = Scenario(open_workload(None, None), seed=5)
    learned = scenario.mean_jct(make("dl2x"), 2, TEST)
    assert learned < 0.825 * scenario.mean_jct(make("optimus"), 2, TEST)


def test_both_beat_optimus_on_dl2s_first_trace(shared_data: Path) -> None:
    from scheduler.simulator import Simulator
    from scheduler.traces.files import open_traces

    workload = open_workload(str(shared_data / "dl2_small_workload.json"), str(shared_data / "dl2_testbed_speeds.txt"))
    trace = open_traces(str(shared_data / "dl2_small_traces.json"), workload)[0]
    jct = {
        name: float(np.mean(run(make(name), Simulator(workload, trace)).jct))
        for name in ("optimus", "greedy-fit", "dl2", "dl2x")
    }
    assert jct["dl2"] < jct["optimus"]
    assert jct["dl2x"] < jct["optimus"]
