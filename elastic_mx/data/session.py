"""One script's view of where its job stands: epochs, and the memberships of steps as they are dealt.

Samplers share it, so that a script with several of them joins its job once. It knows no samples.
"""

from typing import Callable, Iterator, List, Optional

from elastic_mx.data.job import Alone, Job, Limits, Position, Retired, Share
from elastic_mx.data.schedule import Cursor, Schedule, check_workers, locate


class Session:
    """What a process knows of its job's data, from the first question on.

    `retired`: this worker has been told that it is no longer a member.
    `script_epoch`: the epoch that the script itself said it begins with (it asked `epoch` or `epochs`), else None.
    `passed_over`: a sampler has passed over an epoch that was over before this worker joined.
    `last`: where the sampler that dealt last stands, for one that is made later.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.retired = False
        self.script_epoch: Optional[int] = None
        self.passed_over = False
        self.last: Optional[Cursor] = None
        self._schedules: List[Schedule] = []
        self._position: Optional[Position] = None

    def _limits(self) -> Limits:
        most_workers = min((s.max_workers for s in self._schedules), default=None)
        steps = max((s.num_batches(1) // s.batches_per_step for s in self._schedules), default=None)
        return Limits(most_workers, steps)

    def add(self, schedule: Schedule) -> None:
        """Take note of the limits of `schedule`, and tell the job if it has been joined already."""
        before = self._limits()
        self._schedules.append(schedule)
        if self._position is not None and self._limits() != before:
            self.job.join(self._limits())

    def position(self) -> Position:
        """Join the job, which blocks until a joining worker is a member; later calls return the same position."""
        if self._position is None:
            self._position = self.job.join(self._limits())
        return self._position

    def share(self, step: int, schedule: Schedule) -> Share:
        """Return this worker's share of global step `step`.

        Raises:
            Retired: this worker is not a member at `step`; `retired` is set.
            ValueError: the step has more workers than the smallest batch has samples.
        """
        if self.retired:
            raise Retired(f"this worker has left its job before step {step}")
        try:
            share = self.job.deal(step)
        except Retired:
            self.retired = True
            raise
        check_workers(schedule, share.num_workers)
        return share

    def epoch(self) -> int:
        """Return the epoch with which this worker begins, and take it that the script begins there, too."""
        if self.script_epoch is None:
            position = self.position()
            if self.passed_over:
                raise RuntimeError(
                    f"this worker joined in epoch {position.epoch}, but the script asked for data of an earlier "
                    "one first: call elastic_mx.epoch() or epochs() before the first batch (auto_reload=False)"
                )
            places = [locate(schedule, position).epoch for schedule in self._schedules]
            self.script_epoch = max(places, default=position.epoch)
        return self.script_epoch

    def epochs(self, n: int) -> Iterator[int]:
        """Yield the epochs that this worker takes part in, of 0..n-1."""
        for epoch in range(self.epoch(), n):
            if self.retired:
                return
            yield epoch


def _no_job() -> Optional[Job]:
    return None


_open: Callable[[], Optional[Job]] = _no_job
_session: Optional[Session] = None


def provide(open_job: Callable[[], Optional[Job]]) -> None:
    """Name the function that returns this process's job, or None where it has none. Called by the runtime.

    It is called when the script first needs its job, and forgets the session of the job before.
    """
    global _open, _session
    _open, _session = open_job, None


def current() -> Session:
    """Return this process's session; it is made at the first call."""
    global _session
    if _session is None:
        _session = Session(_open() or Alone())
    return _session


def epoch() -> int:
    """Return the epoch with which this worker begins: 0, unless it joins or resumes a job that is further.

    ``module.fit(..., begin_epoch=elastic_mx.epoch())``. Blocks until a joining worker is a member.
    """
    return current().epoch()


def epochs(n: int) -> Iterator[int]:
    """Yield the epochs that this worker takes part in, of 0..n-1: ``for epoch in elastic_mx.epochs(n):``.

    A worker that joins begins with the job's epoch; for one that leaves, the epoch that it leaves in is the last.
    """
    return current().epochs(n)


def share() -> Share:
    """Return this worker's share of the step that it computes now: its rank and the number of workers.

    Raises:
        Retired: this worker has left its job.
    """
    session = current()
    position = session.position()
    step = session.job.step()
    return session.job.deal(position.step if step is None else step)
