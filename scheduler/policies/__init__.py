"""The policies by name. Each lives in a file of its own and is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any, Dict, Optional, Tuple

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
    "dl2": ("scheduler.learn.dl2", "Dl2", {}),
    "dl2x": ("scheduler.learn.dl2x", "Dl2x", {}),
    "offline-rl": ("scheduler.learn.offline", "OfflineRl", {}),
    "greedy-fit": ("scheduler.policies.greedy", "Greedy", {"strict": False}),
}
LEARNED = tuple(name for name, (module, _, _) in REGISTRY.items() if module.startswith("scheduler.learn."))


def names() -> Tuple[str, ...]:
    return tuple(REGISTRY)


def make(name: str, agent: Optional[str] = None, **options: Any) -> Policy:
    """A new policy by its name; ``agent`` is the file of a trained agent, for the policies that take one.

    Raises:
        ValueError: no such policy; the message lists those there are.
    """
    try:
        module, attribute, fixed = REGISTRY[name]
    except KeyError:
        raise ValueError(f"no policy {name!r}: choose among {', '.join(REGISTRY)}") from None
    build = getattr(import_module(module), attribute)
    if agent is not None and "agent" in signature(build).parameters:
        options["agent"] = agent
    policy: Policy = build(**{**fixed, **options})
    return policy
