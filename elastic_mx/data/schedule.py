"""Which samples belong to which step: pure functions of (seed, epoch, step in the epoch, membership).

No job, no clock, no MXNet here; `sampler` walks through a schedule with the answers of a job.
"""

from dataclasses import dataclass, replace
from typing import List, Optional, Protocol, Tuple

import numpy as np
import numpy.typing as npt

from elastic_mx.data.job import Position

Indices = npt.NDArray[np.int64]
Span = Tuple[int, int]


def order(n: int, seed: int, epoch: int, shuffle: bool = True) -> Indices:
    """Return the samples 0..n-1 (int64) in the order in which `epoch` uses them.

    The order comes from NumPy's default generator, seeded by (seed, epoch): equal on every worker that runs the same
    NumPy. Without `shuffle` it is 0..n-1.
    """
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    return np.random.default_rng((seed, epoch)).permutation(n).astype(np.int64, copy=False)


def part(span: Span, index: int, parts: int) -> Span:
    """Return piece `index` of `span` cut into `parts` contiguous pieces, even to within one, the larger ones first.

    Larger pieces come first so that sizes change as rarely as can be: a new batch shape costs a Module a rebind.
    """
    low, high = span
    size, larger = divmod(high - low, parts)
    start = low + index * size + min(index, larger)
    return start, start + size + (index < larger)


def split(span: Span, parts: int) -> List[Span]:
    """Return `span` cut into `parts` pieces by `part`."""
    return [part(span, i, parts) for i in range(parts)]


@dataclass(frozen=True)
class Cursor:
    """A place in the data: the next step to deal is `step`, of `epoch`, which began with step `epoch_step`.

    Steps are global. `offset` counts the epoch's samples that the steps before this one used.
    """

    epoch: int = 0
    epoch_step: int = 0
    step: int = 0
    offset: int = 0


class Schedule(Protocol):
    """How an epoch's samples are cut into steps, and a step's into batches."""

    @property
    def n(self) -> int:
        """The number of samples in an epoch."""

    @property
    def batches_per_step(self) -> int:
        """The number of batches that each worker gets per step."""

    @property
    def max_workers(self) -> int:
        """The largest number of workers of which each gets a sample of each batch."""

    @property
    def samples_per_update(self) -> int:
        """What a sum of gradients over one step is to be divided by; the same for every step and membership."""

    def num_batches(self, num_workers: int) -> int:
        """Return how many batches a worker gets per epoch, if the membership stays `num_workers`."""

    def spans(self, cursor: Cursor, num_workers: int) -> List[Span]:
        """Return the step's `batches_per_step` batches as ranges of the epoch's order."""


