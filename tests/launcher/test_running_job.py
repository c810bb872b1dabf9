"""The commands about a running job, on real jobs: scale, status, stop, failures while it trains, drop-in scripts."""

import json
import subprocess
import sys

import pytest

from tests.launcher.harness import ROOT, SCRIPTS, wait_until

ELASTIC = ("--", "python", SCRIPTS / "train.py")


def training(shell, workers, servers, **environment):
    """A job named `digits` that trains until the file STOP exists."""
    options = ("--name", "digits", "-n", workers, "-s", servers)
    job = shell.launch(*options, *ELASTIC, STOP=str(shell.folder / "STOP"), **environment)
    wait_until(lambda: job.out.count("training") == workers, 90)
    return job


def finish(shell, job):
    (shell.folder / "STOP").write_text("")
    assert job.wait() == 0, job.err


def status(shell):
    return json.loads(shell.run("status", "digits", "--json").stdout)


def test_a_job_is_scaled_up_and_down_and_tells_what_that_cost(shell):
    job = training(shell, 1, 1)
    up = shell.run("scale", "digits", "--workers", 2, "--servers", 2, timeout=90)
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith("digits has 2 workers and 2 servers from step ")
    assert "median step" in up.stdout and up.stdout.count("\n") == 1
    body = status(shell)
    assert [w["name"] for w in body["workers"]] == ["worker-0", "worker-1"]
    assert [s["name"] for s in body["servers"]] == ["server-0", "server-1"]
    assert body["coordinator"].startswith("tcp://127.0.0.1:") and body["pid"] == job.process.pid
    down = shell.run("scale", "digits", "--workers", 1, "--servers", 1, "--json", timeout=90)
    cost = json.loads(down.stdout)
    assert (cost["workers"], cost["servers"], cost["generation"]) == (1, 1, body["generation"] + 1)
    assert cost["bytes_moved"] > 0 and cost["median_step_seconds"] > 0
    again = shell.run("scale", "digits", "--workers", 1)
    assert again.stdout == "digits has 1 worker and 1 server: no resize was needed\n"
    assert len(status(shell)["resizes"]) == body["generation"] + 1
    shown = shell.run("status", "digits").stdout
    assert "worker-0" in shown and "server-0" in shown and "+1 server" in shown
    finish(shell, job)


def test_a_worker_that_fails_before_it_joins_costs_its_resize_only(shell):
    job = training(shell, 1, 1, FAIL="worker-1")
    ran = shell.run("scale", "digits", "--workers", 2, timeout=90)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1
    assert "worker-1 ended with status 5 before it joined; the job goes on without it" in ran.stderr
    assert len(status(shell)["workers"]) == 1
    finish(shell, job)
    assert "worker-1 ended with status 5, but the job did not count on it" in job.err


@pytest.mark.parametrize(
    ("end", "line"), [(3, "worker-1 failed with status 3"), (0, "worker-1 ended without taking leave of the job")]
)
def test_a_member_that_ends_while_the_job_trains_ends_it(shell, end, line):
    job = training(shell, 2, 1)
    (shell.folder / "STOP.worker-1").write_text(str(end))
    assert job.wait(20) == (end or 1)
    assert line in job.err


