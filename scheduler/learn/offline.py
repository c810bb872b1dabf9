"""``offline-rl``, the rival that the DL2 paper calls OfflineRL: its agent, trained by reinforcement before it is used.

Section 6.2: the network, actions, reward and training of ``dl2``'s online phase, but neither a scheduler to imitate nor
a live cluster to learn from. It learns in a simulator whose speeds come from an analytical model, and is then applied
as it is. What the model has wrong, the agent has wrong.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Union

import numpy as np

from scheduler.core import JobType
from scheduler.learn import checkpoint
from scheduler.learn.dl2 import Dl2, Dl2Agent
from scheduler.policies.online import PRIOR
from scheduler.speeds import FittedSpeed
from scheduler.workload import Workload

NAME = "offline-rl"
NETWORK_MB_PER_SECOND = 91.875  # of one node, as in the authors' model


class OfflineRl(Dl2):
    """``dl2`` with another past. Args: as for ``Dl2``."""

    name = NAME

    def __init__(self, agent: Union[str, Path, Dl2Agent, None] = None) -> None:
        if not isinstance(agent, Dl2Agent):
            path = checkpoint.packaged(NAME) if agent is None else Path(agent)
            agent = Dl2Agent.from_plain(checkpoint.load(path), str(path), NAME)
        super().__init__(agent)


def analytical(workload: Workload) -> Workload:
    """The workload with speeds from Optimus's model, of which a single measurement sets the scale.

    A step is computation, shared by the workers, and the transfer of the model both ways, shared by the servers: the
    ratio of the two is known from ``compute_seconds`` and ``model_size_mb``, or taken to be a typical one where the
    workload does not tell. The measurement is that of one worker with one server.

    Raises:
        ValueError: a job type has no speed at all with one worker and one server.
    """
    kinds = []
    for kind, rates in zip(workload.types, workload.speed_tables()):
        if rates[1, 1] <= 0:
            raise ValueError(f"job type {kind.name!r} has no speed with one worker and one server: measure it there")
        rate = rates[1, 1] * kind.samples_per_epoch / workload.slot_seconds
        shares = np.array(_shares(kind))
        theta = tuple(float(part) for part in shares / shares.sum() / rate)
        kinds.append(replace(kind, speed=FittedSpeed(theta)))  # type: ignore[arg-type]
    return replace(workload, types=tuple(kinds))


def _shares(kind: JobType) -> tuple:
    """Seconds of Optimus's five terms (``FittedSpeed``), in any unit."""
    if not (kind.compute_seconds > 0 and kind.model_size_mb > 0):
        return PRIOR.theta
    transfer = 2.0 * kind.model_size_mb / NETWORK_MB_PER_SECOND
    return kind.compute_seconds, 0.0, transfer, 0.0, 0.0
