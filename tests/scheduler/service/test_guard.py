"""When a learned policy is called worse than the fallback, and how the fallback is reckoned to do."""

import numpy as np
import pytest

from scheduler.core import Allocation, Policy
from scheduler.policies import make
from scheduler.service.decider import policy_of
from scheduler.service.estimate import expected_jcts
from scheduler.service.guard import Guard, Judged
from scheduler.service.store import Store
from tests.scheduler.service.played import SLOT_SECONDS, play

GUARD = Guard(margin=1.5, least=3, window=4, grace=0.0)


def judge(times, now=10_000.0, expected=10.0, guard=GUARD):
    """Of jobs submitted at 0 whose JCTs are given in slots of 10 s, None where they have not ended."""
    jobs = [Judged(k, 0.0, None if time is None else 10.0 * time) for k, time in enumerate(times)]
    return guard.judge(jobs, {k: expected for k in range(len(times))}, 10.0, now)


def test_it_is_worse_where_the_mean_jct_exceeds_the_margin():
    assert judge([15, 15, 15]) == "" != judge([15, 15, 15.1])
    assert judge([20, 20, 20]) == (
        "the mean JCT of its last 3 jobs is 20.0 slots, more than 1.5 times the 10.0 estimated for the fallback"
    )


def test_too_few_jobs_say_nothing_and_old_ones_are_forgotten():
    assert judge([90, 90]) == ""
    assert judge([90, 90, 10, 10, 10, 10]) == "" != judge([10, 10, 90, 90, 90, 90])


def test_jobs_that_never_end_count_once_they_are_late():
    assert judge([None, None, None], now=149.0) == "" != judge([None, None, None], now=151.0)
    assert judge([10, None, 10], now=20.0) == ""


def test_jobs_without_an_estimate_do_not_count_and_the_grace_is_added():
    assert GUARD.judge([Judged(k, 0.0, 900.0) for k in range(9)], {0: 1.0, 1: 1.0}, 10.0, 1000.0) == ""
    assert judge([20, 20, 20], guard=Guard(least=3, grace=5.0)) == ""


class OneEach(Policy):
    """One worker and one server for each job, however much is free."""

    name = "one-each"

    def allocate(self, cluster, jobs):
        return Allocation(np.ones(len(jobs), dtype=int), np.ones(len(jobs), dtype=int))


@pytest.mark.parametrize(("policy", "bad"), [(policy_of("drf"), False), (OneEach(), True)])
def test_the_estimate_is_what_the_fallback_makes_of_the_same_jobs(policy, bad, tmp_path):
    store = Store(tmp_path)
    play(store, make("srtf"), make("drf"), count=3)
    since = 1000.0
    play(store, policy, make("drf"), count=8, every=12, start=since)  # what is free matters, not who comes first
    expected = expected_jcts(store, policy_of("drf"), since)
    rows = [row for row in store.jobs() if row.submitted_at >= since]
    real = {row.id: (row.ended_at - row.submitted_at) / SLOT_SECONDS for row in rows}
    assert list(expected) == list(real)
    if not bad:
        assert np.mean(list(expected.values())) == pytest.approx(np.mean(list(real.values())), abs=0.6)
    jobs = [Judged(row.id, row.submitted_at, row.ended_at) for row in rows]
    verdict = Guard().judge(jobs, expected, SLOT_SECONDS, 5000.0)
    assert bool(verdict) == bad, (verdict, expected, real)
    assert expected_jcts(store, policy_of("drf"), 1e9) == {}
    store.close()
