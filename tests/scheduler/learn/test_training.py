"""Training runs: rewards add up to bound less JCT, runs are saved and resumed, the command says what it did."""

from pathlib import Path
from typing import List

import numpy as np
import pytest
from click.testing import CliRunner

from scheduler.core import JobType
from scheduler.learn import checkpoint
from scheduler.learn.commands import train_policy
from scheduler.learn.dl2x import Dl2xAgent
from scheduler.learn.dl2x_training import PpoParams
from scheduler.learn.moves import FACTS
from scheduler.learn.player import Played, Player, roll_out, set_targets
from scheduler.learn.scenario import TEST, VALIDATION, Mixture, Scenario
from scheduler.learn.train import Dl2xSession, Figures, Progress, Training
from scheduler.placement import Placer
from scheduler.policies import make
from scheduler.speeds import FittedSpeed
from scheduler.workload import Arrivals, Workload


def scenario(seed: int = 0) -> Scenario:
    kinds = tuple(
        JobType(name, (2.0, 4.0), (2.0, 0.0), epochs=60.0 * k, speed=FittedSpeed((1.0, 0.1, 0.5 / k, 0.01, 0.0)))
        for k, name in enumerate("ab", start=1)
    )
    workload = Workload(
        "w", 20.0, ("cpu", "gpu"), np.full((3, 2), 8.0), kinds, 8, 8, process=Arrivals("poisson", rate=0.5)
    )
    return Scenario(workload, jobs=5, seed=seed)


class Silent:
    def __init__(self, stop_after: int = 10**6) -> None:
        self.rounds: List[str] = []
        self.stop_after = stop_after

    def round(self, phase: str, progress: Progress, figures: Figures) -> None:
        self.rounds.append(phase)
        assert all(np.isfinite(value) for value in figures.values())
        if len(self.rounds) == self.stop_after:
            raise KeyboardInterrupt

    def validated(self, phase: str, progress: Progress) -> None:
        assert np.isfinite(progress.latest)


def test_streams_of_traces_do_not_meet_and_repeat() -> None:
    arrivals = [tuple(s.trace.arrival) for s in scenario().held_out(4)]
    assert arrivals == [tuple(s.trace.arrival) for s in scenario().held_out(4)]
    assert arrivals != [tuple(s.trace.arrival) for s in scenario().held_out(4, TEST)]
    assert VALIDATION != TEST


def test_rewards_of_a_job_add_up_to_the_bound_less_its_jct() -> None:
    rng = np.random.default_rng(0)
    player = Player(scenario().simulator, rng)
    simulator, total = player.simulator, 0.0
    bound = simulator.trace.epochs / player.book.best[simulator.trace.type_index]
    while True:
        n = len(player.jobs)
        drawn = player.draw(np.zeros((n, len(FACTS))), -9.0, 2)
        played = player.play(drawn, np.zeros(2), np.zeros(n))
        assert played.reward.sum() == pytest.approx(drawn[0].reward)  # the estimated speeds are the true ones here
        total += played.reward.sum()
        if played.last:
            break
    jct = simulator.end - simulator.trace.arrival
    waited = np.ceil(simulator.trace.arrival) - simulator.trace.arrival
    assert total == pytest.approx((bound - jct + waited).sum(), rel=1e-6)


def test_rolling_out_a_policys_own_plan_gives_its_own_jcts_and_leaves_the_cluster_as_it_was() -> None:
    simulator, policy = scenario().held_out(1)[0], make("greedy-fit")
    while len(simulator.observe()[1]) < 2:
        simulator.step(policy.allocate(*simulator.observe()))
    done, slot = simulator.done.copy(), simulator.slot
    promised = roll_out(simulator, policy.allocate(*simulator.observe()), make("greedy-fit"))
    np.testing.assert_array_equal(simulator.done, done)
    assert simulator.slot == slot
    assert promised == pytest.approx(-len(done) * scenario().mean_jct(policy, 1))
    nothing = Placer(*simulator.observe()).allocation()
    assert roll_out(simulator, nothing, make("greedy-fit")) < promised


