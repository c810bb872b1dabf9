"""A decision as the record keeps it: compressed JSON of what was seen, answered and settled on; and back to views."""

from __future__ import annotations

import json
import zlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from scheduler.core import Allocation, Array, ClusterView, JobsView, JobType
from scheduler.service.spec import RESOURCES

Size = Tuple[int, int]  # servers, workers
_COLUMNS = ("ids", "type_index", "arrival", "epochs", "done", "servers", "workers", "service", "measured")
_WHOLE = ("ids", "type_index", "servers", "workers")


def pack(
    cluster: ClusterView,
    jobs: JobsView,
    answer: Allocation,
    sizes: Sequence[Size],
    besides: Optional[Allocation] = None,
) -> bytes:
    """A decision as compressed JSON: what was seen, answered, settled on, and what the shadow would have done."""
    kinds, counts = np.unique(cluster.capacity[cluster.alive], axis=0, return_counts=True)
    data = {
        "slot": cluster.slot,
        "slot_seconds": cluster.slot_seconds,
        "totals": cluster.totals.tolist(),
        "nodes": cluster.nodes,
        "capacity": [[int(count), *row] for count, row in zip(counts, kinds.tolist())],
        "types": [
            [kind.name, kind.worker, kind.server, kind.epochs, [[float(f"{x:.6g}") for x in row] for row in table]]
            for kind, table in zip(jobs.types, jobs.rates.tolist())
        ],
        "jobs": {
            name: [round(value, 6) if value == value else None for value in getattr(jobs, name).tolist()]
            for name in _COLUMNS
        },
        "answer": [answer.servers.tolist(), answer.workers.tolist()],
        "settled": sizes,
        "shadow": None if besides is None else [besides.servers.tolist(), besides.workers.tolist()],
    }
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode())


def unpack(snapshot: bytes) -> Dict[str, Any]:
    return dict(json.loads(zlib.decompress(snapshot)))


def measured_of(data: Dict[str, Any]) -> List[Tuple[str, Size, float]]:
    """The speeds measured then: kind of job, size, epochs per slot."""
    jobs, names = data["jobs"], [name for name, *_ in data["types"]]
    columns = zip(jobs["type_index"], jobs["servers"], jobs["workers"], jobs["measured"])
    return [(names[kind], (servers, workers), rate) for kind, servers, workers, rate in columns if rate is not None]


def sizes_of(data: Dict[str, Any]) -> List[Dict[str, Any]]:
    """By job, ``job`` its number, and as (servers, workers) what it ``had``, what was ``asked`` for it, what it was
    ``given`` of that, and what the ``shadow`` would have asked; None where there was none."""
    jobs, answers = data["jobs"], {"had": None, "asked": data["answer"], "shadow": data["shadow"]}
    answers["had"] = [jobs["servers"], jobs["workers"]]
    rows = []
    for k, (job, given) in enumerate(zip(jobs["ids"], data["settled"])):
        sizes = {name: [part[k] for part in answer] if answer else None for name, answer in answers.items()}
        rows.append({"job": job, "given": list(given), **sizes})
    return rows


def capacity_of(data: Dict[str, Any]) -> Array:
    """The nodes that were alive, float64 [N, R]; a snapshot of the first version tells their sum only: even nodes."""
    if "capacity" in data:
        rows: List[List[float]] = [row for count, *row in data["capacity"] for _ in range(count)]
    else:
        rows = [[total / data["nodes"] for total in data["totals"]]] * data["nodes"]
    return np.array(rows, dtype=float).reshape(-1, len(RESOURCES))


def views_of(data: Dict[str, Any]) -> Tuple[ClusterView, JobsView, Allocation]:
    """What a policy was shown, and what it answered."""
    capacity = capacity_of(data)
    rates = np.array([table for *_, table in data["types"]], dtype=float)
    most = rates.shape[1] - 1, rates.shape[2] - 1
    cluster = ClusterView(
        data["slot"], data["slot_seconds"], RESOURCES, capacity, np.ones(len(capacity), dtype=bool), *most
    )
    columns: Dict[str, Any] = {
        name: np.array([np.nan if x is None else x for x in data["jobs"][name]], dtype=np.int64 if whole else float)
        for name in _COLUMNS
        for whole in (name in _WHOLE,)
    }
    types = tuple(
        JobType(name, tuple(worker), tuple(server), epochs=epochs) for name, worker, server, epochs, _ in data["types"]
    )
    servers, workers = (np.array(part, dtype=np.int64) for part in data["answer"])
    jobs = JobsView(types=types, rates=rates, rate_index=columns["type_index"], **columns)
    return cluster, jobs, Allocation(servers, workers)
