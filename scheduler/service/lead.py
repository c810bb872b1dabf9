"""Who leads: of several services on one record, one decides and enacts; the others answer clients and stand by.

The leader holds a lease in the record and renews it. One that cannot (it was killed, stopped, or cut off) is succeeded
by the first that asks once the lease is over. It is the database's clock that counts, so machines need not agree on the
time. What a leader writes as such goes through ``record``, which refuses it once another leads: one that was halted for
a while and wakes up changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from sqlalchemy.exc import SQLAlchemyError

from scheduler.service.database import StoreError
from scheduler.service.store import Store

LEASE = "scheduler"
LEASE_SECONDS = 10.0
RENEW_SECONDS = 1.0
TAKEOVER_SECONDS = LEASE_SECONDS + 2 * RENEW_SECONDS  # from a leader's death until another leads, at most
_LOOK_SECONDS = 0.1


class Lead(Protocol):
    """What the service asks of its lead."""

    record: Store  # for what a leader writes
    holder: str  # this service's name among its like; empty where there are none

    @property
    def held(self) -> bool:
        """Whether this service leads."""

    def start(self, poke: Callable[[], None]) -> None:
        """Begins to ask for the lead; ``poke`` is called when it comes or goes, or when a client asked for something
        at another service."""

    def close(self) -> None:
        """Gives the lead back."""


class Alone:
    """The lead of a service that has its record to itself, as it keeps the folder's lock until it ends.

    Raises:
        StoreError: another service has it.
    """

    holder, held = "", True

    def __init__(self, record: Store, folder: Optional[Path] = None) -> None:
        self.record = record
        if folder is None:
            return
        self._lock = open(folder / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{folder}: another service has this --state: give a folder of its own") from error

    def start(self, poke: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


class Lease:
    """A lead that is renewed in a thread. Args: the record; this service's name, which no other bears."""

    def __init__(self, store: Store, holder: str) -> None:
        self.record, self.holder = store.under(LEASE, holder), holder
        self._store = store
        self._until = 0.0  # of the monotonic clock
        self._closed = threading.Event()
        self._thread: Optional[threading.Thread] = None

    @property
    def held(self) -> bool:
        return time.monotonic() < self._until

    def start(self, poke: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._renew, args=(poke,), name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(LEASE_SECONDS)
        with contextlib.suppress(SQLAlchemyError):  # it runs out by itself
            self._store.resign(LEASE, self.holder)
        self._until = 0.0

    def _renew(self, poke: Callable[[], None]) -> None:
        known: Any = None
        while not self._closed.is_set():
            began, held = time.monotonic(), self.held
            try:
                leads = self._store.lead(LEASE, self.holder, self._store.clock(), LEASE_SECONDS)
                self._until = began + LEASE_SECONDS if leads else 0.0
                news = (leads, self._store.news())
            except Exception:  # no answer, for whatever reason: the lead is over when the lease is
                news = (held and self.held, known and known[1])
            if news != known:
                known = news
                poke()
            self._closed.wait(RENEW_SECONDS)


def wait_for(lead: Lead, over: threading.Event) -> bool:
    """Waits for the lead; False where ``over`` comes first."""
    while not lead.held and not over.is_set():
        over.wait(_LOOK_SECONDS)
    return not over.is_set()
