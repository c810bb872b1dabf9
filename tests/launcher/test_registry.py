"""The registry of running jobs: names are unique among the living, and the files of the dead go away."""

import json
import os
import subprocess
import sys

import pytest

from launcher.registry import Registry, RegistryError, born, home


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "home")


def test_a_job_is_found_until_it_is_removed(registry):
    entry = registry.claim("digits", ["python", "train.py"])
    with pytest.raises(RegistryError, match="'digits' is starting"):
        registry.find("digits")
    entry = registry.update(entry, "tcp://127.0.0.1:4000")
    assert registry.find("digits") == entry and registry.jobs() == [entry]
    registry.remove(entry)
    assert registry.jobs() == []
    with pytest.raises(RegistryError, match=r"no job 'digits' on this machine .no job is running."):
        registry.find("digits")


def test_an_unknown_job_is_told_with_those_that_run(registry):
    registry.claim("digits", [])
    with pytest.raises(RegistryError, match=r"no job 'digit' on this machine .running: digits."):
        registry.find("digit")


def test_a_name_in_use_is_refused_or_numbered(registry):
    registry.claim("digits", [])
    with pytest.raises(RegistryError, match=f"'digits' is running .pid {os.getpid()}.: choose another"):
        registry.claim("digits", [])
    assert registry.claim("digits", [], numbered=True).name == "digits-2"
    assert registry.claim("digits", [], numbered=True).name == "digits-3"


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "-n", "a b", "ä", "x" * 64])
def test_what_cannot_be_a_name_is_refused(registry, name):
    with pytest.raises(RegistryError, match="cannot be a job's name"):
        registry.claim(name, [])


def test_the_job_of_a_dead_launcher_is_forgotten_and_its_name_free(registry, tmp_path):
    code = "import sys; from launcher.registry import *; Registry(Path(sys.argv[1])).claim('digits', [])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "home")], check=True)
    assert (registry.folder / "digits.json").exists()
    assert registry.jobs() == []
    assert not (registry.folder / "digits.json").exists()
    registry.claim("digits", [])


def test_a_later_process_with_the_same_pid_is_not_taken_for_the_launcher(registry):
    registry.claim("digits", [])
    path = registry.folder / "digits.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "born": 1}))
    assert registry.jobs() == []


def test_removing_leaves_the_file_of_another_launcher_alone(registry):
    mine = registry.claim("digits", [])
    path = registry.folder / "digits.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": os.getppid(), "born": born(os.getppid())}))
    registry.remove(mine)
    assert [entry.pid for entry in registry.jobs()] == [os.getppid()]


def test_a_damaged_file_is_no_job(registry):
    (registry.folder / "digits.json").write_text("{")
    assert registry.jobs() == []
    registry.claim("digits", [])


def test_twenty_launchers_at_once_get_twenty_names(registry, tmp_path):
    code = (
        "import sys; from launcher.registry import *; r = Registry(Path(sys.argv[1]));"
        "print(r.claim('digits', [], numbered=True).name, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "home")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(20)]
    try:
        names = {process.stdout.readline().strip() for process in processes}
        assert names == {"digits"} | {f"digits-{n}" for n in range(2, 21)}
        assert len(registry.jobs()) == 20
    finally:
        for process in processes:
            process.communicate()


def test_the_folder_is_the_users_alone_and_is_chosen_by_the_environment(registry, tmp_path):
    assert registry.folder.stat().st_mode & 0o777 == 0o700
    assert home({"ELASTIC_MX_HOME": "a", "XDG_RUNTIME_DIR": "b"}).as_posix() == "a"
    assert home({"XDG_RUNTIME_DIR": "b"}).as_posix() == "b/elastic-mx"
    assert home({}).name == ".elastic-mx"


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match=r"cannot be used .Not a directory.: set ELASTIC_MX_HOME"):
        Registry(tmp_path / "file")
