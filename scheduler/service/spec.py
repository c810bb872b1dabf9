"""What a job is, as its owner writes it in YAML: fields, limits, and errors of one line. Whether it fits is elsewhere.

The JSON schema that is published in docs/job.schema.json is made from the classes here.
"""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

if TYPE_CHECKING:
    from scheduler.traces.fields import Field as Document

RESOURCES = ("cpus", "memory", "gpus")  # as in ClusterView.resources; memory in GiB
GIB = 1024.0**3
MOST_FILE_BYTES = 1 << 20
_UNITS = {p + i: base**k for k, p in enumerate("KMGT", 1) for i, base in (("", 1000.0), ("i", 1024.0))}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)B?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class SpecError(ValueError):
    """A job, or a cluster, that cannot be as it was described; one line naming the field and its value."""


def parse_memory(text: Any) -> float:
    """Bytes of ``512MiB``, ``2G``, ``1.5Gi``.

    Raises:
        ValueError: anything else.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise ValueError("a size with its unit is needed, as in 512MiB or 2GiB")
    prefix = found[2][0].upper() + found[2][1:].lower()
    return float(found[1]) * _UNITS[prefix]


def parse_duration(text: Any) -> float:
    """Seconds of ``90s``, ``15m``, ``2h``, ``1d``; a bare number is seconds.

    Raises:
        ValueError: anything else.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    found = _DURATION.fullmatch(str(text).strip())
    if not found:
        raise ValueError("a time with its unit is needed, as in 90s, 15m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_yes_or_no(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads a bare ``on`` or ``yes`` as true, which would be taken for the number 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("is true or false in YAML, as yes, no, on and off are: quote it if it is a text")
        return value


class Tasks(_Model):
    """How many tasks of a role a job can use, and what each of them needs."""

    min: int = Field(1, ge=1, description="The fewest that the job can train with.")
    max: int = Field(4, ge=1, description="The most that it has a use for.")
    cpus: float = Field(1.0, gt=0, le=4096, description="Cores of each task; it runs on no others.")
    memory: str = Field("1GiB", description="Memory of each task, as in 512MiB; a task that exceeds it is ended.")
    gpus: float = Field(0.0, ge=0, le=1024, description="GPUs of each task.")

    @field_validator("memory", mode="before")
    @classmethod
    def _is_a_size(cls, value: Any) -> Any:
        if parse_memory(value) <= 0:
            raise ValueError("must be more than nothing")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Tasks:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, more than max, which is {self.max}: change one of them")
        return self

    @property
    def memory_bytes(self) -> float:
        return parse_memory(self.memory)

    @property
    def demand(self) -> Tuple[float, ...]:
        """Of one task, in the units and order of ``RESOURCES``."""
        return (self.cpus, self.memory_bytes / GIB, self.gpus)


class JobSpec(_Model):
    """An elastic training job."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="Unique among the jobs that have not ended."
    )
    command: Union[str, List[str]] = Field(
        description="What each worker runs, as in: python train.py --epochs 20. No shell reads it."
    )
    workdir: str = Field(".", description="Where it runs; a relative folder counts from the job file's.")
    environment: Dict[str, str] = Field(default_factory=dict, description="Variables that its processes find.")
    workers: Tasks = Field(default_factory=Tasks, description="The processes that compute.")
    servers: Tasks = Field(
        default_factory=lambda: Tasks(max=2, cpus=0.5, memory="512MiB"), description="The processes that hold weights."
    )
    epochs: Optional[float] = Field(
        None, gt=0, le=1e9, description="How many epochs the script trains; the scheduler plans with it."
    )
    steps: Optional[int] = Field(
        None, ge=1, description="How many steps the script trains, where it does not count in epochs."
    )
    time_limit: Optional[Union[float, str]] = Field(
        None, description="The job is ended, as finished, when it has run that long: 90s, 15m, 2h."
    )
    steps_per_epoch: Optional[int] = Field(
        None, ge=1, description="Needed only where the script's data does not come from elastic_mx.data."
    )
    type: Optional[str] = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$",
        description="Jobs of one type share what is learnt of their speed. Default: the name without a final number.",
    )
    priority: int = Field(0, ge=-100, le=100, description="Jobs of a higher priority are served before all others.")
    retries: int = Field(
        0,
        ge=0,
        le=100,
        description="How often the job is started again when it fails, from its last checkpoint if any.",
    )
    checkpoint: Optional[Union[float, str]] = Field(
        None, description="A checkpoint is written that often while it trains: 90s, 15m, 2h. Default: never."
    )
    keep_checkpoint: bool = Field(
        False, description="Its checkpoint is kept when it has finished, as long as its logs are."
    )
    drop_in: bool = Field(False, description="The script says dist_sync and is run unchanged.")
    threads: Optional[int] = Field(
        None, ge=1, le=1024, description="Compute threads of each task. Default: its cpus, rounded down, at least 1."
    )
    description: str = Field("", max_length=1000, description="For people.")
    labels: Dict[str, str] = Field(default_factory=dict, description="For programs.")

    @field_validator("environment", "labels", mode="before")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        """YAML reads ``LEVEL: 3`` and ``DEBUG: true`` as they stand; an environment holds text."""
        if not isinstance(value, Mapping):
            return value
        return {k: str(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v for k, v in value.items()}

    @field_validator("environment")
    @classmethod
    def _names(cls, value: Dict[str, str]) -> Dict[str, str]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.startswith("ELASTIC_MX_"):
                raise ValueError(f"{name!r} cannot be set for a job")
        return value

    @field_validator("command", "environment")
    @classmethod
    def _no_zero_bytes(cls, value: Any) -> Any:
        if "\0" in (value if isinstance(value, str) else "".join((*value, *getattr(value, "values", tuple)()))):
            raise ValueError("holds a zero byte, which no process can be given")
        return value

    @field_validator("command")
    @classmethod
    def _not_empty(cls, value: Union[str, List[str]]) -> Union[str, List[str]]:
        if not (shlex.split(value) if isinstance(value, str) else value):
            raise ValueError("a command is needed")
        return value

    @field_validator("time_limit", "checkpoint")
    @classmethod
    def _is_a_time(cls, value: Any) -> Any:
        if value is not None and parse_duration(value) <= 0:
            raise ValueError("must be more than nothing")
        return value

    @model_validator(mode="after")
    def _one_length(self) -> JobSpec:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs is {self.epochs:g} and steps is {self.steps}: give one of them")
        return self

    @property
    def argv(self) -> List[str]:
        return shlex.split(self.command) if isinstance(self.command, str) else list(self.command)

    @property
    def seconds(self) -> Optional[float]:
        """The time limit in seconds."""
        return None if self.time_limit is None else parse_duration(self.time_limit)

    @property
    def checkpoint_seconds(self) -> Optional[float]:
        """How long from one checkpoint to the next, in seconds."""
        return None if self.checkpoint is None else parse_duration(self.checkpoint)

    @property
    def kind(self) -> str:
        """The job's type."""
        return self.type or re.sub(r"[._-]?\d+$", "", self.name) or self.name

    def plain(self) -> Dict[str, Any]:
        """As JSON has it; what is at its default is left out."""
        return dict(self.model_dump(mode="json", exclude_defaults=True))


def parse_spec(data: Any) -> JobSpec:
    """A job from what YAML or JSON gave.

    Raises:
        SpecError: one line naming the field and its value.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"a job is a mapping of fields with name and command at least, not {_short(data)}")
    try:
        return JobSpec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError(explain(error, JobSpec)) from error


def read_spec(path: Union[str, Path]) -> JobSpec:
    """A job from a YAML file; a relative ``workdir`` is made absolute by the file's folder.

    Raises:
        SpecError: the file cannot be read, or holds no job; one line naming file, line, field and value.
    """
    document = read_yaml(path)
    try:
        spec = parse_spec(document.value)
    except SpecError as error:
        raise SpecError(locate(document, path, str(error))) from error
    folder = (Path(path).resolve().parent / spec.workdir).resolve()
    return spec.model_copy(update={"workdir": str(folder)})


def locate(document: Document, path: Union[str, Path], message: str) -> str:
    """A message that begins with a field, with the file and line where that is."""
    field = re.match(r"([\w.-]+): ", message)
    parts = field[1].split(".") if field else []
    while parts and document.line(tuple(parts)) is None:
        parts.pop()
    return f"{path}, line {document.line(tuple(parts))}: {message}" if parts else f"{path}: {message}"


def read_yaml(path: Union[str, Path]) -> Document:
    """What a YAML file holds, with its lines; SpecError if it cannot be read."""
    from scheduler.traces.fields import FieldError, load

    try:
        size = Path(path).stat().st_size
        if size > MOST_FILE_BYTES:
            raise SpecError(f"{path} has {size / 2**20:.1f} MiB: a description has 1 MiB at most: is it another file?")
        return load(path)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except FieldError as error:
        raise SpecError(" ".join(str(error).split())) from error


def explain(error: ValidationError, model: type) -> str:
    """The first thing that is wrong, on one line: ``workers.min: -1 …``; what is misspelt before what is missing."""
    errors = error.errors()
    found = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = [str(part) for part in found["loc"] if not (isinstance(part, str) and part in ("str", "list[str]"))]
    field, message = ".".join(where), found["msg"]
    if found["type"] == "missing":
        return f"{field}: is missing: every job has one"
    if found["type"] == "extra_forbidden":
        return f"{field}: there is no such field (its value is {_short(found['input'])}){_suggestion(where, model)}"
    if found["type"] == "string_pattern_mismatch":
        message = "use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"
    if found["type"] == "model_type":
        names = ", ".join(_fields_at(where, model))
        return f"{field}: {_short(found['input'])}: fields are needed, as in {{min: 1, max: 4}}: there are {names}"
    message = message[len("Value error, ") :] if message.startswith("Value error, ") else _lower(message)
    value = "" if isinstance(found["input"], (Mapping, BaseModel)) else f"{_short(found['input'])}: "
    return f"{field}: {value}{message}" if field else message


def _suggestion(where: List[str], model: type) -> str:
    names = _fields_at(where[:-1], model)
    near = difflib.get_close_matches(where[-1], names, 1)
    return f": did you mean {near[0]}?" if near else (f": there are {', '.join(names)}" if names else "")


def _fields_at(where: List[str], model: type) -> List[str]:
    """The names of the fields that a field has."""
    for part in where:
        inner = getattr(model, "model_fields", {}).get(part)
        model = inner.annotation if inner is not None else object
    return list(getattr(model, "model_fields", {}))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    import json

    print(json.dumps(JobSpec.model_json_schema(), indent=2))
