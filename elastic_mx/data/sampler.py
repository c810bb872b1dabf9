"""Deals a script its samples: batches of indices for Gluon's DataLoader and for plain loops.

The samples follow from `schedule`, the membership of each step from the job; nothing here knows the network.
"""

from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Union

import numpy as np

from elastic_mx.data.job import Retired
from elastic_mx.data.schedule import (
    Cursor,
    FixedGlobalBatch,
    FixedWorkerBatch,
    Indices,
    Schedule,
    advance,
    locate,
    order,
    part,
)
from elastic_mx.data.session import Session, current


@dataclass(frozen=True)
class Batch:
    """One worker's samples of one batch: `indices` (int64) of the dataset.

    `step` is global, `number` counts the epoch's batches from 0. `global_size` is the batch's size over all
    `num_workers` workers.
    """

    epoch: int
    step: int
    number: int
    indices: Indices
    global_size: int
    rank: int
    num_workers: int
    generation: int


class BatchSampler:
    """Batches of sample indices for ``gluon.data.DataLoader(dataset, batch_sampler=BatchSampler(...))``.

    Each iteration is one epoch, in which every sample is dealt to exactly one worker, however often the job is
    resized. Make one for the training data and iterate over it only to train: its batches count the job's steps.

    Args:
        n: number of samples, or the dataset itself.
        batch_size: samples per batch of all workers together; with `per_worker`, of each worker.
        seed: of the order of the samples; the same on all workers.
        shuffle: a new order in each epoch; else always 0..n-1.
        per_worker: let the global batch grow with the workers instead of dividing it among them.
        batches_per_step: batches that the script adds up (``grad_req='add'``) before it updates the weights.
        max_workers: with `per_worker`, the most workers that the job may grow to; `batch_size` if not given.
        session: the job to ask; the process's own if not given.

    Raises:
        ValueError: an argument is out of range; while iterating, a job has more workers than a batch has samples.
    """

    def __init__(
        self,
        n: Union[int, Any],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        per_worker: bool = False,
        batches_per_step: int = 1,
        max_workers: Optional[int] = None,
        session: Optional[Session] = None,
    ) -> None:
        n = n if isinstance(n, (int, np.integer)) else len(n)
        if max_workers is not None and not per_worker:
            raise ValueError(f"max_workers is {max_workers}: it goes with per_worker=True, else batch_size sets it")
        self.schedule: Schedule = (
            FixedWorkerBatch(int(n), batch_size, batches_per_step, max_workers)
            if per_worker
            else FixedGlobalBatch(int(n), batch_size, batches_per_step)
        )
        self.seed = seed
        self.shuffle = shuffle
        self.session = session if session is not None else current()
        self.session.add(self.schedule)
        self._made_after = self.session.last  # Where an earlier sampler stood when this one was made.
        self._next: Optional[Cursor] = None  # The next step to deal; None before the first.
        self._began: Optional[Cursor] = None  # Where the iteration under way began; None between iterations.
        self._script_epoch = 0  # The epoch that the script's next iteration stands for.
        self._live = 0  # Number of the iteration under way: an older one ends itself.

    @property
    def rescale_grad(self) -> float:
        """What multiplies a sum of gradients over one step: ``optimizer_params={'rescale_grad': ...}`` for Module.

        1 / (batch_size * batches_per_step): with a fixed global batch the mean over the step's samples, for every
        membership; with `per_worker` the mean times the number of workers (linear scaling).
        """
        return 1.0 / self.schedule.samples_per_update

    def __len__(self) -> int:
        """The batches that a worker gets in a whole epoch; with `per_worker`, if the membership stays as it is."""
        if isinstance(self.schedule, FixedGlobalBatch):
            return self.schedule.total
        try:
            return self.schedule.num_batches(self.session.share(self._cursor().step, self.schedule).num_workers)
        except Retired:
            return 0

    def __iter__(self) -> Iterator[List[int]]:
        for batch in self.batches():
            yield batch.indices.tolist()

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches; nothing when that epoch is over or this worker has left its job."""
        live = self._live = self._live + 1
        cursor = self._begin()
        if cursor is None:
            return
        samples = order(self.schedule.n, self.seed, cursor.epoch, self.shuffle)
        epoch = cursor.epoch
        number = (cursor.step - cursor.epoch_step) * self.schedule.batches_per_step
        while cursor.epoch == epoch and live == self._live:
            try:
                share = self.session.share(cursor.step, self.schedule)
            except Retired:
                break
            if cursor.step == cursor.epoch_step:
                self.session.job.epoch_began(epoch, cursor.step)
            following = advance(self.schedule, cursor, share.num_workers)
            for low, high in self.schedule.spans(cursor, share.num_workers):
                first, last = part((low, high), share.rank, share.num_workers)
                self._stand(following)
                yield Batch(
                    epoch,
                    cursor.step,
                    number,
                    samples[first:last],
                    high - low,
                    share.rank,
                    share.num_workers,
                    share.generation,
                )
                number += 1
                if live != self._live:
                    return
            cursor = following
        if live == self._live:
            self._began = None

    def next_size(self) -> int:
        """Return the number of samples that this worker's next batch has; 0 when there is none."""
        cursor = self._cursor()
        try:
            share = self.session.share(cursor.step, self.schedule)
        except Retired:
            return 0
        low, high = part(self.schedule.spans(cursor, share.num_workers)[0], share.rank, share.num_workers)
        return high - low

    def _stand(self, cursor: Cursor) -> None:
        self._next = self.session.last = cursor

    def _cursor(self) -> Cursor:
        """Return the next step to deal, joining the job if need be."""
        if self._next is None:
            self._next = self._first()
        return self._next

    def _first(self) -> Cursor:
        """Return where this sampler begins: where the worker does, or after what an earlier sampler dealt."""
        position = self.session.position()
        last, step = self.session.last, self.session.job.step()
        if step is None:  # Nobody counts steps: a sampler made after another has dealt follows it.
            last = self._made_after
            step = position.step if last is None else last.step
        if last is None or step <= position.step:
            return locate(self.schedule, position)
        epoch = last.epoch + (last.step > last.epoch_step)
        self._script_epoch = epoch
        return Cursor(epoch, step, step, 0)

    def _begin(self) -> Optional[Cursor]:
        """Return where the epoch that the script asks for begins; None when there is nothing left of it."""
        cursor = self._cursor()
        if self.session.retired:
            return None
        if self._began is not None and self._began.epoch == cursor.epoch:
            cursor = self._after_break(self._began, cursor)
        self._script_epoch = max(self._script_epoch, self.session.script_epoch or 0)
        if self._script_epoch < cursor.epoch:
            self.session.passed_over = self.session.passed_over or self.session.script_epoch is None
            self._script_epoch += 1
            return None
        self._script_epoch = cursor.epoch + 1
        self._began = self._next = cursor
        return cursor

    def _after_break(self, began: Cursor, dealt: Cursor) -> Cursor:
        """Return where to go on after a loop that was left early and so used less than it was dealt.

        Its epoch counts as over, unless it took no step at all (a script that only looks at the first batch).
        """
        step = self.session.job.step()
        if step is not None and step <= began.step:
            self._script_epoch = began.epoch
            return began
        step = dealt.step if step is None else step
        return Cursor(began.epoch + 1, step, step, 0)


def batches(
    n: Union[int, Any],
    batch_size: int,
    epochs: int,
    **options: Any,
) -> Iterator[Batch]:
    """Yield this worker's batches of `epochs` epochs: for scripts that use neither DataLoader nor Module.

    ``for batch in elastic_mx.data.batches(len(x), 64, epochs=10): step(x[batch.indices])``. Takes BatchSampler's
    options. A worker that joins begins where the job stands; the loop of one that leaves ends.
    """
    sampler = BatchSampler(n, batch_size, **options)
    for _ in sampler.session.epochs(epochs):
        yield from sampler.batches()
