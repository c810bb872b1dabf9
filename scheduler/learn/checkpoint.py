"""Agents on disk: tensors and plain values only, read with ``weights_only``. What is in them is the agents' affair."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Union

import torch
from torch import nn

FORMAT = 1


def save(data: Dict[str, Any], path: Union[str, Path]) -> None:
    """Writes a checkpoint of tensors, numbers, strings, lists and dicts; a crash leaves the old file whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save({"format": FORMAT, **data}, partial)
    os.replace(partial, path)


def load(path: Union[str, Path]) -> Dict[str, Any]:
    """Reads a checkpoint.

    Raises:
        ValueError: the file is not there, is no agent, or is of another format; one line.
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"agent {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch raises many kinds for a file that is not one of its own
        raise ValueError(f"{path} is not an agent: give a file made by elastic-mx train-policy") from error
    if not isinstance(data, dict) or "format" not in data or "features" not in data:
        raise ValueError(f"{path} is not an agent: give a file made by elastic-mx train-policy")
    if data["format"] != FORMAT:
        raise ValueError(f"agent {path} has format {data['format']}, this version reads {FORMAT}: train it anew")
    return data


def expect(data: Dict[str, Any], policy: str, features: str, source: str) -> None:
    """Refuses an agent of another policy or another feature set.

    Raises:
        ValueError: naming both sides and the remedy.
    """
    if data.get("policy") != policy:
        raise ValueError(f"agent {source} is for policy {data.get('policy')!r}, not {policy!r}: name that policy")
    if data["features"] != features:
        raise ValueError(
            f"agent {source} reads feature set {data['features']!r}, this version computes {features!r}: "
            f"train it anew with elastic-mx train-policy --policy {policy}"
        )


def restore(module: nn.Module, state: Any, source: str) -> None:
    """Loads weights into a module; ValueError if they do not fit."""
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"agent {source} does not hold the weights it says: {str(error).splitlines()[0]}") from error


def packaged(policy: str) -> Path:
    """The agent that comes with the package.

    Raises:
        ValueError: there is none.
    """
    path = Path(__file__).resolve().parent.parent / "data" / f"{policy}.pt"
    if not path.is_file():
        raise ValueError(
            f"no agent for {policy} comes with this package: train one with "
            f"elastic-mx train-policy --policy {policy} --out {policy}.pt and give it with --agent"
        )
    return path