@dataclass(frozen=True)
class FixedGlobalBatch:
    """The default: about `batch_size` samples per batch of all workers together, however many they are.

    An epoch has T = ceil(n / batch_size) batches (rounded up to whole steps), whose sizes are even to within one:
    no batch is larger than `batch_size`, none is a small remainder that could leave a worker without a sample, and
    neither the epoch's length nor the samples of a step depend on the membership.
    """

    n: int
    batch_size: int
    batches_per_step: int = 1

    def __post_init__(self) -> None:
        _check(self.n, self.batch_size, self.batches_per_step)
        if self.n < self.total:
            raise ValueError(
                f"{self.n} samples do not fill {self.total} batches of {self.batch_size} "
                f"({self.batches_per_step} per step): lower batches_per_step or raise batch_size"
            )

    @property
    def total(self) -> int:
        """The number of batches in an epoch."""
        per_step = self.batch_size * self.batches_per_step
        return -(-self.n // per_step) * self.batches_per_step

    @property
    def max_workers(self) -> int:
        """The size of the smallest batch."""
        return self.n // self.total

    @property
    def samples_per_update(self) -> int:
        """The nominal number of samples in a step, so that every sample of an epoch weighs the same."""
        return self.batch_size * self.batches_per_step

    def num_batches(self, num_workers: int) -> int:
        """Return `total`, whatever the membership."""
        return self.total

    def spans(self, cursor: Cursor, num_workers: int) -> List[Span]:
        """Return the batches of the step at `cursor`."""
        first = (cursor.step - cursor.epoch_step) * self.batches_per_step
        return [part((0, self.n), first + i, self.total) for i in range(self.batches_per_step)]


@dataclass(frozen=True)
class FixedWorkerBatch:
    """The option: `batch_size` samples per batch of each worker, so a step of more workers uses more samples.

    An epoch's length then depends on the memberships that it sees. Its last steps are smaller, and sized so that
    what is left is either nothing or enough for `most_workers` workers: a resize before the last step cannot leave
    a worker without a sample. With `most_workers` up to `batch_size` no worker's batch is larger than `batch_size`
    (by one, with several batches per step); beyond that, an epoch's last one may be.
    """

    n: int
    batch_size: int
    batches_per_step: int = 1
    most_workers: Optional[int] = None

    def __post_init__(self) -> None:
        _check(self.n, self.batch_size, self.batches_per_step)
        if self.most_workers is not None and self.most_workers < 1:
            raise ValueError(f"max_workers is {self.most_workers}: it must be at least 1")
        if self.n < self.max_workers * self.batches_per_step:
            raise ValueError(
                f"{self.n} samples do not give {self.max_workers} workers one each in {self.batches_per_step} "
                "batches per step: lower max_workers or batches_per_step"
            )

    @property
    def max_workers(self) -> int:
        """What the user named, or else `batch_size`."""
        if self.most_workers is not None:
            return self.most_workers
        return max(1, min(self.batch_size, self.n // self.batches_per_step))

    @property
    def samples_per_update(self) -> int:
        """One worker's samples in a step: dividing the sum over all workers by it scales the step linearly."""
        return self.batch_size * self.batches_per_step

    def num_batches(self, num_workers: int) -> int:
        """Return the number of batches in an epoch that `num_workers` workers see from beginning to end."""
        cursor, steps = Cursor(), 0
        while cursor.epoch == 0:
            cursor, steps = advance(self, cursor, num_workers), steps + 1
        return steps * self.batches_per_step

    def spans(self, cursor: Cursor, num_workers: int) -> List[Span]:
        """Return the batches of the step at `cursor` when `num_workers` take part in it."""
        left = self.n - cursor.offset
        least, reserve = (workers * self.batches_per_step for workers in (num_workers, self.max_workers))
        size = min(self.batch_size * least, left)
        if 0 < left - size < reserve:
            size = left - reserve if left - reserve >= least else left
        return split((cursor.offset, cursor.offset + size), self.batches_per_step)


def _check(n: int, batch_size: int, batches_per_step: int) -> None:
    for name, value in (("n", n), ("batch_size", batch_size), ("batches_per_step", batches_per_step)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")


def advance(schedule: Schedule, cursor: Cursor, num_workers: int) -> Cursor:
    """Return the place after the step at `cursor`, in which `num_workers` took part."""
    end = schedule.spans(cursor, num_workers)[-1][1]
    if end == schedule.n:
        return Cursor(cursor.epoch + 1, cursor.step + 1, cursor.step + 1, 0)
    return replace(cursor, step=cursor.step + 1, offset=end)


def locate(schedule: Schedule, position: Position) -> Cursor:
    """Return the place in the data at which a worker begins: it may lie in a later epoch than `position` names."""
    cursor = Cursor(position.epoch, position.epoch_step, position.epoch_step, 0)
    while cursor.step < position.step:
        cursor = advance(schedule, cursor, position.num_workers_at(cursor.step))
    return cursor


def check_workers(schedule: Schedule, num_workers: int) -> None:
    """Raise ValueError when a batch would leave one of `num_workers` workers without a sample."""
    if num_workers > schedule.max_workers:
        raise ValueError(
            f"{num_workers} workers, but the smallest batch has {schedule.max_workers} samples and each worker needs "
            f"one: raise batch_size or keep the job at {schedule.max_workers} workers or fewer"
        )


def indices(
    n: int,
    batch_size: int,
    *,
    epoch: int,
    batch: int,
    rank: int = 0,
    num_workers: int = 1,
    seed: int = 0,
    shuffle: bool = True,
) -> Indices:
    """Return the samples (int64) that worker `rank` of `num_workers` gets in batch `batch` of `epoch`.

    The pure function behind the default sampler (fixed global batch), for scripts that keep their own books: the
    shares of all ranks are disjoint and together are the global batch, and an epoch's ceil(n / batch_size) batches
    together are all samples.

    Raises:
        ValueError: there is no such batch or rank, or more workers than samples in the smallest batch.
    """
    schedule = FixedGlobalBatch(n, batch_size)
    check_workers(schedule, num_workers)
    if not 0 <= batch < schedule.total:
        raise ValueError(f"batch {batch} of an epoch of {schedule.total}: batches count from 0")
    if not 0 <= rank < num_workers:
        raise ValueError(f"rank {rank} of {num_workers} workers: ranks count from 0")
    span = schedule.spans(Cursor(epoch=epoch, step=batch), num_workers)[0]
    low, high = part(span, rank, num_workers)
    return order(n, seed, epoch, shuffle)[low:high]
