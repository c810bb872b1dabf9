"""Outlives a job's launcher by a moment: when the launcher is gone, kills every process that carries the job's mark.

Run as a script by processes.py with the mark (``NAME=VALUE`` of the environment) and a pipe from the launcher as
stdin; stands alone, so that it starts fast and stays small. The pipe closes when the launcher ends, however it does.
"""

import os
import signal
import sys
import time

ROUNDS = 100
PAUSE_SECONDS = 0.05


def marked(mark: bytes) -> "list[int]":
    """The processes whose environment has the mark, this one excepted."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue  # it has ended, or is another user's
    return found


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark = os.fsencode(sys.argv[1])
    sys.stdin.buffer.read()
    for _ in range(ROUNDS):
        pids = marked(mark)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
