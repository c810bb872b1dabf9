"""Makes the workload that ships in ``scheduler/data``: our own cluster and jobs, speeds fitted from measurements.

``python -m scheduler.traces.shipped MEASUREMENTS OUT`` writes it anew from a file of DL2's testbed measurements. Only
the five fitted parameters per model (Optimus's form) come from there; cluster, demands and job lengths are ours.
"""

from __future__ import annotations

import sys
from typing import List, Tuple

import numpy as np

from scheduler.core import JobType
from scheduler.speeds import FittedSpeed, MeasuredSpeed, fit_speed, read_measurements
from scheduler.traces import native
from scheduler.workload import Arrivals, Workload

SLOT_SECONDS = 1200.0
RESOURCES = ("cpu", "gpu", "memory")
LIMIT = 32

# Name, worker's and server's (cores, GPUs, GiB), parameters in MB (float32), epochs, slots at best, weight.
_Row = Tuple[str, Tuple[float, ...], Tuple[float, ...], float, int, float, float]
JOBS: List[_Row] = [
    ("resnet-50", (4, 1, 16), (2, 0, 4), 102.0, 90, 30.0, 1.0),
    ("vgg-16", (4, 1, 16), (4, 0, 8), 553.0, 60, 60.0, 0.7),
    ("resnext-110", (4, 1, 12), (2, 0, 4), 6.9, 160, 9.0, 1.2),
    ("inception-bn", (4, 1, 16), (2, 0, 4), 42.0, 120, 35.0, 0.9),
    ("seq2seq", (2, 1, 12), (2, 0, 4), 36.0, 40, 50.0, 0.9),
    ("cnn-text-classification", (4, 0, 8), (2, 0, 4), 24.0, 100, 22.0, 1.2),
    ("dssm", (6, 0, 24), (2, 0, 8), 6.0, 30, 14.0, 1.2),
    ("wlm", (2, 1, 8), (2, 0, 4), 19.0, 80, 18.0, 1.0),
]


def fit_measured(measured: MeasuredSpeed) -> FittedSpeed:
    """Optimus's form for measured points, rounded to four significant digits; points without speed are left out."""
    points = measured.points[measured.points[:, 2] > 0]
    fitted = fit_speed(points[:, 0], points[:, 1], points[:, 2], np.ones(len(points)))
    return FittedSpeed(tuple(float(f"{t:.4g}") for t in fitted.theta))  # type: ignore[arg-type]


def build(measurements: str) -> Workload:
    measured = read_measurements(measurements)
    types = []
    for name, worker, server, size, epochs, slots, weight in JOBS:
        speed = fit_measured(measured[name])
        best = float(speed.table(LIMIT, LIMIT).max())
        samples = float(f"{best * slots * SLOT_SECONDS / epochs:.3g}")
        types.append(
            JobType(
                name=name,
                worker=tuple(float(d) for d in worker),
                server=tuple(float(d) for d in server),
                samples_per_epoch=samples,
                epochs=float(epochs),
                model_size_mb=size,
                speed=speed,
                weight=weight,
            )
        )
    return Workload(
        name="shipped",
        slot_seconds=SLOT_SECONDS,
        resources=RESOURCES,
        capacity=np.array([[16.0, 4.0, 96.0]] * 12 + [[32.0, 2.0, 128.0]] * 4),
        types=tuple(types),
        max_servers=LIMIT,
        max_workers=LIMIT,
        process=Arrivals(process="google", rate=1.5, peak=3, jobs=60, epoch_spread=0.2),
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m scheduler.traces.shipped MEASUREMENTS OUT")
    native.write(
        sys.argv[2],
        build(sys.argv[1]),
        header=[
            "The workload that ships with elastic-mx: 16 nodes of two kinds, eight kinds of jobs.",
            "Made by `python -m scheduler.traces.shipped`; speeds are fitted from the measurements that DL2 published.",
        ],
    )
