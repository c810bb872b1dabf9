"""What a worker measures of itself: step times, waits for communication, and what a generation change cost it."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Deque, Dict, List, Optional

from elastic_mx.messages import Progress, Settled

REMEMBERED_STEPS = 50
STEPS_AROUND = 2
COMMIT_SECONDS = 0.05


class Meter:
    """Times of the last steps. All times in seconds, from any origin."""

    def __init__(self) -> None:
        self._step_seconds: Deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._last_begin: Optional[float] = None
        self._sent: Dict[int, float] = {}
        self._answered: Dict[int, float] = {}
        self._blocked = 0.0
        self._changes: Dict[int, int] = {}

    def step_began(self, step: int, now: float) -> None:
        """The first push of a step; calling it again for the same step changes nothing."""
        if step in self._sent or step in self._answered:
            return
        if self._last_begin is not None:
            self._step_seconds.append(now - self._last_begin)
        self._last_begin = now
        self._answered[step] = now
        for old in [s for s in self._answered if s < step - REMEMBERED_STEPS]:
            self._answered.pop(old, None)
            self._sent.pop(old, None)

    def sent(self, step: int, now: float) -> None:
        """A push of the step was sent; its first counts."""
        self._sent.setdefault(step, now)

    def answered(self, step: int, now: float) -> None:
        """An operation of the step was answered; its last counts."""
        self._answered[step] = now

    def blocked(self, seconds: float) -> None:
        """The script was held up, waiting for a commit."""
        self._blocked += seconds

    def median_step_seconds(self) -> float:
        return statistics.median(self._step_seconds) if self._step_seconds else 0.0

    def margin(self) -> int:
        """How many steps ahead a horizon is promised so that the commit comes before it is reached."""
        step = self.median_step_seconds()
        return 1 if step <= 0 else min(100, 1 + math.ceil(COMMIT_SECONDS / step))

    def change_at(self, generation: int, step: int) -> None:
        """A generation takes over at `step`: watch the steps around it."""
        self._changes[generation] = step
        self._blocked = 0.0

    def settled(self, begun: int, ending: bool) -> List[Settled]:
        """The changes whose cost is known by now, or all of them when the script is `ending`."""
        done = [g for g, step in self._changes.items() if ending or begun > step + STEPS_AROUND]
        return [self._cost(generation, self._changes.pop(generation)) for generation in done]

    def _cost(self, generation: int, at: int) -> Settled:
        waits = {step: self._answered[step] - sent for step, sent in self._sent.items() if step in self._answered}
        around = [wait for step, wait in waits.items() if at - 1 <= step <= at + STEPS_AROUND]
        usual = statistics.median(waits.values()) if waits else 0.0
        stall = max(0.0, max(around, default=0.0) - usual) + self._blocked
        return Settled(generation=generation, stall_seconds=stall, median_step_seconds=self.median_step_seconds())

    def progress(self, begun: int, epochs: float = 0.0) -> Progress:
        """What to report when step `begun` is the last that has begun and so many epochs are trained."""
        return Progress(max(begun + 1, 0), self.median_step_seconds(), epochs)
