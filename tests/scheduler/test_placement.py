"""The placer: never overfills, goes where it says, tells the truth about what fits, and forgets what is undone."""

from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import SERVER, WORKER, ClusterView, JobsView, JobType
from scheduler.placement import Placer, check_allocation, place_counts


def view(capacity: List[Tuple[float, ...]], kinds: List[JobType], jobs: List[int], limit: int = 8):
    n, size = len(jobs), len(capacity[0])
    cluster = ClusterView(
        slot=0,
        slot_seconds=1.0,
        resources=tuple("abc"[:size]),
        capacity=np.array(capacity, dtype=float),
        alive=np.ones(len(capacity), dtype=bool),
        max_servers=limit,
        max_workers=limit,
    )
    zeros = np.zeros(n)
    counts = np.zeros(n, dtype=np.int64)
    rates = np.zeros((len(kinds), limit + 1, limit + 1))
    index = np.array(jobs, dtype=np.int64)
    ids = np.arange(n)
    return cluster, JobsView(
        ids, tuple(kinds), index, zeros, zeros + 1, zeros, counts, counts, zeros, rates, index, zeros
    )


GPU = JobType("gpu", worker=(2.0, 4.0), server=(2.0, 0.0))
CPU = JobType("cpu", worker=(2.0, 0.0), server=(2.0, 0.0))


def test_a_task_goes_to_the_least_loaded_node_then_the_first() -> None:
    placer = Placer(*view([(8.0, 8.0)] * 3, [CPU], [0]))
    for _ in range(4):
        assert placer.add_worker(0)
    assert placer.allocation().placement.node.tolist() == [0, 1, 2, 0]


def test_load_is_the_share_of_a_node_so_larger_nodes_take_more() -> None:
    placer = Placer(*view([(4.0, 8.0), (8.0, 8.0)], [CPU], [0]))
    for _ in range(3):
        placer.add_worker(0)
    assert placer.allocation().placement.node.tolist() == [0, 1, 1]


def test_a_pair_shares_a_node() -> None:
    placer = Placer(*view([(4.0, 4.0), (4.0, 4.0)], [GPU], [0]))
    assert placer.add_pair(0)
    assert placer.add_pair(0)
    assert placer.allocation().placement.node.tolist() == [0, 0, 1, 1]
    assert not placer.add_pair(0)


def test_strict_tries_only_the_least_loaded_node() -> None:
    # By the fourth worker node 0 has no GPU left but the least load, 2/32 + 4/4; node 1 has room, and 4/8 + 8/12.
    arguments = view([(32.0, 4.0), (8.0, 12.0)], [GPU], [0])
    loose, strict = Placer(*arguments), Placer(*arguments, strict=True)
    for placer in (loose, strict):
        assert [placer.add_worker(0) for _ in range(3)] == [True] * 3
        assert placer.allocation().placement.node.tolist() == [0, 1, 1]
    assert loose.add_worker(0)
    assert not strict.add_worker(0)
    assert not strict.fits_worker(0)
    assert strict.add_server(0)  # a server fits the least loaded node


def test_strict_passes_over_nodes_that_could_never_hold_the_task() -> None:
    placer = Placer(*view([(8.0, 0.0), (32.0, 4.0), (8.0, 12.0)], [GPU], [0]), strict=True)
    assert [placer.add_worker(0) for _ in range(4)] == [True, True, True, False]
    assert placer.allocation().placement.node.tolist() == [1, 2, 2]


def test_limits_on_a_job_hold() -> None:
    placer = Placer(*view([(100.0, 100.0)], [CPU], [0], limit=2))
    assert placer.add(0, servers=2, workers=1)
    assert placer.mask().tolist() == [[True, False, False]]
    assert not placer.add_server(0)
    assert not placer.add_pair(0)
    assert placer.add_worker(0)
    assert not placer.below_limits(0)


def test_bulk_is_all_or_nothing() -> None:
    placer = Placer(*view([(8.0, 8.0)], [GPU], [0]))
    assert not placer.add(0, servers=1, workers=3)
    assert (placer.servers, placer.workers, placer.used) == ([0], [0], [0.0, 0.0])
    assert placer.add(0, servers=2, workers=2)


