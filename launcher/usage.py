"""How much memory a process and what it started use, by the kernel's count."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

COUNTED = ("Pss_Anon:", "Pss_Shmem:")  # shared pages count in parts, files that are mapped do not


def memory_of(pid: int) -> int:
    """Bytes that a process and its descendants use; 0 where it has ended."""
    return sum(_own_memory(each) for each in _family(pid))


def _own_memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(COUNTED))


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))
    except OSError:
        return
