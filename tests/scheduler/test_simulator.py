"""The simulator's rules on the authors' workload; needs the public measurements in shared/data."""

from pathlib import Path

import numpy as np
import pytest

from scheduler.policies import make
from scheduler.simulator import Simulator, run
from scheduler.traces import dl2


def test_drf_agrees_with_the_authors_simulator(shared_data: Path) -> None:
    workload = dl2.read_workload(shared_data / "dl2_small_workload.json", shared_data / "dl2_testbed_speeds.txt")
    traces = dl2.read_traces(shared_data / "dl2_small_traces.json", workload)[:3]
    results = [run(make("drf"), Simulator(workload, trace)) for trace in traces]
    assert np.mean([r.jct.mean() for r in results]) == pytest.approx(110.68, rel=0.01)
    assert np.mean([r.makespan for r in results]) == pytest.approx(602.08, rel=0.01)
