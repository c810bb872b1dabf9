"""The supervisor machine: what the ends of processes mean, in which order they are ended, and with which status."""

import signal
from typing import Dict, List

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_mx import messages as m
from launcher.supervisor import (
    CHECK_SECONDS,
    COORDINATOR,
    GRACE_SECONDS,
    LEAVE_SECONDS,
    START_SECONDS,
    Finish,
    Say,
    Signal,
    Start,
    Supervisor,
    Tell,
)

FINISHED = m.Release(reason="every worker has finished")
STOPPED = m.Release(reason="the job was stopped", status=-signal.SIGTERM)


class Played:
    """A supervisor with its processes, and a coordinator that says of each worker whether it is done."""

    def __init__(self, workers: int = 2, servers: int = 1, drop_in: bool = False) -> None:
        self.supervisor = Supervisor(workers, drop_in)
        self.now = 0.0
        self.done: Dict[str, bool] = {}
        self.out: List[object] = []
        self.supervisor.started(COORDINATOR, COORDINATOR)
        for role, number in (("server", servers), ("worker", workers)):
            for i in range(number):
                self.launch(role, f"{role}-{i}")

    def launch(self, role: str, name: str, member: bool = True) -> None:
        assert self.supervisor.asked(m.Launch(role=role, name=name)) == [Start(role, name)]
        self.supervisor.started(role, name)
        if role == "worker" and member:
            self.done[name] = False

    def take(self, instructions) -> List[object]:
        self.out += instructions
        return instructions

    def exit(self, *names: str, status: int = 0) -> None:
        for name in names:
            self.take(self.supervisor.exited(name, status, self.now))

    def release(self, message: m.Release) -> None:
        self.take(self.supervisor.released(message, self.now))

    def answer(self, state: str = "training") -> None:
        """Have the coordinator answer the last request for the state."""
        request = [i.message for i in self.out if isinstance(i, Tell) and isinstance(i.message, m.Status)][-1].request
        workers = [{"name": name, "finished": done} for name, done in self.done.items()]
        body = {"state": state, "workers": workers, "servers": [{"name": "server-0"}]}
        self.take(self.supervisor.answered(m.Reply(request=request, body=body), self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.supervisor.tick(self.now))

    def signals(self) -> List[Signal]:
        signals, self.out = [i for i in self.out if isinstance(i, Signal)], [i for i in self.out if i is None]
        return signals

    def said(self) -> List[str]:
        return [i.text for i in self.out if isinstance(i, Say)]

    def finish(self) -> int:
        """Let everything that still runs end as it was told; return the exit status."""
        for _ in range(10):
            for name, child in self.supervisor.children.items():
                if child.status is None:
                    self.exit(name, status=-signal.SIGTERM if child.role == "worker" else 0)
            finished = [i.status for i in self.out if isinstance(i, Finish)]
            if finished:
                assert len(finished) == 1
                return finished[0]
        raise AssertionError(f"not finished: {self.supervisor.summary()}")


def test_a_job_whose_scripts_end_is_left_in_peace_and_ends_with_0():
    job = Played()
    for name in ("worker-0", "worker-1"):
        job.done[name] = True
        job.exit(name)
    assert job.signals() == [Signal("server-0", signal.SIGTERM)]
    job.exit("server-0")
    assert job.signals() == [Signal(COORDINATOR, signal.SIGTERM)]
    assert job.finish() == 0 and job.said() == []


def test_scripts_may_take_their_time_after_training():
    job = Played()
    job.release(FINISHED)
    job.wait(LEAVE_SECONDS - 1)
    assert job.signals() == []
    job.exit("worker-0", "worker-1")
    assert job.signals() == []
    assert job.finish() == 0


def test_scripts_that_do_not_leave_are_ended():
    job = Played()
    job.release(FINISHED)
    job.exit("worker-0")
    job.wait(LEAVE_SECONDS)
    assert "worker-1: still there" in job.said()[0]
    assert job.signals() == [Signal("worker-1", signal.SIGTERM)]
    job.wait(GRACE_SECONDS)
    assert job.signals() == [Signal("worker-1", signal.SIGKILL)]
    assert job.finish() == 143


def test_a_failed_member_ends_the_job_with_its_status_in_one_line():
    job = Played()
    job.exit("worker-1", status=3)
    assert job.out[0] == Tell(m.Exited(name="worker-1", status=3))
    job.release(m.Release(reason="worker-1 failed with status 3", status=3))
    assert job.said() == ["worker-1 failed with status 3"]
    assert job.signals() == [Signal("worker-0", signal.SIGTERM)]
    assert job.finish() == 3


def test_a_member_killed_by_a_signal_gives_the_shells_status():
    job = Played(workers=1)
    job.exit("worker-0", status=-9)
    job.release(m.Release(reason="worker-0 failed with SIGKILL", status=-9))
    assert job.finish() == 137


def test_a_failure_is_not_lost_when_the_other_workers_end_before_it_is_judged():
    job = Played()
    job.exit("worker-1", status=3)
    job.exit("worker-0")
    assert not job.signals()
    job.release(m.Release(reason="worker-1 failed with status 3", status=3))
    assert job.finish() == 3


def test_a_failure_that_nobody_judges_ends_the_job():
    job = Played()
    job.exit("worker-1", status=3)
    job.wait(GRACE_SECONDS)
    assert "worker-1 ended with status 3 and the coordinator is silent" in job.said()
    assert job.finish() == 3


def test_a_coordinator_that_is_never_heard_ends_the_job():
    supervisor = Supervisor(1)
    supervisor.started(COORDINATOR, COORDINATOR)
    assert supervisor.tick(5.0) == supervisor.tick(4.0 + START_SECONDS) == []
    told = supervisor.tick(5.0 + START_SECONDS)
    assert told[0] == Say("the coordinator runs and was not heard in 30 s: is the loopback network up?")
    assert Signal(COORDINATOR, signal.SIGTERM) in told


def test_a_process_that_fails_before_it_joined_is_told_and_the_job_goes_on():
    job = Played()
    job.launch("worker", "worker-2", member=False)
    job.exit("worker-2", status=1)
    job.answer()
    assert job.said() == ["worker-2 ended with status 1, but the job did not count on it and goes on"]
    assert not job.signals()
    job.release(FINISHED)
    job.exit("worker-0", "worker-1")
    assert job.finish() == 0


def test_a_released_server_that_leaves_is_normal():
    job = Played(servers=2)
    job.exit("server-1")
    job.wait(CHECK_SECONDS)
    job.answer()
    assert not job.said() and not job.signals()


def test_a_member_that_ends_without_a_word_ends_the_job():
    job = Played()
    job.exit("worker-1")
    job.wait(CHECK_SECONDS)
    job.answer()
    assert job.said() == ["worker-1 ended without taking leave of the job: the others would wait for it"]
    assert job.finish() == 1


def test_a_worker_that_ends_before_the_job_began_ends_it():
    job = Played()
    job.exit("worker-1")
    job.wait(CHECK_SECONDS)
    job.answer(state="starting")
    assert job.said() == ["worker-1 ended before the job began: did its script use a dist_elastic store?"]
    assert job.finish() == 1


def test_a_member_that_fails_after_training_gives_its_status():
    job = Played()
    job.release(FINISHED)
    job.answer(state="over")
    job.exit("worker-0", status=5)
    job.exit("worker-1")
    assert job.finish() == 5


def test_a_worker_that_had_not_joined_when_training_ended_does_not_count():
    job = Played()
    job.launch("worker", "worker-2", member=False)
    job.release(FINISHED)
    job.answer(state="over")
    job.exit("worker-2", status=1)
    job.exit("worker-0", "worker-1")
    assert job.finish() == 0


def test_a_drop_in_job_is_done_with_the_workers_it_was_started_with():
    job = Played(drop_in=True)
    job.launch("worker", "worker-2")
    job.release(FINISHED)
    assert job.signals() == [Signal("worker-2", signal.SIGTERM)]
    job.exit("worker-2", status=-signal.SIGTERM)
    job.exit("worker-0", "worker-1")
    assert job.finish() == 0


def test_a_stopped_job_ends_as_its_workers_take_it():
    for status, expected in ((-signal.SIGTERM, 143), (0, 0), (4, 4)):
        job = Played()
        job.release(STOPPED)
        assert job.signals() == [Signal("worker-0", signal.SIGTERM), Signal("worker-1", signal.SIGTERM)]
        job.exit("worker-0", "worker-1", status=status)
        assert job.finish() == expected


def test_a_signal_goes_to_the_workers_and_a_second_one_kills():
    job = Played()
    job.take(job.supervisor.signalled(signal.SIGINT, 0.0))
    assert job.said() == ["got SIGINT, ending the job"]
    assert job.signals() == [Signal("worker-0", signal.SIGINT), Signal("worker-1", signal.SIGINT)]
    job.exit("worker-0", status=0)
    job.take(job.supervisor.signalled(signal.SIGINT, 0.0))
    killed = job.signals()
    assert {s.name for s in killed} == {"worker-1", "server-0", COORDINATOR}
    assert {s.number for s in killed} == {signal.SIGKILL}
    job.exit("worker-1", "server-0", COORDINATOR, status=-signal.SIGKILL)
    assert job.finish() == 130


def test_the_loss_of_the_coordinator_ends_the_job():
    job = Played()
    job.exit(COORDINATOR, status=-9)
    assert job.said() == ["the coordinator ended (SIGKILL); the job cannot go on"]
    assert job.finish() == 137


def test_nothing_is_started_once_the_job_is_ending():
    job = Played()
    job.release(STOPPED)
    assert job.supervisor.asked(m.Launch(role="worker", name="worker-7")) == []


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.sampled_from(["worker", "server"])),
        st.tuples(st.just("exit"), st.integers(0, 20), st.sampled_from([0, 0, 1, 3, -9, -15])),
        st.tuples(st.just("release"), st.sampled_from([0, -15, 2])),
        st.tuples(st.just("signal"), st.sampled_from([2, 15])),
        st.tuples(st.just("answer"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 10.0, 60.0])),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(EVENTS, st.booleans())
