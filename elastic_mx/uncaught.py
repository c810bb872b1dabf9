"""How a script that dies of a JobError tells it: in one line with its place in the script, without our own frames."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Optional, Type

from elastic_mx.link import JobError

OUR_FOLDER = str(Path(__file__).parent)


def tell_in_one_line() -> None:
    """Have an uncaught JobError told in one line; nothing changes where somebody else tells of errors (IPython)."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def _tell(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    if isinstance(error, JobError):
        sys.stderr.write(f"elastic-mx: {place(trace)}{error}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def place(trace: Optional[TracebackType]) -> str:
    """The innermost line that is the script's own, as in ``train.py, line 23: ``; nothing where there is none."""
    libraries = (OUR_FOLDER, *(os.path.dirname(m.__file__ or "") for m in [sys.modules.get("mxnet")] if m))
    own = [f for f in traceback.extract_tb(trace) if not f.filename.startswith((*filter(None, libraries), "<"))]
    return f"{os.path.relpath(own[-1].filename)}, line {own[-1].lineno}: " if own else ""
