"""What the coordinator machine makes of processes that end: who is needed, who is not, and what a launcher is told."""

import pytest

from elastic_mx import messages as m
from elastic_mx.coordinator_machine import CoordinatorMachine
from elastic_mx.settings import JobSettings


class Played:
    """A machine with a launcher, and what it sent."""

    def __init__(self, workers: int = 1, servers: int = 1) -> None:
        self.machine = CoordinatorMachine(JobSettings(name="digits", workers=workers, servers=servers))
        self.sent = []
        self.tell("launcher", m.Register(role="launcher", name="launcher"))

    def tell(self, sender, message):
        self.sent += self.machine.handle(sender, message, 0.0)

    def register(self, *names):
        for name in names:
            self.tell(name, m.Register(role=name.partition("-")[0], name=name, address=f"tcp://{name}"))

    def to(self, name, kind):
        return [message for receiver, message in self.sent if receiver == name and isinstance(message, kind)]


def running():
    played = Played()
    played.register("server-0", "worker-0")
    played.tell("worker-0", m.Ready(max_workers=64))
    return played


@pytest.mark.parametrize("name", ["worker-0", "server-0"])
def test_a_member_that_fails_ends_the_job_with_its_status(name):
    played = running()
    played.tell("cli", m.Scale(request=1, workers=2))
    played.tell("launcher", m.Exited(name=name, status=3))
    assert played.to("launcher", m.Release) == [m.Release(reason=f"{name} failed with status 3", status=3)]
    assert played.to("cli", m.Reply)[0].error == f"job 'digits': {name} failed with status 3"


def test_whoever_fails_before_the_job_has_formed_ends_it():
    played = Played()
    played.tell("launcher", m.Exited(name="worker-0", status=1))
    assert [r.status for r in played.to("launcher", m.Release)] == [1]


def test_a_process_that_fails_before_it_joined_costs_the_resize_only():
    played = running()
    played.tell("cli", m.Scale(request=1, workers=2))
    assert played.to("launcher", m.Launch)[-1] == m.Launch(role="worker", name="worker-1")
    played.register("worker-1")
    played.tell("launcher", m.Exited(name="worker-1", status=1))
    assert "worker-1 ended with status 1 before it joined" in played.to("cli", m.Reply)[0].error
    assert played.to("launcher", m.Release) == []
    assert played.machine.job.target == {"worker": 1, "server": 1}


def test_a_process_that_was_sent_away_again_may_end_as_it_likes():
    played = running()
    played.tell("cli", m.Scale(request=1, workers=2))
    played.register("worker-1")
    played.tell("cli", m.Scale(request=2, workers=1))
    assert len(played.to("worker-1", m.Release)) == 1
    played.tell("cli", m.Scale(request=3, servers=2))
    played.tell("launcher", m.Exited(name="worker-1", status=1))
    assert [r.request for r in played.to("cli", m.Reply)] == [1, 2]
    assert played.machine.job.target == {"worker": 1, "server": 2}


def test_a_joining_process_that_fails_after_the_commit_ends_the_job():
    played = running()
    played.tell("cli", m.Scale(request=1, workers=2))
    played.register("worker-1")
    played.tell("worker-1", m.Ready(max_workers=64))
    for name in ("server-0", "worker-0", "worker-1"):
        played.tell(name, m.Horizon(generation=1, step=4))
    assert played.to("worker-0", m.Commit) == [m.Commit(generation=1, step=5)]
    played.tell("launcher", m.Exited(name="worker-1", status=-9))
    assert [r.status for r in played.to("launcher", m.Release)] == [-9]


def test_a_worker_that_left_by_a_resize_is_not_taken_for_one_that_starts():
    played = Played(workers=2)
    played.register("server-0", "worker-0", "worker-1")
    played.tell("cli", m.Scale(request=1, workers=1))
    for name in ("server-0", "worker-0", "worker-1"):
        played.tell(name, m.Horizon(generation=1, step=4))
    for name in ("worker-0", "worker-1"):
        played.tell(name, m.Switched(generation=1, position=m.Position(step=5)))
    played.tell("server-0", m.InForce(generation=1, bytes_in=0, seconds=0.0))
    played.tell("worker-0", m.Settled(generation=1, stall_seconds=0.0, median_step_seconds=0.1))
    assert played.to("cli", m.Reply)[0].body["workers"] == 1
    played.tell("cli", m.Scale(request=2, workers=2))
    assert played.to("launcher", m.Launch)[-1] == m.Launch(role="worker", name="worker-2")
    played.tell("worker-1", m.Goodbye())
    played.tell("launcher", m.Exited(name="worker-1", status=0))
    assert played.machine.job.target == {"worker": 2, "server": 1}


def test_stopping_tells_the_launcher_to_end_what_runs():
    played = running()
    played.tell("cli", m.Stop(request=1))
    assert played.to("launcher", m.Release) == [m.Release(reason="the job was stopped", status=-15)]


def test_the_end_of_all_scripts_is_no_failure():
    played = running()
    played.tell("worker-0", m.Goodbye())
    assert played.to("launcher", m.Release) == [m.Release(reason="every worker has finished", status=0)]


def test_a_server_learns_of_workers_that_ended_before_they_had_a_channel_to_it():
    played = Played(workers=2)
    played.register("server-0", "worker-0", "worker-1")
    played.tell("cli", m.Scale(request=1, servers=2))
    played.register("server-1")
    played.tell("worker-0", m.Goodbye(told=["server-0"]))
    assert played.to("server-1", m.Left) == [m.Left(worker="worker-0")]
    assert played.to("server-0", m.Left) == []
    played.tell("cli", m.Scale(request=2, servers=3))
    played.register("server-2")
    assert played.to("server-2", m.Welcome)[0].left == ["worker-0"]
