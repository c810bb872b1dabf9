"""The protocol through thousands of random interleavings: no update is lost or applied twice, and nothing hangs."""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.elastic_mx.simulation import Script, Simulation

EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "300"))
PROFILE = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

keys = st.lists(st.tuples(st.integers(1, 1500), st.sampled_from([1, 1, 1, 2, 3])), min_size=1, max_size=4).filter(
    lambda found: any(every == 1 for _, every in found)
)
scripts = st.builds(
    Script,
    steps=st.integers(1, 12),
    keys=keys.map(tuple),
    pull_all_last=st.booleans(),
    waits=st.booleans(),
    asynchronous=st.sampled_from([False, False, False, True]),
)
resizes = st.lists(
    st.tuples(
        st.integers(-1, 10),
        st.one_of(st.none(), st.integers(1, 4)),
        st.one_of(st.none(), st.integers(1, 4)),
    ),
    max_size=5,
).map(lambda found: sorted(found, key=lambda r: r[0]))


@PROFILE
@given(scripts, st.integers(1, 3), st.integers(1, 3), resizes, st.integers(0, 2**32 - 1))
def test_whatever_the_order_every_update_counts_once_and_the_job_ends(script, workers, servers, changes, seed):
    Simulation(script, random.Random(seed), workers, servers, list(changes)).run()


@PROFILE
@given(scripts, st.integers(1, 3), st.integers(1, 3), resizes, st.integers(0, 2**32 - 1))
def test_processes_that_die_before_they_join_cost_nothing(script, workers, servers, changes, seed):
    Simulation(script, random.Random(seed), workers, servers, list(changes), lose_joiners=0.4).run()


@pytest.mark.parametrize("seed", range(20))
def test_fifty_requests_back_to_back_are_all_answered(seed):
    rng = random.Random(seed)
    changes = [(step // 3, rng.randint(1, 4), rng.randint(1, 4)) for step in range(50)]
    job = Simulation(Script(40, ((700, 1), (300, 1), (40, 2))), rng, 2, 2, changes)
    job.run()
    assert len(job.replies) == 50 - len(job.resizes)
