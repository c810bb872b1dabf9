"""MXNet's own distributed stores in a job that does not serve them: they say so instead of waiting for ever."""

from __future__ import annotations

from typing import Sequence

from mxnet.kvstore import KVStoreBase

from elastic_mx import uncaught
from elastic_mx.link import JobError


class Unserved(KVStoreBase):  # type: ignore[misc]
    """A store that cannot be made; `name` is what the script calls it."""

    name = ""

    def __init__(self) -> None:
        uncaught.tell_in_one_line()
        raise JobError(
            f"{self.name!r} is MXNet's own store, which nothing serves here: "
            "launch with --drop-in to run it on ours, or say 'dist_elastic'"
        )


def refuse(names: Sequence[str]) -> None:
    """Put such a store under each of the names."""
    for name in names:
        KVStoreBase.kv_registry[name] = type("Unserved", (Unserved,), {"name": name})
