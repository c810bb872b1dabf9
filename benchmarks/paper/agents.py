"""Makes the ``dl2`` agents that experiments compare, each within the same budget, and keeps them in files."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks.paper.settings import Budget, Recipe
from scheduler.learn import checkpoint
from scheduler.learn.dl2 import Dl2Agent
from scheduler.learn.dl2_training import Online, WarmUp
from scheduler.learn.params import Dl2Params
from scheduler.learn.rollout import mean_jcts
from scheduler.learn.scenario import VALIDATION, Scenario
from scheduler.policies import make
from scheduler.simulator import Simulator
from scheduler.workload import Workload

Curve = List[Tuple[int, float]]  # slots of reinforcement so far, mean JCT on the validation traces
SEED = 3  # of trainings, unless they are told another, and of drawn actions
USUAL = "drf"  # decides before the agent comes
MOST_SLOTS = 600  # a job that is unfinished then counts as finished: an agent in training may starve some


def made(
    recipe: Recipe, workload: Workload, peaks: Sequence[int], budget: Budget, directory: Path, seed: int = SEED
) -> Tuple[Dl2Agent, Curve]:
    """The agent of a recipe and how it came along; from its file, if it was made before.

    The agent is the best of its rounds of reinforcement on the validation traces, as the paper's authors choose it. A
    training that was ended goes on after its last round.
    """
    limits = (workload.name, workload.max_servers, workload.max_workers)
    key = hashlib.sha256(repr((recipe, limits, tuple(peaks), budget.of(recipe), seed)).encode()).hexdigest()[:16]
    path, partial = directory / f"{key}.pt", directory / f"{key}.unfinished.pt"
    if path.is_file():
        data = checkpoint.load(path)
        return Dl2Agent.from_plain(data, str(path)), [(int(x), float(y)) for x, y in data["made"]["curve"]]
    scenario = Scenario(workload, peaks=tuple(peaks), seed=seed)
    curve: Curve = []
    if recipe.online is None:
        agent = _imitate(recipe, scenario, budget)
    else:
        if recipe.teacher:
            agent, _ = made(replace(recipe, online=None, federated=0), workload, peaks, budget, directory, seed)
        else:
            agent = _new(recipe, scenario)
        agent, curve = _reinforce(agent, recipe, scenario, budget, partial)
    checkpoint.save({**agent.plain(), "made": {"recipe": repr(recipe), "curve": [list(at) for at in curve]}}, path)
    partial.unlink(missing_ok=True)
    return agent, curve


def _new(recipe: Recipe, scenario: Scenario) -> Dl2Agent:
    return Dl2Agent(Dl2Params(**dict(recipe.params)), scenario.type_names(), seed=scenario.seed)


def _imitate(recipe: Recipe, scenario: Scenario, budget: Budget) -> Dl2Agent:
    agent = _new(recipe, scenario)
    shown = replace(scenario, types=recipe.types)
    warm = WarmUp(agent, make(recipe.teacher), shown.simulator, shown.training_rng())
    for _ in range(budget.warm):
        for _ in range(budget.watched):
            warm.watch()
        warm.learn(budget.updates)
    return agent


def _reinforce(
    agent: Dl2Agent, recipe: Recipe, scenario: Scenario, budget: Budget, unfinished: Path
) -> Tuple[Dl2Agent, Curve]:
    own, curve = agent.params, [(0, _validate(agent, scenario, budget))]
    best = _copy(agent.plain())
    state: Dict[str, Any] = {}
    if unfinished.is_file():
        data = checkpoint.load(unfinished)
        agent, best, state = Dl2Agent.from_plain(data, str(unfinished)), data["best"], data["learner"]
        curve = [(int(x), float(y)) for x, y in data["curve"]]
    agent.params = replace(own, **dict(recipe.online or ()))
    learner = _learner(agent, recipe, scenario, len(curve))
    if state:
        learner.restore(state)
    while len(curve) <= budget.online:
        learner.play(budget.slots)
        curve.append((learner.slots, _validate(agent, scenario, budget)))
        if curve[-1][1] == min(jct for _, jct in curve):
            best = _copy(agent.plain())
        kept = {"best": best, "learner": learner.plain(), "curve": [list(at) for at in curve]}
        checkpoint.save({**agent.plain(), **kept}, unfinished)
    agent = Dl2Agent.from_plain(best, "in memory")
    agent.params = own
    return agent, curve


def _learner(agent: Dl2Agent, recipe: Recipe, scenario: Scenario, rounds: int) -> Online:
    """With clusters that are somewhere on their way, as if they had been there before."""
    rng, usual = np.random.default_rng([scenario.seed, 7, rounds]), make(USUAL)

    def on_its_way(rng: np.random.Generator) -> Simulator:
        simulator = scenario.simulator(rng)
        until = int(rng.integers(int(simulator.trace.arrival[-1]) + 1))
        while simulator.slot < until and not simulator.finished:
            simulator.step(usual.allocate(*simulator.observe()))
        return scenario.simulator(rng) if simulator.finished else simulator

    learner = Online(agent, on_its_way, rng, recipe.federated or 16, private=recipe.federated > 0)
    learner.new_simulator = scenario.simulator
    return learner


def _validate(agent: Dl2Agent, scenario: Scenario, budget: Budget) -> float:
    held = scenario.held_out(budget.validation, VALIDATION)
    return drawn_jct(agent, held)


def drawn_jct(agent: Dl2Agent, held: List[Simulator]) -> float:
    """Mean JCT with actions drawn by their probabilities, as the paper's authors judge an agent, slots."""
    return round(float(np.mean(mean_jcts(agent, held, MOST_SLOTS, np.random.default_rng(SEED)))), 4)


def _copy(plain: Dict[str, Any]) -> Dict[str, Any]:
    nets = {name: {key: value.clone() for key, value in plain[name].items()} for name in ("policy_net", "value_net")}
    return {**plain, **nets}
