"""Runs all benchmarks, one after another, and writes their tables to benchmarks/RESULTS.md: ``make bench``."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

from benchmarks.jobs import ROOT

HOW = ("auto", "tcp")
RUNS: Tuple[Tuple[str, ...], ...] = (
    *(("kvstore", "--keys", keys, "--transport", how) for keys in ("resnet50", "small", "big") for how in HOW),
    *(("kvstore", "--keys", "resnet50", "--optimizer", "sgd", "--transport", how) for how in HOW),
    ("kvstore", "--keys", "resnet50", "--optimizer", "adam"),
    ("kvstore", "--keys", "vgg16"),
    ("training",),
    ("resize",),
    ("resize", "--transport", "tcp", "--rounds", "3"),
    ("scale",),
    ("policies", "--quick"),
    ("paper", "--quick"),
    ("service_scale",),
    ("ten_jobs",),
    ("live",),
)
HEAD = "# Results\n\nWritten by `make bench`, as the benchmarks printed it; each says what machine it ran on.\n"
RESULTS = Path(__file__).parent / "RESULTS.md"
TIMEOUT = 1800


def run(command: Sequence[str]) -> Tuple[str, float]:
    """What a benchmark prints, and how long it took in seconds; where it fails, that is what stands there."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{command[0]}", *command[1:]],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )
    text = done.stdout.strip()
    return (text if done.returncode == 0 else f"{text}\nfailed with status {done.returncode}"), time.monotonic() - began


def title_of(command: Sequence[str]) -> str:
    return " ".join(("python -m benchmarks." + command[0], *command[1:]))


def section(command: Sequence[str], text: str, seconds: float) -> str:
    return f"## `{title_of(command)}`\n\n```text\n{text}\n```\n\nTook {seconds:.0f} s.\n"


def sections(path: Path) -> Dict[str, str]:
    """By title, what was written before: it stands until its benchmark has run again."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.split(r"^(?=## `)", text, flags=re.MULTILINE)[1:]
    return {part.split("`")[1]: part.rstrip() + "\n" for part in found}


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these benchmarks only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    parts = sections(options.out)
    for command in RUNS:
        if options.only and command[0] not in options.only:
            continue
        print("benchmarks." + " ".join(command), flush=True)
        parts[title_of(command)] = section(command, *run(command))
        known = [parts[title_of(one)] for one in RUNS if title_of(one) in parts]
        options.out.write_text("\n".join([HEAD, *known]), encoding="utf-8")
        print(parts[title_of(command)], flush=True)


if __name__ == "__main__":
    main()
