"""A job in a folder, as the service runs it: seats, limits, logs, its state, and that it is begun once."""

import json
import os
import subprocess
import sys
import threading
import time

from elastic_mx.client import ControlClient
from launcher.hosted import FolderHost, Order
from tests.launcher.harness import SCRIPTS, wait_until

CORES = sorted(os.sched_getaffinity(0))


class Hosted:
    """A folder's job, in a session of its own."""

    def __init__(self, shell, **order):
        self.folder = shell.folder / "job"
        self.folder.mkdir(exist_ok=True)
        self.shell = shell
        environment = {**shell.environment, "STOP": str(shell.folder / "STOP")}
        whole = {"name": "digits", "command": ["python", str(SCRIPTS / "train.py")], "workdir": str(shell.folder)}
        whole = {**whole, "environment": environment, "workers": 1, "servers": 1, "threads": 1, **order}
        (self.folder / "job.json").write_text(json.dumps(whole))

    def seats(self, **seats):
        (self.folder / "seats.json").write_text(json.dumps(seats))

    def start(self):
        command = [sys.executable, "-m", "launcher.hosted", str(self.folder)]
        self.process = subprocess.Popen(command, env=self.shell.environment, stderr=subprocess.PIPE, text=True)
        self.shell.launched.append(self)
        return self

    @property
    def state(self):
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {"tasks": {}}

    def log(self, name):
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def training(self):
        wait_until(lambda: "training" in self.log("worker-0") or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.log("launcher") + self.log("worker-0")


def test_a_full_disk_holds_up_what_is_told_of_a_job_and_not_the_job(tmp_path):
    host = FolderHost(tmp_path, Order("one", ["true"], str(tmp_path), {}, 1, 1))
    state, partial = tmp_path / "state.json", tmp_path / "state.json.partial"
    partial.symlink_to("/dev/full")
    before = state.read_bytes()
    host.listening("tcp://here")
    ending = threading.Thread(target=host.over, args=(3, "why"))
    ending.start()
    time.sleep(0.2)
    assert state.read_bytes() == before and ending.is_alive()
    partial.unlink()
    ending.join(20)
    told = json.loads(state.read_bytes())
    assert (told["coordinator"], told["status"], told["reason"]) == ("tcp://here", 3, "why")


def seat(node, *cores):
    return {"node": node, "cores": list(cores)}


def test_tasks_take_the_seats_that_are_free_and_keep_to_their_cores(shell):
    job = Hosted(shell)
    job.seats(worker=[seat("a", CORES[0])], server=[seat("b", CORES[-1])])
    job.start().training()
    job.seats(worker=[seat("a", CORES[0]), seat("b", CORES[-1])], server=[seat("b", CORES[-1])])
    with ControlClient(job.state["coordinator"]) as client:
        assert client.scale(workers=2, timeout=60)["workers"] == 2
    tasks = job.state["tasks"]
    found = {name: (task["seat"]["node"], os.sched_getaffinity(task["pid"])) for name, task in tasks.items()}
    del found["coordinator"]
    first, last = {CORES[0]}, {CORES[-1]}
    assert found == {"worker-0": ("a", first), "worker-1": ("b", last), "server-0": ("b", last)}
    (shell.folder / "STOP").touch()
    assert job.process.wait(60) == 0
    assert job.state["status"] == 0 and job.state["ended"]
    assert {task["status"] for task in job.state["tasks"].values()} == {0}
    assert "done" in job.log("worker-0") and "done" in job.log("worker-1")


def test_a_task_that_exceeds_its_memory_is_ended_and_the_reason_told(shell):
    script = "import time\nkept = bytearray(b'x') * (300 << 20)\nprint('training', flush=True)\ntime.sleep(60)\n"
    job = Hosted(shell, command=["python", str(shell.script(script))], memory_bytes={"worker": 200 << 20})
    job.start()
    assert job.process.wait(60) == 128 + 9
    reason = job.state["tasks"]["worker-0"]["reason"]
    assert reason.startswith("worker-0 uses 3") and reason.endswith("of memory, its limit is 200 MiB: it is ended")
    assert reason in job.log("launcher") and job.state["status"] == 137


def test_a_folders_job_is_begun_once(shell):
    job = Hosted(shell, command=["python", "-c", "print('ran')"]).start()
    assert job.process.wait(60) == 0
    again = job.start().process
    assert again.wait(60) == 1
    assert "a folder's job is begun once" in again.stderr.read()
    assert job.log("worker-0") == "ran\n"


def test_what_cannot_be_started_is_told(shell):
    job = Hosted(shell, workdir=str(shell.folder / "missing")).start()
    assert job.process.wait(60) == 1
    assert "No such file or directory" in job.state["reason"] and job.state["status"] == 1
