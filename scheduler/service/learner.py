"""The process that ``serve --learn`` runs beside the service: fine-tunes its agent on what the record tells, for ever.

It learns by reinforcement on a simulated cluster with the record's nodes and measured speeds and with jobs drawn from
the record's, writes the agent whenever it is better there than the one written before, and estimates what the
fallback would have made of the jobs at hand. It runs at the lowest priority and ends with the service.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch

from scheduler.learn import checkpoint
from scheduler.learn.dl2x_training import PpoParams
from scheduler.learn.recorded import Recorded, from_store
from scheduler.learn.scenario import VALIDATION, Held
from scheduler.learn.train import SESSIONS, Session
from scheduler.policies import make
from scheduler.service.decider import digest, in_force, made_from, policy_of
from scheduler.service.estimate import expected_jcts
from scheduler.service.store import Store, StoreError
from scheduler.simulator import Simulator

LEAST_JOBS = 4  # in the record before learning begins
LATEST = 256  # decisions that are read for the nodes and the speeds
EVERY = 2  # rounds between validations
VALIDATIONS = 4  # traces
STRAYED = 1.05  # an agent that is so much worse is dropped, and learning goes on from the one that was written
IDLE_ROUNDS = 40  # rounds without a new decision, after which learning waits for one
ROUND: Dict[str, Dict[str, Any]] = {  # a round takes about a second
    "dl2x": {  # plans are rolled out
        "params": PpoParams(rate=1e-3, own_slots=0, epochs=2, batch=64, clusters=4, slots=8, stagger=20)
    },
    "dl2": {"slots": 200},
}


class Latest(Held):
    """The record as it was read last: what is drawn changes as it grows."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.seed = recorded, recorded.seed

    def simulator(self, rng: np.random.Generator) -> Simulator:
        return self.recorded.simulator(rng)

    def held_out(self, count: int, stream: int = VALIDATION) -> List[Simulator]:
        return self.recorded.held_out(count, stream)

    def training_rng(self) -> np.random.Generator:
        return self.recorded.training_rng()

    def type_names(self) -> List[str]:
        return self.recorded.type_names()


class Learner:
    """Args: the record, the policy to learn, the agent's file to begin with, the file to write, the safe policy."""

    def __init__(self, store: Store, policy: str, start: Path, file: Path, fallback: str) -> None:
        self.store, self.policy, self.file = store, policy, file
        self._fallback, self.origin = fallback, digest(start)
        self._start = checkpoint.load(start)
        self._written = checkpoint.load(file) if made_from(file) == self.origin else self._start
        if not finite(self._start):
            raise ValueError(f"agent {start} has weights that are not finite: nothing can be learnt from it")
        self._scenario: Optional[Latest] = None
        self._session: Optional[Session] = None  # that learns
        self._best: Optional[Session] = None  # as was written last
        self._first: Optional[Session] = None  # as it began
        self._told: Dict[str, Any] = {"policy": policy, "rounds": 0, "written": 0}
        self._newest, self._idle = -1, 0
        self._estimated: Any = None  # what the last estimate was made from
        self._tell(f"waits for {LEAST_JOBS} jobs in the record")

    def round(self) -> bool:
        """Estimates, and learns for one round; False where there is nothing to learn from."""
        newest = self.store.last_decision()
        if newest is None:
            return False
        self._estimate(newest.id)
        if newest.id == self._newest and self._idle >= IDLE_ROUNDS:
            self._tell("waits for something new in the record")
            return False
        self._idle = self._idle + 1 if newest.id == self._newest else 0
        if newest.id != self._newest and not self._read(newest.id):
            return False
        assert self._session is not None
        self._session.online_round()
        self._told["rounds"] += 1
        if self._told["rounds"] % EVERY == 0:
            self._validate()
        self._tell("learns")
        return True

    def _tell(self, doing: str) -> None:
        """Has the record tell how the learning goes."""
        if doing != self._told.get("doing") or doing == "learns":
            self._told.update(doing=doing, at=time.time())
            self.store.set("learning", self._told)

    def _read(self, newest: int) -> bool:
        try:
            recorded = from_store(self.store, latest=LATEST)
        except ValueError:  # nothing in it yet
            return False
        if len(recorded.kinds) < LEAST_JOBS:
            return False
        self._newest = newest
        if self._scenario is None:
            self._scenario = Latest(recorded)
            self._session, self._best = self._begin(self._written), self._begin(self._written)
            self._first = self._begin(self._start)
        self._scenario.recorded = recorded
        return True

    def _begin(self, agent: Dict[str, Any]) -> Session:
        session: Session = SESSIONS[self.policy](self._scenario, make("greedy-fit"), **ROUND[self.policy])
        session.adopt(agent, "that is learnt")
        return session

    def _validate(self) -> None:
        """Writes the agent if it is better than the one written before; drops it if it is much worse."""
        assert self._session is not None and self._best is not None and self._first is not None
        now, best = self._jct(self._session), self._jct(self._best)
        if now < best:
            made = {"start": self.origin, "rounds": self._told["rounds"], "jct": now}
            self._written = {**self._session.agent(), "made": made}
            checkpoint.save(self._written, self.file)
            self._best.adopt(checkpoint.load(self.file), str(self.file))
            self._told["written"] += 1
            self._told.update(written_jct=_number(now), start_jct=_number(self._jct(self._first)))
        elif not now <= STRAYED * best:
            self._session.adopt(self._written, "that is learnt")  # other draws than those that led astray follow
        self._told.update(jct=_number(now))

    def _jct(self, session: Session) -> float:
        """On the validation traces, slots; infinite for an agent that fails or starves jobs."""
        if not finite(session.agent()):
            return float("inf")
        try:
            return session.validate(VALIDATIONS)
        except (ValueError, RuntimeError):
            return float("inf")

    def _estimate(self, newest: int) -> None:
        since, fallen = in_force(self.store)
        if since.get("policy") != self.policy or fallen or self._estimated == (newest, since):
            return
        jcts = expected_jcts(self.store, policy_of(self._fallback), float(since["at"]))
        self.store.set("expected", {"since": since["at"], "jcts": jcts})
        self._estimated = (newest, since)


def finite(data: Any) -> bool:
    """Whether all tensors in a checkpoint are."""
    if isinstance(data, dict):
        return all(finite(value) for value in data.values())
    return not isinstance(data, torch.Tensor) or bool(torch.isfinite(data).all())


def _number(value: float) -> Optional[float]:
    return round(value, 3) if np.isfinite(value) else None


def main() -> None:
    """Learns until standard input, of which the first line is the settings (JSON), is closed."""
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    os.nice(19)
    torch.set_num_threads(1)
    try:
        store = Store(settings["record"], as_it_is=True)
        files = Path(settings["start"]), Path(settings["file"])
        learner = Learner(store, settings["policy"], *files, settings["fallback"])
        while True:
            began = time.monotonic()
            if digest(files[0]) != learner.origin:  # another agent was put in its place
                learner = Learner(store, settings["policy"], *files, settings["fallback"])
            learner.round()
            time.sleep(max(settings["pause"], time.monotonic() - began))  # half of one core at most
    except (StoreError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
