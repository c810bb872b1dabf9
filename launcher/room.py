"""Whether a machine can hold as many processes as a job shall have: told before any of them is started."""

from __future__ import annotations

import os
import resource
from typing import Optional

from elastic_mx.link import JobError

MIB = 1 << 20
WORKER_BYTES, SERVER_BYTES = 64 * MIB, 16 * MIB  # less than either ever takes: only the impossible is refused
PIPES = 2  # the launcher reads each process's stdout and stderr
OWN_DESCRIPTORS = 24


def check_room(
    workers: int, servers: int, memory_bytes: Optional[int] = None, descriptors: Optional[int] = None
) -> None:
    """Refuse a size that this machine cannot hold whatever the script does.

    Args:
        workers: of the job; 0 where their number stays as it is.
        servers: likewise.
        memory_bytes: what the machine has; asked of it if not given.
        descriptors: how many files a process may have open; asked of the system if not given.

    Raises:
        JobError: the size needs more memory or open files than there are.
    """
    sizes = ((workers, "worker"), (servers, "server"))
    asked = " and ".join(f"{number} {role}{'' if number == 1 else 's'}" for number, role in sizes if number)
    needed = workers * WORKER_BYTES + servers * SERVER_BYTES
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if memory_bytes is None else memory_bytes
    if needed > there:
        raise JobError(
            f"{asked} are too many for this machine: they take at least {needed / 1024 / MIB:.0f} GiB of memory, "
            f"it has {there / 1024 / MIB:.0f} GiB"
        )
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if descriptors is None else descriptors
    files = PIPES * (workers + servers) + OWN_DESCRIPTORS
    if files > allowed and allowed != resource.RLIM_INFINITY:
        raise JobError(f"{asked} need {files} open files, {allowed} are allowed: raise that with ulimit -n {files}")
