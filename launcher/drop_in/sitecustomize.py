"""Found first on PYTHONPATH by the workers of a drop-in job: puts our stores under the names of MXNet's own.

Runs at the start of every Python process of the script, so it imports little; an environment's own sitecustomize
runs as it would without this one.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _register() -> None:
    from elastic_mx import kvstore

    kvstore.register(drop_in=True)


def _install() -> None:
    try:
        from elastic_mx import _compat
    except ImportError as error:
        sys.stderr.write(f"elastic-mx: {sys.executable} cannot import elastic_mx ({error}): install it there\n")
        os._exit(1)  # an exception here would be swallowed, or end in an interpreter's fatal error
    _compat.when_mxnet_is_imported(_register)


if os.environ.get("ELASTIC_MX_COORDINATOR"):
    _install()
_run_the_next()
