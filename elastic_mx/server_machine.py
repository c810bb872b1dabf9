"""A server's decisions: when a round of a slice is complete, which pulls can be answered, what migrates when.

A pure machine: an event in, instructions out. It knows slices by their ids and gradients as opaque sources; reading,
adding, updating and sending them is server.py's. The rules are told in docs/protocol.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Optional, Sequence, Set, Tuple

from elastic_mx.messages import Generation, Move

STORY_LENGTH = 50


class InvalidEvent(Exception):
    """An event that cannot be right in the state that the server is in; tells what led there."""


# ------------------------------------------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Instruction:
    """Something that the shell is to do."""


@dataclass(frozen=True)
class Apply(Instruction):
    """Add the contributions of each slice in the order given and update its value; then the version is one more."""

    slices: List[int]
    contributions: List[List[Tuple[str, Any]]]


@dataclass(frozen=True)
class Store(Instruction):
    """Make the sources the values of the slices."""

    slices: List[int]
    worker: str
    sources: List[Any]


@dataclass(frozen=True)
class Acknowledge(Instruction):
    """Tell a worker that its oldest push of each slice was applied."""

    worker: str
    slices: List[int]


@dataclass(frozen=True)
class Answer(Instruction):
    """Send a worker the values that it pulled."""

    worker: str
    slices: List[int]


@dataclass(frozen=True)
class AnswerPart(Instruction):
    """Send a worker the part of a slice that it asked for."""

    worker: str
    request: int
    slice: int
    what: Any


@dataclass(frozen=True)
class SendSlices(Instruction):
    """Send slices with all that belongs to them to their new owner."""

    target: str
    generation: int
    slices: List[int]
    versions: List[int]


@dataclass(frozen=True)
class Forget(Instruction):
    """The new owner has these slices; their memory here is free."""

    slices: List[int]


@dataclass(frozen=True)
class SaveSlices(Instruction):
    """Write slices, as they are now, into a checkpoint's folder; `saved` is to be called when that is done."""

    folder: str
    slices: List[int]


@dataclass(frozen=True)
class ReportInForce(Instruction):
    generation: int


# -------------------------------------------------------------------------------------------------------- state


@dataclass
class Slice:
    """A slice that this server owns or is about to own; `queued` counts all of its `pushes`."""

    asynchronous: bool
    present: bool = False
    version: int = 0
    queued: int = 0
    pushes: Dict[str, Deque[Tuple[int, Any]]] = field(default_factory=dict)
    pulls: List[Tuple[str, int, Optional[Tuple[int, Any]]]] = field(default_factory=list)


