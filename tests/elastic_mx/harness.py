"""Starts a real job for a test: coordinator, servers and workers as processes on loopback, gone at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from benchmarks.jobs import ROOT, ElasticJob

__all__ = ["ROOT", "SCRIPTS", "Job"]

SCRIPTS = Path(__file__).parent / "scripts"


class Job(ElasticJob):
    """A job whose workers run `script` of tests/elastic_mx/scripts; use as a context manager."""

    def __init__(self, script: str, workers: int = 1, servers: int = 1, out: Optional[Path] = None, **env: Any) -> None:
        super().__init__(SCRIPTS / script, workers, servers, out, **env)
