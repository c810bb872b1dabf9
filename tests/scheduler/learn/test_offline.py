"""``offline-rl``: its analytical speeds, its training from nothing, and its use as a policy like any other."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scheduler.core import JobType
from scheduler.learn import checkpoint
from scheduler.learn.commands import train_policy
from scheduler.learn.offline import NETWORK_MB_PER_SECOND, analytical
from scheduler.policies import make
from scheduler.speeds import FittedSpeed
from scheduler.traces import native
from scheduler.workload import Arrivals, Workload


def workload() -> Workload:
    speed = FittedSpeed((1.0, 0.3, 0.5, 0.01, 0.0))
    known = JobType("known", (2.0,), (1.0,), 2.0, 20.0, model_size_mb=50.0, compute_seconds=0.4, speed=speed)
    unknown = JobType("unknown", (2.0,), (1.0,), 2.0, 20.0, speed=speed)
    process = Arrivals("poisson", rate=0.5, jobs=4)
    return Workload("w", 20.0, ("cpu",), np.full((3, 1), 8.0), (known, unknown), 6, 6, process=process)


def test_analytical_speeds_are_the_true_ones_only_where_they_were_measured() -> None:
    true, modelled = workload().speed_tables(), analytical(workload()).speed_tables()
    np.testing.assert_allclose(modelled[:, 1, 1], true[:, 1, 1])
    assert (np.abs(modelled[:, 4, 4] / true[:, 4, 4] - 1) > 0.1).all()
    transfer = 2 * 50.0 / NETWORK_MB_PER_SECOND
    times_servers = modelled[0, 4, 1] / modelled[0, 1, 1]
    assert times_servers == pytest.approx((0.4 + transfer) / (0.4 + transfer / 4))


def test_it_is_trained_without_a_teacher_and_simulated_like_any_policy(tmp_path: Path) -> None:
    file, out = tmp_path / "w.yaml", tmp_path / "agent.pt"
    native.write(str(file), workload(), [])
    options = ["--policy", "offline-rl", "--workload", str(file), "--out", str(out), "--validation", "1"]
    done = CliRunner().invoke(train_policy, [*options, "--online", "0", "--final"])
    assert done.exit_code == 0, done.output
    assert checkpoint.load(out)["policy"] == "offline-rl" and checkpoint.load(out)["made"]["teacher"] == ""
    policy = make("offline-rl", agent=str(out))
    assert policy.name == "offline-rl"
    with pytest.raises(ValueError, match="is for policy 'offline-rl', not 'dl2'"):
        make("dl2", agent=str(out))
    refused = CliRunner().invoke(train_policy, [*options, "--warmup", "2"])
    assert refused.exit_code == 1 and "offline-rl imitates nobody" in refused.output
