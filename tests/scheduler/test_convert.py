"""Public traces become workloads by the stated rules, and broken ones are named by file, line and column."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from launcher.cli import main
from scheduler.evaluate import no_contention
from scheduler.traces.convert import ConvertSettings, convert
from scheduler.traces.files import open_traces, open_workload, shipped_workload
from scheduler.traces.public import PublicJob, read_openb, read_openb_nodes, read_pai, read_philly

# A job of a server and three workers (0 and 50 % of a GPU each), one that failed, one that never ended.
PAI = """\
j1,ps,1.0,Terminated,100.0,400.0,600.0,10.0,,MISC
j1,worker,3.0,Terminated,120.0,420.0,400.0,20.0,50.0,T4
j2,worker,1.0,Failed,100.0,400.0,600.0,10.0,100.0,T4
j3,worker,1.0,Terminated,100.0,,600.0,10.0,100.0,T4
"""
PHILLY = [
    {
        "status": "Pass",
        "jobid": "application_1",
        "submitted_time": "2017-10-09 07:00:00",
        "attempts": [
            {
                "start_time": "2017-10-09 07:10:00",
                "end_time": "2017-10-09 07:20:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-09 08:00:00",
                "end_time": "2017-10-09 09:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu3"]}],
            },
        ],
    },
    {"status": "Killed", "jobid": "application_2", "submitted_time": "2017-10-09 07:30:00", "attempts": []},
    {
        "status": "Pass",
        "jobid": "application_3",
        "submitted_time": "2017-10-09 07:05:00",
        "attempts": [
            {
                "start_time": "2017-10-09 07:06:00",
                "end_time": "2017-10-09 07:16:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            }
        ],
    },
]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_pai_job_is_the_sum_of_its_tasks(tmp_path: Path) -> None:
    path = tmp_path / "pai_task_table.csv"
    path.write_text(PAI)
    wanted = [PublicJob(submitted=100.0, seconds=320.0, cpus=18.0, gpus=1.5, memory=70.0)]
    assert read_pai(path) == wanted
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    path.write_text(header + PAI)
    assert read_pai(path) == wanted


def test_a_philly_job_runs_for_its_attempts_on_the_gpus_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY))
    first, second = read_philly(path)
    assert (first.submitted, first.seconds, first.gpus) == (0.0, 600.0 + 3600.0, 3.0)
    assert (second.submitted, second.seconds, second.gpus) == (300.0, 600.0, 1.0)


def test_openb_pods_and_nodes_are_read(shared_data: Path) -> None:
    jobs = read_openb(shared_data / "openb_pod_list_default.csv")
    assert len(jobs) == 7255
    assert jobs[0] == PublicJob(submitted=0.0, seconds=12537496.0, cpus=12.0, gpus=1.0, memory=16.0)
    assert jobs[1].gpus == pytest.approx(0.46)
    nodes = read_openb_nodes(shared_data / "openb_node_list_gpu_node.csv")
    assert nodes.shape == (1213, 3)
    assert nodes[0].tolist() == [64.0, 2.0, 256.0]


def test_a_converted_job_takes_its_time_at_its_size() -> None:
    jobs = [PublicJob(0.0, 6000.0, 16.0, 4.0, 64.0), PublicJob(900.0, 3000.0, 8.0, 0.4, 8.0)]
    nodes = np.array([[32.0, 4.0, 256.0]] * 8)
    result = convert("t", jobs, shipped_workload(), ConvertSettings(slot_seconds=600.0), nodes)
    workload, trace = result.workload, result.trace
    assert trace.arrival.tolist() == [0, 1]
    workers = [workload.types[t].worker for t in trace.type_index]
    assert workers == [(4.0, 1.0, 16.0), (8.0, 0.5, 8.0)]
    rates = workload.speed_tables()[trace.type_index, [4, 1], [4, 1]]
    assert (trace.epochs / rates).tolist() == [pytest.approx(10.0), pytest.approx(5.0)]


def test_jobs_too_large_for_the_nodes_are_counted_and_left_out() -> None:
    jobs = [PublicJob(0.0, 600.0, 16.0, 1.0, 64.0), PublicJob(0.0, 600.0, 2.0, 1.0, 8.0)]
    result = convert("t", jobs, shipped_workload(), ConvertSettings(), np.array([[8.0, 1.0, 64.0]]))
    assert (len(result.trace), result.too_large) == (1, 1)
    with pytest.raises(ValueError, match="none of 2 jobs fits a node"):
        convert("t", jobs, shipped_workload(), ConvertSettings(), np.array([[1.0, 1.0, 1.0]]))


def test_a_made_up_cluster_is_as_large_as_the_load_says() -> None:
    jobs = [PublicJob(100.0 * k, 1000.0, 4.0, 8.0, 16.0) for k in range(101)]  # 80 GPUs are busy: ten nodes' worth
    light = convert("t", jobs, shipped_workload(), ConvertSettings(load=0.5)).workload
    heavy = convert("t", jobs, shipped_workload(), ConvertSettings(load=1.0)).workload
    assert heavy.nodes == pytest.approx(10, abs=1)
    assert light.nodes == pytest.approx(2 * heavy.nodes, abs=1)


@pytest.mark.parametrize(
    ("origin", "text", "message"),
    [
        ("openb", "name,cpu_milli\n", "line 1: there is no column 'memory_mib'; is it the right file?"),
        (
            "openb",
            "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n1,1,1,1,-5,9,0\n",
            "line 2: creation_time is '-5', must be a number of 0 or more",
        ),
        ("pai", PAI.replace("600.0", "lots", 1), "line 1: plan_cpu is 'lots', must be a number"),
        ("philly", "{}", "is no Philly log: expected a list of jobs"),
        ("philly", "[{}]", "job 0: KeyError('attempts'); a job has submitted_time and attempts"),
        ("philly", "[", "is not JSON"),
        ("pai", "", "none of its 0 jobs ran"),
    ],
)
def test_a_broken_trace_gets_one_clear_line(origin: str, text: str, message: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(text)
    result = invoke("convert-trace", source, "--from", origin, "--out", tmp_path / "out.yaml")
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.yaml").exists()


def test_the_openb_trace_is_converted_and_simulated(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "openb.yaml"
    pods = shared_data / "openb_pod_list_default.csv"
    result = invoke("convert-trace", pods, "--from", "openb", "--out", out, "--jobs", 100)
    assert result.exit_code == 0, result.output
    assert "100 jobs" in result.stderr
    workload = open_workload(out)
    (trace,) = open_traces(out, workload)
    assert np.isfinite(no_contention(workload, trace)).all()
    simulated = invoke("simulate", "--workload", out, "--policies", "drf,tiresias,greedy-fit", "--json")
    assert simulated.exit_code == 0, simulated.output


def test_dl2_traces_are_converted_with_their_workload(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "dl2.yaml"
    files = [shared_data / "dl2_small_workload.json", "--speeds", shared_data / "dl2_testbed_speeds.txt"]
    traces = shared_data / "dl2_small_traces.json"
    assert "give it with --workload" in invoke("convert-trace", traces, "--from", "dl2", "--out", out).stderr
    result = invoke("convert-trace", traces, "--from", "dl2", "--out", out, "--workload", *files)
    assert result.exit_code == 0, result.output
    ours, theirs = open_workload(out), open_workload(*[files[0], files[2]])
    assert np.allclose(ours.speed_tables(), theirs.speed_tables())
    for a, b in zip(open_traces(out, ours), open_traces(traces, theirs)):
        assert np.array_equal(a.type_index, b.type_index)
        assert np.array_equal(a.epochs, b.epochs)
