"""Found first on PYTHONPATH by a job's workers: MXNet knows our stores, whether and wherever the script imports us.

In a drop-in job they are there under the names of MXNet's own as well; in others those names say how to be run. Runs
at the start of every Python process of the script, so it imports little; an environment's own sitecustomize runs as it
would without this one.
"""

import importlib.machinery
import importlib.util
import os
import sys

DROP_IN = bool(os.environ.get("ELASTIC_MX_DROP_IN"))


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
    """Once MXNet is imported, and our stores are known to it."""
    from elastic_mx import kvstore

    if DROP_IN:
        kvstore.register(drop_in=True)
    elif "DMLC_ROLE" not in os.environ:  # nobody has started what MXNet's own stores need
        from elastic_mx import unserved

        unserved.refuse(kvstore.DROP_IN_NAMES)


def _install() -> None:
    try:
        import elastic_mx  # noqa: F401  (has MXNet know our stores, and work with NumPy as it is)
        from elastic_mx import _compat
    except ImportError as error:
        if not DROP_IN:
            return  # another interpreter, or a program that has no use for us
        sys.stderr.write(f"elastic-mx: {sys.executable} cannot import elastic_mx ({error}): install it there\n")
        os._exit(1)  # an exception here would be swallowed, or end in an interpreter's fatal error
    _compat.when_mxnet_is_imported(_register)


if os.environ.get("ELASTIC_MX_COORDINATOR"):
    _install()
_run_the_next()
