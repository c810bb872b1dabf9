"""The sampler against a job that is resized by script: each sample once per epoch, whoever comes and goes."""

from collections import Counter, defaultdict
from typing import Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_mx.data import Alone, Batch, BatchSampler, Session, batches
from tests.elastic_mx.scripted_job import ScriptedJob


@st.composite
def resized_jobs(draw: st.DrawFn) -> ScriptedJob:
    """Up to five resizes, each to any membership of one to eight workers; a worker that left never comes back."""
    clocks = [0, *sorted(draw(st.sets(st.integers(1, 50), max_size=5)))]
    fresh, members, generations = iter("abcdefghijklmnopqrstuvwxyz" * 2), [], []  # type: ignore[var-annotated]
    for clock in clocks:
        stay = [name for name in members if draw(st.booleans())]
        size = draw(st.integers(max(1, len(stay)), 8))
        members = stay + [f"{next(fresh)}{clock}" for _ in range(size - len(stay))]
        generations.append((clock, members))
    return ScriptedJob(generations, lag=draw(st.integers(0, 2)))


def run(job: ScriptedJob, epochs: int, **options: object) -> Dict[str, List[Batch]]:
    """Let every worker iterate over its data, in the order in which they join."""
    return {name: list(batches(epochs=epochs, session=job.session(name), **options)) for name in job.names()}


def check_each_sample_once(dealt: Dict[str, List[Batch]], n: int, epochs: int) -> None:
    used: Dict[int, Counter] = defaultdict(Counter)
    steps = defaultdict(set)
    for name, mine in dealt.items():
        for batch in mine:
            assert len(batch.indices) >= 1
            used[batch.epoch].update(batch.indices.tolist())
            steps[batch.step, batch.number].add((batch.epoch, batch.num_workers, batch.global_size, batch.generation))
        numbers = [batch.step for batch in mine]
        assert numbers == sorted(numbers), name
    assert dict(used) == {epoch: Counter(range(n)) for epoch in range(epochs)}
    assert all(len(views) == 1 for views in steps.values())  # All members of a step agree on what it is.


