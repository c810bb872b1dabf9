"""What an experiment is: settings to run, what the paper says of it, and how its figure reads. Nothing runs here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

Point = Union[float, str]
Changes = Tuple[Tuple[str, Any], ...]  # of named values, sorted: hashable, and the same text in every run


def changes(**values: Any) -> Changes:
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class Budget:
    """How much is spent on every setting alike.

    Attributes:
        traces: test traces that a figure is the mean of.
        validation: traces that choose the best round of a training.
        watched, updates: traces of the teacher and updates per round of imitation.
        warm: rounds of imitation.
        slots: per round of reinforcement, of all clusters together.
        online: rounds of reinforcement.
        repeats: agents made by each recipe, with seeds of their own; a figure is the mean of theirs.
    """

    traces: int = 6
    validation: int = 1
    watched: int = 3
    updates: int = 200
    warm: int = 8
    slots: int = 200
    online: int = 3
    repeats: int = 1

    def of(self, recipe: Recipe) -> Tuple[int, ...]:
        """What of it the making of an agent takes."""
        first = (self.warm, self.watched, self.updates)
        return first if recipe.online is None else (*first, self.online, self.slots, self.validation)


QUICK = Budget(traces=3, validation=1, watched=1, updates=20, warm=1, slots=120, online=1)


@dataclass(frozen=True)
class Recipe:
    """How a ``dl2`` agent is made.

    Attributes:
        teacher: who is imitated first; empty for nobody.
        params: of the agent, as changes to the paper's values (``Dl2Params()``).
        online: changes for the second phase only; None leaves that phase out.
        types: job types of the traces that are imitated, by index; None for all. The second phase sees all.
        federated: clusters that share one network, each with a replay buffer of its own; 0 for one buffer.
    """

    teacher: str = "drf"
    params: Changes = ()
    online: Optional[Changes] = ()
    types: Optional[Tuple[int, ...]] = None
    federated: int = 0


@dataclass(frozen=True)
class Setting:
    """One bar, or one point of a line.

    Attributes:
        series: the line, or the colour of the bar.
        at: where on the axis.
        who: a policy by name, with the agent that ships if it takes one; or how to make an agent.
        scenario: changes to where it is judged (``Scenario``).
        limit: most servers, and most workers, of one job; 0 as the workload says.
    """

    series: str
    at: Point
    who: Union[str, Recipe]
    scenario: Changes = ()
    limit: int = 0

    @property
    def name(self) -> str:
        return f"{self.series}/{self.at}"

    def digest(self, budget: Budget) -> str:
        """Changes when what would be run changes."""
        spent = (budget.repeats, *budget.of(self.who)) if isinstance(self.who, Recipe) else ()
        what = (self.who, self.scenario, self.limit, budget.traces, spent)
        return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


Row = Dict[str, Any]
Table = Dict[str, Row]  # by Setting.name: jct in slots; curve where something was trained


@dataclass(frozen=True)
class Experiment:
    """A figure of the paper.

    Attributes:
        name: as ``--only`` takes it.
        title, axis: of the figure.
        paper: the paper's outcome in one line, with its number or that it gives none.
        outcome: ours, in the same terms, from the finished table.
        kind: ``lines`` or ``bars`` of mean JCT over the axis, or ``curves`` of validation JCT over slots trained.
        settings: what to run, in order.
        note: how ours differs from the paper's.
    """

    name: str
    title: str
    axis: str
    paper: str
    outcome: Callable[[Table], str]
    kind: str
    settings: Tuple[Setting, ...]
    note: str = ""

    def series(self) -> List[str]:
        return list(dict.fromkeys(setting.series for setting in self.settings))

    def points(self) -> List[Point]:
        return list(dict.fromkeys(setting.at for setting in self.settings))
