"""What the data needs to know of the job: one interface, and the job of a script that was started without one.

The worker's client implements `Job` over the network. Which samples follow from the answers is `schedule`'s work.
"""

from dataclasses import dataclass
from typing import Optional, Protocol, Tuple


class Retired(Exception):
    """This worker is no longer a member at the step that was asked for."""


@dataclass(frozen=True)
class Limits:
    """What the data allows: the coordinator refuses a size beyond it.

    `max_workers` is the size of the smallest batch that is dealt among the workers (each needs a sample);
    None where nothing is known yet. `steps_per_epoch` is how long the longest epoch of its samplers is, by which
    progress is told; None where nothing is known, and only an estimate where the membership changes it.
    """

    max_workers: Optional[int] = None
    steps_per_epoch: Optional[int] = None


@dataclass(frozen=True)
class Share:
    """The membership of one step as one worker sees it: it is number `rank` of `num_workers`."""

    rank: int
    num_workers: int
    generation: int


@dataclass(frozen=True)
class Position:
    """Where a worker begins: at global step `step`, while epoch `epoch` had begun at global step `epoch_step`.

    `epoch` is the last epoch that some member reported, so `step` may lie beyond its end: `schedule.locate` counts
    on from there. `history` is needed where a step's number of samples depends on the membership: pairs of (first
    step, number of workers), ascending, of every generation from the one in force at `epoch_step` up to `step`.
    """

    epoch: int = 0
    epoch_step: int = 0
    step: int = 0
    history: Tuple[Tuple[int, int], ...] = ()

    def num_workers_at(self, step: int) -> int:
        """Return the number of workers in force at global step `step`; 1 where the history does not say."""
        found = 1
        for first_step, num_workers in self.history:
            if first_step > step:
                break
            found = num_workers
        return found


class Job(Protocol):
    """A worker's view of its job. Called from the thread that iterates over the data."""

    def join(self, limits: Limits) -> Position:
        """Return where this worker begins; a joining worker blocks here until its generation is committed.

        Called when the script first asks for data or for its epoch. May be called again when another sampler
        tightens the limits: it then returns the same position, and the smallest `max_workers` counts.
        """

    def deal(self, step: int) -> Share:
        """Return the membership of global step `step`; from now on it is fixed: asked again, the answer is the same.

        May block shortly where `step` lies past the horizon that was promised to the coordinator.

        Raises:
            Retired: this worker is not a member at `step`.
        """

    def epoch_began(self, epoch: int, step: int) -> None:
        """Report that `epoch` begins with global step `step`, so that a joining worker can be told."""

    def step(self) -> Optional[int]:
        """Return the global step that this worker's next push belongs to; None where nobody counts pushes.

        Asked when a script leaves an epoch's loop early, so that what was dealt ahead (prefetched) is dealt anew,
        and when a second sampler begins.
        """


class Alone:
    """The job of a script that no launcher started: one worker, one generation, from step 0."""

    def join(self, limits: Limits) -> Position:
        """Return the beginning: epoch 0, step 0."""
        return Position()

    def deal(self, step: int) -> Share:
        """Return the share of the only worker."""
        return Share(rank=0, num_workers=1, generation=0)

    def epoch_began(self, epoch: int, step: int) -> None:
        """Nobody else needs to know."""

    def step(self) -> Optional[int]:
        """Return None: nothing here sees the pushes."""
        return None
