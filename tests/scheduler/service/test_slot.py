"""A slot as pure functions: sizes within limits and room, what is under way left alone, bad answers replaced."""

import numpy as np
import pytest

from scheduler.core import Allocation, Policy
from scheduler.policies import make
from scheduler.service.slot import Move, Node, Seen, Speeds, ask, misfit, moves, settle, views
from scheduler.service.spec import parse_spec

NODES = [Node("a", (4.0, 8.0, 0.0)), Node("b", (4.0, 8.0, 0.0))]


def spec(name="job", workers=(1, 4), servers=(1, 2), **fields):
    (low, high), (few, many) = workers, servers
    tasks = {"workers": {"min": low, "max": high}, "servers": {"min": few, "max": many, "cpus": 0.5}}
    return parse_spec({"name": name, "command": "python train.py", **tasks, **fields})


def answer(*sizes):
    return Allocation(np.array([s for s, _ in sizes]), np.array([w for _, w in sizes]))


def test_sizes_are_the_answer_within_each_jobs_limits():
    jobs = [Seen(1, spec(workers=(2, 3)), 0), Seen(2, spec(), 1), Seen(3, spec(), 2)]
    assert settle(NODES, jobs, answer((5, 5), (1, 1), (0, 0))) == [(2, 3), (1, 1), (0, 0)]


def test_a_running_job_keeps_its_minimum_and_one_under_way_what_it_has():
    jobs = [Seen(1, spec(), 0, servers=2, workers=4), Seen(2, spec(), 1, servers=1, workers=3, fixed=True)]
    assert settle(NODES, jobs, answer((0, 0), (0, 0))) == [(1, 1), (1, 3)]


def test_the_higher_priority_is_served_first_where_room_is_short():
    nodes = [Node("a", (2.0, 8.0, 0.0))]
    jobs = [Seen(1, spec(), 0), Seen(2, spec(priority=5), 1)]
    assert settle(nodes, jobs, answer((1, 1), (1, 1))) == [(0, 0), (1, 1)]


def test_no_sizes_exceed_the_nodes():
    rng = np.random.RandomState(0)
    for _ in range(50):
        jobs = [Seen(i, spec(), i) for i in range(6)]
        sizes = settle(NODES, jobs, answer(*rng.randint(0, 6, (6, 2))))
        assert sum(0.5 * s + w for s, w in sizes) <= 8
        assert all((s == 0) == (w == 0) for s, w in sizes)


def test_what_frees_resources_comes_first():
    jobs = [Seen(1, spec(), 0, servers=1, workers=1), Seen(2, spec(), 1, servers=1, workers=4), Seen(3, spec(), 2)]
    assert moves(jobs, [(1, 2), (1, 1), (1, 1)]) == [
        Move("resize", 2, (1, 4), (1, 1)),
        Move("resize", 1, (1, 1), (1, 2)),
        Move("start", 3, (0, 0), (1, 1)),
    ]


class Bad(Policy):
    name = "bad"

    def allocate(self, cluster, jobs):
        return Allocation(np.full(len(jobs), np.nan), np.ones(len(jobs)))


@pytest.mark.parametrize("name", ["drf", "srtf", "optimus", "tetris", "dl2x"])
def test_every_policy_can_decide_on_the_views(name):
    jobs = [Seen(1, spec("a"), 0.5, rate=0.4, servers=1, workers=2, done=1.0), Seen(2, spec("b"), 1.5)]
    speeds = Speeds()
    speeds.saw("a", (1, 2), 0.4)
    cluster, view = views(NODES, jobs, 3, 10.0, speeds)
    decided, why = ask(make(name), make("drf"), cluster, view)
    assert why == "" and settle(NODES, jobs, decided) != [(0, 0), (0, 0)]


def test_an_answer_that_is_not_finite_is_replaced_and_the_reason_told():
    cluster, view = views(NODES, [Seen(1, spec(), 0)], 0, 10.0, Speeds())
    decided, why = ask(Bad(), make("drf"), cluster, view)
    assert decided.workers[0] > 0 and why.startswith("bad gave no valid answer (servers holds a number")


def test_speeds_are_learnt_by_type_and_grow_with_size():
    speeds = Speeds()
    speeds.saw("slow", (1, 1), 0.25)
    table = speeds.table("slow", (2, 4))
    assert table[1, 1] == pytest.approx(0.25) and table[0].max() == 0 == table[:, 0].max()
    assert (np.diff(table[1:, 1:], axis=0) > 0).all() and (np.diff(table[1:, 1:], axis=1) > 0).all()


def test_what_no_node_can_hold_is_named():
    assert misfit(spec(), NODES) == ""
    large = parse_spec({"name": "x", "command": "python x", "workers": {"cpus": 9}})
    assert misfit(large, NODES) == "workers.cpus: 9 is more than any node has (4): ask for less"
    many = spec(workers=(9, 9))
    assert misfit(many, NODES) == "workers.min: 9 with servers.min 1 do not fit on all nodes together: lower them"
