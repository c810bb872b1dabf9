"""Draws traces: Poisson, diurnal, Google-like, and by the rules of DL2's generator. All randomness is the caller's."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

import numpy as np

from scheduler.core import Array
from scheduler.workload import PROCESSES, Trace, Workload, make_trace


def draw_trace(
    workload: Workload,
    rng: np.random.Generator,
    peak: Optional[int] = None,
    jobs: Optional[int] = None,
    types: Optional[Sequence[int]] = None,
    process: Optional[str] = None,
    rate: Optional[float] = None,
    name: str = "drawn",
) -> Trace:
    """Draws a trace for a workload; what is not given is as ``workload.process`` says.

    Args:
        peak: most arrivals per slot; for process ``dl2`` a key of ``workload.arrivals``.
        jobs: number of jobs.
        types: indices of the job types to draw from; default all. Drawn by their weights.
        process: ``dl2``, ``poisson``, ``diurnal`` or ``google``.
        rate: mean arrivals per slot, except for process ``dl2``.

    Raises:
        ValueError: a value out of range, or process ``dl2`` without arrivals for that peak.
    """
    given = workload.process
    peak = given.peak if peak is None else peak
    jobs = given.jobs if jobs is None else jobs
    process = given.process if process is None else process
    rate = given.rate if rate is None else rate
    if jobs < 1:
        raise ValueError(f"a trace of {jobs} jobs is empty: draw at least 1")
    if process == "dl2":
        arrival = _by_dl2_rules(workload, rng, peak, jobs)
    elif process in PROCESSES:
        if not rate > 0:
            raise ValueError(f"rate is {rate}, must be above 0 arrivals per slot")
        counts = _COUNTS[process](workload, rng, rate)
        arrival = _until_enough(counts, peak if process == "google" else None, jobs)
    else:
        raise ValueError(f"no arrival process {process!r}: choose among {', '.join(PROCESSES)}")
    kinds = _draw_types(workload, rng, jobs, types)
    epochs = np.array([kind.epochs for kind in workload.types])[kinds]
    if given.epoch_spread:
        epochs = epochs * (1.0 + given.epoch_spread * rng.uniform(-1, 1, jobs))
    return make_trace(name, np.arange(1, jobs + 1), kinds, arrival, epochs)


def _by_dl2_rules(workload: Workload, rng: np.random.Generator, peak: int, jobs: int) -> Array:
    """Slots of arrival, int64 [jobs]: min(peak, pattern) jobs in each slot from a random offset of 0 to 4 slots."""
    if peak not in workload.arrivals:
        known = ", ".join(map(str, sorted(workload.arrivals))) or "none; choose another process"
        raise ValueError(f"workload {workload.name!r} has no arrivals for peak {peak}: it has {known}")
    pattern = np.minimum(np.array(workload.arrivals[peak]), peak)
    if pattern.sum() < 1:
        raise ValueError(f"workload {workload.name!r}: the arrivals for peak {peak} are all zero")
    counts = np.roll(pattern, -int(rng.integers(5)))
    counts = np.tile(counts, -(-jobs // int(pattern.sum())) + 1)
    return np.repeat(np.arange(len(counts)), counts)[:jobs]


def _poisson(workload: Workload, rng: np.random.Generator, rate: float) -> Iterator[int]:
    while True:
        yield int(rng.poisson(rate))


def _diurnal(workload: Workload, rng: np.random.Generator, rate: float) -> Iterator[int]:
    """A Poisson process whose rate swings as a sine over the day, from a random time of day."""
    given, slot = workload.process, int(rng.integers(workload.process.period_slots))
    while True:
        swing = given.amplitude * np.sin(2 * np.pi * slot / given.period_slots)
        yield int(rng.poisson(rate * (1.0 + swing)))
        slot += 1


def _google(workload: Workload, rng: np.random.Generator, rate: float) -> Iterator[int]:
    """A diurnal rate with slow log-normal drift and rare heavy-tailed bursts, as in Google's cluster traces."""
    given, slot, drift = workload.process, int(rng.integers(workload.process.period_slots)), 0.0
    while True:
        drift = 0.9 * drift + rng.normal(0.0, 0.15)
        swing = given.amplitude * np.sin(2 * np.pi * slot / given.period_slots)
        burst = rng.pareto(1.5) * rate if rng.random() < 0.02 else 0.0
        yield int(rng.poisson(rate * (1.0 + swing) * np.exp(drift) + burst))
        slot += 1


_COUNTS = {"poisson": _poisson, "diurnal": _diurnal, "google": _google}


def _until_enough(counts: Iterator[int], peak: Optional[int], jobs: int) -> Array:
    """Slots of arrival, int64 [jobs], from the counts per slot, each cut to the peak."""
    arrival = np.empty(jobs, dtype=np.int64)
    filled = slot = 0
    for count in counts:
        end = min(filled + (count if peak is None else min(count, peak)), jobs)
        arrival[filled:end] = slot
        filled, slot = end, slot + 1
        if filled == jobs:
            return arrival
    raise AssertionError("an arrival process never ends")


def _draw_types(workload: Workload, rng: np.random.Generator, jobs: int, types: Optional[Sequence[int]]) -> Array:
    choices = np.arange(len(workload.types)) if types is None else np.asarray(types, dtype=np.int64)
    weight = np.array([workload.types[t].weight for t in choices], dtype=float)
    if not len(choices) or weight.sum() <= 0:
        raise ValueError(f"workload {workload.name!r}: no job type to draw from; give one a weight above 0")
    if (weight == weight[0]).all():
        return np.asarray(choices[rng.integers(len(choices), size=jobs)])
    return np.asarray(choices[rng.choice(len(choices), size=jobs, p=weight / weight.sum())])
