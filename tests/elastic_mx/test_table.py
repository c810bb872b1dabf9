"""Where slices go: the cut depends on the key alone, loads are even, and no more bytes move than that takes."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_mx.messages import KeySpec
from elastic_mx.table import ArenaMap, Table, aligned, choose_targets, slice_rows


def spec(key="w", shape=(4,), dtype="float32", whole=False):
    return KeySpec(0, key, shape, dtype, whole)


@given(st.lists(st.integers(0, 5000), max_size=3), st.sampled_from(["float16", "float32", "float64"]))
def test_slices_cover_the_rows_in_order_and_none_is_larger_than_asked(shape, dtype):
    rows = slice_rows(spec(shape=tuple(shape), dtype=dtype), 4096)
    assert rows[0][0] == 0
    assert rows[-1][1] == (shape[0] if shape else 1)
    assert all(a[1] == b[0] for a, b in zip(rows, rows[1:]))
    per_row = 4096
    if len(shape) == 1:
        assert all((b - a) * 8 <= per_row or dtype != "float64" for a, b in rows)


def test_a_whole_key_is_one_slice():
    assert slice_rows(spec(shape=(1000, 1000), whole=True), 1024) == [(0, 1000)]


def test_a_key_defined_twice_keeps_its_places_and_another_shape_is_refused():
    table = Table(["server-0"], 1024)
    placed = table.define(spec(shape=(1000,)), ["server-0"])
    assert table.define(spec(shape=(1000,)), ["server-0"]) == placed
    with pytest.raises(ValueError, match=r"key 'w' of store 0 is \(1000,\) float32 in this job, not \(999,\)"):
        table.define(spec(shape=(999,)), ["server-0"])


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    before=st.integers(1, 6),
    kept=st.integers(1, 6),
    added=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_any_plan_leaves_each_server_within_one_slice_of_even_and_moves_the_minimum(sizes, before, kept, added, seed):
    rng = random.Random(seed)
    old = [f"server-{i}" for i in range(before)]
    owner = [rng.choice(old) for _ in sizes]
    servers = old[: min(kept, before)] + [f"new-{i}" for i in range(added)]
    targets = choose_targets(sizes, owner, servers)
    load = dict.fromkeys(servers, 0)
    initial = dict.fromkeys(servers, 0)
    for s, nbytes in enumerate(sizes):
        if owner[s] in initial:
            initial[owner[s]] += nbytes
        assert targets.get(s, owner[s]) in load
        load[targets.get(s, owner[s])] += nbytes
    mean = sum(sizes) / len(servers)
    assert all(abs(nbytes - mean) <= max(sizes) for nbytes in load.values())
    moved = sum(sizes[s] for s in targets)
    assert moved == sum(max(0, load[server] - initial[server]) for server in servers)


def test_adding_a_server_to_even_ones_takes_an_even_share_from_each():
    owner = ["a", "b"] * 30
    targets = choose_targets([10] * 60, owner, ["a", "b", "c"])
    assert len(targets) == 20
    assert sum(owner[s] == "a" for s in targets) == 10


def test_a_plan_carried_out_gives_back_the_places_it_left():
    table = Table(["a"], 1024)
    table.define(spec(shape=(4096,)), ["a"])
    moves = table.plan(["a", "b"])
    table.carry_out(moves, ["a", "b"])
    assert table.load == {"a": 8192, "b": 8192}
    back = table.plan(["a"])
    table.carry_out(back, ["a"])
    assert table.load == {"a": 16384}
    assert sorted(table.offset) == [i * 1024 for i in range(16)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500)), max_size=50))
def test_an_arena_never_gives_out_the_same_byte_twice(steps):
    arena = ArenaMap()
    taken = {}
    for keep, nbytes in steps:
        if not keep and taken:
            offset = min(taken)
            arena.release(offset, taken.pop(offset))
            continue
        offset = arena.allocate(nbytes)
        assert all(offset + aligned(nbytes) <= o or o + aligned(n) <= offset for o, n in taken.items())
        taken[offset] = nbytes
    for offset, nbytes in list(taken.items()):
        arena.release(offset, nbytes)
    assert arena.free in ([], [(0, arena.end)])


def test_a_plan_for_100_000_slices_takes_less_than_two_seconds():
    servers = [f"server-{i}" for i in range(90)]
    rng = random.Random(0)
    sizes = [rng.randrange(1, 1 << 20) for _ in range(100_000)]
    start = time.perf_counter()
    choose_targets(sizes, [servers[i % 90] for i in range(100_000)], [*servers, *(f"new-{i}" for i in range(10))])
    assert time.perf_counter() - start < 2
