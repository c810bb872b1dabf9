"""What dl2 sees and does in a slot: states, actions, limits, job-aware exploration, and what a teacher teaches."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.core import JobType
from scheduler.learn.window import (
    ACTIONS,
    ADD_BOTH,
    ADD_SERVER,
    ADD_WORKER,
    WORKER_SCALE,
    Window,
    demonstrate,
    rows_of,
    state_size,
    targets_of,
)
from scheduler.placement import Placer
from scheduler.policies import make
from scheduler.simulator import Simulator
from scheduler.speeds import FittedSpeed
from scheduler.workload import Workload, make_trace

TYPES = {"small": 0, "large": 1}


@pytest.fixture
def simulator() -> Simulator:
    kind = JobType("small", worker=(2.0, 4.0), server=(2.0, 0.0), speed=FittedSpeed((1.0, 0.1, 0.5, 0.01, 0.0)))
    workload = Workload(
        name="tiny",
        slot_seconds=100.0,
        resources=("cpu", "gpu"),
        capacity=np.full((2, 2), 8.0),
        types=(kind, replace(kind, name="large", worker=(4.0, 4.0))),
        max_servers=4,
        max_workers=4,
    )
    return Simulator(workload, make_trace("t", np.arange(3), np.array([0, 1, 0]), np.zeros(3), np.full(3, 400.0)))


def window_of(simulator: Simulator, size: int = 4, fill: bool = True) -> Window:
    cluster, jobs = simulator.observe()
    return Window(Placer(cluster, jobs), rows_of(cluster, jobs, TYPES), 0, size, fill)


def test_a_state_is_type_age_remaining_share_workers_servers(simulator: Simulator) -> None:
    window = window_of(simulator)
    assert window.vector.shape == (state_size(4, 2),)
    assert window.act(ACTIONS * 1 + ADD_BOTH)
    share = max((4 + 2) / 16, 4 / 16)
    np.testing.assert_allclose(window.state[1], [0, 1, 0, 1, 10 * share, 1 / WORKER_SCALE, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(window.state[3], 0)  # there is no fourth job


def test_actions_of_absent_jobs_and_beyond_limits_are_closed_and_the_void_ends_the_window(
    simulator: Simulator,
) -> None:
    window = window_of(simulator)
    assert not window.allowed[ACTIONS * 3 : ACTIONS * 4].any()
    for _ in range(4):
        assert window.act(ADD_SERVER)
    assert window.allowed[:ACTIONS].tolist() == [True, False, False]
    assert not window.done
    assert window.act(ACTIONS * 4)
    assert window.done


@pytest.mark.parametrize("fill", [True, False])
def test_what_does_not_fit_is_drawn_again_or_ends_the_slot(simulator: Simulator, fill: bool) -> None:
    window = window_of(simulator, fill=fill)
    for _ in range(4):  # both nodes are out of gpu units
        assert window.act(ADD_WORKER)
    assert not window.act(ACTIONS * 2 + ADD_WORKER)
    assert window.done is not fill
    if fill:
        assert not window.allowed[ACTIONS * 2 + ADD_WORKER]
        assert window.allowed[ACTIONS * 2 + ADD_SERVER]


def test_exploration_mends_the_first_poor_job(simulator: Simulator) -> None:
    window = window_of(simulator)
    assert window.poor(10.0) is None
    window.act(ACTIONS * 2 + ADD_SERVER)
    assert window.poor(10.0) == ACTIONS * 2 + ADD_WORKER
    window.act(ACTIONS * 0 + ADD_WORKER)
    assert window.poor(10.0) == ADD_SERVER
    window.act(ADD_SERVER)
    window.act(ADD_WORKER)
    window.act(ADD_WORKER)
    window.act(ACTIONS * 2 + ADD_WORKER)
    assert window.poor(2.9) == ADD_SERVER  # three workers to one server


@pytest.mark.parametrize("start", [0, 1])
def test_the_likeliest_actions_lead_to_what_the_teacher_gave_and_end_with_the_void(start: int) -> None:
    want = np.array([[1, 5, 3, 0], [1, 2, 20, 0]])  # workers and servers of four jobs
    have = np.minimum(want, start)
    for _ in range(60):
        action = int(targets_of(want, have[None], size=5)[0].argmax())
        if action == ACTIONS * 5:
            break
        job, what = divmod(action, ACTIONS)
        have[:, job] += {ADD_WORKER: (1, 0), ADD_SERVER: (0, 1), ADD_BOTH: (1, 1)}[what]
    np.testing.assert_array_equal(have, want)


def test_a_teacher_teaches_states_of_each_window_in_which_tasks_lack(simulator: Simulator) -> None:
    cluster, jobs = simulator.observe()
    allocation = make("optimus").allocate(cluster, jobs)
    rng = np.random.default_rng(0)
    states, targets = demonstrate(cluster, jobs, rows_of(cluster, jobs, TYPES), allocation, 2, rng, count=50)
    assert states.shape == (2 * 50, state_size(2, 2))  # two windows
    assert targets.shape == (2 * 50, 3 * 2 + 1)
    np.testing.assert_allclose(targets.sum(axis=1), 1.0, rtol=1e-5)
    assert not states[50:].reshape(50, 2, -1)[:, 1].any()  # the second window has one job
    rows = states[:50].reshape(50, 2, -1)
    lone = np.flatnonzero((rows[:, :, -1] < 0.7).all(axis=1) & (rows[:, :, -2] < 0.7).all(axis=1))
    for k in lone:  # what a window shows of the same tasks is the same
        same = Window(Placer(cluster, jobs), rows_of(cluster, jobs, TYPES), 0, 2, True)
        for job in range(2):
            if rows[k, job, -2] > 0:
                same.act(ACTIONS * job + ADD_WORKER)
            if rows[k, job, -1] > 0:
                same.act(ACTIONS * job + ADD_SERVER)
        np.testing.assert_allclose(rows[k].reshape(-1), same.vector, rtol=1e-6)
    assert len(lone)
