"""The settings of a job and of one process of it: read from the environment in this one place, then passed down."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Tuple

MIB = 1024 * 1024
TRANSPORTS = ("auto", "shm", "tcp")


@dataclass(frozen=True)
class JobSettings:
    """What all processes of a job agree on; the coordinator is started with it and tells the others.

    Args:
        name: the job's name.
        workers: how many workers the job starts with, at least 1.
        servers: how many servers the job starts with, at least 1.
        slice_bytes: the largest piece, in bytes, that a key is cut into.
        move_bytes: of the slices that a resize moves, so many bytes move at once, or as many as take 0.03 s; the
            others follow in generations of their own, so that no step waits for all of them.
        transport: ``auto`` (shared memory between processes of one host, else tcp), ``shm`` or ``tcp``.
        drop_in: an unchanged script runs: it deals its samples itself.
        restore: the folder of a checkpoint that the job goes on from; '' begins anew.

    Raises:
        ValueError: a value is out of range.
    """

    name: str = "job"
    workers: int = 1
    servers: int = 1
    slice_bytes: int = 2 * MIB
    move_bytes: int = 8 * MIB
    transport: str = "auto"
    drop_in: bool = False
    restore: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"a job needs at least 1 worker, not {self.workers}")
        if self.servers < 1:
            raise ValueError(f"a job needs at least 1 server, not {self.servers}")
        if self.slice_bytes < 1024:
            raise ValueError(f"slice_bytes is {self.slice_bytes}; it must be at least 1024")
        if self.move_bytes < 1:
            raise ValueError(f"move_bytes is {self.move_bytes}; it must be at least 1")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport is {self.transport!r}; choose one of {', '.join(TRANSPORTS)}")

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ProcessSettings:
    """How one process finds its job.

    Args:
        coordinator: the coordinator's address, ``tcp://host:port``.
        name: this process's name in the job.
        trace: print every message on stderr.
        optimizers: the ``module:Class`` paths of optimizers that a server may import.
    """

    coordinator: str
    name: str
    trace: bool = False
    optimizers: Tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ProcessSettings | None:
        """Read ELASTIC_MX_COORDINATOR, _NAME, _TRACE and _OPTIMIZERS; None outside a job."""
        coordinator = environment.get("ELASTIC_MX_COORDINATOR")
        if not coordinator:
            return None
        name = environment.get("ELASTIC_MX_NAME", "")
        if not name:
            raise ValueError(
                "ELASTIC_MX_COORDINATOR is set but ELASTIC_MX_NAME is not: start the script with elastic-mx launch"
            )
        trace = environment.get("ELASTIC_MX_TRACE", "") not in ("", "0")
        optimizers = tuple(filter(None, environment.get("ELASTIC_MX_OPTIMIZERS", "").split(",")))
        return cls(coordinator, name, trace, optimizers)

    def to_environment(self) -> Dict[str, str]:
        environment = {"ELASTIC_MX_COORDINATOR": self.coordinator, "ELASTIC_MX_NAME": self.name}
        if self.trace:
            environment["ELASTIC_MX_TRACE"] = "1"
        if self.optimizers:
            environment["ELASTIC_MX_OPTIMIZERS"] = ",".join(self.optimizers)
        return environment
