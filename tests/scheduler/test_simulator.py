"""The simulator's rules, one at a time, on a workload small enough to reckon by hand."""

from dataclasses import replace
from typing import Optional

import numpy as np
import pytest

from scheduler.core import SERVER, WORKER, Allocation, Cluster, JobType, Placement
from scheduler.costs import LinearCost
from scheduler.evaluate import no_contention, run
from scheduler.placement import Placer
from scheduler.policies import LEARNED, make, names
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.speeds import FittedSpeed, PhysicalSpeed
from scheduler.workload import Trace, Workload, make_trace

# One second per sample and worker, nothing else: speed = workers.
LINEAR = FittedSpeed((1.0, 0.0, 0.0, 0.0, 0.0))


def small_workload(nodes: int = 2, slot_seconds: float = 100.0, **job: object) -> Workload:
    kind = JobType(name="job", worker=(2.0, 4.0), server=(2.0, 0.0), samples_per_epoch=10.0, epochs=30.0, speed=LINEAR)
    return Workload(
        name="small",
        slot_seconds=slot_seconds,
        resources=("cpu", "gpu"),
        capacity=np.tile([8.0, 8.0], (nodes, 1)),
        types=(replace(kind, **job),),
        max_servers=8,
        max_workers=8,
    )


def trace_of(*arrivals: int, epochs: float = 30.0) -> Trace:
    n = len(arrivals)
    return make_trace("t", np.arange(n), np.zeros(n), np.array(arrivals), np.full(n, epochs))


def pairs(simulator: Simulator, count: int) -> Allocation:
    cluster, jobs = simulator.observe()
    placer = Placer(cluster, jobs)
    for i in range(len(jobs)):
        for _ in range(count):
            assert placer.add_pair(i)
    return placer.allocation()


def simulator_with(workload: Optional[Workload] = None, **settings: object) -> Simulator:
    return Simulator(workload or small_workload(), trace_of(0), SimulatorSettings(**settings))


def test_progress_and_completion_within_a_slot() -> None:
    simulator = simulator_with()
    first = simulator.step(pairs(simulator, 2))  # 2 workers: 2 samples/s, 20 epochs in 100 s
    assert first.epochs.tolist() == [20.0]
    assert first.fraction.tolist() == [pytest.approx(20 / 30)]
    second = simulator.step(pairs(simulator, 2))
    assert second.finished.all()
    assert simulator.end.tolist() == [1.5]
    assert simulator.finished


def test_a_job_without_servers_does_not_progress() -> None:
    simulator = simulator_with()
    cluster, jobs = simulator.observe()
    placer = Placer(cluster, jobs)
    placer.add_worker(0)
    assert simulator.step(placer.allocation()).epochs.tolist() == [0.0]


def test_jobs_appear_in_their_slot_of_arrival() -> None:
    simulator = Simulator(small_workload(), trace_of(0, 2, 2))
    seen = []
    for _ in range(3):
        seen.append(simulator.observe()[1].ids.tolist())
        simulator.step(pairs(simulator, 0))
    assert seen == [[0], [0], [0, 1, 2]]


def test_a_resize_costs_its_seconds_once() -> None:
    simulator = simulator_with(resize_cost=LinearCost(25.0))
    assert simulator.step(pairs(simulator, 1)).lost_seconds.tolist() == [0.0]  # the start is not a resize
    grown = simulator.step(pairs(simulator, 2))
    assert grown.resized.all()
    assert grown.lost_seconds.tolist() == [25.0]
    assert grown.epochs.tolist() == [15.0]
    assert simulator.step(pairs(simulator, 2)).finished.all()
    assert simulator.end[0] == pytest.approx(2.25)


def test_a_restart_after_a_pause_costs_too_but_a_pause_does_not() -> None:
    simulator = simulator_with(resize_cost=LinearCost(25.0))
    simulator.step(pairs(simulator, 1))
    assert simulator.step(pairs(simulator, 0)).lost_seconds.tolist() == [0.0]
    assert simulator.step(pairs(simulator, 1)).lost_seconds.tolist() == [25.0]
    assert simulator.resizes == 1


def test_an_allocation_kept_for_slots_is_one_resize_at_most() -> None:
    simulator = simulator_with(resize_cost=LinearCost(25.0))
    kept = pairs(simulator, 1)
    lost = [simulator.step(kept).lost_seconds[0] for _ in range(2)]
    assert lost == [0.0, 0.0]
    assert simulator.done.tolist() == [20.0]
    assert simulator.observe()[1].service.tolist() == [pytest.approx(2 * 4 / 16)]


def test_a_node_failure_stops_its_jobs_and_takes_the_node_away() -> None:
    simulator = simulator_with(node_mtbf=1e-3, node_repair=2)
    result = simulator.step(pairs(simulator, 1))
    assert result.failed.all()
    assert 0.0 < result.epochs[0] < 10.0
    up = []
    for _ in range(3):
        up.append(simulator.observe()[0].alive.all())
        simulator.step(pairs(simulator, 0))
    assert up == [False, False, True]


def test_an_allocation_on_a_node_that_is_down_is_refused() -> None:
    simulator = simulator_with(node_mtbf=1e-3)
    stale = pairs(simulator, 1)
    simulator.step(stale)
    with pytest.raises(ValueError, match=r"on node 0, which has .* and is down"):
        simulator.step(stale)


