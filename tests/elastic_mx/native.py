"""Runs a script under MXNet's own parameter server (ps-lite) on loopback, to compare with."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.elastic_mx.harness import ROOT, SCRIPTS


def run_native(script: str, out: Path, workers: int = 2, servers: int = 2, timeout: float = 90, **env: object) -> None:
    """Run `script` with KVSTORE=dist_sync; worker n leaves its results at ``out/worker-n``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        **{key: str(value) for key, value in env.items()},
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "OMP_NUM_THREADS": "1",
        "KVSTORE": "dist_sync",
        "PYTHONPATH": str(ROOT),
    }
    processes = []
    try:
        for role in ["scheduler"] + ["server"] * servers:
            command = [sys.executable, "-c", "import elastic_mx, mxnet"]
            processes.append(subprocess.Popen(command, env={**common, "DMLC_ROLE": role}))
        for rank in range(workers):
            here = {**common, "DMLC_ROLE": "worker", "OUT": str(out / f"worker-{rank}")}
            processes.append(subprocess.Popen([sys.executable, str(SCRIPTS / script)], env=here))
        for process in processes[-workers:]:
            assert process.wait(timeout) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
