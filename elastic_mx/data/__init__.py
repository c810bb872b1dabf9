"""Which samples each worker takes in each step, through any sequence of resizes (docs/data.md).

`BatchSampler` for Gluon's DataLoader, `NDArrayIter` for Module (the only name here that imports MXNet), `batches`
and the pure `indices` for everyone else; `Job` is what they ask of the worker's client.
"""

from typing import Any

from elastic_mx.data.job import Alone, Job, Limits, Position, Retired, Share
from elastic_mx.data.sampler import Batch, BatchSampler, batches
from elastic_mx.data.schedule import indices
from elastic_mx.data.session import Session, epoch, epochs, provide, share

__all__ = [
    "Alone",
    "Batch",
    "BatchSampler",
    "Job",
    "Limits",
    "NDArrayIter",
    "Position",
    "Retired",
    "Session",
    "Share",
    "batches",
    "epoch",
    "epochs",
    "indices",
    "provide",
    "share",
]


def __getattr__(name: str) -> Any:
    """Import what needs MXNet when it is first asked for."""
    if name == "NDArrayIter":
        from elastic_mx.data.arrays import NDArrayIter

        return NDArrayIter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
