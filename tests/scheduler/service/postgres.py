"""A PostgreSQL server of its own for a test session, from Debian's packages, on a socket in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

START_SECONDS = 30


def programs() -> Optional[Path]:
    """The folder with initdb and postgres, or None where they are not installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return folders[-1].parent if folders else None


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """Runs a server with the programs of that folder; the URL of its database. It refuses to run as root."""
    home = Path(tempfile.mkdtemp(prefix="elastic-mx-pg-"))
    user: Dict[str, Any] = {}
    if os.getuid() == 0:
        entry = pwd.getpwnam("postgres")
        os.chown(home, entry.pw_uid, entry.pw_gid)
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    try:
        initdb = [str(folder / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "postgres", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, timeout=60, cwd=home, **user)
        command = [str(folder / "postgres"), "-D", str(home / "data"), "-k", str(home), "-h", "", "-F"]
        with open(home / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, **user)
        try:
            _wait(home, process)
            yield f"postgresql://postgres@/postgres?host={home}"
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            process.wait(30)
    finally:
        shutil.rmtree(home)


def _wait(home: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "ready to accept connections" not in (home / "log").read_text():
        assert process.poll() is None and time.monotonic() < deadline, (home / "log").read_text()
        time.sleep(0.05)
