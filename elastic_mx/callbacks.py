"""Calls a script's functions, in the order of what happened, on a thread of their own.

So they may use the store and take their time: the thread that serves the sockets waits for none of them.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Callable, Dict, List

logger = logging.getLogger("elastic_mx.worker")

Event = Dict[str, Any]


class Callbacks:
    """The functions to call at each event."""

    def __init__(self) -> None:
        self._functions: List[Callable[[Event], None]] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def add(self, function: Callable[[Event], None]) -> None:
        """Have `function` called with each event from now on; what it raises is logged, and the job goes on."""
        if not self._functions:
            threading.Thread(target=self._run, name="elastic-mx-callbacks", daemon=True).start()
        self._functions.append(function)

    def tell(self, event: Event) -> None:
        """Something has happened. Does not wait."""
        if self._functions:
            self._events.put(event)

    def _run(self) -> None:
        while True:
            event = self._events.get()
            for function in list(self._functions):
                try:
                    function(event)
                except Exception:
                    logger.exception("%r raised at %s; the job goes on", function, event)
