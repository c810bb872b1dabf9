"""When a learned policy is worse than the safe one: the rule, as pure functions. Who decides then is decider.py's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Judged:
    """A job that came since the policy began: when it was submitted, and ended if it has, in seconds."""

    id: int
    submitted: float
    ended: Optional[float] = None


@dataclass(frozen=True)
class Guard:
    """The rule: the mean JCT of the window's jobs must not exceed ``margin`` times what the fallback would have had.

    What the fallback would have had is estimated by simulating the same jobs, from the same moment on the same nodes,
    with the speeds that were measured live (hindsight.py). A job counts once it has ended, or once it is older than
    ``margin`` times its estimate without having ended: it counts with its age then, so that a policy that starves jobs
    is found out though none of them ends.

    Attributes:
        margin: how much worse is too much; the estimate knows nothing of resizes' cost and of noise.
        least: jobs that must count before anything is said.
        window: of those that count, the latest so many are looked at.
        grace: slots added to each estimate: real jobs wait for the slot's beginning and take time to start and to end.
    """

    margin: float = 1.5
    least: int = 6
    window: int = 16
    grace: float = 2.0

    def judge(self, jobs: Sequence[Judged], expected: Mapping[int, float], slot_seconds: float, now: float) -> str:
        """Why the policy is worse, in a line; empty if it is not, or if it is too early to tell.

        Args:
            jobs: in order of submission.
            expected: by job, the JCT under the fallback, in slots; jobs without one do not count.
        """
        counted: List[Tuple[float, float]] = []  # JCT or age, estimate; in slots
        for job in jobs:
            if job.id not in expected:
                continue
            estimate = expected[job.id] + self.grace
            took = ((now if job.ended is None else job.ended) - job.submitted) / slot_seconds
            if job.ended is not None or took > self.margin * estimate:
                counted.append((took, estimate))
        counted = counted[-self.window :]
        if len(counted) < self.least:
            return ""
        real, estimate = (sum(column) / len(counted) for column in zip(*counted))
        if real <= self.margin * estimate:
            return ""
        return (
            f"the mean JCT of its last {len(counted)} jobs is {real:.1f} slots, "
            f"more than {self.margin:g} times the {estimate:.1f} estimated for the fallback"
        )
