"""Lets MXNet 1.9.1 import on NumPy 1.24 to 1.26 and on Python 3.12.

MXNet is archived and uses names that NumPy 1.24 removed (``np.bool`` and its kin). They are restored just before
MXNet is imported, by a finder that waits for that import, so a process that never uses MXNet pays nothing.
"""

import importlib.abc
import importlib.machinery
import sys
from importlib.util import find_spec
from typing import Any, Callable, List

_REMOVED_ALIASES = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "object": object,
    "str": str,
}


def restore_numpy_aliases() -> None:
    """Put back the aliases of built-in types that NumPy 1.24 removed and MXNet 1.9.1 reads."""
    import numpy

    for name, builtin in _REMOVED_ALIASES.items():
        if name not in vars(numpy):
            setattr(numpy, name, builtin)


class _MXNetFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: prepares NumPy before MXNet is loaded, and calls `after` once it is."""

    def __init__(self) -> None:
        self.after: List[Callable[[], None]] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "mxnet":
            return None
        sys.meta_path.remove(self)
        restore_numpy_aliases()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                for callback in self.after:
                    callback()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _MXNetFinder()


def install() -> None:
    """Prepare this process for a later ``import mxnet``. Calling it again changes nothing."""
    if "mxnet" not in sys.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def when_mxnet_is_imported(callback: Callable[[], None]) -> None:
    """Call `callback` after ``import mxnet``: at once if that has happened."""
    if "mxnet" in sys.modules:
        callback()
    else:
        _finder.after.append(callback)
