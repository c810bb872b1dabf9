"""What a resize costs a job, in training seconds. The simulator subtracts it; policies may reckon with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple, Union

import numpy as np

from scheduler.core import Array, ResizeCost

Size = Tuple[Array, Array]


@dataclass(frozen=True)
class LinearCost:
    """A fixed time and a time per megabyte of model: what ``benchmarks.resize`` measures.

    Attributes:
        base_seconds: s per resize, at least 0.
        seconds_per_mb: s per MB of parameters, at least 0.
    """

    base_seconds: float = 0.0
    seconds_per_mb: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("base_seconds", self.base_seconds), ("seconds_per_mb", self.seconds_per_mb)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"resize cost: {name} is {value}, must be 0 or more")

    def seconds(self, size_mb: Array, old: Size, new: Size) -> Array:
        return self.base_seconds + self.seconds_per_mb * np.asarray(size_mb, dtype=float)


def checkpoint_restart(restart_seconds: float = 30.0, storage_mb_per_second: float = 100.0) -> LinearCost:
    """Stop, save, start again, load: the resize of a system without elasticity (DL2, section 2.2).

    Args:
        restart_seconds: to stop processes and start them until they train; an assumption, tens of seconds in the paper.
        storage_mb_per_second: of the shared storage; the model is written once and read once.
    """
    return LinearCost(restart_seconds, 2.0 / storage_mb_per_second)


def parse_cost(text: str) -> Optional[ResizeCost]:
    """The cost named on a command line: ``none``, ``restart``, seconds per resize, or a file of ``benchmarks.resize``.

    Raises:
        ValueError: anything else.
    """
    if text in ("", "none", "zero", "0"):
        return None
    if text == "restart":
        return checkpoint_restart()
    try:
        return LinearCost(float(text))
    except ValueError as error:
        if not Path(text).is_file():
            known = "'none', 'restart', a number of seconds of 0 or more, or a JSON file with base_seconds"
            raise ValueError(f"resize cost {text!r} is not known: give {known}") from error
    return read_cost(text)


def read_cost(path: Union[str, Path]) -> LinearCost:
    """Reads a JSON object with ``base_seconds`` and, if it has it, ``seconds_per_mb``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return LinearCost(float(data["base_seconds"]), float(data.get("seconds_per_mb", 0.0)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no resize cost ({error!r}): a JSON object with base_seconds is needed") from error
