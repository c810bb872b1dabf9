"""Every policy on random clusters and jobs: it finishes them all, breaks no rule and passes no bound."""

from typing import List

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler.core import JobType
from scheduler.costs import LinearCost
from scheduler.evaluate import no_contention, run
from scheduler.policies import LEARNED, make, names
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.speeds import FittedSpeed
from scheduler.workload import Trace, Workload, make_trace

POLICIES = [name for name in names() if name not in LEARNED]
BRIEF = settings(  # no shrinking: it would take minutes, and the cases are small
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
WHOLE = st.integers(0, 6).map(float)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    def demand() -> tuple:
        return draw(st.tuples(WHOLE, WHOLE).filter(any))

    types: List[JobType] = []
    for k in range(draw(st.integers(1, 3))):
        theta = tuple(draw(st.lists(st.floats(0.05, 2.0), min_size=5, max_size=5)))
        speed = FittedSpeed(theta)
        types.append(JobType(f"t{k}", demand(), demand(), samples_per_epoch=1.0, epochs=5.0, speed=speed))
    capacity = draw(st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=4))
    # One node is large enough for every worker, another for every server, so each job can run; others may be tiny.
    capacity += [tuple(np.max([getattr(kind, role) for kind in types], axis=0)) for role in ("worker", "server")]
    return Workload("w", 10.0, ("a", "b"), np.array(capacity), tuple(types), 4, 4)


@st.composite
def traces(draw: st.DrawFn, workload: Workload) -> Trace:
    n = draw(st.integers(1, 8))
    arrival = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    kinds = draw(st.lists(st.integers(0, len(workload.types) - 1), min_size=n, max_size=n))
    epochs = draw(st.lists(st.floats(0.1, 60.0), min_size=n, max_size=n))
    return make_trace("t", np.arange(n), np.array(kinds), np.array(arrival), np.array(epochs))


@pytest.mark.parametrize("name", POLICIES)
@BRIEF
@given(data=st.data())
def test_every_job_ends_and_none_before_its_bound(name: str, data: st.DataObject) -> None:
    workload = data.draw(workloads())
    trace = data.draw(traces(workload))
    result = run(make(name), Simulator(workload, trace, SimulatorSettings(max_slots=5000)))
    assert (result.jct >= no_contention(workload, trace) * (1 - 1e-9)).all()
    assert result.makespan >= trace.arrival.max()
    assert (result.utilisation <= 1 + 1e-9).all()


@BRIEF
@given(data=st.data())
def test_a_dearer_resize_never_helps_a_policy_that_does_not_look_at_it(data: st.DataObject) -> None:
    workload = data.draw(workloads())
    trace = data.draw(traces(workload))
    free, dear = (
        run(make("fifo"), Simulator(workload, trace, SimulatorSettings(resize_cost=LinearCost(seconds))))
        for seconds in (0.0, 5.0)
    )
    assert dear.makespan >= free.makespan - 1e-9
