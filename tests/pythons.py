"""Runs a small real job on each Python from 3.9 to 3.12 that this machine has, with each NumPy from 1.23 to 1.26.

`make test-pythons`; too long for `make test`. A Python is found on PATH as python3.9 and so on, or under ~/.pyenv.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.9", "3.10", "3.11", "3.12")
NUMPYS = ("1.23.5", "1.24.4", "1.25.2", "1.26.4")
FIRST_FOR_3_12 = "1.26.4"
JOB = ("launch", "-n", "2", "-s", "2", "--", "python", str(ROOT / "examples" / "raw_kvstore.py"), "--epochs", "2")


def find(version: str) -> Optional[str]:
    """The interpreter of a Python version, or None."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
        return found
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return str(kept[-1]) if kept else None


def run(command: List[str], timeout: float = 600) -> str:
    """Run a command to its end; "" if it succeeded, else the last line that it said."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    said = (result.stderr or result.stdout).strip().splitlines()
    return "" if result.returncode == 0 else (said or ["?"])[-1]


def check(python: str, version: str, folder: Path) -> Dict[str, str]:
    """What happened with each NumPy on one Python: "" where the job trained and ended with status 0."""
    binaries = folder / version / "bin"
    error = run([python, "-m", "venv", str(folder / version)])
    pip = [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    error = error or run([*pip, "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[mxnet]"])
    results = {}
    for numpy in NUMPYS:
        if version == "3.12" and numpy != FIRST_FOR_3_12:
            continue
        failed = error or run([*pip, f"numpy=={numpy}"]) or run([str(binaries / "elastic-mx"), *JOB], timeout=120)
        results[numpy] = failed
        print(f"Python {version}, NumPy {numpy}: {failed or 'trained'}", flush=True)
    return results


def main() -> None:
    results: Dict[str, Dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in PYTHONS:
            python = find(version)
            if python is None:
                print(f"Python {version}: not on this machine")
            else:
                results[version] = check(python, version, Path(folder))
    if not results:
        sys.exit(f"none of Python {', '.join(PYTHONS)} is on this machine")
    failures = [f"{v} with {n}" for v, by_numpy in results.items() for n, error in by_numpy.items() if error]
    if failures:
        sys.exit(f"failed on Python {', '.join(failures)}")


if __name__ == "__main__":
    main()
