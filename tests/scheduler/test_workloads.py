"""Workload and trace files: what is read is what was written, and every error names file, line and field."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import JobType
from scheduler.speeds import FittedSpeed, MeasuredSpeed, PhysicalSpeed, read_measurements
from scheduler.traces import native, shipped
from scheduler.traces.files import open_traces, open_workload, shipped_workload
from scheduler.traces.generate import draw_trace
from scheduler.workload import PROCESSES, Arrivals, Trace, Workload, make_trace

GOOD = """\
version: 1
slot_seconds: 600
resources: [cpu, gpu, memory]
nodes:
- count: 2
  capacity: {cpu: 8, gpu: 2, memory: 64}
limits: {servers: 4, workers: 4}
job_types:
- name: small
  worker: {cpu: 2, gpu: 1}
  server: {cpu: 1}
  samples_per_epoch: 100
  epochs: 10
  speed: {form: optimus, theta: [1e-3, 0, 0, 0, 0]}
traces:
- jobs:
  - {type: small, arrival: 0}
  - {type: small, arrival: 3, epochs: 5}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    workload = open_workload(path)
    assert workload.capacity.tolist() == [[8, 2, 64]] * 2
    assert workload.types[0].worker == (2, 1, 0)
    assert workload.speed_tables()[0, 1, 4] == pytest.approx(4 / 1e-3 * 600 / 100)
    (trace,) = open_traces(path, workload)
    assert trace.epochs.tolist() == [10, 5]
    assert trace.arrival.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 9", "line 1: version is 9, this program reads version 1"),
        ("slot_seconds: 600", "slot_seconds: 0", "line 2: slot_seconds is 0, must be above 0"),
        ("slot_seconds: 600", "slot_seconds: soon", "line 2: slot_seconds is 'soon', must be a number"),
        ("slot_seconds: 600", "slot_seconds: .nan", "line 2: slot_seconds is nan, must be a number"),
        ("slot_seconds: 600\n", "", "line 1: document has no field 'slot_seconds': add it"),
        ("slot_seconds", "slot_second", "document has no field 'slot_seconds': add it"),
        ("limits:", "limit: 3\nlimits:", "line 7: limit is not a known field: there are version"),
        ("count: 2", "count: 1.5", "line 5: nodes[0].count is 1.5, must be a whole number"),
        ("{cpu: 2, gpu: 1}", "{cpu: -2}", "line 10: job_types[0].worker.cpu is -2, must be 0 or more"),
        ("{cpu: 2, gpu: 1}", "{tpu: 2}", "line 10: job_types[0].worker.tpu is not a known field: there are cpu, gpu"),
        ("{cpu: 1}", "{cpu: 0}", "line 11: job_types[0].server needs nothing"),
        ("[1e-3, 0, 0, 0, 0]", "[1, 2]", "line 14: job_types[0].speed.theta has 2 numbers, must have five"),
        ("optimus", "magic", "line 14: job_types[0].speed.form is 'magic', must be one of optimus, table, physical"),
        ("arrival: 0}", "arrival: -1}", "line 17: traces[0].jobs[0].arrival is -1, must be 0 or more"),
        ("epochs: 5}", "epochs: 0}", "line 18: traces[0].jobs[1].epochs is 0, must be above 0"),
        ("{type: small, arrival: 3", "{type: big, arrival: 3", "jobs[1].type is 'big', must be one of small"),
        ("arrival: 3", "id: 1, arrival: 3", "line 18: traces[0].jobs[1] has id 1, as a job before it"),
        ("version: 1", "version: 1\nversion: 1", "line 2: version appears twice: remove one"),
        ("version: 1", "version: [1", "not YAML"),
    ],
)
def test_errors_name_line_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"w\.yaml") as error:
        open_traces(path, open_workload(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "just text", "{}", "job_types: []", "\x00", "models: []", "? [a]\n: 1"])
