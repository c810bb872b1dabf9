"""What the service asks of a cluster, whichever it is: this machine (local.py), a simulated one, Kubernetes.

A cluster knows where jobs are and how to reach them; what they should have, the service decides. It is asked from one
thread; it calls back from any. Nothing here holds on one machine only: no path, process number or core.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Set, Tuple

from scheduler.service.slot import Node, Size
from scheduler.service.spec import JobSpec

DONE, REFUSED, LATE, ENDED, FAILED = "done", "refused", "late", "ended", "failed"


@dataclass(frozen=True)
class Attempt:
    """A job as a cluster knows it: attempt ``number`` (from 1) to run job ``id`` of the record."""

    id: int
    number: int
    name: str
    spec: JobSpec


@dataclass(frozen=True)
class Look:
    """How an attempt is.

    Attributes:
        tasks: servers and workers that live, whether or not the job counts on them yet.
        members: those that the job counts on; none while it starts, and where it does not answer.
        answered: whether the job itself told how it is.
        epochs: trained, by the job's word; 0 where it tells none.
        ended: when it ended, seconds since the epoch; ``status`` its exit status then, ``reason`` why, in one line.
        lost: it is gone without a word.
        failures: a line for each task that ended badly, however the job took it.
    """

    tasks: Size = (0, 0)
    members: Size = (0, 0)
    answered: bool = False
    epochs: float = 0.0
    ended: Optional[float] = None
    status: Optional[int] = None
    reason: str = ""
    lost: bool = False
    failures: Tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.lost or self.ended is not None


@dataclass(frozen=True)
class Outcome:
    """What came of a request to a job; the fields are those of tables.Change."""

    outcome: str
    detail: str = ""
    seconds: Optional[float] = None
    stall_seconds: Optional[float] = None
    bytes_moved: Optional[int] = None


Answer = Callable[[Outcome], None]


class Cluster(Protocol):
    """A backend of the service. No method raises for what becomes of one job."""

    def now(self) -> float:
        """The time, in seconds since the epoch."""

    def nodes(self) -> Sequence[Node]:
        """The nodes there are now."""

    def refuses(self, spec: JobSpec) -> str:
        """Why a job can never run here, besides its size, in a line naming field and value; empty if it can."""

    # -------------------------------------------------------------------------------------------------- observe

    def observe(self, jobs: Sequence[Attempt]) -> List[Look]:
        """How these attempts are; one that does not answer costs its own answer only."""

    def wait(self, jobs: Sequence[Attempt], seconds: float, poked: threading.Event) -> None:
        """Lets time pass; returns early when one of the attempts has ended, or at the event."""

    # ---------------------------------------------------------------------------------------------------- enact

    def reserve(self, jobs: Sequence[Attempt], wanted: Sequence[Tuple[Attempt, Size]]) -> Set[int]:
        """Sets room aside, in order, for attempts that are to have a size: the ids of those there is room for.

        Args:
            jobs: all attempts that were begun, or are about to be, and have not ended.
        """

    def begin(self, job: Attempt, size: Size) -> None:
        """Begins an attempt in the room that was set aside, from the job's last checkpoint if it has one.

        An attempt is begun once, however often and by whomever this is called.

        Raises:
            OSError: it could not be, as on a full disk.
        """

    def resize(self, job: Attempt, size: Size, seconds: float, answer: Answer) -> None:
        """Has a job take a size; ``answer`` is called once, later than ``seconds`` only by moments."""

    def checkpoint(self, job: Attempt, seconds: float, answer: Answer) -> None:
        """Has a job write a checkpoint while it trains, in place of the last one; ``answer`` as for ``resize``."""

    def stop(self, job: Attempt) -> None:
        """Has a job end."""

    def drop_checkpoint(self, job: Attempt) -> None:
        """Deletes the checkpoint of a job that has ended, if there is one."""

    def drop(self, job: Attempt) -> str:
        """Deletes all that is kept of a job that has ended: logs and checkpoint; what could not be, and why."""

    def close(self) -> None:
        """Takes leave; jobs go on."""

    # ------------------------------------------------------------------------------------------------ for people

    def tasks(self, job: Attempt) -> Dict[str, Dict[str, Any]]:
        """Each task by name: ``role``, ``node``, ``pid`` (where there is one), ``memory``, ``status``, ``reason``."""

    def logs(self, job: Attempt, offsets: Mapping[str, int]) -> Dict[str, Dict[str, Any]]:
        """By task, the ``text`` that it printed beyond an offset, and the ``next`` offset."""

    def used(self, jobs: Sequence[Attempt]) -> Dict[str, List[Tuple[float, ...]]]:
        """By node, the demand of each task there, in the units and order of ``RESOURCES``."""


def epochs_of(told: Mapping[str, Any], spec: JobSpec) -> float:
    """Epochs trained, by what a job's coordinator tells of its state."""
    epochs = max((float(worker.get("epochs") or 0) for worker in told["workers"]), default=0.0)
    per_epoch = spec.steps_per_epoch or spec.steps
    if epochs == 0 and per_epoch:
        return max((float(worker["step"]) for worker in told["workers"]), default=0.0) / per_epoch
    return epochs
