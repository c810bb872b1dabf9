"""The ``demo`` command: the service resizes three real jobs that arrive one after another, under dl2x and under DRF."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List

import click

from elastic_mx.link import JobError
from launcher.commands import plain_errors, plural, show

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "digits.py"
NEEDED = {"mxnet": "mxnet", "sklearn": "scikit-learn", "matplotlib": "matplotlib", "torch": "torch"}
NEEDED = {**NEEDED, "fastapi": "fastapi", "uvicorn": "uvicorn", "sqlalchemy": "sqlalchemy", "alembic": "alembic"}
NODE = {"name": "here", "cpus": 4, "memory": "16GiB"}  # more than some machines have: tasks share their cores
WORKERS, SERVERS = {"max": 2, "memory": "2GiB"}, {"max": 2, "cpus": 0.5, "memory": "1GiB"}
LENGTHS, GAP_SECONDS = (1.0, 0.7, 0.7), 6.0  # of each job, relative to --epochs; between two arrivals
ACCURACY = re.compile(r"held-out accuracy ([0-9.]+)")
LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.5


@click.command()
@click.option("--epochs", type=click.IntRange(1), default=60, show_default=True, help="Of the longest job.")
@click.option("--policy", default="dl2x", show_default=True, help="Shown first, with its resizes and chart.")
@click.option("--beside", default="drf", show_default=True, help="The policy that the same jobs run under after that.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Where summary.json and allocation.png go.",
)
@plain_errors
def demo(epochs: int, policy: str, beside: str, out: Path) -> None:
    """Run the service with three training jobs that arrive one after another and share this machine.

    \b
    Examples:
      elastic-mx demo
      elastic-mx demo --policy srtf --beside fifo --out runs/other
    """
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise JobError(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if not EXAMPLE.is_file():
        raise JobError(f"{EXAMPLE} does not exist: the demo runs from a checkout of the project")
    out.mkdir(parents=True, exist_ok=True)
    _warm_up()
    runs = {name: Run(name, epochs).run() for name in dict.fromkeys((policy, beside))}
    summary = {"policy": policy, **runs[policy], "beside": {"policy": beside, **runs[beside]}}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw(summary, out / "allocation.png")
    show(_table(runs))
    click.echo("three jobs show how it works, not which policy is better: elastic-mx simulate compares them on many")
    click.echo(f"wrote {out / 'summary.json'} and {out / 'allocation.png'}")


def _warm_up() -> None:
    """Has the system read what the jobs import, so that the policy shown first does not pay for a cold disk."""
    subprocess.run([sys.executable, "-c", "import elastic_mx, mxnet, sklearn.datasets"], check=True)


class Run:
    """The jobs under one policy, from an empty record."""

    def __init__(self, policy: str, epochs: int) -> None:
        from scheduler.service.http import ServiceClient

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._policy = policy
        self._epochs = [max(1, round(epochs * length)) for length in LENGTHS]
        self._client = ServiceClient(self._address)
        self._timeline: List[Dict[str, Any]] = []

    def run(self) -> Dict[str, Any]:
        """What came of it: ``jobs``, ``resizes`` and ``timeline``, in seconds since the service began.

        Raises:
            JobError: the service did not start, or a job failed.
        """
        with tempfile.TemporaryDirectory(prefix="elastic-mx-demo-") as name:
            folder = Path(name)
            (folder / "nodes.yaml").write_text(json.dumps([NODE]))
            command = [sys.executable, "-m", "launcher.cli", "serve", "--policy", self._policy, "--slot", "2s"]
            command += ["--state", str(folder / "state"), "--nodes", str(folder / "nodes.yaml")]
            root = str(EXAMPLE.parent.parent)
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            with subprocess.Popen(
                [*command, "--listen", self._address], env=environment, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                if "policy" not in process.stdout.readline():
                    raise JobError(f"the service with policy {self._policy} did not start")
                try:
                    return self._watch()
                finally:
                    self._end()
                    process.send_signal(signal.SIGTERM)

    def _watch(self) -> Dict[str, Any]:
        click.echo(f"three jobs arrive under {self._policy}")
        began, told = time.time(), 0
        for number in range(len(LENGTHS)):
            self._submit(number)
            told = self._look(began, told, began + GAP_SECONDS * (number + 1))
        while any(job["ended_at"] is None for job in self._jobs()):
            if time.time() - began > LONGEST_SECONDS:
                raise JobError(f"the jobs under {self._policy} have not ended after {LONGEST_SECONDS:g} s")
            told = self._look(began, told, time.time() + POLL_SECONDS)
        jobs = self._jobs()
        bad = [job for job in jobs if job["state"] != "finished"]
        if bad:
            raise JobError(f"job {bad[0]['name']} {bad[0]['state']}: {bad[0]['reason']}")
        names = {job["id"]: job["name"] for job in jobs}
        fields = ("servers_before", "workers_before", "servers", "workers", "seconds", "stall_seconds", "bytes_moved")
        return {
            "jobs": [
                {"name": job["name"], "accuracy": self._accuracy(job["name"]), "jct_s": round(job["jct_s"], 3)}
                for job in jobs
            ],
            "resizes": [
                {"job": names[one["job"]], "at_s": round(one["at"] - began, 3), **{f: one[f] for f in fields}}
                for one in self._client.ask("GET", "/changes?limit=10000")
                if one["kind"] == "resize" and one["outcome"] == "done"
            ],
            "timeline": self._timeline,
        }

    def _submit(self, number: int) -> None:
        name, epochs = f"digits-{number + 1}", self._epochs[number]
        command = [sys.executable, str(EXAMPLE), "--epochs", str(epochs)]
        spec = {"name": name, "command": command, "workdir": str(EXAMPLE.parent), "epochs": epochs}
        self._client.ask("POST", "/jobs", {"spec": {**spec, "workers": WORKERS, "servers": SERVERS}, "key": name})

    def _jobs(self) -> List[Dict[str, Any]]:
        return list(self._client.ask("GET", "/jobs"))

    def _look(self, began: float, told: int, until: float) -> int:
        """Follows the jobs until then, telling what happens; the number of the last event that was told."""
        while True:
            sizes = {job["name"]: [job["servers"], job["workers"]] for job in self._jobs()}
            self._timeline.append({"seconds": round(time.time() - began, 2), "sizes": sizes})
            for change in self._client.ask("GET", f"/changes?since={told}"):
                told = change["id"]
                size = f"{plural(change['servers'], 'server')}, {plural(change['workers'], 'worker')}"
                click.echo(f"{change['at'] - began:6.1f} s  digits-{change['job']}  {change['kind']}: {size}")
            left = until - time.time()
            if left <= 0:
                return told
            time.sleep(min(POLL_SECONDS, left))

    def _accuracy(self, name: str) -> float:
        logs = self._client.ask("GET", f"/jobs/{name}/logs")["logs"]
        found = [value for piece in logs.values() for value in ACCURACY.findall(piece["text"])]
        if not found:
            raise JobError(f"job {name} has printed no accuracy")
        return float(found[-1])

    def _end(self) -> None:
        """Sees to it that no job outlives the demo."""
        from scheduler.service.http import ServiceError

        deadline = time.time() + 30
        try:
            while time.time() < deadline:
                live = [job for job in self._jobs() if job["ended_at"] is None]
                if not live:
                    return
                for job in live:
                    if not job["wish"]:
                        self._client.ask("POST", f"/jobs/{job['name']}/cancel")
                time.sleep(POLL_SECONDS)
        except ServiceError as error:
            click.echo(f"the jobs could not be ended: {error}", err=True)


def _table(runs: Dict[str, Dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in ("policy", "job", "accuracy", "JCT", "resizes", "longest stall"):
        table.add_column(column)
    for policy, run in runs.items():
        for job in run["jobs"]:
            mine = [one for one in run["resizes"] if one["job"] == job["name"]]
            stall = max((one["stall_seconds"] or 0.0 for one in mine), default=0.0)
            cells = (f"{job['accuracy']:.2%}", f"{job['jct_s']:.1f} s", str(len(mine)), f"{stall * 1000:.0f} ms")
            table.add_row(policy, job["name"], *cells)
        mean = sum(job["jct_s"] for job in run["jobs"]) / len(run["jobs"])
        table.add_row(policy, "mean", "", f"{mean:.1f} s", str(len(run["resizes"])), "")
    return table


def draw(summary: Dict[str, Any], path: Path) -> None:
    """Write a chart of each job's workers and servers over time, one policy above the other, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = (summary, summary["beside"])
    figure, rows = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    for axes, run in zip(rows, runs):
        seconds = [point["seconds"] for point in run["timeline"]]
        names = [job["name"] for job in run["jobs"]]
        tasks = [[sum(point["sizes"].get(name, (0, 0))) for point in run["timeline"]] for name in names]
        axes.stackplot(seconds, tasks, labels=names, step="post", alpha=0.8)
        axes.set_title(f"{run['policy']}: mean JCT {sum(j['jct_s'] for j in run['jobs']) / len(names):.1f} s")
        axes.set_ylabel("workers and servers")
        axes.legend(loc="upper right", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel("seconds since the first job arrived")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
