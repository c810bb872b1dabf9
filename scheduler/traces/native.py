"""Our own workload format in YAML: reads, checks and writes cluster, job types, arrivals and traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from scheduler.core import Array, JobType
from scheduler.speeds import FittedSpeed, MeasuredSpeed, PhysicalSpeed, SpeedModel
from scheduler.traces.fields import Field, dump, load
from scheduler.workload import PROCESSES, Arrivals, Trace, Workload, make_trace

VERSION = 1
PathLike = Union[str, Path]


def read_workload(path: PathLike) -> Workload:
    """Reads a workload file.

    Raises:
        FieldError: the file, line and field that is wrong, and how.
    """
    return parse_workload(load(path), Path(path).stem)


def read_traces(path: PathLike, workload: Workload) -> List[Trace]:
    """Reads the ``traces`` of a workload or trace file; FieldError as ``read_workload``, or if there are none."""
    return parse_traces(load(path), workload)


def parse_traces(document: Field, workload: Workload) -> List[Trace]:
    fields = document.mapping(required=("traces",), optional=None)
    return [_trace(field, index, workload) for index, field in enumerate(fields["traces"].items())]


def parse_workload(document: Field, default_name: str) -> Workload:
    fields = document.mapping(
        required=("version", "slot_seconds", "resources", "nodes", "limits", "job_types"),
        optional=("name", "arrivals", "traces"),
    )
    if fields["version"].value != VERSION:
        raise fields["version"].error(f"is {fields['version'].value!r}, this program reads version {VERSION}")
    resources = tuple(field.text() for field in fields["resources"].items())
    if len(set(resources)) != len(resources):
        raise fields["resources"].error(f"is {list(resources)}, must not name one twice")
    limits = fields["limits"].mapping(required=("servers", "workers"))
    types = tuple(_job_type(field, resources) for field in fields["job_types"].items())
    names = [kind.name for kind in types]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise fields["job_types"].error(f"has {twice!r} more than once: names must differ")
    return Workload(
        name=fields["name"].text() if "name" in fields else default_name,
        slot_seconds=fields["slot_seconds"].number(above=0),
        resources=resources,
        capacity=_capacity(fields["nodes"], resources),
        types=types,
        max_servers=limits["servers"].whole(least=1),
        max_workers=limits["workers"].whole(least=1),
        process=_arrivals(fields["arrivals"]) if "arrivals" in fields else Arrivals(),
    )


def _capacity(field: Field, resources: Sequence[str]) -> Array:
    rows: List[Tuple[float, ...]] = []
    for group in field.items():
        fields = group.mapping(required=("count", "capacity"))
        rows += [_demand(fields["capacity"], resources)] * fields["count"].whole(least=1)
    return np.array(rows)


def _demand(field: Field, resources: Sequence[str]) -> Tuple[float, ...]:
    given = field.mapping(optional=resources)
    numbers = {name: value.number(least=0) for name, value in given.items()}
    if not any(numbers.values()):
        raise field.error(f"needs nothing: give at least one of {', '.join(resources)} above 0")
    return tuple(numbers.get(name, 0.0) for name in resources)


def _job_type(field: Field, resources: Sequence[str]) -> JobType:
    fields = field.mapping(
        required=("name", "worker", "server", "samples_per_epoch", "epochs"),
        optional=("model_size_mb", "compute_seconds", "weight", "speed"),
    )
    kind = JobType(
        name=fields["name"].text(),
        worker=_demand(fields["worker"], resources),
        server=_demand(fields["server"], resources),
        samples_per_epoch=fields["samples_per_epoch"].number(above=0),
        epochs=fields["epochs"].number(above=0),
        model_size_mb=fields["model_size_mb"].number(least=0) if "model_size_mb" in fields else 0.0,
        compute_seconds=fields["compute_seconds"].number(least=0) if "compute_seconds" in fields else 0.0,
        weight=fields["weight"].number(least=0) if "weight" in fields else 1.0,
    )
    return replace(kind, speed=_speed(fields["speed"], kind)) if "speed" in fields else kind


def _speed(field: Field, kind: JobType) -> SpeedModel:
    form = field.mapping(required=("form",), optional=None)["form"].one_of(("optimus", "table", "physical"))
    if form == "optimus":
        theta = field.mapping(required=("form", "theta"))["theta"]
        values = tuple(item.number(least=0) for item in theta.items())
        if len(values) != 5 or not any(values):
            raise theta.error(f"has {len(values)} numbers, must have five, one of them above 0")
        return FittedSpeed(values)
    if form == "table":
        points = field.mapping(required=("form", "points"))["points"]
        return MeasuredSpeed(np.array([_point(item) for item in points.items()]))
    fields = field.mapping(
        required=("form", "network_mb_per_second", "local_mb_per_second"), optional=("samples_per_step",)
    )
    if kind.compute_seconds <= 0 or kind.model_size_mb <= 0:
        raise field.error("is physical, so its job type must give compute_seconds and model_size_mb above 0")
    return PhysicalSpeed(
        compute_seconds=kind.compute_seconds,
        model_size_mb=kind.model_size_mb,
        network_mb_per_second=fields["network_mb_per_second"].number(above=0),
        local_mb_per_second=fields["local_mb_per_second"].number(above=0),
        samples_per_step=fields["samples_per_step"].number(above=0) if "samples_per_step" in fields else 1.0,
    )


def _point(field: Field) -> Tuple[float, float, float]:
    values = list(field.items())
    if len(values) != 3:
        raise field.error(f"has {len(values)} numbers, must be [servers, workers, samples per second]")
    return float(values[0].whole(least=1)), float(values[1].whole(least=1)), values[2].number(least=0)


def _arrivals(field: Field) -> Arrivals:
    known = ("process", "rate", "amplitude", "period_slots", "peak", "jobs", "epoch_spread")
    fields = field.mapping(required=("process",), optional=known[1:])
    defaults = Arrivals()
    given: Dict[str, Any] = {"process": fields["process"].one_of(PROCESSES)}
    if "rate" in fields:
        given["rate"] = fields["rate"].number(above=0)
    for name in ("period_slots", "peak", "jobs"):
        if name in fields:
            given[name] = fields[name].whole(least=1)
    for name in ("amplitude", "epoch_spread"):
        if name in fields:
            given[name] = fields[name].number(least=0)
            if given[name] > 1:
                raise fields[name].error(f"is {given[name]:g}, must be at most 1")
    return replace(defaults, **given)


def _trace(field: Field, index: int, workload: Workload) -> Trace:
    fields = field.mapping(required=("jobs",), optional=("name",))
    names = {kind.name: i for i, kind in enumerate(workload.types)}
    rows: List[Tuple[int, int, int, float]] = []
    seen: Dict[int, bool] = {}
    for position, job in enumerate(fields["jobs"].items()):
        given = job.mapping(required=("type", "arrival"), optional=("id", "epochs"))
        kind = names[given["type"].one_of(tuple(names))]
        number = given["id"].whole(least=0) if "id" in given else position + 1
        if number in seen:
            raise job.error(f"has id {number}, as a job before it: ids must differ")
        seen[number] = True
        epochs = given["epochs"].number(above=0) if "epochs" in given else workload.types[kind].epochs
        rows.append((number, kind, int(given["arrival"].number(least=0)), epochs))
    ids, kinds, arrival, totals = (np.array(column) for column in zip(*rows))
    return make_trace(fields["name"].text() if "name" in fields else f"trace {index}", ids, kinds, arrival, totals)


# -- writing ------------------------------------------------------------------------------------------------------


def write(path: PathLike, workload: Workload, traces: Sequence[Trace] = (), header: Sequence[str] = ()) -> None:
    """Writes a workload with its traces; reading it back gives the same."""
    data: Dict[str, Any] = {
        "version": VERSION,
        "name": workload.name,
        "slot_seconds": _tidy(workload.slot_seconds),
        "resources": list(workload.resources),
        "nodes": _groups(workload),
        "limits": {"servers": workload.max_servers, "workers": workload.max_workers},
        "job_types": [_type_data(kind, workload.resources) for kind in workload.types],
    }
    if workload.process != Arrivals():
        data["arrivals"] = {name: _tidy(value) for name, value in vars(workload.process).items()}
    if traces:
        data["traces"] = [{"name": trace.name, "jobs": _jobs_data(trace, workload)} for trace in traces]
    dump(data, path, header)


def _groups(workload: Workload) -> List[Dict[str, Any]]:
    groups: List[Dict[str, Any]] = []
    for row in workload.capacity.tolist():
        capacity = {name: _tidy(value) for name, value in zip(workload.resources, row) if value}
        if groups and groups[-1]["capacity"] == capacity:
            groups[-1]["count"] += 1
        else:
            groups.append({"count": 1, "capacity": capacity})
    return groups


def _type_data(kind: JobType, resources: Sequence[str]) -> Dict[str, Any]:
    return {
        "name": kind.name,
        "worker": {name: _tidy(value) for name, value in zip(resources, kind.worker) if value},
        "server": {name: _tidy(value) for name, value in zip(resources, kind.server) if value},
        "samples_per_epoch": _tidy(kind.samples_per_epoch),
        "epochs": _tidy(kind.epochs),
        "model_size_mb": _tidy(kind.model_size_mb),
        "compute_seconds": _tidy(kind.compute_seconds),
        "weight": _tidy(kind.weight),
        "speed": _speed_data(kind.speed),
    }


def _speed_data(speed: Optional[Any]) -> Dict[str, Any]:
    if isinstance(speed, FittedSpeed):
        return {"form": "optimus", "theta": [float(value) for value in speed.theta]}
    if isinstance(speed, MeasuredSpeed):
        return {"form": "table", "points": [[_tidy(value) for value in point] for point in speed.points.tolist()]}
    if isinstance(speed, PhysicalSpeed):
        return {
            "form": "physical",
            "network_mb_per_second": _tidy(speed.network_mb_per_second),
            "local_mb_per_second": _tidy(speed.local_mb_per_second),
            "samples_per_step": _tidy(speed.samples_per_step),
        }
    raise ValueError(f"speed model {speed!r} has no form in the workload format: use optimus, table or physical")


def _jobs_data(trace: Trace, workload: Workload) -> List[Dict[str, Any]]:
    return [
        {"id": int(number), "type": workload.types[kind].name, "arrival": int(arrival), "epochs": _tidy(float(epochs))}
        for number, kind, arrival, epochs in zip(trace.ids, trace.type_index, trace.arrival, trace.epochs)
    ]


def _tidy(value: Any) -> Any:
    """Whole floats as integers, for the reader's sake."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
