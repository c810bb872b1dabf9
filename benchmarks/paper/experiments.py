"""The experiments as data, with what the paper says of each.

The paper's figures are of 500 servers and jobs of its own testbed; ours of DL2's small published simulation, or where
its files are not at hand of the workload that ships. So shares are to be compared, not slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Tuple

from benchmarks.paper.settings import Experiment, Recipe, Setting, Table, changes

NO_NUMBER = "not given as a number"
UNKNOWN = "no number at hand"  # we have not the text of that section
# What departs from the paper's values: jobs begin with a pair, as in its authors' code, and all nodes are tried.
BASE = changes(pairs=True, fill=True)
# And in the second phase, which is short here: three times the step size, which needs a value network that is learnt
# first, credit for each step, advantages around zero, a small entropy bonus, and weights for replayed decisions.
SHORT = {"online_rate": 3e-4, "critic_rate": 1e-3, "critic_first": 150, "stepwise": True, "centred": True}
SHORT.update(entropy=0.01, clip=1.0)
BOTH = Recipe("drf", BASE, changes(**SHORT))  # imitation of DRF, the paper's default, then actor-critic
IMITATION = replace(BOTH, online=None)
RIVALS = ("drf", "optimus", "dl2", "dl2x")
BEATEN = ("drf", "optimus", "offline-rl")
TEACHERS = ("fifo", "srtf", "drf")
WINDOWS = (10, 20, 40)
CLUSTERS = (1, 4)
SEEN = (0, 2, 3, 5, 7)  # job types in the imitation; vgg-16, seq2seq and dssm come with the second phase
EPOCHS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
SPEEDS = (0.0, 0.1, 0.2, 0.3)


def below(table: Table, name: str, rival: str) -> float:
    return float(1 - table[name]["jct"] / table[rival]["jct"])


def _rise(table: Table, series: str, at: Iterable[float]) -> float:
    """How much the mean JCT rises from the first point to the last."""
    points = list(at)
    return float(table[f"{series}/{points[-1]}"]["jct"] / table[f"{series}/{points[0]}"]["jct"] - 1)


def _comparison(table: Table) -> str:
    def shares(name: str) -> str:
        parts = [f"{below(table, f'mean JCT/{name}', f'mean JCT/{rival}'):.1%} below {rival}" for rival in BEATEN]
        return f"{name} " + ", ".join(parts)

    return "; ".join(shares(name) for name in ("dl2", "dl2x"))


def _epochs(table: Table) -> str:
    at = EPOCHS[-1]
    shares = ", ".join(f"{name} {below(table, f'{name}/{at}', f'drf/{at}'):.1%}" for name in RIVALS[1:])
    rises = ", ".join(f"{name} {_rise(table, name, EPOCHS):+.1%}" for name in RIVALS)
    return f"at ±{at:.0%}, below DRF: {shares}; from no error to ±{at:.0%}: {rises}"


def _speeds(table: Table) -> str:
    names = ("drf", "optimus", "optimus-online", "dl2", "dl2x")
    rises = ", ".join(f"{name} {_rise(table, name, SPEEDS):+.1%}" for name in names)
    return f"from no variation to ±{SPEEDS[-1]:.0%}: {rises}"


def _teachers(table: Table) -> str:
    parts = []
    for name in TEACHERS:
        shares = [below(table, f"{series}/{name}", f"teacher/{name}") for series in ("imitation", "both phases")]
        parts.append(f"{name} {shares[0]:.1%} after imitation, {shares[1]:.1%} after both phases")
    return "below the teacher: " + "; ".join(parts)


def _windows(table: Table) -> str:
    return ", ".join(f"J = {size} {table[f'both phases/{size}']['jct']:.2f}" for size in WINDOWS) + " slots"


def _unseen(table: Table) -> str:
    all_types, some = table["all types/imitation"], table["5 of 8 types/imitation"]
    ends = [table[f"{series}/both phases"]["jct"] for series in ("all types", "5 of 8 types")]
    before, after = some["jct"] / all_types["jct"] - 1, ends[1] / ends[0] - 1
    return f"beside an agent that has seen all types: {before:+.1%} before the second phase, {after:+.1%} after it"


def _ablation(table: Table) -> str:
    whole = table["JCT/all"]["jct"]
    return ", ".join(f"{at} {table[f'JCT/{at}']['jct'] / whole - 1:+.1%}" for at in list(ABLATED)[1:])


def _federation(table: Table) -> str:
    jct = [table[f"{x} clusters/{x}"]["jct"] for x in CLUSTERS]
    level = 1.05 * min(y for _, y in table[f"{CLUSTERS[0]} clusters/{CLUSTERS[0]}"]["curve"])
    slots = []
    for x in CLUSTERS:
        reached = [at / x for at, y in table[f"{x} clusters/{x}"]["curve"] if y <= level]
        slots.append(f"{reached[0]:.0f}" if reached else "never")
    spread = max(jct) / min(jct) - 1
    names = " and ".join(map(str, CLUSTERS))
    text = f"mean JCTs of {names} clusters within {spread:.1%} of each other; slots of each cluster until within 5 % "
    return text + f"of the best of {CLUSTERS[0]} alone: {' and '.join(slots)}"


def _lines(names: Iterable[str], points: Iterable[float], *fields: str) -> Tuple[Setting, ...]:
    return tuple(
        Setting(name, at, name, changes(**{field: at for field in fields}) if at else ())
        for name in names
        for at in points
    )


ABLATED = {
    "all": changes(**SHORT),
    "without actor-critic": changes(**SHORT, actor_critic=False),
    "without job-aware exploration": changes(**SHORT, explore=0.0),
    "without replay": changes(**SHORT, replay=256),
}

EXPERIMENTS: Tuple[Experiment, ...] = (
    Experiment(
        name="comparison",
        title="Rivals (the paper's figure 9)",
        axis="",
        paper="DL2 44.1 % below DRF, 17.5 % below Optimus, 37.9 % below OfflineRL",
        outcome=_comparison,
        kind="bars",
        settings=tuple(Setting("mean JCT", name, name) for name in (*BEATEN, "dl2", "dl2x")),
        note="The paper's is of its testbed. Tetris is left out: it keeps to few jobs at a time, and starves the rest.",
    ),
    Experiment(
        name="epochs",
        title="Epochs misjudged (the paper's section 6.4)",
        axis="true epochs differ from the estimate by up to",
        paper=UNKNOWN,
        outcome=_epochs,
        kind="lines",
        settings=_lines(RIVALS, EPOCHS, "epoch_error"),
        note="Optimus sees nothing to gain for a job that outlives its estimate, and leaves it the least.",
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
    Experiment(
        name="teachers",
        title="Schedulers to imitate (the paper's figure 16)",
        axis="teacher",
        paper="41.3 % speedup over SRTF with both phases; the others " + NO_NUMBER,
        outcome=_teachers,
        kind="bars",
        settings=tuple(
            Setting(series, name, who, limit=8)
            for name in TEACHERS
            for series, who in (
                ("teacher", name),
                ("imitation", replace(IMITATION, teacher=name)),
                ("both phases", replace(BOTH, teacher=name)),
            )
        ),
        note="At most 8 servers and 8 workers a job, as in the authors' code for this figure.",
    ),
    Experiment(
        name="jobs",
        title="Jobs that the network sees at once, J (the paper's figure 17)",
        axis="J",
        paper=UNKNOWN,
        outcome=_windows,
        kind="lines",
        settings=tuple(
            Setting(series, size, replace(recipe, params=changes(**{**dict(BASE), "jobs": size})))
            for series, recipe in (("imitation", IMITATION), ("both phases", BOTH))
            for size in WINDOWS
        ),
    ),
    Experiment(
        name="unseen",
        title="Job types that come with the second phase (the paper's figure 15)",
        axis="phase",
        paper=UNKNOWN,
        outcome=_unseen,
        kind="bars",
        settings=tuple(
            Setting(series, at, replace(recipe, types=types))
            for series, types in (("all types", None), ("5 of 8 types", SEEN))
            for at, recipe in (("imitation", IMITATION), ("both phases", BOTH))
        ),
    ),
    Experiment(
        name="ablation",
        title="What the second phase needs (the paper's table 2)",
        axis="",
        paper="without actor-critic 21.1 % worse, without job-aware exploration 28.8 %, without replay 39.6 %",
        outcome=_ablation,
        kind="bars",
        settings=tuple(Setting("JCT", at, replace(BOTH, online=how)) for at, how in ABLATED.items()),
        note="Without actor-critic the baseline is the mean reward of the buffer; without replay the buffer holds 256. "
        "Every job has a pair from the start, so exploration only mends lopsided jobs.",
    ),
    Experiment(
        name="federation",
        title="Clusters that learn together (the paper's figure 18)",
        axis="slots of all clusters together",
        paper="the JCT stays stable, and x clusters converge almost x times faster; " + NO_NUMBER,
        outcome=_federation,
        kind="curves",
        settings=tuple(
            Setting(f"{x} clusters", x, replace(BOTH, online=changes(**SHORT, replay=8192 // x), federated=x))
            for x in CLUSTERS
        ),
        note="The clusters' replay buffers are as large together as the one of a single cluster.",
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
