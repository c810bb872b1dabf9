"""The policies by name. Each lives in a file of its own and is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Dict, Tuple

from scheduler.core import Policy

# name: module, class, options. The learned policies need torch; the others must not import it.
REGISTRY: Dict[str, Tuple[str, str, Dict[str, Any]]] = {
    "fifo": ("scheduler.policies.fifo", "Fifo", {}),
    "srtf": ("scheduler.policies.srtf", "Srtf", {}),
    "drf": ("scheduler.policies.drf", "Drf", {}),
    "tetris": ("scheduler.policies.tetris", "Tetris", {}),
    "optimus": ("scheduler.policies.optimus", "Optimus", {}),
    "optimus-online": ("scheduler.policies.online", "online", {"policy": "optimus"}),
    "tiresias": ("scheduler.policies.tiresias", "Tiresias", {}),
    "afs": ("scheduler.policies.afs", "Afs", {}),
    "greedy": ("scheduler.policies.greedy", "Greedy", {}),
    "greedy-fit": ("scheduler.policies.greedy", "Greedy", {"strict": False}),
}


def names() -> Tuple[str, ...]:
    return tuple(REGISTRY)


def make(name: str, **options: Any) -> Policy:
    """A new policy by its name.

    Raises:
        ValueError: no such policy; the message lists those there are.
    """
    try:
        module, cls, fixed = REGISTRY[name]
    except KeyError:
        raise ValueError(f"no policy {name!r}: choose among {', '.join(REGISTRY)}") from None
    return getattr(import_module(module), cls)(**{**fixed, **options})
