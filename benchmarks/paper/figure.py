"""Draws an experiment's figure as a small PNG, in colours that the colour-blind tell apart (Okabe and Ito)."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.paper.settings import Experiment, Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = "os^Dv<>"
DASHES = ("-", "--", "-.", ":", "-", "--", "-.")


def draw(experiment: Experiment, table: Table, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    figure, axes = pyplot.subplots(figsize=(5.6, 3.2), layout="constrained")
    {"lines": _lines, "bars": _bars, "curves": _curves}[experiment.kind](axes, experiment, table)
    axes.set_title(experiment.title, fontsize=10)
    axes.set_xlabel(experiment.axis)
    axes.set_ylabel("mean JCT, slots")
    axes.spines[["top", "right"]].set_visible(False)
    if len(experiment.series()) > 1:
        axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    with Image.open(path) as image:  # a palette, without what does not show: a third of the size
        small = image.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def _lines(axes: Any, experiment: Experiment, table: Table) -> None:
    for k, series in enumerate(experiment.series()):
        mine = [setting for setting in experiment.settings if setting.series == series]
        at, jct = [setting.at for setting in mine], [table[setting.name]["jct"] for setting in mine]
        axes.plot(at, jct, DASHES[k], color=COLOURS[k], marker=MARKS[k], markersize=4, label=series)
    axes.set_ylim(bottom=0)


def _bars(axes: Any, experiment: Experiment, table: Table) -> None:
    series, points = experiment.series(), experiment.points()
    width = 0.8 / len(series)
    for k, name in enumerate(series):
        mine = [setting for setting in experiment.settings if setting.series == name]
        x = [points.index(setting.at) + (k - (len(series) - 1) / 2) * width for setting in mine]
        jct = [table[setting.name]["jct"] for setting in mine]
        bars = axes.bar(x, jct, 0.9 * width, color=COLOURS[k], label=name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
    axes.set_xticks(range(len(points)), [fill(str(point), 16) for point in points])


def _curves(axes: Any, experiment: Experiment, table: Table) -> None:
    for k, setting in enumerate(s for s in experiment.settings if table[s.name].get("curve")):
        slots, jct = zip(*table[setting.name]["curve"])
        axes.plot(slots, jct, DASHES[k], color=COLOURS[k], marker=MARKS[k], markersize=3, label=setting.series)
