"""Reads public cluster traces into one plain form: Alibaba openb 2023, Alibaba PAI 2020, Microsoft Philly.

These traces say what jobs asked for and how long they ran, not how they scale: ``convert`` makes jobs of them.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np

from scheduler.core import Array

PathLike = Union[str, Path]
PAI_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)


@dataclass(frozen=True)
class PublicJob:
    """A job as its trace tells it: when it came (s), how long it ran (s), what it held in all (cores, GPUs, GiB)."""

    submitted: float
    seconds: float
    cpus: float
    gpus: float
    memory: float


def read_openb(path: PathLike) -> List[PublicJob]:
    """``openb_pod_list_*.csv``: pods with demands in thousandths and creation, scheduling and deletion times in s.

    Pods that were never scheduled are left out. ``gpu_milli`` is per GPU.
    """
    needed = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
    jobs = []
    for row in _rows(path, needed):
        if row.text("scheduled_time") and row.text("deletion_time"):
            jobs.append(
                PublicJob(
                    submitted=row.number("creation_time"),
                    seconds=row.number("deletion_time") - row.number("scheduled_time"),
                    cpus=row.number("cpu_milli") / 1000,
                    gpus=row.number("num_gpu") * row.number("gpu_milli") / 1000,
                    memory=row.number("memory_mib") / 1024,
                )
            )
    return jobs


def read_openb_nodes(path: PathLike) -> Array:
    """``openb_node_list_*.csv``: cores, GPUs and GiB per node, float64 [N, 3]."""
    rows = _rows(path, ("cpu_milli", "memory_mib", "gpu"))
    return np.array([[r.number("cpu_milli") / 1000, r.number("gpu"), r.number("memory_mib") / 1024] for r in rows])


def read_pai(path: PathLike) -> List[PublicJob]:
    """``pai_task_table.csv``, with or without its header line: tasks of jobs; CPU and GPU in percent, memory in GB.

    A job is the sum of its tasks, from the first start to the last end. Only jobs whose tasks all terminated count.
    """
    tasks: Dict[str, List[_Row]] = {}
    for row in _rows(path, PAI_COLUMNS, header=PAI_COLUMNS):
        tasks.setdefault(row.text("job_name"), []).append(row)
    jobs = []
    for rows in tasks.values():
        timed = all(row.text("start_time") and row.text("end_time") for row in rows)
        if not timed or any(row.text("status") != "Terminated" for row in rows):
            continue
        start = min(row.number("start_time") for row in rows)
        counts = [row.number("inst_num") for row in rows]
        jobs.append(
            PublicJob(
                submitted=start,
                seconds=max(row.number("end_time") for row in rows) - start,
                cpus=sum(n * row.number("plan_cpu", 0.0) for n, row in zip(counts, rows)) / 100,
                gpus=sum(n * row.number("plan_gpu", 0.0) for n, row in zip(counts, rows)) / 100,
                memory=sum(n * row.number("plan_mem", 0.0) for n, row in zip(counts, rows)),
            )
        )
    return jobs


def read_philly(path: PathLike) -> List[PublicJob]:
    """``cluster_job_log``: JSON with each job's submission and attempts. It knows GPUs only; the time of a job is the
    sum of its finished attempts, its GPUs those of the last. Jobs that never ran are left out."""
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path} is no Philly log: expected a list of jobs")
    jobs, submitted = [], []
    for position, entry in enumerate(entries):
        try:
            attempts = [a for a in entry["attempts"] if a.get("start_time") and a.get("end_time")]
            seconds = sum((_time(a["end_time"]) - _time(a["start_time"])).total_seconds() for a in attempts)
            gpus = sum(len(node["gpus"]) for node in attempts[-1]["detail"]) if attempts else 0
            came = _time(entry["submitted_time"]) if entry.get("submitted_time") else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path}, job {position}: {error!r}; a job has submitted_time and attempts with start_time, end_time "
                "and detail"
            ) from error
        if came is not None and gpus:
            submitted.append(came)
            jobs.append((seconds, float(gpus)))
    first = min(submitted, default=None)
    return [
        PublicJob(submitted=(came - first).total_seconds(), seconds=seconds, cpus=4 * gpus, gpus=gpus, memory=16 * gpus)
        for came, (seconds, gpus) in zip(submitted, jobs)
        if first is not None
    ]


READERS: Dict[str, Callable[[PathLike], List[PublicJob]]] = {
    "openb": read_openb,
    "pai": read_pai,
    "philly": read_philly,
}


class _Row:
    """A line of a CSV file whose errors name file, line and column."""

    def __init__(self, path: PathLike, line: int, values: Dict[str, Any]) -> None:
        self._path, self._line, self._values = path, line, values

    def text(self, column: str) -> str:
        return (self._values.get(column) or "").strip()

    def number(self, column: str, missing: Optional[float] = None) -> float:
        text = self.text(column)
        if not text and missing is not None:
            return missing
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ValueError(f"{self._path}, line {self._line}: {column} is {text!r}, must be a number of 0 or more")
        return value


def _rows(path: PathLike, needed: Sequence[str], header: Optional[Sequence[str]] = None) -> Iterator[_Row]:
    """The lines of a CSV file; ``header`` names the columns where the file itself does not."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            first = file.readline()
            file.seek(0)
            named = header is None or header[0] in first.split(",")
            reader = csv.DictReader(file, fieldnames=None if named else header)
            for column in needed:
                if column not in (reader.fieldnames or ()):
                    raise ValueError(f"{path}, line 1: there is no column {column!r}; is it the right file?")
            for values in reader:
                yield _Row(path, reader.line_num, values)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
