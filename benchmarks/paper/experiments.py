"""The experiments as data, with what the paper says of each.

The paper's figures are of 500 servers and jobs of its own testbed; ours of DL2's small published simulation, or where
its files are not at hand of the workload that ships. So shares are to be compared, not slots.
"""

from __future__ import annotations

from typing import Iterable, Tuple

from benchmarks.paper.settings import Experiment, Setting, Table, changes

NO_NUMBER = "not given as a number"
RIVALS = ("drf", "optimus", "dl2", "dl2x")
EPOCHS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
SPEEDS = (0.0, 0.1, 0.2, 0.3)


def below(table: Table, name: str, rival: str) -> float:
    return float(1 - table[name]["jct"] / table[rival]["jct"])


def _rise(table: Table, series: str, at: Iterable[float]) -> float:
    """How much the mean JCT rises from the first point to the last."""
    points = list(at)
    return float(table[f"{series}/{points[-1]}"]["jct"] / table[f"{series}/{points[0]}"]["jct"] - 1)


def _epochs(table: Table) -> str:
    at = EPOCHS[-1]
    shares = ", ".join(f"{name} {below(table, f'{name}/{at}', f'drf/{at}'):.1%}" for name in RIVALS[1:])
    rises = ", ".join(f"{name} {_rise(table, name, EPOCHS):+.1%}" for name in RIVALS)
    return f"at ±{at:.0%}, below DRF: {shares}; from no error to ±{at:.0%}: {rises}"


def _speeds(table: Table) -> str:
    names = ("drf", "optimus", "optimus-online", "dl2", "dl2x")
    rises = ", ".join(f"{name} {_rise(table, name, SPEEDS):+.1%}" for name in names)
    return f"from no variation to ±{SPEEDS[-1]:.0%}: {rises}"


def _lines(names: Iterable[str], points: Iterable[float], *fields: str) -> Tuple[Setting, ...]:
    return tuple(
        Setting(name, at, name, changes(**{field: at for field in fields}) if at else ())
        for name in names
        for at in points
    )


EXPERIMENTS: Tuple[Experiment, ...] = (
    Experiment(
        name="epochs",
        title="Epochs misjudged (the paper's section 6.4)",
        axis="true epochs differ from the estimate by up to",
        paper=NO_NUMBER,
        outcome=_epochs,
        kind="lines",
        settings=_lines(RIVALS, EPOCHS, "epoch_error"),
    ),
    Experiment(
        name="variation",
        title="Speeds vary (the paper's figure 13)",
        axis="true speeds deviate from the estimate, and from slot to slot, by up to",
        paper=f"Optimus is more sensitive than DL2; {NO_NUMBER}",
        outcome=_speeds,
        kind="lines",
        settings=_lines(("drf", "optimus", "optimus-online", "dl2", "dl2x"), SPEEDS, "speed_error", "speed_variation"),
    ),
)


def named(names: Iterable[str]) -> Tuple[Experiment, ...]:
    """The experiments of these names, in their own order; all if there are none.

    Raises:
        ValueError: no such experiment; the message lists those there are.
    """
    wanted = list(names)
    known = [experiment.name for experiment in EXPERIMENTS]
    for name in wanted:
        if name not in known:
            raise ValueError(f"no experiment {name!r}: choose among {', '.join(known)}")
    return tuple(experiment for experiment in EXPERIMENTS if not wanted or experiment.name in wanted)
