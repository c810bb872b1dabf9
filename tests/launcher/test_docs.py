"""What the documents say can be done: their command lines are understood, jobs accepted, the tutorial works."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from launcher.cli import main
from scheduler.service.spec import parse_spec, read_spec
from tests.launcher.harness import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "scheduler" / "README.md"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def command_lines():
    """Each line of the documents' shell blocks and the examples' headers that calls the command."""
    texts = [text for page in PAGES for text in (*blocks(page, "sh"), *blocks(page, ""))]
    texts += [path.read_text().split('"""')[1] for path in (ROOT / "examples").glob("*.py")]
    lines = {line.strip() for text in texts for line in text.replace("\\\n", "").splitlines()}
    return sorted(line for line in lines if line.startswith(("elastic-mx ", ".venv/bin/elastic-mx ")))


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_of_the_documents_is_understood(line):
    for one in line.partition("#")[0].split("&"):
        words = shlex.split(one.replace("$DL2", ""))[1:]
        if "|" in words or not words:
            continue
        command = main
        while isinstance(command, click.Group) and words:
            name = words.pop(0)
            command = command.get_command(click.Context(command), name)
            assert command is not None, f"{name} is no command"
        command.make_context(name, words)  # raises UsageError for what it does not know


@pytest.mark.parametrize("page", [page for page in PAGES if "\ncommand: " in page.read_text()], ids=lambda p: p.name)
def test_a_job_of_the_documents_is_accepted(page):
    jobs = [yaml.safe_load(text) for text in blocks(page, "yaml") if "\ncommand: " in text]
    assert jobs and all(parse_spec(job).name == job["name"] for job in jobs)


def test_the_example_of_a_job_runs_where_its_file_is():
    spec = read_spec(ROOT / "examples" / "job.yaml")
    assert (Path(spec.workdir) / "digits.py").is_file()


def test_the_pages_point_to_what_is_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.timeout(120)
def test_the_tutorials_changes_make_the_plain_script_elastic(shell):
    script = (ROOT / "examples" / "dist_sync.py").read_text()
    for diff in blocks(ROOT / "docs" / "tutorial.md", "diff"):
        lines = diff.splitlines()
        before, after = ("\n".join(line[1:] for line in lines if line[:1] in (" ", sign)) for sign in "-+")
        assert script.count(before) == 1, before
        script = script.replace(before, after)
    ran = shell.run("launch", "-n", 2, "-s", 2, "--", "python", shell.script(script), "--epochs", 3, timeout=100)
    assert ran.returncode == 0, ran.stderr
    counts = [(epoch, int(n)) for epoch, n in re.findall(r"epoch (\d).* this worker's (\d+) samples", ran.stdout)]
    assert sorted(epoch for epoch, _ in counts) == ["0", "0", "1", "1", "2", "2"]
    assert sum(n for _, n in counts) == 3 * 1797