def test_value_targets_are_lambda_returns_of_the_jobs_that_were_there() -> None:
    def played(reward: list, value: list, alive: list) -> Played:
        return Played(
            seen=np.zeros((len(reward), 1)),
            records=[],
            promised=np.zeros(1),
            reward=np.array(reward),
            value=np.array(value),
            alive=np.array(alive, dtype=bool),
            last=False,
        )

    track = [played([-1.0, -0.5], [-2.0, -3.0], [False, True]), played([-1.0, -9.0], [-2.5, -7.0], [True, True])]
    set_targets(track, np.array([-1.0, -4.0]), discount=0.5, trace=0.5)
    second = -1.0 + 0.5 * -1.0 + 2.5  # the surprise of the job that lives on, in the second slot
    np.testing.assert_allclose(track[1].target, [-1.0 + 0.5 * -1.0, -9.0 + 0.5 * -4.0])
    np.testing.assert_allclose(track[0].target, [-1.0, -0.5 + 0.5 * -2.5 + 0.25 * second])


def test_a_run_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    out = str(tmp_path / "agent.pt")
    params = PpoParams(clusters=2, slots=6, batch=8, warm_traces=1, warm_updates=2, own_slots=5)
    training = Training(Dl2xSession(scenario(), make("drf"), params), out, warm=3, online=1, every=1, validation=1)
    with pytest.raises(KeyboardInterrupt):
        training.run(Silent(stop_after=2))
    again = Training(Dl2xSession(scenario(), make("drf"), params), out, warm=3, online=1, every=1, validation=1)
    again.resume()
    assert (again.progress.warm, again.progress.online) == (2, 0)
    seen = Silent()
    again.run(seen)
    assert seen.rounds == ["warm-up", "online"]
    again.save(final=True)
    agent = Dl2xAgent.from_plain(checkpoint.load(out), out)
    assert agent.params == Dl2xAgent().params
    with pytest.raises(ValueError, match="holds no training to resume"):
        again.resume()


@pytest.mark.parametrize("policy", ["dl2", "dl2x"])
def test_the_command_trains_validates_and_logs(policy: str, tmp_path: Path, shared_data: Path) -> None:
    out, logs = tmp_path / "agent.pt", tmp_path / "logs"
    small = ["--warmup", "1", "--online", "0", "--validation", "1", "--teacher", "drf", "--types", "dssm,wlm"]
    files = ["--workload", str(shared_data / "dl2_small_workload.json")]
    files += ["--speeds", str(shared_data / "dl2_testbed_speeds.txt"), "--peaks", "1"]
    result = CliRunner().invoke(
        train_policy, ["--policy", policy, "--out", str(out), "--logs", str(logs), *small, *files]
    )
    assert result.exit_code == 0, result.output
    assert "validation: drf" in result.output
    assert "warm-up 1: mean JCT" in result.output
    assert checkpoint.load(out)["policy"] == policy
    assert list(logs.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peaks", "one"], "--peaks is 'one': give whole numbers"),
        (["--types", "bert"], "--types names 'bert', the workload has"),
        (["--teacher", "sjf"], "no policy 'sjf'"),
        (["--resume"], "cannot be read"),
        (["--resize-cost", "dear"], "resize cost 'dear' is not known"),
    ],
)
def test_wrong_options_are_told_in_one_line(options: list, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(train_policy, ["--out", str(tmp_path / "a.pt"), "--validation", "1", *options])
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_mixture_takes_its_scenarios_in_turn() -> None:
    parts = [scenario(), Scenario(scenario().workload, jobs=3)]
    mixed = Mixture(parts)
    assert [len(s.trace) for s in mixed.held_out(3)] == [5, 3, 5]
    assert {len(mixed.simulator(np.random.default_rng(k)).trace) for k in range(8)} == {3, 5}
    assert mixed.type_names() == ["a", "b"]
