"""A worker's decisions: which step it is in, whom that step's pushes count for, and when it switches generations.

A pure machine, asked from two sides: the script's thread begins pushes, pulls and data (worker.py); the client's
thread reports control messages and finished operations (worker_thread.py). docs/protocol.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Set, Tuple

from elastic_mx.messages import Generation, Move, Position


class WouldPass(Exception):
    """The step lies past the promised horizon: wait for the commit, then ask again."""


class NotAMember(Exception):
    """This worker takes no part in the step any more."""


@dataclass(frozen=True)
class Ticket:
    """How an operation is to be sent: routed by generation `phase`, counted for the members of `generation`."""

    phase: int
    generation: int
    step: int


@dataclass(frozen=True)
class Switch:
    """Everything of the phase before is answered: send the markers of `generation`, then route by it."""

    generation: Generation
    moves: List[Move]
    servers: List[str]
    position: Position


@dataclass
class _Plan:
    generation: Generation
    moves: List[Move]
    promised: int
    carry: bool = False
    step: Optional[int] = None


class WorkerMachine:
    """All that one worker knows of its job and decides.

    `phase` is the generation by which operations that begin now are routed, `routing` the one by which operations
    are sent now; between the two, operations of the older phase are still unanswered.
    """

    def __init__(self, name: str, generation: Generation, joining: bool) -> None:
        self.name = name
        self.joining = joining
        self.memberships: List[Tuple[int, Generation]] = [] if joining else [(0, generation)]
        self.routing = self.phase = generation.number
        self.servers = list(generation.servers)
        self.addresses = dict(generation.servers)
        self.begun = -1
        self.dealt = -1
        self.between = True
        self.pushed_now: Set[int] = set()
        self.order: Dict[int, int] = {}
        self.last = -1
        self.operations = 0
        self.operations_before = -1
        self.outstanding: Dict[int, int] = {}
        self.epochs: List[Tuple[int, int]] = []
        self.plan: Optional[_Plan] = None
        self.pending_switch: Optional[_Plan] = None
        self.left = False

    # ---------------------------------------------------------------------------------- from the script's thread

    def begin_push(self, keys: Iterable[int]) -> Ticket:
        """A push of these key numbers begins.

        It begins the next step if it comes before a key that this step has pushed already, in the order in which the
        keys were first pushed: a key that is repeated, or one that is not pushed in every step.

        Raises:
            WouldPass: wait for the commit of the plan under way. Nothing has changed.
            NotAMember: the push would belong to a step that this worker has no part in.
        """
        keys = list(keys)
        for key in keys:
            self.order.setdefault(key, len(self.order))
        new_step = self.between or any(self.order[key] <= self.last for key in keys)
        step = self.begun + 1 if new_step else self.begun
        if new_step:
            self._enter(step)
        self.pushed_now.update(keys)
        self.last = max(self.last, *(self.order[key] for key in keys))
        return self._ticket(step)

    def begin_pull(self) -> Ticket:
        """A pull begins; it follows the pushes so far."""
        return self._ticket(max(self.begun, 0))

    def _ticket(self, step: int) -> Ticket:
        self.operations += 1
        self.hold(self.phase)
        return Ticket(self.phase, self.membership(step).number, step)

    def begin_more(self, ticket: Ticket) -> None:
        """One more operation of a call goes with the ticket of its first."""
        self.operations += 1
        self.hold(ticket.phase)

    def hold(self, phase: int) -> None:
        """One more answer is awaited before the switch to the phase after `phase`."""
        self.outstanding[phase] = self.outstanding.get(phase, 0) + 1

    def _enter(self, step: int) -> None:
        plan = self.plan
        if plan is not None and plan.step is None and step > plan.promised:
            raise WouldPass
        if plan is not None and plan.step is not None and step >= plan.step:
            self._change_phase(plan)
        if self.name not in self.membership(step).workers:
            raise NotAMember
        self.begun = step
        self.between = False
        self.pushed_now = set()
        self.last = -1
        self.operations_before, self.operations = self.operations if self.operations_before >= 0 else 0, 0

    def may_end_step(self) -> bool:
        """Whether `end_call` would switch now."""
        plan = self.plan
        if plan is None or plan.step is None or self.begun != plan.step - 1 or self.begun < 0:
            return False
        return self.operations == self.operations_before and len(self.pushed_now) == len(self.order)

    def workers_before(self, generation: int) -> Tuple[str, ...]:
        """The members of the generation before `generation`."""
        before: Tuple[str, ...] = ()
        for _, membership in self.memberships:
            if membership.number == generation:
                break
            before = membership.workers
        return before

    def end_call(self) -> None:
        """A call of the script has begun all its operations: if it looks like the step's last, switch already.

        It does where the step has pushed every key that was ever pushed and has as many operations as the one
        before; if more follow all the same, they are routed by the new generation and counted for the old one.
        """
        if self.may_end_step():
            assert self.plan is not None
            self._change_phase(self.plan)

    def _change_phase(self, plan: _Plan) -> None:
        self.pending_switch = plan
        self.phase = plan.generation.number
        self.plan = None

    def deal(self, step: int) -> Generation:
        """Data is dealt for `step`; return the generation whose members share it.

        Raises:
            WouldPass: wait for the commit of the plan under way. Nothing has changed.
        """
        plan = self.plan
        if plan is not None and plan.step is None and step > plan.promised:
            raise WouldPass
        self.dealt = max(self.dealt, step)
        return self.membership(step)

    def membership(self, step: int) -> Generation:
        """The generation that `step` belongs to."""
        found = self.memberships[0][1]
        for first_step, generation in self.memberships:
            if first_step <= step:
                found = generation
        return found

    def present_members(self) -> Tuple[str, ...]:
        """The workers of the step that this one is in; itself alone while it is joining."""
        return (self.name,) if self.joining else self.membership(max(self.begun, 0)).workers

    def epoch_began(self, epoch: int, step: int) -> None:
        self.epochs = [*self.epochs[-20:], (epoch, step)]

    def epochs_trained(self, steps_per_epoch: int) -> float:
        """The epochs before the step that begins next, the one under way by its part; 0 where its length is unknown."""
        step = self.begun + 1
        began = [entry for entry in self.epochs if entry[1] <= step]
        if not began or not steps_per_epoch:
            return 0.0
        epoch, first = began[-1]
        return epoch + (step - first) / steps_per_epoch

    # ---------------------------------------------------------------------------------- from the client's thread

    def prepare(self, generation: Generation, moves: List[Move], margin: int, carry: bool = False) -> int:
        """A plan is announced; return the horizon: the furthest step that will be begun before its commit.

        With `carry`, a member that stays is to store what no push carries before its markers.
        """
        self.plan = _Plan(generation, moves, max(self.begun, self.dealt) + margin, carry)
        self.addresses.update(generation.servers)
        return self.plan.promised

    def drop(self, generation: int) -> None:
        """The plan is given up."""
        if self.plan is not None and self.plan.generation.number == generation and self.plan.step is None:
            self.plan = None

    def commit(self, generation: int, step: int) -> None:
        """The plan takes over at `step`."""
        plan = self.plan
        assert plan is not None and plan.generation.number == generation
        plan.step = step
        self.memberships = [*self.memberships[-5:], (step, plan.generation)]

    def begin(self, position: Position, pushed: List[int]) -> List[Move]:
        """A joining worker becomes a member; return the moves to carry out before it routes anything."""
        plan = self.plan
        assert self.joining and plan is not None and plan.step is not None
        self.joining = False
        self.memberships = [(0, plan.generation)]
        self.routing = self.phase = plan.generation.number
        self.servers = list(plan.generation.servers)
        self.begun = position.step - 1
        self.between = True
        self.order = {key: position for position, key in enumerate(pushed)}
        self.epochs = [(position.epoch, position.epoch_step)]
        self.plan = None
        return plan.moves

    def go_on(self, position: Position) -> None:
        """The job goes on from a checkpoint that was taken before step ``position.step``."""
        self.begun = self.dealt = position.step - 1
        self.epochs = [(position.epoch, position.epoch_step)]

    def completed(self, phase: int) -> None:
        """An operation of `phase` was answered."""
        self.outstanding[phase] -= 1

    def take_switch(self) -> Optional[Switch]:
        """The switch to carry out now, if the script's thread began one and all before it is answered."""
        plan = self.pending_switch
        if plan is None or self.outstanding.get(self.routing, 0):
            return None
        assert plan.step is not None
        self.outstanding.pop(self.routing, None)
        servers = self.servers
        self.routing = plan.generation.number
        self.servers = list(plan.generation.servers)
        self.pending_switch = None
        return Switch(plan.generation, plan.moves, servers, self.position(plan.step))

    def position(self, step: int) -> Position:
        """Where the data stands at `step`."""
        began = [entry for entry in self.epochs if entry[1] <= step] or [(0, 0)]
        epoch, epoch_step = began[-1]
        return Position(epoch, epoch_step, step)
