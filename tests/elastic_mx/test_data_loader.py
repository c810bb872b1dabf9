"""Gluon's DataLoader over the sampler, in every way in which it loads ahead, and the functions of the package."""

from collections import Counter
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest

import elastic_mx
from elastic_mx.data import BatchSampler, Share, provide
from tests.elastic_mx.scripted_job import ScriptedJob

mx = pytest.importorskip("mxnet")
gluon = mx.gluon

LOADERS = {
    "in the process": {},
    "2 processes": {"num_workers": 2},
    "2 threads": {"num_workers": 2, "thread_pool": True},
    "2 processes, 7 ahead": {"num_workers": 2, "prefetch": 7},
}


@pytest.fixture
def jobs() -> Iterator[Any]:
    """Sets the job of this process, and takes it away again."""
    yield lambda worker: provide(lambda: worker)
    provide(lambda: None)


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS.keys())
def test_each_sample_is_loaded_once_per_epoch(jobs: Any, options: Dict[str, Any]) -> None:
    n, epochs = 120, 4
    dataset = gluon.data.ArrayDataset(np.arange(n, dtype="int32"))
    job = ScriptedJob([(0, "a"), (5, "abc"), (9, "bcd"), (23, "cdefg"), (31, "e")])
    used: List[Counter] = [Counter() for _ in range(epochs)]
    for name in job.names():
        jobs(job.worker(name))
        loader = gluon.data.DataLoader(dataset, batch_sampler=BatchSampler(n, 12, seed=1), **options)
        assert len(loader) == 10
        for epoch in elastic_mx.epochs(epochs):
            for batch in loader:
                used[epoch].update(batch.asnumpy().tolist())
    assert used == [Counter(range(n))] * epochs


def test_a_loader_deals_no_further_ahead_than_it_prefetches(jobs: Any) -> None:
    worker = ScriptedJob([(0, "a")]).worker("a")
    jobs(worker)
    dataset = gluon.data.ArrayDataset(np.arange(80))
    loader = gluon.data.DataLoader(dataset, batch_sampler=BatchSampler(80, 4), num_workers=2, thread_pool=True)
    for used, _ in enumerate(loader, start=1):
        assert max(worker.dealt) < used + 4
    assert worker.dealt == set(range(20))


def test_a_loader_left_early_skips_no_step(jobs: Any) -> None:
    worker = ScriptedJob([(0, "a")]).worker("a")
    jobs(worker)
    dataset = gluon.data.ArrayDataset(np.arange(80))
    sampler = BatchSampler(80, 4)
    loader = gluon.data.DataLoader(dataset, batch_sampler=sampler, num_workers=2, thread_pool=True)
    for _ in loader:
        worker.pushed += 1
        if worker.pushed == 3:
            break
    assert worker.dealt == set(range(7))
    worker.dealt.clear()
    assert len(list(loader)) == 20
    assert worker.dealt == set(range(3, 23))


def test_the_share_is_that_of_the_step_being_computed(jobs: Any) -> None:
    worker = ScriptedJob([(0, "a"), (5, "ab")]).worker("a")
    jobs(worker)
    assert elastic_mx.data.share() == Share(rank=0, num_workers=1, generation=0)
    worker.pushed = 5
    assert elastic_mx.data.share() == Share(rank=0, num_workers=2, generation=1)


def test_without_a_job_every_epoch_is_this_process_s() -> None:
    provide(lambda: None)
    assert list(elastic_mx.epochs(3)) == [0, 1, 2]
    assert elastic_mx.epoch() == 0
    assert elastic_mx.data.share() == Share(rank=0, num_workers=1, generation=0)
