"""The pure part of the data: every sample once per epoch, shares even to within one, through any resizes."""

from typing import List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_mx.data import Position, indices
from elastic_mx.data.schedule import (
    Cursor,
    FixedGlobalBatch,
    FixedWorkerBatch,
    Schedule,
    advance,
    check_workers,
    locate,
    order,
    split,
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Both kinds, with every argument that they accept."""
    k, batch_size = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    if draw(st.booleans()):
        n = draw(st.integers(1, 80).filter(lambda n: n >= -(-n // (batch_size * k)) * k))
        return FixedGlobalBatch(n, batch_size, k)
    most = draw(st.integers(1, 9))
    return FixedWorkerBatch(draw(st.integers(most * k, most * k + 80)), batch_size, k, most)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 3))
def test_the_batches_of_an_epoch_are_even_and_no_larger_than_asked(n: int, batch_size: int, epoch: int) -> None:
    schedule = FixedGlobalBatch(n, batch_size)
    sizes = [hi - lo for step in range(schedule.total) for lo, hi in schedule.spans(Cursor(step=step), 1)]
    assert len(sizes) == -(-n // batch_size)
    assert sum(sizes) == n
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)  # One change of shape per epoch, not one per step.


@settings(max_examples=300)
@given(schedules(), st.data())
def test_an_epoch_uses_each_sample_once_through_any_memberships(schedule: Schedule, data: st.DataObject) -> None:
    cursor = Cursor()
    used: List[int] = []
    while cursor.epoch == 0:
        workers = data.draw(st.integers(1, schedule.max_workers))
        spans = schedule.spans(cursor, workers)
        assert len(spans) == schedule.batches_per_step
        for span in spans:
            shares = [hi - lo for lo, hi in split(span, workers)]
            assert min(shares) >= 1
            assert max(shares) - min(shares) <= 1
            used += range(*span)
        cursor = advance(schedule, cursor, workers)
    assert used == list(range(schedule.n))


@settings(max_examples=300)
@given(st.integers(0, 150), st.integers(1, 12), st.integers(1, 3), st.data())
def test_a_worker_batch_is_no_larger_than_asked(more: int, batch_size: int, k: int, data: st.DataObject) -> None:
    schedule, cursor = FixedWorkerBatch(batch_size * k + more, batch_size, k), Cursor()
    assert schedule.max_workers == batch_size
    while cursor.epoch == 0:
        workers = data.draw(st.integers(1, schedule.max_workers))
        sizes = [hi - lo for span in schedule.spans(cursor, workers) for lo, hi in split(span, workers)]
        assert max(sizes) <= batch_size + (k > 1)
        cursor = advance(schedule, cursor, workers)


@given(schedules(), st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_a_place_is_found_from_any_earlier_epoch(schedule: Schedule, sizes: List[int], at: int, known: int) -> None:
    sizes = [min(size, schedule.max_workers) for size in sizes]
    walk = [Cursor()]
    for size in sizes:
        walk.append(advance(schedule, walk[-1], size))
    there = walk[at % len(walk)]
    epoch = known % (there.epoch + 1)
    epoch_step = next(c.epoch_step for c in walk if c.epoch == epoch)
    history = tuple(enumerate(sizes))[epoch_step : there.step]
    assert locate(schedule, Position(epoch, epoch_step, there.step, history)) == there


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(order(50, 7, 3), order(50, 7, 3))
    assert not np.array_equal(order(50, 7, 3), order(50, 7, 4))
    assert not np.array_equal(order(50, 7, 3), order(50, 8, 3))
    assert sorted(order(50, 7, 3)) == list(range(50))
    assert order(5, 7, 3, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 6))
def test_the_plain_function_deals_each_sample_to_one_rank(n: int, batch_size: int, workers: int) -> None:
    schedule = FixedGlobalBatch(n, batch_size)
    workers = min(workers, schedule.max_workers)
    dealt = [
        i
        for batch in range(schedule.total)
        for rank in range(workers)
        for i in indices(n, batch_size, epoch=2, batch=batch, rank=rank, num_workers=workers, seed=5).tolist()
    ]
    assert dealt == order(n, 5, 2).tolist()


def test_wrong_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        FixedGlobalBatch(10, 0)
    with pytest.raises(ValueError, match="n is 0"):
        FixedWorkerBatch(0, 4)
    with pytest.raises(ValueError, match="5 samples do not fill 8 batches of 1"):
        FixedGlobalBatch(5, 1, batches_per_step=4)
    with pytest.raises(ValueError, match="5 samples do not give 6 workers"):
        FixedWorkerBatch(5, 2, most_workers=6)
    with pytest.raises(ValueError, match="9 workers, but the smallest batch has 8 samples"):
        check_workers(FixedGlobalBatch(16, 8), 9)
    with pytest.raises(ValueError, match="batch 2 of an epoch of 2"):
        indices(16, 8, epoch=0, batch=2)
    with pytest.raises(ValueError, match="rank 3 of 3 workers"):
        indices(16, 8, epoch=0, batch=0, rank=3, num_workers=3)