def test_files_that_are_no_workload_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"w\.yaml") as error:
        open_workload(written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.yaml cannot be read: No such file"):
        open_workload("nowhere.yaml")


SPEEDS = st.one_of(
    st.tuples(*[st.floats(1e-6, 10)] * 5).map(FittedSpeed),
    st.floats(1, 100).map(lambda x: MeasuredSpeed(np.array([[1.0, 1.0, x], [2.0, 1.0, 2 * x], [1.0, 3.0, x / 2]]))),
    st.tuples(*[st.floats(0.01, 100)] * 5).map(lambda p: PhysicalSpeed(*p)),
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    positive = st.floats(0.01, 1e6)
    types = []
    for index in range(data.draw(st.integers(1, 3))):
        speed = data.draw(SPEEDS)
        physical = isinstance(speed, PhysicalSpeed)
        types.append(
            JobType(
                name=f"t{index}",
                worker=(data.draw(positive), 0.0),
                server=(data.draw(positive), data.draw(positive)),
                samples_per_epoch=data.draw(positive),
                epochs=data.draw(positive),
                model_size_mb=speed.model_size_mb if physical else data.draw(positive),
                compute_seconds=speed.compute_seconds if physical else 0.0,
                speed=speed,
            )
        )
    workload = Workload(
        name="w",
        slot_seconds=data.draw(positive),
        resources=("cpu", "gpu"),
        capacity=np.array(data.draw(st.lists(st.tuples(positive, positive), min_size=1, max_size=4))),
        types=tuple(types),
        max_servers=data.draw(st.integers(1, 8)),
        max_workers=data.draw(st.integers(1, 8)),
        process=Arrivals(process=data.draw(st.sampled_from(PROCESSES)), rate=data.draw(positive)),
    )
    trace = draw_trace(workload, np.random.default_rng(0), process="poisson", rate=1.0, jobs=5)
    path = tmp_path_factory.mktemp("native") / "w.yaml"
    native.write(path, workload, [trace], header=["a comment"])
    again = open_workload(path)
    assert again.types[0].worker == workload.types[0].worker
    assert np.array_equal(again.capacity, workload.capacity)
    assert np.array_equal(again.speed_tables(), workload.speed_tables())
    assert again.process == workload.process
    (back,) = open_traces(path, again)
    assert same(back, trace)


def same(a: Trace, b: Trace) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("ids", "type_index", "arrival", "epochs"))


def dl2_like(arrivals: tuple) -> Workload:
    kinds = tuple(JobType(name=n, worker=(1.0,), server=(1.0,), epochs=e) for n, e in (("a", 5.0), ("b", 7.0)))
    return Workload("w", 60.0, ("cpu",), np.ones((1, 1)), kinds, 4, 4, {3: arrivals}, Arrivals(peak=3, jobs=30))


def test_dl2_rules_cut_the_pattern_at_the_peak_and_shift_it() -> None:
    workload = dl2_like((1, 22, 0, 2, 3, 1, 0))
    seen = set()
    for seed in range(40):
        trace = draw_trace(workload, np.random.default_rng(seed))
        assert len(trace) == 30
        counts = np.bincount(trace.arrival)
        seen.add(tuple(counts[:7]))
        assert set(trace.epochs[trace.type_index == 0]) <= {5.0}
        assert set(trace.epochs[trace.type_index == 1]) <= {7.0}
    pattern = [1, 3, 0, 2, 3, 1, 0]
    assert seen == {tuple(np.roll(pattern, -offset)) for offset in range(5)}


@pytest.mark.parametrize("process", ["poisson", "diurnal", "google"])
def test_arrival_processes_have_their_rate_and_their_seed(process: str) -> None:
    workload = dl2_like((1,))
    trace = draw_trace(workload, np.random.default_rng(1), process=process, rate=2.0, jobs=4000, peak=10**6)
    assert len(trace) / (trace.arrival.max() + 1) == pytest.approx(2.0, rel=0.25)
    again = draw_trace(workload, np.random.default_rng(1), process=process, rate=2.0, jobs=4000, peak=10**6)
    assert same(trace, again)


def test_a_diurnal_day_has_busy_and_quiet_hours_and_google_has_bursts() -> None:
    workload = dl2_like((1,))
    rng = np.random.default_rng(2)

    def spread(process: str) -> float:
        trace = draw_trace(workload, rng, process=process, rate=4.0, jobs=8000, peak=10**6)
        counts = np.bincount(trace.arrival)
        return float(counts.var() / counts.mean())

    poisson, diurnal, google = spread("poisson"), spread("diurnal"), spread("google")
    assert poisson == pytest.approx(1.0, abs=0.15)
    assert diurnal > 1.3 * poisson
    assert google > 2.0 * poisson


def test_types_can_be_held_out_of_a_drawn_trace() -> None:
    trace = draw_trace(dl2_like((1, 2, 3)), np.random.default_rng(0), types=[1])
    assert set(trace.type_index) == {1}


def test_impossible_draws_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no arrivals for peak 5: it has 3"):
        draw_trace(dl2_like((1,)), rng, peak=5)
    with pytest.raises(ValueError, match="0 jobs is empty"):
        draw_trace(dl2_like((1,)), rng, jobs=0)
    with pytest.raises(ValueError, match="all zero"):
        draw_trace(dl2_like((0, 0)), rng)
    with pytest.raises(ValueError, match="no arrival process 'tidal'"):
        draw_trace(dl2_like((1,)), rng, process="tidal")


def test_traces_are_in_order_of_arrival_then_id() -> None:
    trace = make_trace("t", np.array([3, 1, 2]), np.zeros(3), np.array([5, 0, 0]), np.ones(3))
    assert trace.ids.tolist() == [1, 2, 3]


def test_the_shipped_workload_is_what_its_script_makes(shared_data: Path, tmp_path: Path) -> None:
    made = shipped.build(str(shared_data / "dl2_testbed_speeds.txt"))
    ours = shipped_workload()
    assert np.allclose(made.speed_tables(), ours.speed_tables(), rtol=1e-3)
    assert np.array_equal(made.capacity, ours.capacity)


def test_the_shipped_speeds_are_fits_of_the_measurements_and_not_the_measurements(shared_data: Path) -> None:
    measured = read_measurements(shared_data / "dl2_testbed_speeds.txt")
    workload = shipped_workload()
    for kind in workload.types:
        points = measured[kind.name].points
        points = points[points[:, 2] > 0]
        table = kind.speed.table(32, 32)[points[:, 0].astype(int), points[:, 1].astype(int)]
        assert np.median(np.abs(table / points[:, 2] - 1)) < 0.1
        assert isinstance(kind.speed, FittedSpeed)


def test_the_dl2_files_are_read(shared_data: Path) -> None:
    workload = open_workload(shared_data / "dl2_small_workload.json", shared_data / "dl2_testbed_speeds.txt")
    assert (workload.nodes, len(workload.types), workload.max_servers) == (48, 8, 32)
    traces = open_traces(shared_data / "dl2_small_traces.json", workload)
    assert [len(trace) for trace in traces] == [60] * 10


def test_drawn_traces_look_like_the_given_ones(shared_data: Path) -> None:
    workload = open_workload(shared_data / "dl2_small_workload.json")
    given_traces = open_traces(shared_data / "dl2_small_traces.json", workload)
    spans = {tuple(np.bincount(trace.arrival)) for trace in given_traces}
    drawn = {tuple(np.bincount(draw_trace(workload, np.random.default_rng(s)).arrival)) for s in range(40)}
    assert spans <= drawn
