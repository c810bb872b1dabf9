"""A shell for each test; the test fails if a process of its commands is still there at its end."""

from pathlib import Path
from typing import Iterator

import pytest

from tests.launcher.harness import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    left = shell.close()
    assert not left, f"still running at the end: {left}"
