"""How fast jobs train, as it shows from one look to the next, and what is known of their speeds by that."""

from __future__ import annotations

import contextlib
import zlib
from typing import Dict, Optional, Tuple

from scheduler.service import tables as t
from scheduler.service.slot import Size, Speeds
from scheduler.service.snapshot import measured_of, unpack
from scheduler.service.store import JobRow, Store

LEAST_SECONDS = 0.5  # over which a speed is measured
RECALLED = 64  # decisions from which a service that is started again knows the speeds


class Progress:
    """Args: seconds per slot. Times are in seconds, of the cluster's clock."""

    def __init__(self, slot_seconds: float) -> None:
        self.speeds = Speeds()
        self._slot_seconds = slot_seconds
        self._before: Dict[int, Tuple[float, float, Size]] = {}  # job: when, epochs done, size, since it progressed
        self._looked: Dict[int, float] = {}  # job: when it was seen last

    def recall(self, store: Store) -> None:
        """Begins anew, with the speeds that were measured of late by the record."""
        self.speeds, last = Speeds(), store.last_decision()
        self._before.clear()
        self._looked.clear()
        for row in store.decisions(max(0, last.id - RECALLED), RECALLED) if last else ():
            with contextlib.suppress(zlib.error, ValueError, LookupError):  # one that cannot be read tells nothing
                for kind, size, rate in measured_of(unpack(row.snapshot)):
                    self.speeds.saw(kind, size, rate)

    def saw(self, row: JobRow, size: Size, done: float, steady: bool, now: float) -> Tuple[Optional[float], float]:
        """Takes in a look at a job: epochs per slot, None where it does not show; slots since the look before.

        Args:
            row: as before this look: starting is not training slowly.
            steady: no change of its size is under way.
        """
        rate, trains, before = None, row.state == t.RUNNING, self._before.get(row.id)
        if trains and steady and before and before[2] == size:
            gained, seconds = done - before[1], now - before[0]
            if gained > 0 and seconds > LEAST_SECONDS:
                rate = gained / seconds * self._slot_seconds
                self.speeds.saw(row.spec.kind, size, rate)
        if not trains or not before or done > before[1] or before[2] != size:
            self._before[row.id] = (now, done, size)
        passed = now - self._looked.get(row.id, now)
        self._looked[row.id] = now
        return rate, passed / self._slot_seconds

    def finished(self, row: JobRow, at: float) -> None:
        """Takes in how fast a job was from the last look to its end, or jobs of a few slots would tell little."""
        since, done, size = self._before.get(row.id, (at, 0.0, (0, 0)))
        if row.state == t.RUNNING and row.spec.epochs and at - since > LEAST_SECONDS:
            self.speeds.saw(row.spec.kind, size, (row.spec.epochs - done) / (at - since) * self._slot_seconds)

    def forget(self, job: int) -> None:
        """It has ended, or begins anew."""
        self._before.pop(job, None)
        self._looked.pop(job, None)
