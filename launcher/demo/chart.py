"""Draws the demo's chart: throughput, workers and servers over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

WORKERS, SERVERS, THROUGHPUT = "#0072B2", "#D55E00", "#333333"


def draw(summary: Dict[str, Any], path: Path) -> None:
    """Write the chart of a summary (story.py) as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    line = summary["timeline"]
    seconds = [point["seconds"] for point in line]
    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 5.5), height_ratios=(2, 1), layout="constrained"
    )
    rates = [(point["seconds"], point["samples_per_second"]) for point in line if point["samples_per_second"] > 0]
    top.plot(*zip(*rates), color=THROUGHPUT, linewidth=1.5)
    top.set_ylabel("samples per second")
    top.set_ylim(bottom=0)
    top.set_title(
        f"Digits, {summary['steps']} steps with batches of {summary['batch_size']}: "
        f"held-out accuracy {summary['accuracy']:.2%}"
    )
    for name, colour, offset in (("workers", WORKERS, 0.03), ("servers", SERVERS, -0.03)):
        counts = [point[name] + offset for point in line]  # apart, so that equal counts do not hide each other
        bottom.step(seconds, counts, where="post", color=colour, linewidth=2, label=name)
    bottom.set_xlabel("seconds since the first step")
    bottom.set_ylabel("processes")
    bottom.set_ylim(bottom=0)
    bottom.margins(y=0.2)
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.legend(loc="lower right", ncols=2, frameon=False)
    for resize in summary["resizes"]:
        at = resize["at_seconds"]
        for axes in (top, bottom):
            axes.axvline(at, color="#999999", linewidth=0.8, linestyle=":")
        top.annotate(
            resize["kind"], (at, 0.02), xycoords=("data", "axes fraction"), rotation=90, va="bottom", ha="right"
        )
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
