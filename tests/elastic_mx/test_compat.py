"""MXNet imports on this NumPy and Python once elastic_mx is imported, and not before it is asked for."""

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_importing_elastic_mx_does_not_import_mxnet():
    assert run("import elastic_mx, sys; print('mxnet' in sys.modules)").strip() == "False"


def test_mxnet_imports_and_computes_after_elastic_mx():
    code = "import elastic_mx, mxnet as mx; print(float((mx.nd.ones((3,)) * 2).sum().asscalar()))"
    assert run(code).strip() == "6.0"


def test_a_callback_runs_once_mxnet_is_there():
    code = (
        "from elastic_mx._compat import when_mxnet_is_imported as when\n"
        "when(lambda: print('before'))\nprint('importing')\nimport mxnet\nwhen(lambda: print('after'))"
    )
    assert run(code).split() == ["importing", "before", "after"]
