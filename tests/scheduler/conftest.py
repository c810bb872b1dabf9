"""Where the scheduler's tests find the public measurements; tests that need them are skipped where they are absent."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    named = os.environ.get("ELASTIC_MX_SHARED")
    roots = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    for root in roots:
        if (root / "data" / "dl2_small_workload.json").is_file():
            return root / "data"
    pytest.skip("shared/data is not there: set ELASTIC_MX_SHARED")
