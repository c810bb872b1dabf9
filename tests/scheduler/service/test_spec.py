"""Jobs as their owners write them: what is taken, and the one line that tells what is wrong."""

import json
from pathlib import Path

import pytest

from scheduler.service.spec import JobSpec, SpecError, parse_duration, parse_memory, parse_spec, read_spec

ROOT = Path(__file__).parent.parent.parent.parent
GOOD = {"name": "digits", "command": "python train.py --epochs 20"}


def test_a_job_needs_a_name_and_a_command_and_has_defaults_for_the_rest():
    spec = parse_spec(GOOD)
    assert spec.argv == ["python", "train.py", "--epochs", "20"]
    assert (spec.workers.min, spec.workers.max, spec.servers.min, spec.servers.max) == (1, 4, 1, 2)
    assert spec.workers.demand == (1.0, 1.0, 0.0) and spec.servers.demand == (0.5, 0.5, 0.0)
    assert spec.plain() == GOOD
    assert parse_spec(spec.plain()) == spec


def test_a_job_file_counts_its_folder_from_its_own(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "name: digits\ncommand: [python, train.py]\nworkdir: sub\nenvironment: {LEVEL: 3}\ntime_limit: 15m\n"
    )
    spec = read_spec(tmp_path / "job.yaml")
    assert spec.workdir == str(tmp_path / "sub") and spec.environment == {"LEVEL": "3"} and spec.seconds == 900


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"workers": {"min": 3, "max": 2}}, "workers: min is 3, more than max, which is 2"),
        ({"wrokers": {}}, "wrokers: there is no such field (its value is {}): did you mean workers?"),
        ({"workers": {"cpu": 1}}, "workers.cpu: there is no such field (its value is 1): did you mean cpus?"),
        ({"workers": {"min": 0}}, "workers.min: 0: input should be greater than or equal to 1"),
        ({"workers": {"memory": "3"}}, "workers.memory: '3': a size with its unit is needed, as in 512MiB or 2GiB"),
        ({"name": "a b"}, "name: 'a b': use up to 63 letters, digits, '.', '_' and '-', beginning with a letter"),
        ({"name": None}, "name: None: input should be a valid string"),
        ({"command": 3}, "command: 3: input should be a valid string"),
        ({"command": ""}, "command: '': a command is needed"),
        ({"command": "python 'x"}, 'command: "python \'x": No closing quotation'),
        ({"epochs": -1}, "epochs: -1: input should be greater than 0"),
        ({"epochs": 3, "steps": 4}, "epochs is 3 and steps is 4: give one of them"),
        ({"time_limit": "3 weeks"}, "time_limit: '3 weeks': a time with its unit is needed, as in 90s, 15m or 2h"),
        ({"environment": {"A B": "1"}}, "environment: 'A B' cannot be set for a job"),
        ({"environment": {"ELASTIC_MX_NAME": "1"}}, "environment: 'ELASTIC_MX_NAME' cannot be set for a job"),
        ({"environment": {"DEBUG": True}}, "environment.DEBUG: True: input should be a valid string"),
        ({"name": True}, "name: True: is true or false in YAML, as yes, no, on and off are: quote it if it is a text"),
        ({"epochs": True}, "epochs: True: is true or false in YAML"),
        ({"workers": 4}, "workers: 4: fields are needed, as in {min: 1, max: 4}: there are min, max, cpus"),
        ({"workers": {"memory": 3}}, "workers.memory: 3: a size with its unit is needed"),
        ({"command": ["python", "a\0b"]}, "command: ['python', 'a\\x00b']: holds a zero byte"),
        ({"environment": {"A": "a\0b"}}, "environment: holds a zero byte"),
        ({"priority": 1000}, "priority: 1000: input should be less than or equal to 100"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_field_and_value(change, line):
    with pytest.raises(SpecError) as caught:
        parse_spec({**GOOD, **change})
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, 3, ["a"], "text"])
def test_what_is_no_mapping_is_no_job(data):
    with pytest.raises(SpecError, match="a job is a mapping of fields with name and command at least, not "):
        parse_spec(data)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a: [", ", line 2: not YAML: "),
        ("\x00", ": not YAML: "),
        ("b: *unknown", ", line 1: not YAML: "),
        ("name: x\n---\nname: y", ", line 2: not YAML: "),
        ("c: " + "[" * 5000, ", line 1: not YAML: "),
        ("epochs: " + "9" * 5000, ": not YAML: "),
        ("epochs: 3\nepochs: 4", ", line 2: epochs appears twice: remove one"),
        (
            "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in zip("abcdefgh", "bcdefgh")).replace("*a", "x"),
            ": its aliases",
        ),
        ("command: true\ncolour:\n  dark: red", ", line 2: colour: there is no such field"),
        ("name: x\ncommand: y\nworkers:\n  max: 4\n  min: 0", ", line 5: workers.min: 0: input should be greater"),
        ("", ": a job is a mapping of fields with name and command at least, not None"),
        ("command: true", ": name: is missing: every job has one"),
        ("#" * (1 << 20) + "#", " has 1.0 MiB: a description has 1 MiB at most: is it another file?"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line_with_the_file_and_the_line(tmp_path, content, line):
    path = tmp_path / "job.yaml"
    path.write_text(content)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert str(caught.value).startswith(f"{path}{line}") and "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_not_there_is_told_in_one_line(tmp_path):
    path = tmp_path / "job.yaml"
    with pytest.raises(SpecError, match=r"job\.yaml cannot be read: No such file"):
        read_spec(path)
    path.write_bytes(b"name: \xff")
    with pytest.raises(SpecError, match=r"job\.yaml cannot be read: 'utf-8' codec"):
        read_spec(path)


def test_fields_may_be_taken_from_elsewhere_in_the_file(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "name: x\ncommand: y\nservers: &small {max: 3, cpus: 1}\nworkers: {<<: *small, max: 5}\n"
    )
    spec = read_spec(tmp_path / "job.yaml")
    assert (spec.servers.max, spec.workers.max, spec.workers.cpus) == (3, 5, 1.0)


@pytest.mark.parametrize(
    ("name", "kind"), [("digits-12", "digits"), ("digits", "digits"), ("resnet-50-3", "resnet-50"), ("7", "7")]
)
def test_jobs_that_differ_by_a_number_are_of_one_type(name, kind):
    assert parse_spec({**GOOD, "name": name}).kind == kind


def test_sizes_and_times_are_read_with_their_units():
    assert [parse_memory(text) for text in ("1KiB", "2M", "1.5Gi", "1TB")] == [1024, 2e6, 1.5 * 1024**3, 1e12]
    assert [parse_duration(text) for text in (3, "90s", "1.5m", "2h", "1d")] == [3, 90, 90, 7200, 86400]


def test_the_published_schema_is_that_of_the_code():
    published = json.loads((ROOT / "docs" / "job.schema.json").read_text())
    assert published == JobSpec.model_json_schema(), "python -m scheduler.service.spec > docs/job.schema.json"