DIES = """
import elastic_mx
import mxnet as mx
kv = mx.kv.create("dist_elastic")
weights = [mx.nd.eye(2) for _ in range(4)]
for key, weight in enumerate(weights):
    kv.init(key, weight)
for step in range(100000):
    if step == 20 and kv.rank == 1:
        print("now an error", flush=True)
        {error}
    kv.pushpull([0, 1, 2, 3], weights)
    sum(weight[0, 0] for weight in weights).asscalar()
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("mx.nd.dot(mx.nd.ones((3, 4)), mx.nd.ones((5, 6)))", "dot shape error: [3,4] X [5,6]"),
        ("kv.push(0, mx.nd.linalg.potrf(-mx.nd.ones((2, 2))))", "spotrf failed in lapack"),  # seen at the next wait
        ("kv.push(0, mx.nd.ones((5,)))", "[worker-1] elastic-mx: dies.py, line "),
    ],
)
def test_a_job_whose_script_dies_of_an_error_of_mxnet_or_ours_is_gone_at_once(shell, error, line):
    shell.script(DIES.format(error=error), "dies.py")
    job = shell.launch("-n", 2, "-s", 2, "--", "python", "dies.py")
    job.wait_for("now an error")
    assert job.wait(5, status=1) == 1 and not shell.processes()
    assert line in job.err and "worker-1 failed with status 1" in job.err


def test_a_script_that_belongs_to_no_job_is_told_so_in_one_line(shell):
    shell.script(DIES.format(error="pass"), "dies.py")
    command = [sys.executable, "dies.py"]
    ran = subprocess.run(command, env=shell.environment, cwd=shell.folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("elastic-mx: dies.py, line 4: this script uses a dist_elastic store but belongs to no")


def test_a_job_is_saved_while_it_trains_and_goes_on_with_another_size(shell):
    options = ("--", "python", ROOT / "examples" / "raw_kvstore.py", "--epochs", 4, "--pause", 0.02)
    job = shell.launch("--name", "digits", *options)
    job.wait_for("epoch 1")
    ran = shell.run("checkpoint", "digits", "saved")
    assert ran.returncode == 0 and ran.stdout.startswith(f"digits is saved in {shell.folder / 'saved'}, up to step ")
    step = int(ran.stdout.split()[-1])
    shell.run("stop", "digits")
    again = shell.run("launch", "-n", 2, "-s", 2, "--restore", "saved", *options, timeout=60)
    assert again.returncode == 0, again.stderr
    epochs = {line.split(",")[0] for line in again.stdout.splitlines() if "epoch" in line}
    assert epochs == {f"[worker-{n}] epoch {epoch}" for n in (0, 1) for epoch in range(-(-step // 60), 4)}
    assert again.stdout.count("] largest error 0.0000") == 2


OWN_OPTIMIZER = """
import elastic_mx
import mxnet as mx

@mx.optimizer.register
class Halving(mx.optimizer.Optimizer):
    def create_state(self, index, weight):
        return None
    def update(self, index, weight, grad, state):
        weight[:] = weight / 2