def test_whatever_happens_every_process_ends_and_the_launcher_finishes_once(events, drop_in):
    """Processes here end only as told by SIGKILL, or as the events say."""
    supervisor = Supervisor(1, drop_in)
    alive, now, finished, number = [], 0.0, [], 0

    def take(instructions):
        nonlocal alive
        for instruction in instructions:
            assert not finished, "nothing is decided after the end"
            if isinstance(instruction, Start):
                assert supervisor.phase == "running"
                supervisor.started(instruction.role, instruction.name)
                alive.append(instruction.name)
            elif isinstance(instruction, Signal):
                assert instruction.name in alive
                if instruction.number == signal.SIGKILL:
                    killed.append(instruction.name)
            elif isinstance(instruction, Finish):
                assert not alive and 0 <= instruction.status < 256
                finished.append(instruction.status)

    def end(name, status):
        alive.remove(name)
        take(supervisor.exited(name, status, now))

    killed: List[str] = []
    supervisor.started(COORDINATOR, COORDINATOR)
    alive.append(COORDINATOR)
    for role in ("server", "worker"):
        take(supervisor.asked(m.Launch(role=role, name=f"{role}-0")))
    for event in [*events, *[("release", 0)], *[("wait", 60.0)] * 12]:
        if event[0] == "launch":
            number += 1
            take(supervisor.asked(m.Launch(role=event[1], name=f"{event[1]}-{number}")))
        elif event[0] == "exit" and alive:
            end(alive[event[1] % len(alive)], event[2])
        elif event[0] == "release":
            take(supervisor.released(m.Release(reason="over", status=event[1]), now))
        elif event[0] == "signal":
            take(supervisor.signalled(event[1], now))
        elif event[0] == "answer" and supervisor._fences:
            body = {"state": "training", "workers": [{"name": "worker-0", "finished": event[1]}], "servers": []}
            take(supervisor.answered(m.Reply(request=max(supervisor._fences), body=body), now))
        elif event[0] == "wait":
            now += event[1]
            take(supervisor.tick(now))
        while killed:
            name = killed.pop()
            if name in alive:
                end(name, -9)
    assert len(finished) == 1, supervisor.summary()


def test_a_script_that_fails_as_the_last_is_told_of_and_gives_the_status():
    job = Played()
    job.release(FINISHED)
    job.exit("worker-0")
    job.exit("worker-1", status=1)
    assert job.finish() == 1 and job.said() == ["worker-1 ended with status 1"]


def test_a_failure_that_the_end_of_the_job_overtakes_is_not_lost():
    job = Played()
    job.exit("worker-0", "worker-1", status=1)
    job.release(FINISHED)
    job.answer(state="over")
    assert job.finish() == 1 and job.said() == ["worker-0 ended with status 1"]
