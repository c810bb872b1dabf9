"""Reads DL2's workload, trace and speed files, and draws traces by the rules of its authors' generator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import numpy as np

from scheduler.core import JobType
from scheduler.speeds import read_measurements
from scheduler.workload import Trace, Workload, make_trace

PathLike = Union[str, Path]


def read_workload(path: PathLike, speeds: Optional[PathLike] = None) -> Workload:
    """Reads ``dl2_small_workload.json``; with ``speeds`` each job type gets its measured speed model.

    Raises:
        ValueError: a field is missing or has a wrong value; the message names file and field.
    """
    data = _load(path)
    if not isinstance(data, dict) or "models" not in data:
        raise ValueError(f"{path} has no field 'models': it is not a DL2 workload")
    try:
        resources = tuple(data["node_capacity"])
        types = tuple(_job_type(entry, resources) for entry in data["models"])
        workload = Workload(
            name=Path(path).stem,
            slot_seconds=float(data["slot_seconds"]),
            resources=resources,
            capacity=np.tile([float(data["node_capacity"][r]) for r in resources], (int(data["nodes"]), 1)),
            types=types,
            max_servers=int(data["max_tasks_per_role"]),
            max_workers=int(data["max_tasks_per_role"]),
            arrivals={int(p): tuple(a) for p, a in data.get("arrivals_per_slot_by_peak", {}).items()},
            jobs_per_trace=int(data.get("jobs_per_trace", 60)),
            peak=int(data.get("max_arrivals_per_slot", 3)),
        )
    except KeyError as error:
        raise ValueError(f"{path}: field {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return with_speeds(workload, speeds) if speeds is not None else workload


def with_speeds(workload: Workload, speeds: PathLike) -> Workload:
    """The workload with the measured speed models of a DL2 testbed file.

    Raises:
        ValueError: a job type has no measurement.
    """
    measured = read_measurements(speeds)
    for kind in workload.types:
        if kind.name not in measured:
            known = ", ".join(sorted(measured))
            raise ValueError(f"{speeds} has no measurement of job type {kind.name!r}: it has {known}")
    return replace(workload, types=tuple(replace_speed(kind, measured[kind.name]) for kind in workload.types))


def replace_speed(kind: JobType, speed: Any) -> JobType:
    return replace(kind, speed=speed)


def read_traces(path: PathLike, workload: Workload) -> List[Trace]:
    """Reads ``dl2_small_traces.json``: a list of traces, each a list of id, arrival_slot, model and epochs.

    Raises:
        ValueError: an entry is missing a field or has a wrong value; the message names file, trace, job and field.
    """
    data = _load(path)
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path} holds no trace: expected a list of traces, each a list of jobs")
    if isinstance(data[0], dict):
        data = [data]
    return [_trace(path, index, jobs, workload) for index, jobs in enumerate(data)]


def draw_trace(
    workload: Workload,
    rng: np.random.Generator,
    peak: Optional[int] = None,
    jobs: Optional[int] = None,
    types: Optional[List[int]] = None,
    name: str = "drawn",
) -> Trace:
    """Draws a trace by the rules of DL2's generator.

    A random offset of 0 to 4 slots into the arrivals of that peak; in each slot min(peak, arrivals) jobs, each of a
    type drawn uniformly, with the epochs of its type; until there are enough jobs (the pattern repeats if need be).

    Args:
        peak: most arrivals per slot, a key of ``workload.arrivals``; default ``workload.peak``.
        jobs: number of jobs; default ``workload.jobs_per_trace``.
        types: indices of the types to draw from; default all.
    """
    peak = workload.peak if peak is None else peak
    jobs = workload.jobs_per_trace if jobs is None else jobs
    if peak not in workload.arrivals:
        known = ", ".join(map(str, sorted(workload.arrivals))) or "none"
        raise ValueError(f"workload {workload.name!r} has no arrivals for peak {peak}: it has {known}")
    pattern = np.minimum(np.array(workload.arrivals[peak]), peak)
    offset = int(rng.integers(5))
    repeats = -(-jobs // max(int(pattern.sum()), 1)) + 1
    counts = np.tile(np.roll(pattern, -offset), repeats)
    arrival = np.repeat(np.arange(len(counts)), counts)[:jobs]
    choices = np.arange(len(workload.types)) if types is None else np.asarray(types)
    kinds = choices[rng.integers(len(choices), size=jobs)]
    epochs = np.array([kind.epochs for kind in workload.types])[kinds]
    return make_trace(name, np.arange(1, jobs + 1), kinds, arrival, epochs)


def _job_type(entry: Dict[str, Any], resources: Any) -> JobType:
    return JobType(
        name=str(entry["model"]),
        worker=tuple(float(entry["worker"].get(r, 0)) for r in resources),
        server=tuple(float(entry["server"].get(r, 0)) for r in resources),
        samples_per_epoch=float(entry["samples_per_epoch"]),
        epochs=float(entry["epochs"]),
        model_size_mb=float(entry.get("model_size_mb", 0.0)),
        compute_seconds=float(entry.get("local_compute_seconds", 0.0)),
    )


def _trace(path: PathLike, index: int, jobs: Any, workload: Workload) -> Trace:
    where = f"{path}, trace {index}"
    if not isinstance(jobs, list) or not jobs:
        raise ValueError(f"{where} is empty: give at least one job")
    names = {kind.name: i for i, kind in enumerate(workload.types)}
    rows = []
    for position, job in enumerate(jobs):
        here = f"{where}, job {position}"
        try:
            model, number = job["model"], int(job.get("id", position + 1))
            arrival, epochs = float(job["arrival_slot"]), float(job["epochs"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{here}: {error!r}; a job has id, arrival_slot, model and epochs") from error
        if model not in names:
            raise ValueError(f"{here}: model {model!r} is not in the workload, which has {', '.join(names)}")
        if not arrival >= 0:
            raise ValueError(f"{here}: arrival_slot is {arrival:g}, must be 0 or later")
        if not 0 < epochs < float("inf"):
            raise ValueError(f"{here}: epochs is {epochs:g}, must be above 0")
        rows.append((number, names[model], int(arrival), epochs))
    ids = [row[0] for row in rows]
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise ValueError(f"{where}: id {twice} appears more than once")
    columns = np.array(rows, dtype=float).T
    return make_trace(f"{Path(path).stem}/{index}", columns[0].astype(np.int64), *columns[1:])


def _load(path: PathLike) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from error
