"""The service's side of ``--learn``: keeps the process of learner.py going, and says where it writes the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Optional

AGAIN_SECONDS = 60.0  # after it has failed
PAUSE_SECONDS = 1.0  # between rounds, at least

Tell = Callable[[str], None]


class Learning:
    """Args: the record's folder or URL, the folder for agents, the policy that is learnt, the agent's file to begin
    with (None for the one that ships), the safe policy."""

    def __init__(self, record: str, folder: Path, policy: str, agent: Optional[str], fallback: str) -> None:
        from scheduler.learn.checkpoint import packaged

        self.policy, self.file = policy, folder / f"{policy}.pt"
        start = Path(agent) if agent else packaged(policy)
        self._settings = {
            "record": record,
            "policy": policy,
            "start": str(start.resolve()),
            "file": str(self.file.resolve()),
            "fallback": fallback,
            "pause": PAUSE_SECONDS,
        }
        self._log = folder / f"{policy}.log"
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._again, self._told = 0.0, ""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep_going(self, now: float, tell: Tell) -> None:
        """Starts the process if it does not run; one that has failed is told of, and started again after a while."""
        if self._process is not None and self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            line = f"the learner of {self.policy} ended with {self._process.returncode}: {lines[-1]}"
            if line != self._told:  # once, if it fails each time
                tell(line)
            self._told, self._process, self._again = line, None, now + AGAIN_SECONDS
        if self._process is None and now >= self._again:
            self._start()

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scheduler.service.learner"],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert self._process.stdin is not None  # stays open as long as the service lives
        self._process.stdin.write(json.dumps(self._settings).encode() + b"\n")
        self._process.stdin.flush()
