"""A resize that moves much comes in several generations: what each of them moves, and what the client hears of it."""

from collections import deque

from elastic_mx import messages as m
from elastic_mx.coordinator_machine import CoordinatorMachine
from elastic_mx.settings import JobSettings

SLICE, SLICES, AT_ONCE = 1024, 60, 8


class Job:
    """A machine with a worker and servers that do at once what a plan asks of them."""

    def __init__(self, servers, bytes_per_second=1.0):
        settings = JobSettings(servers=servers, slice_bytes=SLICE, move_bytes=AT_ONCE * SLICE)
        self.machine = CoordinatorMachine(settings)
        self.rate = bytes_per_second
        self.plans, self.replies, self.during = {}, [], {}
        self.tell("launcher", m.Register(role="launcher", name="launcher"))
        self.define("weights", SLICES)

    def define(self, key, slices):
        spec = m.KeySpec(0, key, (slices, SLICE // 4), "float32")
        self.tell("worker-0", m.DefineKeys(request=1, keys=[spec]))

    def scale(self, **sizes):
        self.tell("client", m.Scale(request=1, **sizes))

    def tell(self, sender, message):
        """Let the machine have a message, and all that follow from it."""
        messages = deque([(sender, message)])
        while messages:
            for receiver, answer in self.machine.handle(*messages.popleft(), 0.0):
                messages.extend(self.answers(receiver, answer))

    def answers(self, name, message):
        if isinstance(message, m.Launch):
            register = m.Register(role=message.role, name=message.name, address=f"tcp://{message.name}")
            return [(message.name, register)]
        if isinstance(message, m.Welcome) and message.joining:
            return [(name, m.Ready())]
        if isinstance(message, m.Reply):
            self.replies.append(message)
        if isinstance(message, m.Prepare):
            first = message.generation.number not in self.plans
            self.plans[message.generation.number] = message
            asked = self.during.get(len(self.plans), []) if first else []
            return [(name, m.Horizon(generation=message.generation.number, step=len(self.plans))), *asked]
        if isinstance(message, m.Commit):
            number = message.generation
            coming = SLICE * sum(move.target == name for move in self.plans[number].moves)
            if name.startswith("server"):
                return [(name, m.InForce(generation=number, bytes_in=coming, seconds=coming / self.rate))]
            if name not in self.machine.job.generation.workers:
                return []  # it joins, and begins there
            switched = m.Switched(generation=number, position=m.Position())
            return [(name, switched), (name, m.Settled(number, stall_seconds=number / 100, median_step_seconds=1.0))]
        return []

    def moved(self):
        """How many slices each generation moved."""
        return [len(plan.moves) for plan in self.plans.values()]

    def loads(self):
        return sorted(self.machine.job.table.count.values())


def test_a_server_that_comes_is_filled_step_by_step():
    job = Job(servers=1)
    job.scale(servers=2)
    assert job.moved() == [AT_ONCE, AT_ONCE, AT_ONCE, 6] and job.loads() == [30, 30]
    assert all(len(plan.generation.servers) == 2 for plan in job.plans.values())
    [reply] = job.replies
    assert (reply.body["kind"], reply.body["bytes_moved"]) == ("+1 server", 30 * SLICE)
    assert reply.body["step"] == 2 and reply.body["longest_stall_seconds"] == 0.04, "of the worst part"
    assert job.machine.job.resizes == [reply.body]


def test_a_server_that_goes_serves_until_it_has_nothing_left():
    job = Job(servers=2)
    job.scale(servers=1)
    assert job.moved() == [AT_ONCE, AT_ONCE, AT_ONCE, 6] and job.loads() == [SLICES]
    assert [len(plan.generation.servers) for plan in job.plans.values()] == [2, 2, 2, 1]
    assert [reply.body["kind"] for reply in job.replies] == ["-1 server"]


def test_what_moved_fast_may_be_more_the_next_time():
    job = Job(servers=1, bytes_per_second=1e9)
    job.scale(servers=2)
    assert job.moved() == [AT_ONCE, 30 - AT_ONCE]


def test_a_worker_that_joins_with_a_server_has_a_step_to_itself():
    job = Job(servers=1)
    job.scale(servers=2, workers=2)
    assert job.moved() == [0, AT_ONCE, AT_ONCE, AT_ONCE, 6]
    assert all(len(plan.generation.workers) == 2 for plan in job.plans.values())
    assert [reply.body["kind"] for reply in job.replies] == ["+1 server, +1 worker"]


def test_a_key_that_is_new_meanwhile_stays_off_the_server_that_goes():
    job = Job(servers=2)
    spec = m.KeySpec(0, "late", (10, SLICE // 4), "float32")
    job.during[2] = [("worker-0", m.DefineKeys(request=2, keys=[spec]))]
    job.scale(servers=1)
    assert job.loads() == [SLICES + 10]


def test_a_request_in_between_changes_where_it_goes():
    job = Job(servers=1)
    job.during[2] = [("other", m.Scale(request=2, servers=3))]
    job.scale(servers=2)
    assert job.loads() == [20, 20, 20]
    assert {reply.body["kind"] for reply in job.replies} == {"+2 servers"} and len(job.replies) == 2


def test_a_request_to_go_back_is_answered_when_all_is_back():
    job = Job(servers=1)
    job.during[2] = [("other", m.Scale(request=2, servers=1))]
    job.scale(servers=2)
    assert job.loads() == [SLICES] and len(job.replies) == 2