class ServerMachine:
    """All that one server knows and decides."""

    def __init__(self, name: str, generation: Generation, joining: bool, validate: bool = False) -> None:
        self.name = name
        self.workers: Dict[int, Tuple[str, ...]] = {generation.number: generation.workers}
        self.current = generation
        self.cut = generation.number
        self.joining = joining
        self.plan: Optional[Tuple[Generation, List[Move]]] = None
        self.committed = False
        self.marked: Dict[int, Set[str]] = {}
        self.left: Set[str] = set()
        self.slices: Dict[int, Slice] = {}
        self.expected: Set[int] = set()
        self.leaving: Set[int] = set()
        self.checkpoint = ""
        self.saving = False
        self.reported = generation.number
        self.story: Deque[str] = deque(maxlen=STORY_LENGTH)
        self.validate = validate
        self._out: List[Instruction] = []

    def waits_for(self, worker: str) -> bool:
        """Whether every round to come needs this worker's push, by the membership now and by a plan under way."""
        generations = [self.current.workers] + ([self.plan[0].workers] if self.plan else [])
        return worker not in self.left and all(worker in workers for workers in generations)

    # ------------------------------------------------------------------------------------------------ events

    def define(self, ids: Sequence[int], asynchronous: bool) -> None:
        """Slices of a new key that the coordinator placed here."""
        for s in ids:
            if s not in self.slices:
                self.slices[s] = Slice(asynchronous)

    def init(self, worker: str, ids: Sequence[int], sources: Sequence[Any]) -> List[Instruction]:
        """A worker sends the first values of slices, or new values for ones that are never pushed."""
        self._begin(f"init {worker} {ids}")
        for state in self._known(ids):
            state.present = True
        self._out.append(Store(list(ids), worker, list(sources)))
        self._serve(ids)
        return self._end()

    def push(self, worker: str, generation: int, ids: Sequence[int], sources: Sequence[Any]) -> List[Instruction]:
        """A worker sends gradients that belong to a step of `generation`."""
        self._begin(f"push {worker} g{generation} {ids}")
        if generation not in self.workers:
            raise InvalidEvent(self._tell(f"{worker} pushes for generation {generation}, which was never announced"))
        for state, source in zip(self._known(ids), sources):
            queue = state.pushes.get(worker)
            if queue is None:
                queue = state.pushes[worker] = deque()
            queue.append((generation, source))
            state.queued += 1
        self._serve(ids)
        return self._end()

    def pull(self, worker: str, ids: Sequence[int], cut: int) -> List[Instruction]:
        """A worker asks for values, as they are after its pushes so far and at the cut of generation `cut`."""
        self._begin(f"pull {worker} {ids} cut {cut}")
        for state in self._known(ids):
            state.pulls.append((worker, cut, None))
        self._serve(ids)
        return self._end()

    def ask(self, worker: str, s: int, request: int, what: Any) -> List[Instruction]:
        """As `pull`, for a part of what belongs to one slice; the machine does not look at `what`."""
        self._begin(f"ask {worker} {s}")
        self._known([s])[0].pulls.append((worker, -1, (request, what)))
        self._serve([s])
        return self._end()

    def marker(self, worker: str, generation: int) -> List[Instruction]:
        """A worker has sent all that it routes by the generations before `generation`."""
        self._begin(f"marker {worker} g{generation}")
        self.marked.setdefault(generation, set()).add(worker)
        self._migrate()
        return self._end()

    def leave(self, worker: str) -> List[Instruction]:
        """No more pushes come from this worker: rounds do not wait for it, nor do cuts."""
        self._begin(f"leave {worker}")
        self.left.add(worker)
        self._serve([s for s, state in self.slices.items() if state.queued])
        self._migrate()
        return self._end()

    def prepare(self, generation: Generation, moves: Sequence[Move], checkpoint: str = "") -> List[Instruction]:
        """The coordinator announces a plan; with the folder of a checkpoint, this server's part is due at the cut."""
        self._begin(f"prepare g{generation.number}")
        self.checkpoint = checkpoint
        self.plan = (generation, list(moves))
        self.workers[generation.number] = generation.workers
        return self._end()

    def drop(self, generation: int) -> List[Instruction]:
        """The plan is given up."""
        self._begin(f"drop g{generation}")
        if self.plan is not None and self.plan[0].number == generation:
            self.plan = None
            del self.workers[generation]
        return self._end()

    def commit(self, generation: int) -> List[Instruction]:
        """The plan will be carried out: the slices that move here are expected, unless they overtook this word."""
        self._begin(f"commit g{generation}")
        if self.plan is None or self.plan[0].number != generation:
            raise InvalidEvent(self._tell(f"generation {generation} is committed, which was not prepared"))
        self.committed = True
        for move in self.plan[1]:
            state = self.slices.get(move.slice)
            if move.target == self.name and not (state is not None and state.present):
                self.expected.add(move.slice)
        self._migrate()
        return self._end()

    def arrived(self, ids: Sequence[int], versions: Sequence[int], asynchronous: Sequence[bool]) -> List[Instruction]:
        """Slices came from their old owner."""
        self._begin(f"arrived {ids}")
        for s, version, is_async in zip(ids, versions, asynchronous):
            state = self.slices.setdefault(s, Slice(is_async))
            if state.present and self.validate:
                raise InvalidEvent(self._tell(f"slice {s} arrives a second time"))
            state.present = True
            state.version = version
            state.asynchronous = is_async
            self.expected.discard(s)
        self._serve(ids)
        self._settle()
        return self._end()

    def handed_over(self, ids: Sequence[int]) -> List[Instruction]:
        """The new owner has slices that were sent to it."""
        self._begin(f"handed over {ids}")
        self.leaving.difference_update(ids)
        self._out.append(Forget(list(ids)))
        self._settle()
        return self._end()

    def saved(self) -> List[Instruction]:
        """This server's part of the checkpoint is written."""
        self._begin("saved")
        self.saving, self.checkpoint = False, ""
        self._settle()
        return self._end()

    def restore(self, ids: Sequence[int]) -> List[Instruction]:
        """Slices have their values, from a checkpoint."""
        self._begin(f"restore {ids}")
        for state in self._known(ids):
            state.present = True
        self._serve(ids)
        return self._end()

    # ----------------------------------------------------------------------------------------------- rounds

    def _serve(self, ids: Sequence[int]) -> None:
        """Complete what rounds can be completed of these slices and answer what pulls can be answered."""
        acknowledged: Dict[str, List[int]] = {}
        answered: Dict[str, List[int]] = {}
        fewest = self._fewest_members()
        again = list(ids)
        while again:
            applied, contributions, more = [], [], []
            for s in again:
                state = self.slices[s]
                # Most pushes are not their round's last, so a look at a number comes first.
                if not state.queued or not state.present or (state.queued < fewest and not state.asynchronous):
                    continue
                round_ = self._next_round(state)
                if round_ is None:
                    continue
                state.version += 1
                applied.append(s)
                contributions.append(round_)
                if state.queued:
                    more.append(s)
                for worker, _ in round_:
                    acknowledged.setdefault(worker, []).append(s)
            if applied:
                self._out.append(Apply(applied, contributions))
            for s in again:
                self._answer(s, answered)
            self._flush(acknowledged, answered)
            again = more

    def _fewest_members(self) -> int:
        """No round of any generation is complete with fewer pushes."""
        return min(sum(worker not in self.left for worker in members) for members in self.workers.values())

    def _flush(self, acknowledged: Dict[str, List[int]], answered: Dict[str, List[int]]) -> None:
        self._out.extend(Acknowledge(worker, slices) for worker, slices in acknowledged.items())
        self._out.extend(Answer(worker, slices) for worker, slices in answered.items())
        acknowledged.clear()
        answered.clear()

    def _next_round(self, state: Slice) -> Optional[List[Tuple[str, Any]]]:
        """Take the next round off the queues if it is complete: (worker, source) in rank order."""
        pushes = state.pushes
        if state.asynchronous:
            for worker, waiting in pushes.items():
                if waiting:
                    state.queued -= 1
                    return [(worker, waiting.popleft()[1])]
            return None
        tag = min([waiting[0][0] for waiting in pushes.values() if waiting])
        heads = []
        for worker in self.workers[tag]:
            queue = pushes.get(worker)
            if queue and queue[0][0] == tag:
                heads.append((worker, queue))
            elif worker not in self.left:
                return None
        state.queued -= len(heads)
        return [(worker, queue.popleft()[1]) for worker, queue in heads] or None

    def _answer(self, s: int, answered: Dict[str, List[int]]) -> None:
        state = self.slices[s]
        if not state.pulls or not state.present:
            return
        waiting = []
        for pull in state.pulls:
            worker, cut, part = pull
            if state.pushes.get(worker) or cut > self.cut:
                waiting.append(pull)
            elif part is None:
                answered.setdefault(worker, []).append(s)
            else:
                self._out.append(AnswerPart(worker, part[0], s, part[1]))
        state.pulls = waiting

    # -------------------------------------------------------------------------------------------- migration

    def _migrate(self) -> None:
        """At the cut, send away what moves; then see whether the generation is in force here."""
        if self.plan is None or not self.committed:
            return
        generation, moves = self.plan
        if self.cut < generation.number:
            members = () if self.joining else self.current.workers
            marked = self.marked.get(generation.number, set())
            if any(worker not in marked and worker not in self.left for worker in members):
                return
            self.cut = generation.number
            if self.checkpoint:
                self.saving = True
                present = [s for s, state in self.slices.items() if state.present and s not in self.expected]
                self._out.append(SaveSlices(self.checkpoint, present))
            by_target: Dict[str, List[int]] = {}
            for move in moves:
                if move.source == self.name:
                    by_target.setdefault(move.target, []).append(move.slice)
            for target, slices in by_target.items():
                self._send_away(target, generation.number, slices)
            self._serve([s for s, state in self.slices.items() if state.pulls])
        self._settle()

    def _send_away(self, target: str, generation: int, slices: List[int]) -> None:
        versions = []
        for s in slices:
            state = self.slices[s]
            versions.append(state.version)
            waiting = [worker for worker, queue in state.pushes.items() if queue]
            if waiting:
                raise InvalidEvent(self._tell(f"slice {s} is to leave with pushes of {waiting} not applied"))
            del self.slices[s]
        self.leaving.update(slices)
        self._out.append(SendSlices(target, generation, slices, versions))

    def _settle(self) -> None:
        if self.plan is None or not self.committed or self.cut < self.plan[0].number:
            return
        if self.expected or self.leaving or self.saving:
            return
        generation = self.plan[0]
        self.plan, self.committed, self.joining = None, False, False
        self.current = generation
        self.marked = {g: workers for g, workers in self.marked.items() if g > generation.number}
        self._out.append(ReportInForce(generation.number))

    # ---------------------------------------------------------------------------------------------- helpers

    def _known(self, ids: Sequence[int]) -> List[Slice]:
        """The slices, among them those on their way here. Raises InvalidEvent, changing nothing, at any other."""
        coming = {}
        for s in ids:
            if s not in self.slices:
                if self.plan is None or not any(m.slice == s and m.target == self.name for m in self.plan[1]):
                    raise InvalidEvent(self._tell(f"slice {s} is not one of this server's"))
                coming[s] = Slice(False)
        self.slices.update(coming)
        return [self.slices[s] for s in ids]

    def _begin(self, event: str) -> None:
        self.story.append(event)
        self._out = []

    def _end(self) -> List[Instruction]:
        if self.validate:
            self._check()
        return self._out

    def _check(self) -> None:
        """Invariants that tests switch on: nothing completable waits, and what left is not here."""
        for s, state in self.slices.items():
            if s in self.leaving:
                raise InvalidEvent(self._tell(f"slice {s} is here and leaving"))
            if state.present and not state.asynchronous:
                heads = {worker: queue[0][0] for worker, queue in state.pushes.items() if queue}
                if heads and all(heads.get(w) == min(heads.values()) for w in self.workers[min(heads.values())]):
                    raise InvalidEvent(self._tell(f"a complete round of slice {s} waits"))

    def _tell(self, what: str) -> str:
        return "\n  ".join([f"server {self.name}: {what}; the story so far:", *self.story])
