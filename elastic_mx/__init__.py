"""The elastic kvstore for Apache MXNet 1.9.1.

``import elastic_mx`` makes ``dist_elastic`` and ``dist_elastic_async`` known to MXNet and lets MXNet run on
NumPy up to 1.26 and Python up to 3.12. MXNet itself is not imported here: control programs, which have no use
for it, start fast and work where it is not installed.
"""

from importlib import import_module
from typing import Any

from elastic_mx import _compat

__version__ = "0.1.0"

_compat.install()


def _register() -> None:
    """Make the stores known to MXNet."""
    import_module("elastic_mx.kvstore").register()


_compat.when_mxnet_is_imported(_register)


def __getattr__(name: str) -> Any:
    """Import the data (and NumPy with it) when a script first asks for it."""
    if name == "data":
        return import_module("elastic_mx.data")
    if name in ("epoch", "epochs"):
        return getattr(import_module("elastic_mx.data"), name)
    if name == "on_resize":
        return import_module("elastic_mx.kvstore").on_resize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