"""
OWN_SCRIPT = """
import elastic_mx, mxnet as mx, halving
kv = mx.kv.create("dist_elastic")
kv.set_optimizer(halving.Halving())
weight = mx.nd.ones((3,)) * 8
kv.init(0, weight)
kv.push(0, weight)
kv.pull(0, out=weight)
print(weight.asnumpy().tolist())
"""


def test_servers_import_an_optimizer_of_the_users_only_if_they_may(shell):
    shell.script(OWN_OPTIMIZER, "halving.py")
    command = ("--", "python", shell.script(OWN_SCRIPT))
    ran = shell.run("launch", "--optimizer", "halving:Halving", *command)
    assert ran.returncode == 0 and ran.stdout == "[worker-0] [4.0, 4.0, 4.0]\n", ran.stderr
    ran = shell.run("launch", *command)
    # Whether the script is told of it at its next call or has ended by then, the job has not succeeded.
    assert ran.returncode == 1 and "launch the job with --optimizer halving:Halving" in ran.stderr


def test_a_stopped_job_leaves_nothing(shell):
    job = training(shell, 2, 2)
    ran = shell.run("stop", "digits")
    assert (ran.returncode, ran.stdout) == (0, "digits has stopped\n")
    assert job.wait(1) == 143 and shell.processes() == {}
    assert "no job is running" in shell.run("status").stdout


def test_a_script_that_knows_nothing_of_us_runs_on_our_stores(shell):
    command = ("--", "python", SCRIPTS / "dist_sync.py", "dist_sync", "dist_device_sync", "dist_async")
    ran = shell.run("launch", "--drop-in", "-n", 2, *command, timeout=90)
    assert ran.returncode == 0, ran.stderr
    for worker in ("[worker-0]", "[worker-1]"):
        seen = sorted(line for line in ran.stdout.splitlines() if line.startswith(worker))
        names = [line.partition(" type")[0] for line in seen]
        assert names == [
            f"{worker} {name} rank {worker[8]} of 2" for name in ("dist_async", "dist_device_sync", "dist_sync")
        ]
        assert "type ElasticAsyncKVStore" in seen[0]
        assert all(line.endswith("type ElasticKVStore weight [3.0, 3.0, 3.0, 3.0]") for line in seen[1:]), seen


PLAIN = """
import mxnet as mx
kv = mx.kv.create("{store}")
weight = mx.nd.ones((3,))
kv.init(0, weight)
kv.pushpull(0, weight, out=weight)
print(weight.asnumpy().tolist())
"""


def test_a_script_need_not_import_us(shell):
    ran = shell.run("launch", "--", "python", shell.script(PLAIN.format(store="dist_elastic")))
    assert ran.returncode == 0 and ran.stdout == "[worker-0] [1.0, 1.0, 1.0]\n", ran.stderr


def test_a_script_with_a_store_of_mxnets_own_is_told_how_to_run_it(shell):
    ran = shell.run("launch", "--", "python", shell.script(PLAIN.format(store="dist_sync"), "plain.py"))
    assert ran.returncode == 1
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("[worker-0]")]
    assert line.startswith("[worker-0] elastic-mx: plain.py, line 3: 'dist_sync' is MXNet's own store, which nothing")
    assert "launch with --drop-in" in line


def test_the_environments_own_sitecustomize_runs_before_a_drop_in_script_too(shell):
    shell.script("import sys; sys.stderr.write('the site is customised\\n')", "sitecustomize.py")
    path = f"{shell.folder}:{shell.environment['PYTHONPATH']}"
    ran = shell.run("launch", "--drop-in", "--", "python", "-c", "print('ran')", PYTHONPATH=path)
    assert ran.stdout == "[worker-0] ran\n"
    assert "[worker-0] the site is customised" in ran.stderr.splitlines()


def test_a_drop_in_job_ends_with_the_workers_that_it_was_started_with(shell):
    options = ("--drop-in", "--name", "digits", "--", "python", SCRIPTS / "dist_sync.py", "dist_sync")
    stop = shell.folder / "STOP"
    job = shell.launch(*options, STOP=str(stop), STEPS="100000", PAUSE="0.02")
    wait_until(lambda: status_or_none(shell), 60)
    ran = shell.run("scale", "digits", "--servers", 2, "--workers", 2, timeout=60)
    assert ran.returncode == 0 and "+1 server, +1 worker" in ran.stdout, ran.stderr
    shown = shell.run("status", "digits").stdout
    assert "no promise about them" in shown and "worker-1" in shown
    before = {worker["name"]: worker["step"] for worker in status(shell)["workers"]}
    wait_until(lambda: all(w["step"] > before[w["name"]] + 5 for w in status(shell)["workers"]), 30)
    stop.write_text("worker-0")  # the one that joined has steps enough left for half an hour
    assert job.wait(30) == 0, job.err
    (line,) = [line for line in job.out.splitlines() if line.startswith("[worker-0] dist_sync")]
    assert "rank 0 of 2 type ElasticKVStore" in line and line.endswith("weight [3.0, 3.0, 3.0, 3.0]")
    assert "[worker-1] dist_sync" not in job.out


def status_or_none(shell):
    ran = shell.run("status", "digits", "--json")
    body = json.loads(ran.stdout) if ran.returncode == 0 else {}
    return body if any(worker["step"] > 0 for worker in body.get("workers", ())) else None
