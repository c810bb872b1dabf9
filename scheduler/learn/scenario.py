"""Where agents train and are validated: simulated clusters with traces drawn by workloads' rules. No learning here.

Training, validation and test traces come from separate streams of one seed, so no agent sees what it is judged on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from scheduler.core import Policy, ResizeCost
from scheduler.evaluate import run
from scheduler.simulator import Simulator, SimulatorSettings
from scheduler.traces.generate import draw_trace
from scheduler.workload import Workload

TRAINING, VALIDATION, TEST = 1, 2, 3  # streams


class Held:
    """Where agents train, and what can be asked of held-out clusters, wherever they come from. ``seed``: of all."""

    seed: int

    def simulator(self, rng: np.random.Generator) -> Simulator:
        """A fresh cluster with a trace of its own."""
        raise NotImplementedError

    def training_rng(self) -> np.random.Generator:
        raise NotImplementedError

    def type_names(self) -> List[str]:
        """Names of all job types, in order, each once."""
        raise NotImplementedError

    def held_out(self, count: int, stream: int = VALIDATION) -> List[Simulator]:
        raise NotImplementedError

    def mean_jct(self, policy: Policy, count: int, stream: int = VALIDATION) -> float:
        """Of a policy over held-out traces, slots."""
        return float(np.mean([run(policy, simulator).jct.mean() for simulator in self.held_out(count, stream)]))

    def rivals(self, names: Tuple[str, ...], count: int) -> Dict[str, float]:
        """Mean JCT of policies by name over the validation traces, slots."""
        from scheduler.policies import make

        return {name: self.mean_jct(make(name), count) for name in names}


@dataclass(frozen=True)
class Scenario(Held):
    """A workload and what may go wrong on it.

    Attributes:
        workload: cluster, job types, arrivals.
        peaks: most arrivals per slot; traces take them in turn. Empty: as the workload says.
        types: job types that are drawn, by index; None for all.
        epoch_error, speed_error, speed_variation: as in ``SimulatorSettings``.
        resize_cost: what resizes cost.
        jobs: jobs per trace; None: as the workload says.
        seed: of all streams.
    """

    workload: Workload
    peaks: Tuple[int, ...] = ()
    types: Optional[Tuple[int, ...]] = None
    epoch_error: float = 0.0
    speed_error: float = 0.0
    speed_variation: float = 0.0
    resize_cost: Optional[ResizeCost] = None
    jobs: Optional[int] = None
    seed: int = 0

    @property
    def settings(self) -> SimulatorSettings:
        return SimulatorSettings(
            epoch_error=self.epoch_error,
            speed_error=self.speed_error,
            speed_variation=self.speed_variation,
            resize_cost=self.resize_cost,
            check=False,
        )

    def simulator(self, rng: np.random.Generator) -> Simulator:
        """A fresh cluster with a trace of its own."""
        peak = int(rng.choice(self.peaks)) if self.peaks else None
        return self._draw(rng, peak)

    def held_out(self, count: int, stream: int = VALIDATION) -> List[Simulator]:
        """The first so many clusters of a stream, the same at every call."""
        simulators = []
        for k in range(count):
            peak = self.peaks[k % len(self.peaks)] if self.peaks else None
            simulators.append(self._draw(np.random.default_rng([self.seed, stream, k]), peak))
        return simulators

    def training_rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, TRAINING])

    def type_names(self) -> List[str]:
        return [kind.name for kind in self.workload.types]

    def _draw(self, rng: np.random.Generator, peak: Optional[int]) -> Simulator:
        trace = draw_trace(self.workload, rng, peak=peak, types=self.types, jobs=self.jobs)
        return Simulator(self.workload, trace, self.settings, seed=int(rng.integers(2**31)))


class Mixture(Held):
    """Several scenarios in place of one: each cluster is of one of them, drawn evenly; held-out ones take turns.

    Args:
        scenarios: at least one; all with the same seed.
    """

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self.scenarios = tuple(scenarios)
        self.seed = self.scenarios[0].seed

    def simulator(self, rng: np.random.Generator) -> Simulator:
        """A fresh cluster with a trace of its own."""
        return self.scenarios[int(rng.integers(len(self.scenarios)))].simulator(rng)

    def held_out(self, count: int, stream: int = VALIDATION) -> List[Simulator]:
        """The first so many clusters of a stream, the same at every call."""
        kinds = len(self.scenarios)
        parts = [part.held_out(-(-count // kinds), stream) for part in self.scenarios]
        return [parts[k % kinds][k // kinds] for k in range(count)]

    def training_rng(self) -> np.random.Generator:
        return self.scenarios[0].training_rng()

    def type_names(self) -> List[str]:
        """Names of all job types, in order, each once."""
        return list(dict.fromkeys(name for part in self.scenarios for name in part.type_names()))
