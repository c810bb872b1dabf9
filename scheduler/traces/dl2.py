"""Reads DL2's workload, trace and speed files, with errors that name line and field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from scheduler.core import JobType
from scheduler.speeds import read_measurements
from scheduler.traces.fields import Field, load
from scheduler.workload import Arrivals, Trace, Workload, make_trace

PathLike = Union[str, Path]


def read_workload(path: PathLike, speeds: Optional[PathLike] = None) -> Workload:
    """Reads ``dl2_small_workload.json``; with ``speeds`` each job type gets its measured speed model.

    Raises:
        ValueError: a field is missing or has a wrong value; the message names file, line and field.
    """
    workload = parse_workload(load(path), Path(path).stem)
    return with_speeds(workload, speeds) if speeds is not None else workload


def parse_workload(document: Field, name: str) -> Workload:
    fields = document.mapping(
        required=("slot_seconds", "nodes", "node_capacity", "max_tasks_per_role", "models"), optional=None
    )
    capacity = {key: field.number(least=0) for key, field in fields["node_capacity"].mapping(optional=None).items()}
    if not any(capacity.values()):
        raise fields["node_capacity"].error("is empty, must give each node at least one resource")
    resources = tuple(capacity)
    limit = fields["max_tasks_per_role"].whole(least=1)
    arrivals: Dict[int, Tuple[int, ...]] = {}
    if "arrivals_per_slot_by_peak" in fields:
        for peak, counts in fields["arrivals_per_slot_by_peak"].mapping(optional=None).items():
            if not str(peak).isdigit():
                raise counts.error("is not a peak, must be a whole number of arrivals")
            arrivals[int(peak)] = tuple(count.whole(least=0) for count in counts.items())
    process = Arrivals()
    if "max_arrivals_per_slot" in fields:
        process = replace(process, peak=fields["max_arrivals_per_slot"].whole(least=1))
    if "jobs_per_trace" in fields:
        process = replace(process, jobs=fields["jobs_per_trace"].whole(least=1))
    return Workload(
        name=name,
        slot_seconds=fields["slot_seconds"].number(above=0),
        resources=resources,
        capacity=np.tile([capacity[r] for r in resources], (fields["nodes"].whole(least=1), 1)),
        types=tuple(_job_type(field, resources) for field in fields["models"].items()),
        max_servers=limit,
        max_workers=limit,
        arrivals=arrivals,
        process=process,
    )


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
    return replace(workload, types=tuple(replace(kind, speed=measured[kind.name]) for kind in workload.types))


def read_traces(path: PathLike, workload: Workload) -> List[Trace]:
    """Reads ``dl2_small_traces.json``: a list of traces, each a list of id, arrival_slot, model and epochs.

    Raises:
        ValueError: an entry lacks a field or has a wrong value; the message names file, line and field.
    """
    return parse_traces(load(path), workload, Path(path).stem)


def parse_traces(document: Field, workload: Workload, name: str) -> List[Trace]:
    """The traces of a document: a list of lists of jobs, or one list of jobs."""
    names = {kind.name: i for i, kind in enumerate(workload.types)}
    entries = list(document.items())
    if isinstance(entries[0].value, dict):
        return [_trace(document, name, names)]
    return [_trace(field, f"{name}/{index}", names) for index, field in enumerate(entries)]


def _job_type(field: Field, resources: Sequence[str]) -> JobType:
    fields = field.mapping(required=("model", "samples_per_epoch", "epochs", "worker", "server"), optional=None)
    size, compute = fields.get("model_size_mb"), fields.get("local_compute_seconds")
    return JobType(
        name=fields["model"].text(),
        worker=_demand(fields["worker"], resources),
        server=_demand(fields["server"], resources),
        samples_per_epoch=fields["samples_per_epoch"].number(above=0),
        epochs=fields["epochs"].number(above=0),
        model_size_mb=size.number(least=0) if size else 0.0,
        compute_seconds=compute.number(least=0) if compute else 0.0,
    )


def _demand(field: Field, resources: Sequence[str]) -> Tuple[float, ...]:
    given = {name: value.number(least=0) for name, value in field.mapping(optional=resources).items()}
    return tuple(given.get(name, 0.0) for name in resources)


def _trace(field: Field, name: str, names: Dict[str, int]) -> Trace:
    rows, seen = [], set()
    for job in field.items():
        given = job.mapping(required=("id", "arrival_slot", "model", "epochs"), optional=None)
        number = given["id"].whole(least=0)
        if number in seen:
            raise given["id"].error(f"is {number}, as in a job before it: ids must differ")
        seen.add(number)
        kind = names[given["model"].one_of(tuple(names))]
        rows.append((number, kind, int(given["arrival_slot"].number(least=0)), given["epochs"].number(above=0)))
    ids, kinds, arrival, epochs = (np.array(column) for column in zip(*rows))
    return make_trace(name, ids, kinds, arrival, epochs)
