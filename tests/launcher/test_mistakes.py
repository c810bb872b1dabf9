"""What a user can do wrong: one clear line on stderr, a status that is not zero, no traceback, nothing started."""

import shlex
import socket
import subprocess

import pytest
from click.testing import CliRunner

from launcher.cli import COMMANDS, main
from tests.launcher.harness import PYTHON, wait_until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lanch"], "No such command 'lanch'"),
        (["launch"], "Missing argument 'COMMAND...'"),
        (["launch", "-n", "0", "--", "true"], "0 is too few: a job needs at least 1"),
        (["launch", "-n", "1000000", "--", "true"], "1000000 workers and 1 server are too many for this machine"),
        (["scale", "digits", "--servers", "9000000"], "9000000 servers are too many for this machine"),
        (["launch", "-s", "two", "--", "true"], "'two' is not a valid integer"),
        (["launch", "--transport", "rdma", "--", "true"], "'rdma' is not one of 'auto', 'shm', 'tcp'"),
        (["launch", "--slice-mib", "0", "--", "true"], "--slice-mib"),
        (["launch", "--port", "70000", "--", "true"], "70000 is not in the range"),
        (["launch", "--wokers", "2", "--", "true"], "--wokers"),
        (["launch", "--name", "a/b", "--", "true"], "'a/b' cannot be a job's name"),
        (["launch", "--name", "", "--", "true"], "'' cannot be a job's name"),
        (["launch", "--", "python", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["launch", "--", "python", "-u", "nowhere.py"], "script 'nowhere.py' does not exist"),
        (["launch", "--", "no-such-program"], "there is no program 'no-such-program'"),
        (["launch", "--", "./plain.py"], "'./plain.py' is not executable: write python ./plain.py"),
        (["launch", "--restore", "nowhere", "--", "true"], "--restore 'nowhere' is no folder"),
        (["launch", "--restore", ".", "--", "true"], "holds no checkpoint: manifest.json cannot be read"),
        (["launch", "--optimizer", "Mine", "--", "true"], "--optimizer 'Mine' is no MODULE:CLASS"),
        (["checkpoint", "digits", "saved"], "there is no job 'digits'"),
        (["checkpoint", "digits"], "Missing argument 'FOLDER'"),
        (["scale", "digits", "--workers", "2"], "there is no job 'digits' on this machine (no job is running)"),
        (["scale", "digits", "--workers", "0"], "0 is too few: a job needs at least 1"),
        (["scale", "digits", "--servers", "-1"], "-1 is too few: a job needs at least 1"),
        (["scale", "digits"], "say a size: --workers, --servers or both"),
        (["scale"], "Missing argument 'JOB'"),
        (["status", "digits"], "there is no job 'digits'"),
        (["status", "--jsn"], "--jsn"),
        (["stop", "digits"], "there is no job 'digits'"),
        (["stop", "digits", "--timeout", "0"], "0.0 is not in the range"),
    ],
)
def test_one_clear_line(shell, arguments, message):
    shell.script("", "plain.py")
    ran = shell.run(*arguments)
    assert ran.returncode in (1, 2)
    assert message in ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_a_port_in_use_is_told(shell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = shell.run("launch", "--port", port, "--", "true")
    assert ran.returncode == 1
    assert f"cannot start at tcp://127.0.0.1:{port}: Address already in use" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_name_in_use_is_told(shell):
    job = shell.launch("--name", "digits", "--", "sleep", "600")
    wait_until(lambda: "coordinator=tcp" in job.err)
    ran = shell.run("launch", "--name", "digits", "--", "true")
    assert ran.returncode == 1
    assert f"a job named 'digits' is running (pid {job.process.pid})" in ran.stderr
    assert ran.stderr.count("\n") == 1
    job.process.terminate()
    job.wait(status=143)


def test_a_folder_that_cannot_be_used_is_told(shell):
    (shell.folder / "file").write_text("")
    ran = shell.run("status", ELASTIC_MX_HOME=str(shell.folder / "file"))
    assert ran.returncode == 1 and "set ELASTIC_MX_HOME" in ran.stderr and ran.stderr.count("\n") == 1


def test_what_the_system_does_not_allow_is_told(shell):
    command = shlex.join([*PYTHON, "launch", "--", "true"])
    limited = ["bash", "-c", f"ulimit -f 0; exec {command}"]
    ran = subprocess.run(limited, env=shell.environment, cwd=shell.folder, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("Error: the system does not allow what this needs: ")


def test_a_command_whose_packages_are_not_installed_says_so(shell):
    shell.script("raise ModuleNotFoundError(\"No module named 'yaml'\", name='yaml')", "yaml.py")
    ran = shell.run("simulate", PYTHONPATH=f"{shell.folder}:{shell.environment['PYTHONPATH']}")
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1
    assert "simulate needs the package 'yaml', which is missing: pip install elastic-mx[scheduler]" in ran.stderr


@pytest.mark.parametrize("command", [[], *([name] for name in sorted(COMMANDS))])
def test_every_command_has_help_with_command_lines(command):
    told = CliRunner().invoke(main, [*command, "--help"], prog_name="elastic-mx")
    assert told.exit_code == 0 and told.output.startswith("Usage: elastic-mx")
    assert not command or "  elastic-mx " + command[0] in told.output
    assert "x<=None" not in told.output


def test_help_imports_none_of_the_heavy_libraries(shell):
    ran = shell.run("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert not imported & {"numpy", "mxnet", "torch", "zmq", "rich"}