def test_dead_nodes_take_nothing() -> None:
    cluster, jobs = view([(8.0, 8.0)] * 2, [CPU], [0])
    cluster.alive[0] = False
    placer = Placer(cluster, jobs)
    assert placer.add_worker(0)
    assert placer.allocation().placement.node.tolist() == [1]
    assert placer.free().tolist() == [[0.0, 0.0], [6.0, 8.0]]


def test_dominant_share_and_scarcest_resource() -> None:
    placer = Placer(*view([(8.0, 8.0)] * 2, [GPU], [0]))
    placer.add_pair(0)
    assert placer.dominant_share(0) == pytest.approx(4 / 16)
    placer.add_server(0)
    assert placer.dominant_share(0) == pytest.approx(6 / 16)
    assert placer.scarcest() == 0


def test_wanted_counts_are_placed_as_far_as_they_fit() -> None:
    cluster, jobs = view([(8.0, 8.0)], [GPU], [0, 0])
    allocation = place_counts(cluster, jobs, np.array([1, 1]), np.array([2, 1]))
    assert allocation.workers.tolist() == [2, 0]
    assert allocation.servers.tolist() == [1, 1]
    check_allocation(cluster, jobs, allocation)


DEMAND = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any).map(lambda d: (float(d[0]), float(d[1])))


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    kinds=st.lists(st.tuples(DEMAND, DEMAND), min_size=1, max_size=3),
    actions=st.lists(st.tuples(st.sampled_from("wspbu"), st.integers(0, 3), st.integers(0, 3)), max_size=60),
    strict=st.booleans(),
)
def test_through_any_sequence_of_actions(capacity, kinds, actions, strict) -> None:
    types = [JobType(str(k), worker, server) for k, (worker, server) in enumerate(kinds)]
    cluster, jobs = view(capacity, types, [k % len(types) for k in range(4)])
    placer = Placer(cluster, jobs, strict=strict)
    for action, job, number in actions:
        before = placer.free()
        mask = placer.mask()[job]
        if action == "w":
            assert placer.add_worker(job) == mask[0]
        elif action == "s":
            assert placer.add_server(job) == mask[1]
        elif action == "p":
            assert placer.add_pair(job) == mask[2]
        elif action == "b":
            mark = placer.mark()
            if not placer.add(job, number, 1):
                assert placer.mark() == mark
                assert np.allclose(placer.free(), before)
        else:
            placer.undo(max(placer.mark() - 2 * number, 0))
        check(placer, cluster, jobs, strict)


def check(placer: Placer, cluster: ClusterView, jobs: JobsView, strict: bool) -> None:
    """Counts, placement and free units agree; what fits is what a search over all nodes says."""
    allocation = placer.allocation()
    check_allocation(cluster, jobs, allocation)
    place = allocation.placement
    used = np.zeros_like(cluster.capacity)
    for job, role, node in zip(place.job, place.role, place.node):
        kind = jobs.types[jobs.type_index[job]]
        used[node] += kind.worker if role == WORKER else kind.server
    assert set(place.role) <= {SERVER, WORKER}
    free = cluster.capacity - used
    assert np.allclose(placer.free(), free)
    assert np.allclose(placer.used, used.sum(axis=0))
    if not strict:
        for job in range(len(jobs)):
            kind = jobs.types[jobs.type_index[job]]
            fits = bool((free + 1e-6 >= np.array(kind.worker)).all(axis=1).any())
            assert placer.fits_worker(job) == (fits and placer.workers[job] < cluster.max_workers)


def test_a_pair_larger_than_any_node_is_placed_apart() -> None:
    placer = Placer(*view([(2.0, 4.0), (2.0, 4.0)], [GPU], [0, 0]))
    assert placer.splits_pairs(0)
    assert placer.mask()[:, 2].all()
    assert placer.add_pair(0)
    assert placer.allocation().placement.node.tolist() == [0, 1]
    assert not placer.fits_pair(1)
    assert not placer.add_pair(1)
