"""Runs a script under MXNet's own parameter server (ps-lite) on loopback, to compare with."""

from pathlib import Path

from benchmarks.jobs import NativeJob
from tests.elastic_mx.harness import SCRIPTS


def run_native(script: str, out: Path, workers: int = 2, servers: int = 2, timeout: float = 90, **env: object) -> None:
    """Run `script` with KVSTORE=dist_sync; worker n leaves its results at ``out/worker-n``."""
    with NativeJob(SCRIPTS / script, workers, servers, out, **env) as job:
        job.wait(timeout)
