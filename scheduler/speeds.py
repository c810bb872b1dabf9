"""Speed models: samples per second of a job as a function of its servers and workers. Who uses them is elsewhere."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Protocol, Tuple, Union

import numpy as np


class SpeedModel(Protocol):
    def table(self, max_servers: int, max_workers: int) -> np.ndarray:
        """Samples/s at (servers, workers), float64 [max_servers + 1, max_workers + 1]; row and column 0 are zero."""
        ...


@dataclass(frozen=True)
class MeasuredSpeed:
    """Interpolates measured points with linear radial basis functions, as the DL2 authors do (scipy's Rbf).

    Attributes:
        points: float64 [k, 3] of servers, workers and the job's speed in samples/s.
    """

    points: np.ndarray

    def table(self, max_servers: int, max_workers: int) -> np.ndarray:
        from scipy.interpolate import Rbf

        servers, workers, speed = self.points.T
        interpolate = Rbf(servers, workers, speed, function="linear")
        grid_s, grid_w = np.meshgrid(np.arange(1, max_servers + 1), np.arange(1, max_workers + 1), indexing="ij")
        table = np.zeros((max_servers + 1, max_workers + 1))
        table[1:, 1:] = interpolate(grid_s.astype(float), grid_w.astype(float))
        return np.maximum(table, 0.0)


def read_measurements(path: Union[str, Path]) -> Dict[str, MeasuredSpeed]:
    """Reads DL2's testbed file, one tuple a line: model, mode, batch, servers, workers, speeds, two lists of CPU use.

    Raises:
        ValueError: a line that is not such a tuple; the message names file and line.
    """
    points: Dict[str, List[Tuple[float, float, float]]] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
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
