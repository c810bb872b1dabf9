"""What the demo does and in which order, and what it saw of the job; running and drawing are left to others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

WINDOW_SECONDS = 2.0


@dataclass(frozen=True)
class Change:
    """At `fraction` of the job's steps: another size."""

    fraction: float
    workers: int
    servers: int


CHANGES = (Change(0.12, 1, 2), Change(0.3, 2, 2), Change(0.6, 2, 1), Change(0.78, 1, 1))


@dataclass(frozen=True)
class Sample:
    """The job at `seconds` after its first step: the step it is in, its size, and samples per second over a while."""

    seconds: float
    step: int
    workers: int
    servers: int
    throughput: float


@dataclass
class Story:
    """What was seen so far of a job of `steps` steps with global batches of `batch_size`."""

    steps: int
    batch_size: int
    samples: List[Sample] = field(default_factory=list)
    resizes: List[Dict[str, Any]] = field(default_factory=list)
    accuracy: Optional[float] = None
    began: Optional[float] = None
    _steps_at: List[Tuple[float, int]] = field(default_factory=list)

    def saw(self, now: float, status: Dict[str, Any]) -> None:
        """Take note of the job's state at time `now` (seconds, any origin)."""
        step = max((worker["step"] for worker in status["workers"]), default=0)
        if step == 0:
            return
        if self.began is None:
            self.began = now
        if not self._steps_at or step > self._steps_at[-1][1]:
            self._steps_at.append((now, step))
        self.samples.append(
            Sample(now - self.began, step, len(status["workers"]), len(status["servers"]), self._throughput(now))
        )

    def _throughput(self, now: float) -> float:
        """Samples per second, all workers together, over the last seconds in which steps were reported."""
        recent = [at for at in self._steps_at if now - at[0] <= WINDOW_SECONDS] or self._steps_at[-1:]
        before = self._steps_at[: len(self._steps_at) - len(recent)][-1:]
        (first, from_step), (last, to_step) = (before or recent)[0], recent[-1]
        return (to_step - from_step) * self.batch_size / (last - first) if last > first else 0.0

    @property
    def step(self) -> int:
        return self.samples[-1].step if self.samples else 0

    def due(self) -> Optional[Change]:
        """The next change, once the job has come far enough for it."""
        done = len(self.resizes)
        if done < len(CHANGES) and self.step >= CHANGES[done].fraction * self.steps:
            return CHANGES[done]
        return None

    def resized(self, now: float, cost: Dict[str, Any]) -> None:
        """A change is in force; `cost` is the coordinator's answer."""
        self.resizes.append({**cost, "at_seconds": round(now - (self.began or now), 3)})

    def summary(self) -> Dict[str, Any]:
        """What goes into summary.json; seconds, bytes, and samples per second."""
        return {
            "accuracy": self.accuracy,
            "seconds": round(self.samples[-1].seconds, 3) if self.samples else 0.0,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "resizes": self.resizes,
            "timeline": [
                {
                    "seconds": round(sample.seconds, 3),
                    "step": sample.step,
                    "workers": sample.workers,
                    "servers": sample.servers,
                    "samples_per_second": round(sample.throughput, 1),
                }
                for sample in self.samples
            ],
        }
