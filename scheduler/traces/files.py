"""Opens a workload or trace file of whatever format it is in; what is in it is for the format's own reader."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import List, Optional, Union

from scheduler.traces import dl2, native
from scheduler.traces.fields import load
from scheduler.workload import Trace, Workload

PathLike = Union[str, Path]


def shipped_workload() -> Workload:
    """The workload that comes with the package, with speeds fitted from public measurements."""
    with resources.as_file(resources.files("scheduler") / "data" / "workload.yaml") as path:
        return native.read_workload(path)


def open_workload(path: Optional[PathLike] = None, speeds: Optional[PathLike] = None) -> Workload:
    """Reads a workload in our format or DL2's; without a path, the shipped one.

    Args:
        speeds: a DL2 testbed file whose measurements replace the workload's own speeds.

    Raises:
        ValueError: one line that names file, line and field.
    """
    if path is None:
        workload = shipped_workload()
    else:
        document = load(path)
        is_dl2 = isinstance(document.value, dict) and "models" in document.value
        parse = dl2.parse_workload if is_dl2 else native.parse_workload
        workload = parse(document, Path(path).stem)
    return dl2.with_speeds(workload, speeds) if speeds is not None else workload


def open_traces(path: PathLike, workload: Workload) -> List[Trace]:
    """Reads traces in our format or DL2's; ValueError as ``open_workload``."""
    document = load(path)
    if isinstance(document.value, list):
        return dl2.parse_traces(document, workload, Path(path).stem)
    return native.parse_traces(document, workload)


def holds_traces(path: PathLike) -> bool:
    """A workload file in our format that brings traces of its own."""
    value = load(path).value
    return isinstance(value, dict) and "traces" in value
