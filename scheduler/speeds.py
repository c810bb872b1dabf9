"""Speed models: samples per second of a job as a function of its servers and workers. Who uses them is elsewhere."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Protocol, Tuple, Union

import numpy as np

from scheduler.core import Array


class SpeedModel(Protocol):
    def table(self, max_servers: int, max_workers: int) -> Array:
        """Samples/s at (servers, workers), float64 [max_servers + 1, max_workers + 1]; row and column 0 are zero."""
        ...


@dataclass(frozen=True)
class MeasuredSpeed:
    """Interpolates measured points with linear radial basis functions, as the DL2 authors do (scipy's Rbf).

    Attributes:
        points: float64 [k, 3] of servers, workers and the job's speed in samples/s.
    """

    points: Array

    def table(self, max_servers: int, max_workers: int) -> Array:
        from scipy.interpolate import Rbf

        servers, workers, speed = self.points.T
        interpolate = Rbf(servers, workers, speed, function="linear")
        grid_s, grid_w = np.meshgrid(np.arange(1, max_servers + 1), np.arange(1, max_workers + 1), indexing="ij")
        table = np.zeros((max_servers + 1, max_workers + 1))
        table[1:, 1:] = interpolate(grid_s.astype(float), grid_w.astype(float))
        return np.maximum(table, 0.0)


@dataclass(frozen=True)
class FittedSpeed:
    """Optimus's form for synchronous training (EuroSys 2018, section 3.2), with a fixed total batch.

    Seconds per sample = t0 / w + t1 + t2 w / s + t3 w + t4 s for s servers and w workers: computation, overhead,
    transfer at the servers, and overhead per worker and per server.

    Attributes:
        theta: t0 to t4, none below zero.
    """

    theta: Tuple[float, float, float, float, float]

    def __post_init__(self) -> None:
        if len(self.theta) != 5 or min(self.theta) < 0 or max(self.theta) <= 0:
            raise ValueError(f"speed parameters are {self.theta}: must be five numbers, none below 0, one above 0")

    def table(self, max_servers: int, max_workers: int) -> Array:
        return _speed_table(np.asarray(self.theta), max_servers, max_workers)


@dataclass(frozen=True)
class PhysicalSpeed:
    """Computation plus transfer: what DL2's authors call the analytical model, with the network's duplex in it.

    Each worker computes a step of ``samples_per_step`` samples, pushes the whole model and pulls it back. A node sends
    what its workers push to servers elsewhere and receives what workers elsewhere push to its servers; the pull is the
    same in reverse. The slowest node sets the step time; ``scheduler.physical`` reckons it for a placement.

    Attributes:
        compute_seconds: forward and backward of one step on one worker, s.
        model_size_mb: MB.
        network_mb_per_second: of one node, each way.
        local_mb_per_second: between tasks on one node.
        samples_per_step: samples per step of one worker.
    """

    compute_seconds: float
    model_size_mb: float
    network_mb_per_second: float
    local_mb_per_second: float
    samples_per_step: float = 1.0

    def table(self, max_servers: int, max_workers: int) -> Array:
        """As if every task had a node of its own."""
        s, w = np.meshgrid(np.arange(1, max_servers + 1), np.arange(1, max_workers + 1), indexing="ij")
        transfer = 2.0 * self.model_size_mb * np.maximum(1.0, w / s) / self.network_mb_per_second
        table = np.zeros((max_servers + 1, max_workers + 1))
        table[1:, 1:] = w * self.samples_per_step / (self.compute_seconds + transfer)
        return table


def fit_speed(servers: Array, workers: Array, speed: Array, weight: Array) -> FittedSpeed:
    """Fits Optimus's form by non-negative least squares on the relative error of the time per sample.

    Args:
        servers, workers, speed, weight: float64 [k] each, all above zero; speed in samples/s (or any other unit per
            time, which the fitted model then has).
    """
    from scipy.optimize import nnls

    features = _features(np.asarray(servers, dtype=float), np.asarray(workers, dtype=float))
    scale = np.sqrt(weight) * speed  # divides by the time per sample: relative errors
    scales = np.abs(features * scale[:, None]).max(axis=0)
    theta, _ = nnls(features * scale[:, None] / scales, np.sqrt(weight))
    return FittedSpeed(tuple(float(t) for t in theta / scales))  # type: ignore[arg-type]


def _features(servers: Array, workers: Array) -> Array:
    return np.stack([1.0 / workers, np.ones_like(workers), workers / servers, workers, servers], axis=-1)


def _speed_table(theta: Array, max_servers: int, max_workers: int) -> Array:
    s, w = np.meshgrid(
        np.arange(1, max_servers + 1, dtype=float), np.arange(1, max_workers + 1, dtype=float), indexing="ij"
    )
    table = np.zeros((max_servers + 1, max_workers + 1))
    table[1:, 1:] = 1.0 / (_features(s, w) @ theta)
    return table


def read_measurements(path: Union[str, Path]) -> Dict[str, MeasuredSpeed]:
    """Reads DL2's testbed file, one tuple a line: model, mode, batch, servers, workers, speeds, two lists of CPU use.

    Raises:
        ValueError: a line that is not such a tuple; the message names file and line.
    """
    points: Dict[str, List[Tuple[float, float, float]]] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            model, _mode, _batch, servers, workers, speeds = ast.literal_eval(line)[:6]
            total = float(sum(speeds))
            points.setdefault(str(model), []).append((float(servers), float(workers), total))
        except (ValueError, SyntaxError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: {line[:60]!r} is not a speed measurement ({error}): expected a tuple "
                "(model, mode, batch, servers, workers, [samples/s of each worker], …)"
            ) from error
    if not points:
        raise ValueError(f"{path} holds no speed measurement: give a file with one tuple a line")
    return {model: MeasuredSpeed(np.array(rows)) for model, rows in points.items()}
