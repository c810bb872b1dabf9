"""Agents on disk: they come back as they were, and what is no agent is refused in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scheduler.learn import checkpoint
from scheduler.learn.dl2 import Dl2, Dl2Agent
from scheduler.learn.dl2x import Dl2x, Dl2xAgent
from scheduler.learn.params import Dl2Params


def small() -> Dl2Agent:
    return Dl2Agent(Dl2Params(jobs=3, hidden=8), ["a", "b"], seed=5)


def test_an_agent_comes_back_as_it_was(tmp_path: Path) -> None:
    agent, path = small(), tmp_path / "a.pt"
    checkpoint.save(agent.plain(), path)
    again = Dl2(path).agent
    state = np.random.default_rng(0).normal(size=(2, 21)).astype(np.float32)
    np.testing.assert_array_equal(agent.logits(state), again.logits(state))
    assert again.params == agent.params
    assert list(again.types) == ["a", "b"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": "dl2x/0"}, "reads feature set 'dl2x/0', this version computes 'dl2x/2'"),
        ({"policy": "other"}, "is for policy 'other', not 'dl2x'"),
        ({"format": 99}, "has format 99"),
        ({"network": {}}, "does not hold the weights it says"),
    ],
)
def test_an_agent_for_something_else_is_refused_in_one_line(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "x.pt"
    torch.save({"format": 1, **Dl2xAgent().plain(), **change}, path)
    with pytest.raises(ValueError, match=message) as error:
        Dl2x(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_agent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_text("hello")
    with pytest.raises(ValueError, match="is not an agent: give a file made by elastic-mx train-policy"):
        checkpoint.load(path)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        checkpoint.load(tmp_path / "none.pt")
    torch.save({"a": 1}, path)
    with pytest.raises(ValueError, match="is not an agent"):
        checkpoint.load(path)
