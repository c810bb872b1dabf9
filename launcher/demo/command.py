"""The ``demo-resize`` command: launches the digits example, resizes it as story.py says, and shows how it goes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Optional

import click

from elastic_mx.client import ControlClient, Declined, NoAnswer
from elastic_mx.link import JobError
from launcher.commands import plain_errors, resize_table, show
from launcher.demo.chart import draw
from launcher.demo.story import CHANGES, Change, Story
from launcher.processes import Processes
from launcher.registry import Registry, RegistryError

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "digits.py"
TRAINING_SAMPLES, BATCH_SIZE = 1437, 64
NEEDED = {"mxnet": "mxnet", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
ACCURACY = re.compile(rb"held-out accuracy ([0-9.]+)")
POLL_SECONDS = 0.25


@click.command("demo-resize")
@click.option("--epochs", type=click.IntRange(1), default=80, show_default=True, help="How long to train.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/demo-resize"),
    show_default=True,
    help="Where summary.json, timeline.png and job.log go.",
)
@plain_errors
def demo(epochs: int, out: Path) -> None:
    """Train a network on scikit-learn's digits and resize the job four times meanwhile.

    Begins with 1 worker and 1 server; then one more server, one more worker, one server less, one worker less.

    \b
    Examples:
      elastic-mx demo-resize
      elastic-mx demo-resize --epochs 200 --out runs/long
    """
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise JobError(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if not EXAMPLE.is_file():
        raise JobError(f"{EXAMPLE} does not exist: the demo runs from a checkout of the project")
    out.mkdir(parents=True, exist_ok=True)
    story = Story(epochs * math.ceil(TRAINING_SAMPLES / BATCH_SIZE), BATCH_SIZE)
    with open(out / "job.log", "wb") as log:
        Run(story, epochs, log).run()
    summary = story.summary()
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw(summary, out / "timeline.png")
    show(resize_table(story.resizes))
    click.echo(f"held-out accuracy {story.accuracy:.2%}; wrote {out / 'summary.json'} and {out / 'timeline.png'}")


class Run:
    """The job of the demo while it runs."""

    def __init__(self, story: Story, epochs: int, log: Any) -> None:
        self._story, self._epochs, self._log = story, epochs, log
        self._name = f"demo-{os.getpid()}"
        self._output = b""
        self._client: Optional[ControlClient] = None
        self._asked: Optional[Future[Dict[str, Any]]] = None
        self._status: Optional[int] = None

    def run(self) -> None:
        """Run the job to its end, with a display of how it goes.

        Raises:
            JobError: the job failed, or ended before all changes were made.
        """
        command = [sys.executable, "-m", "launcher.cli", "launch", "--name", self._name, "-n", "1", "-s", "1", "--"]
        command += [sys.executable, str(EXAMPLE), f"--epochs={self._epochs}", f"--batch-size={BATCH_SIZE}"]
        root = str(EXAMPLE.parent.parent)
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
        with Processes(f"{self._name}:{uuid.uuid4().hex}", self._on_output) as processes:
            processes.start("launch", command, {**os.environ, "PYTHONPATH": path})
            try:
                self._watch(processes)
            except KeyboardInterrupt:
                processes.signal("launch", signal.SIGTERM)
                deadline = time.monotonic() + 15
                while not processes.poll() and time.monotonic() < deadline:
                    time.sleep(0.05)
                raise
            finally:
                if self._client is not None:
                    self._client.close()
        if self._status:
            raise JobError(
                f"the job failed with status {self._status}: {self._last_line()} (all of it: {self._log.name})"
            )
        if len(self._story.resizes) < len(CHANGES):
            raise JobError(
                f"training ended when {len(self._story.resizes)} of {len(CHANGES)} resizes were in force: "
                f"use more than {self._epochs} --epochs"
            )
        self._story.accuracy = float(ACCURACY.findall(self._output)[-1])

    def _last_line(self) -> str:
        return self._output.decode(errors="replace").strip().rpartition("\n")[2]

    def _on_output(self, name: str, stream: int, data: bytes) -> None:
        self._output += data
        self._log.write(data)
        self._log.flush()

    def _watch(self, processes: Processes) -> None:
        from rich.live import Live

        with Live(self._display(), refresh_per_second=8, transient=True) as live, ThreadPoolExecutor(1) as pool:
            while self._status is None:
                self._observe()
                self._change(pool, live)
                live.update(self._display())
                until = time.monotonic() + POLL_SECONDS
                while self._status is None and time.monotonic() < until:
                    for _, status in processes.poll():
                        self._status = status
                    time.sleep(0.02)

    def _observe(self) -> None:
        """See how the job is, if it answers."""
        try:
            if self._client is None:
                self._client = ControlClient(Registry().find(self._name).coordinator, self._name)
            self._story.saw(time.monotonic(), self._client.status(timeout=2.0))
        except (RegistryError, NoAnswer):
            return  # it starts, or has just ended; the launcher's status will tell

    def _change(self, pool: ThreadPoolExecutor, live: Any) -> None:
        """Take the answer to the last request for a size, or make the next one when it is due."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if isinstance(asked.exception(), Declined):
                return  # training has ended meanwhile
            self._story.resized(time.monotonic(), asked.result())
            if not live.console.is_terminal:
                live.console.print(f"{self._story.resizes[-1]['kind']} from step {self._story.resizes[-1]['step']} on")
        due = self._story.due()
        if self._asked is None and due is not None:
            self._asked = pool.submit(self._scale, due)

    def _scale(self, change: Change) -> Dict[str, Any]:
        assert self._client is not None
        with ControlClient(self._client.address, self._name) as client:
            return client.scale(change.workers, change.servers)

    def _display(self) -> Any:
        """The job at a glance: how far, how fast, how large, and what the resizes have cost."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        story = self._story
        if not story.samples:
            return Text("starting a job with 1 worker and 1 server")
        last = story.samples[-1]
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=story.steps, completed=last.step, width=40),
            f"step {last.step} of {story.steps}",
            f"{last.throughput:.0f} samples/s",
            f"workers {'▮' * last.workers}",
            f"servers {'▮' * last.servers}",
        )
        parts: List[Any] = [head]
        if story.resizes:
            parts.append(resize_table(story.resizes))
        if self._asked is not None:
            change = story.due()
            size = f"{change.workers} worker(s) and {change.servers} server(s)" if change else "another size"
            parts.append(Text(f"asked for {size}; training goes on", style="dim"))
        return Group(*parts)
