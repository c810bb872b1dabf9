"""`elastic-mx launch` on plain scripts: output, exit statuses, signals, and that nothing is left, whoever is killed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.launcher.harness import PYTHON, wait_until

QUICK = "import sys; print('out'); print('err', file=sys.stderr)"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_output_comes_with_the_processs_name_and_the_status_is_the_scripts(shell):
    ran = shell.run("launch", "-n", 2, "--", "python", shell.script(QUICK))
    assert ran.returncode == 0
    assert sorted(ran.stdout.splitlines()) == ["[worker-0] out", "[worker-1] out"]
    assert {"[worker-0] err", "[worker-1] err"} <= set(ran.stderr.splitlines())
    assert "job script: workers=2 servers=1 transport=auto" in ran.stderr
    assert list((shell.home / "jobs").glob("*.json")) == []


@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        ("import sys; sys.exit(3)", 3, "elastic-mx: worker-0 failed with status 3"),
        ("import os; os.kill(os.getpid(), 9)", 137, "elastic-mx: worker-0 failed with SIGKILL"),
        ("raise ValueError('no data')", 1, "[worker-0] ValueError: no data"),
    ],
)
def test_a_script_that_fails_gives_its_status(shell, code, status, line):
    ran = shell.run("launch", "--", "python", "-c", code)
    assert ran.returncode == status
    assert line in ran.stderr.splitlines()
    assert ran.stderr.count("failed with") == 1


def test_the_other_workers_of_a_failed_one_are_ended(shell):
    code = (
        "import os, sys, time; name = os.environ['ELASTIC_MX_NAME']; time.sleep(1); name != 'worker-1' or sys.exit(4)"
    )
    ran = shell.run("launch", "-n", 2, "--", "python", shell.script(code + "; time.sleep(600)"), timeout=30)
    assert ran.returncode == 4


def test_a_signal_is_passed_on_and_the_script_may_end_in_its_own_way(shell):
    code = "import signal, sys; signal.signal(15, lambda *_: (print('saved'), sys.exit(7)));" + SLEEP
    job = shell.launch("-n", 2, "--", "python", shell.script(code))
    wait_until(lambda: job.out.count("up") == 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 7
    assert job.out.count("saved") == 2 and "got SIGTERM, ending the job" in job.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_the_script_does_not_handle_gives_the_shells_status(shell, number, status):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"these tests were started with {number.name} ignored, as nohup does, and so is the script")
    job = shell.launch("--", "python", shell.script(SLEEP))
    job.wait_for("up")
    job.process.send_signal(number)
    assert job.wait() == status


def test_a_second_signal_kills_a_script_that_will_not_go(shell):
    code = "import signal; signal.signal(15, lambda *_: print('no', flush=True));" + SLEEP.replace("600", "9")
    job = shell.launch("--", "python", shell.script("\n".join([code, "while True: time.sleep(1)"])))
    job.wait_for("up")
    job.process.send_signal(signal.SIGTERM)
    job.wait_for("no")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(5) == 143


CHILDREN = """
import subprocess, sys
subprocess.Popen(['sleep', '601'])
subprocess.Popen(['sleep', '602'], start_new_session=True)
"""


def test_what_a_script_leaves_running_is_ended_with_it(shell):
    ran = shell.run("launch", "--", "python", shell.script(CHILDREN), timeout=20)
    assert ran.returncode == 0
    assert shell.processes() == {}


def test_nothing_outlives_a_launcher_that_is_killed(shell):
    job = shell.launch("-n", 2, "-s", 2, "--", "python", shell.script(CHILDREN + SLEEP))
    wait_until(lambda: job.out.count("up") == 2)
    assert len(shell.processes()) == 3 + 2 + 3 * 2, "launcher, warden, coordinator; servers; workers with children"
    job.process.kill()
    job.process.wait()
    wait_until(lambda: not shell.processes(), 5)
    assert "no job is running" in shell.run("status").stdout


def test_a_reader_that_goes_away_ends_the_job(shell):
    code = "import time\nwhile True: print('x' * 1000, flush=True); time.sleep(0.01)"
    command = [*PYTHON, "launch", "--", "python", str(shell.script(code))]
    process = subprocess.Popen(command, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline().startswith(b"[worker-0] xxx")
    process.stdout.close()
    assert process.wait(20) == 143


@pytest.mark.parametrize(
    ("streams", "told"), [(">/dev/full", "stdout is lost while it cannot be written"), ("<&- >&-", "job script:")]
)
def test_output_that_cannot_be_written_does_not_end_the_job(shell, streams, told):
    command = shlex.join([*PYTHON, "launch", "--", "python", str(shell.script(QUICK))])
    ran = subprocess.run(
        ["bash", "-c", f"exec {command} {streams}"], env=shell.environment, capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 0 and told in ran.stderr and "[worker-0] err" in ran.stderr


def test_a_stream_that_does_not_block_is_waited_for(shell):
    read, write = os.pipe()
    os.set_blocking(write, False)
    command = [*PYTHON, "launch", "--", "python", str(shell.script("for i in range(30000): print(i)"))]
    with subprocess.Popen(command, env=shell.environment, stdout=write, stderr=subprocess.DEVNULL) as job:
        os.close(write)
        time.sleep(2)
        with open(read, "rb") as file:
            assert file.read().splitlines()[-1] == b"[worker-0] 29999"
        assert job.wait(20) == 0


def test_the_death_of_the_coordinator_ends_the_job(shell):
    job = shell.launch("--", "python", shell.script(SLEEP))
    job.wait_for("up")
    (coordinator,) = [pid for pid, line in shell.processes().items() if "elastic_mx.coordinator" in line]
    os.kill(coordinator, signal.SIGKILL)
    assert job.wait() == 137
    assert "the coordinator ended (SIGKILL)" in job.err


def test_a_worker_that_ends_before_the_job_began_is_not_waited_for(shell):
    code = "import os, time; os.environ['ELASTIC_MX_NAME'] == 'worker-1' or time.sleep(600)"
    ran = shell.run("launch", "-n", 2, "--", "python", shell.script(code), timeout=30)
    assert ran.returncode == 1
    assert "worker-1 ended before the job began" in ran.stderr


def test_processes_that_share_cores_compute_on_one_thread_unless_told_otherwise(shell):
    show = shell.script("import os; print(os.environ.get('OMP_NUM_THREADS'))")
    shell.environment.pop("OMP_NUM_THREADS", None)
    assert shell.run("launch", "--", "python", show).stdout == "[worker-0] 1\n"
    assert shell.run("launch", "--threads", 3, "--", "python", show).stdout == "[worker-0] 3\n"
    assert shell.run("launch", "--", "python", show, OMP_NUM_THREADS="2").stdout == "[worker-0] 2\n"


def test_options_of_the_script_need_no_dashes_before_them(shell):
    show = shell.script("import sys; print(sys.argv[1:])")
    assert shell.run("launch", "python", show, "-n", 3, "--name").stdout == "[worker-0] ['-n', '3', '--name']\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH came with Python 3.11")
def test_a_module_of_the_users_folder_does_not_come_before_pythons_for_our_processes(shell):
    for name in ("json.py", "logging.py", "signal.py"):
        shell.script("raise SystemExit('shadowed')", name)
    command = [sys.executable, "-P", "-m", "launcher.cli", "launch", "--", "python", "-I", "-c", "print('fine')"]
    ran = subprocess.run(command, env=shell.environment, cwd=shell.folder, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "[worker-0] fine\n"), ran.stderr


def test_the_job_is_named_after_its_script_and_numbered_if_need_be(shell):
    script = shell.script(SLEEP, "train it.py")
    jobs = [shell.launch("--", "python", script) for _ in range(2)]
    for job in jobs:
        job.wait_for("up")
    names = {job["name"] for job in json.loads(shell.run("status", "--json").stdout)["jobs"]}
    assert names == {"train-it", "train-it-2"}
    for job in jobs:
        job.process.send_signal(signal.SIGTERM)
        job.wait()