def test_an_allocation_that_overfills_a_node_is_refused() -> None:
    simulator = simulator_with()
    three = Placement(
        job=np.zeros(4, dtype=int), role=np.array([WORKER, WORKER, WORKER, SERVER]), node=np.zeros(4, dtype=int)
    )
    with pytest.raises(ValueError, match="on node 0, which has"):
        simulator.step(Allocation(servers=np.array([1]), workers=np.array([3]), placement=three))


def test_counts_that_differ_from_the_placement_are_refused() -> None:
    simulator = simulator_with()
    honest = pairs(simulator, 1)
    with pytest.raises(ValueError, match="counts 5 servers for job 0, but places 1"):
        simulator.step(Allocation(np.array([5]), np.array([5]), honest.placement))


def test_counts_without_a_placement_are_placed() -> None:
    simulator = simulator_with()
    assert simulator.step(Allocation(np.array([1]), np.array([1]))).epochs.tolist() == [10.0]


def test_errors_of_the_estimates_hide_the_truth_from_policies() -> None:
    simulator = Simulator(small_workload(), trace_of(*[0] * 50), SimulatorSettings(epoch_error=0.2, speed_error=0.2))
    _, jobs = simulator.observe()
    truth = simulator.true_epochs / jobs.epochs
    assert 0.8 <= truth.min() < 0.95 < 1.05 < truth.max() <= 1.2
    ratio = jobs.rates[:, 1:, 1:] / simulator.rates[0, 1:, 1:]
    assert 0.8 <= ratio.min() < 0.9 < 1.1 < ratio.max() <= 1.2


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    settings = SimulatorSettings(epoch_error=0.2, speed_error=0.2, speed_variation=0.2, node_mtbf=50)
    trace = trace_of(0, 0, 1, 1, 2)

    def jcts(seed: int) -> list:
        return run(make("drf"), Simulator(small_workload(), trace, settings, seed=seed)).jct.tolist()

    assert jcts(1) == jcts(1)
    assert jcts(1) != jcts(2)


def test_reset_forgets_the_run_before() -> None:
    simulator = simulator_with()
    before = run(make("drf"), simulator)
    simulator.reset()
    again = run(make("drf"), simulator)
    assert before.jct.tolist() == again.jct.tolist()


def test_placement_matters_to_the_physical_model() -> None:
    physical = PhysicalSpeed(0.1, 100.0, network_mb_per_second=100.0, local_mb_per_second=10_000.0)
    simulator = simulator_with(small_workload(speed=physical))

    def epochs(worker_node: int) -> float:
        simulator.reset()
        place = Placement(job=np.zeros(2, dtype=int), role=np.array([SERVER, WORKER]), node=np.array([0, worker_node]))
        return float(simulator.step(Allocation(np.array([1]), np.array([1]), place)).epochs[0])

    together, apart = epochs(0), epochs(1)
    assert apart == pytest.approx(100.0 / 2.1 / 10.0)  # 0.1 s of computation, 2 x 100 MB at 100 MB/s
    assert together == pytest.approx(30.0)  # done within the slot


def test_the_bound_is_a_job_alone_at_its_best_size() -> None:
    workload = small_workload(nodes=4)  # eight workers would fit by GPU, but each pair takes half a node
    bound = no_contention(workload, trace_of(0, epochs=70.0))
    assert bound.tolist() == [pytest.approx(70.0 / 80.0)]


@pytest.mark.parametrize("job", [{"worker": (9.0, 0.0)}, {"server": (2.0, 9.0)}])
def test_a_job_that_can_never_fit_is_named(job: dict) -> None:
    with pytest.raises(ValueError, match=r"job type 'job' can never fit: one (worker|server) needs cpu"):
        no_contention(small_workload(**job), trace_of(0))


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="epoch_error is"):
        SimulatorSettings(epoch_error=1.5)
    with pytest.raises(ValueError, match="node_mtbf is -1"):
        SimulatorSettings(node_mtbf=-1)


@pytest.mark.parametrize("name", [name for name in names() if name not in LEARNED])
def test_every_policy_survives_failures_resize_costs_and_empty_slots(name: str) -> None:
    settings = SimulatorSettings(node_mtbf=20, node_repair=1, resize_cost=LinearCost(5.0), speed_variation=0.1)
    simulator = Simulator(small_workload(nodes=4), trace_of(0, 0, 1, 40, 41), settings, seed=3)
    result = run(make(name), simulator)
    assert np.isfinite(result.jct).all()
    assert (result.jct >= result.bound * 0.9).all()
    assert 0 < result.fairness <= 1


def test_the_simulator_is_a_cluster_like_any_other() -> None:
    """A service's loop knows nothing but observe, enact and wait; it must come to what ``run`` comes to."""
    cluster: Cluster = Simulator(small_workload(nodes=4), trace_of(0, 0, 1, 3))
    assert isinstance(cluster, Cluster)
    policy, more = make("drf"), True
    while more:
        cluster.enact(policy.allocate(*cluster.observe()))
        more = cluster.wait()
    again = Simulator(small_workload(nodes=4), trace_of(0, 0, 1, 3))
    assert (cluster.end - again.trace.arrival).tolist() == run(make("drf"), again).jct.tolist()
    with pytest.raises(RuntimeError, match="give the simulator an allocation"):
        cluster.wait()