@settings(max_examples=150, deadline=None)
@given(resized_jobs(), st.integers(8, 90), st.integers(8, 20), st.integers(1, 3), st.booleans())
def test_fixed_global_batch(job: ScriptedJob, n: int, batch_size: int, epochs: int, shuffle: bool) -> None:
    if BatchSampler(n, batch_size, session=Session(Alone())).schedule.max_workers < 8:
        n = -(-n // batch_size) * batch_size
    dealt = run(job, epochs, n=n, batch_size=batch_size, shuffle=shuffle)
    check_each_sample_once(dealt, n, epochs)


@settings(max_examples=150, deadline=None)
@given(resized_jobs(), st.integers(24, 120), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_fixed_worker_batch(job: ScriptedJob, n: int, batch_size: int, epochs: int, per_step: int) -> None:
    options = {"n": n, "batch_size": batch_size, "per_worker": True, "max_workers": 8, "batches_per_step": per_step}
    check_each_sample_once(run(job, epochs, **options), n, epochs)


@settings(max_examples=100, deadline=None)
@given(resized_jobs(), st.integers(2, 4))
def test_batches_per_step_share_their_step(job: ScriptedJob, per_step: int) -> None:
    dealt = run(job, 2, n=96, batch_size=12, batches_per_step=per_step)
    check_each_sample_once(dealt, 96, 2)
    for mine in dealt.values():
        assert set(Counter(batch.step for batch in mine).values()) <= {per_step}


def test_the_global_batch_does_not_depend_on_the_membership() -> None:
    def global_batches(job: ScriptedJob) -> Dict[int, List[int]]:
        steps = defaultdict(list)
        for mine in run(job, 2, n=50, batch_size=8).values():
            for batch in mine:
                steps[batch.step] += batch.indices.tolist()
        return {step: sorted(samples) for step, samples in steps.items()}

    resized = ScriptedJob([(0, "a"), (3, "abc"), (9, "bcde"), (10, "e")])
    assert global_batches(resized) == global_batches(ScriptedJob([(0, "a")]))


def test_a_joining_worker_skips_the_epochs_that_are_over_in_a_plain_loop() -> None:
    job = ScriptedJob([(0, "a"), (16, "ab")])
    seen = {}
    for name in "ab":
        sampler = BatchSampler(50, 8, session=job.session(name))
        seen[name] = [[len(b) for b in sampler] for _ in range(4)]
    assert [len(epoch) for epoch in seen["a"]] == [7, 7, 7, 7]
    assert [len(epoch) for epoch in seen["b"]] == [0, 0, 5, 7]


def test_a_joining_worker_begins_with_the_jobs_epoch_in_an_elastic_loop() -> None:
    job = ScriptedJob([(0, "a"), (14, "ab")])
    for name, expected in (("a", [0, 1, 2, 3]), ("b", [2, 3])):
        session = job.session(name)
        sampler = BatchSampler(50, 8, session=session)
        loop = [(epoch, {b.epoch for b in sampler.batches()}) for epoch in session.epochs(4)]
        assert loop == [(epoch, {epoch}) for epoch in expected]


def test_the_loop_of_a_worker_that_leaves_ends() -> None:
    job = ScriptedJob([(0, "ab"), (9, "a")])
    session = job.session("b")
    sampler = BatchSampler(50, 8, session=session)
    assert [(epoch, len(list(sampler))) for epoch in session.epochs(4)] == [(0, 7), (1, 2)]
    assert session.retired
    assert list(sampler) == []
    assert len(sampler) == 7


def test_asking_for_the_epoch_too_late_is_an_error() -> None:
    job = ScriptedJob([(0, "a"), (14, "ab")])
    list(batches(50, 8, epochs=4, session=job.session("a")))
    session = job.session("b")
    assert list(BatchSampler(50, 8, session=session)) == []
    with pytest.raises(RuntimeError, match="joined in epoch 2"):
        session.epoch()


@pytest.mark.parametrize("per_step", [1, 2])
def test_a_loop_left_early_goes_on_where_the_pushes_are(per_step: int) -> None:
    job = ScriptedJob([(0, "a")])
    session = job.session("a")
    sampler = BatchSampler(64, 8, batches_per_step=per_step, session=session)
    dealt_ahead = sampler.batches()
    peek = [next(dealt_ahead).indices.tolist() for _ in range(5)]  # A loader that prefetches.
    again = [b.indices.tolist() for _, b in zip(range(5), sampler.batches())]
    assert again == peek  # No step was taken: the epoch had not begun.
    assert list(dealt_ahead) == []  # The loop that was given up deals nothing more.
    session.job.pushed = 3  # type: ignore[attr-defined]
    following = list(sampler.batches())
    assert [b.step for b in following] == [3 + i // per_step for i in range(8)]
    assert {b.epoch for b in following} == {1}


def test_a_sampler_made_in_each_epoch_goes_on() -> None:
    job = ScriptedJob([(0, "a")])
    session = job.session("a")
    seen = []
    for _ in session.epochs(3):
        for batch in BatchSampler(16, 8, session=session).batches():
            seen.append((batch.epoch, batch.step))
            session.job.pushed += 1  # type: ignore[attr-defined]
    assert seen == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


@pytest.mark.parametrize("counts_pushes", [True, False])
def test_two_samplers_side_by_side_deal_the_same_steps(counts_pushes: bool) -> None:
    session = ScriptedJob([(0, "a")]).session("a") if counts_pushes else Session(Alone())
    left, right = BatchSampler(16, 4, session=session), BatchSampler(32, 8, session=session)
    for _ in range(2):
        pairs = list(zip(left.batches(), right.batches()))
        assert len(pairs) == 4
        assert all(a.step == b.step for a, b in pairs)


def test_the_job_learns_the_smallest_batch() -> None:
    job = ScriptedJob([(0, "a")])
    session = job.session("a")
    list(BatchSampler(50, 8, session=session))
    assert job.limits == 7
    BatchSampler(40, 4, session=session)
    assert job.limits == 4


def test_more_workers_than_samples_is_an_error() -> None:
    job = ScriptedJob([(0, "abcde")])
    with pytest.raises(ValueError, match="5 workers, but the smallest batch has 4 samples"):
        list(BatchSampler(40, 4, session=job.session("a")))


def test_without_a_job_a_script_is_the_only_worker() -> None:
    session = Session(Alone())
    sampler = BatchSampler(10, 4, seed=3, session=session)
    for _ in session.epochs(2):
        assert sorted(i for batch in sampler for i in batch) == list(range(10))
    assert len(sampler) == 3
    assert sampler.rescale_grad == 1 / 4
    assert len(BatchSampler(range(10), 2, per_worker=True, session=session)) == 5


def test_max_workers_goes_with_per_worker() -> None:
    with pytest.raises(ValueError, match="max_workers is 3"):
        BatchSampler(10, 4, max_workers=3, session=Session(Alone()))
