"""How far a job is, in epochs, as its workers tell it."""

import pytest

from elastic_mx.data import BatchSampler, Session
from elastic_mx.data.job import Alone, Limits
from elastic_mx.messages import Generation
from elastic_mx.worker_machine import WorkerMachine


class Noting(Alone):
    """A job that keeps the limits it was last told."""

    def join(self, limits):
        self.limits = limits
        return super().join(limits)


def machine():
    return WorkerMachine("worker-0", Generation(0, ("worker-0",), {"server-0": ""}), joining=False)


def test_progress_counts_the_steps_of_the_epoch_under_way_and_not_those_dealt_ahead():
    worker = machine()
    worker.epoch_began(0, 0)
    assert worker.epochs_trained(4) == 0
    for _ in range(3):
        worker.begin_push([0])
    worker.epoch_began(1, 4)  # the sampler is ahead of the training
    assert worker.epochs_trained(4) == pytest.approx(0.75)
    worker.begin_push([0])
    worker.begin_push([0])
    assert worker.epochs_trained(4) == pytest.approx(1.25)


def test_progress_is_zero_while_nobody_knows_how_long_an_epoch_is():
    worker = machine()
    worker.begin_push([0])
    assert worker.epochs_trained(4) == worker.epochs_trained(0) == 0


def test_the_job_is_told_how_many_steps_its_longest_epoch_has():
    job = Noting()
    session = Session(job)
    BatchSampler(100, 10, session=session)
    BatchSampler(100, 5, batches_per_step=2, session=session)
    BatchSampler(100, 8, session=session)
    session.position()
    assert job.limits == Limits(max_workers=5, steps_per_epoch=13)
