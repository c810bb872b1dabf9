"""Checked access to a YAML or JSON document: every error names file, line and field."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import yaml

Where = Tuple[Union[str, int], ...]
_MERGE = "tag:yaml.org,2002:merge"  # of the key in "<<: *other"
_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc, valid-type]
    """PyYAML's safe loader, which takes JSON's 1e-5 for a number too."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class FieldError(ValueError):
    """A wrong document; the message is one line with file, line, field, value and remedy."""


class Field:
    """A value in a document that knows where it stands.

    Attributes:
        value: plain Python (dict, list, str, int, float, bool, None).
    """

    def __init__(self, value: Any, file: str, path: Where, lines: Dict[Where, int]) -> None:
        self.value, self._file, self._path, self._lines = value, file, path, lines

    @property
    def name(self) -> str:
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self._path)
        return text.lstrip(".") or "document"

    def error(self, problem: str) -> FieldError:
        return FieldError(f"{self._file}, line {self._lines.get(self._path, 1)}: {self.name} {problem}")

    def line(self, path: Where) -> Optional[int]:
        """The line of a field below this one, counted from 1; None where there is none."""
        return self._lines.get((*self._path, *path))

    def child(self, key: Union[str, int]) -> Field:
        return Field(self.value[key], self._file, (*self._path, key), self._lines)

    def mapping(self, required: Sequence[str] = (), optional: Optional[Sequence[str]] = ()) -> Dict[str, Field]:
        """The fields of a mapping by name; ``optional=None`` allows any."""
        if not isinstance(self.value, dict):
            raise self.error(f"is {_short(self.value)}, must be a mapping with {', '.join(required) or 'named fields'}")
        for key in required:
            if key not in self.value:
                raise self.error(f"has no field {key!r}: add it")
        for key in self.value:
            if optional is not None and key not in required and key not in optional:
                known = ", ".join([*required, *optional])
                raise self.child(key).error(f"is not a known field: there are {known}")
        return {key: self.child(key) for key in self.value}

    def items(self) -> Iterator[Field]:
        """The elements of a list with at least one."""
        if not isinstance(self.value, list):
            raise self.error(f"is {_short(self.value)}, must be a list")
        if not self.value:
            raise self.error("is empty, must have at least one element")
        return (self.child(index) for index in range(len(self.value)))

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"is {_short(self.value)}, must be a text")
        return self.value

    def number(self, above: Optional[float] = None, least: Optional[float] = None) -> float:
        """A finite number, above a bound or no less than one."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(f"is {_short(value)}, must be a number")
        if above is not None and not value > above:
            raise self.error(f"is {value:g}, must be above {above:g}")
        if least is not None and not value >= least:
            raise self.error(f"is {value:g}, must be {least:g} or more")
        return float(value)

    def whole(self, least: int) -> int:
        value = self.number(least=least)
        if value != int(value):
            raise self.error(f"is {value:g}, must be a whole number")
        return int(value)

    def one_of(self, choices: Sequence[str]) -> str:
        if self.value not in choices:
            raise self.error(f"is {_short(self.value)}, must be one of {', '.join(choices)}")
        return str(self.value)


def load(path: Union[str, Path]) -> Field:
    """Reads a YAML file (JSON is YAML too).

    Raises:
        FieldError: the file cannot be read, is no YAML, or has a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FieldError(f"{path} cannot be read: {reason}") from error
    lines: Dict[Where, int] = {}
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        most = max(1000, len(text))  # values, as each takes a character at least, unless aliases repeat them
        value = _plain(loader, root, (), lines, str(path), most) if root is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FieldError(f"{path}, line {line}: not YAML: {error.problem}") from error
    except FieldError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FieldError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    finally:
        loader.dispose()
    return Field(value, str(path), (), lines)


def _plain(loader: Any, node: Any, path: Where, lines: Dict[Where, int], file: str, most: int) -> Any:
    """The node as plain Python; notes the line of each path."""
    lines[path] = node.start_mark.line + 1
    if len(lines) > most:
        raise FieldError(f"{file}: its aliases repeat more than the file holds: write out what is needed")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*path, index), lines, file, most) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        own = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = str(loader.construct_object(key_node))
            if key in own:
                raise FieldError(f"{file}, line {key_node.start_mark.line + 1}: {key} appears twice: remove one")
            own.add(key)
        loader.flatten_mapping(node)  # the fields of "<<: *other" come first
        result: Dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node)
            here = (*path, key if isinstance(key, int) else str(key))
            result[here[-1]] = _plain(loader, value_node, here, lines, file, most)
            lines[here] = key_node.start_mark.line + 1
        return result
    return loader.construct_object(node)


def _short(value: Any) -> str:
    text = repr(value)
    return "missing" if value is None else text if len(text) <= 60 else text[:57] + "..."


def dump(data: Dict[str, Any], path: Union[str, Path], header: Sequence[str] = ()) -> None:
    """Writes plain data as YAML, innermost mappings and lists on one line each, after comment lines."""
    lines: List[str] = [f"# {line}" for line in header]
    text = yaml.dump(data, Dumper=yaml.SafeDumper, sort_keys=False, default_flow_style=None, width=118)
    Path(path).write_text("\n".join([*lines, text]), encoding="utf-8")
