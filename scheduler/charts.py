"""Draws charts as SVG text, for pages that must be readable offline. What is charted, and the page, are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import List, Sequence, Tuple

import numpy as np

from scheduler.core import Array

# Ten hues that stay apart on white and on black; the text beside a mark always names it too.
COLOURS = (
    "#3266cc",
    "#d9662b",
    "#2a9d62",
    "#b8429b",
    "#c9a227",
    "#0f9fb0",
    "#8a6b4f",
    "#7a5cd6",
    "#c23b4e",
    "#6b8f1a",
)
WIDE, NARROW = 1100, 540  # widths of a chart alone on its row and of one of two
HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 38
MOST_POINTS = 800


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


@dataclass(frozen=True)
class Series:
    """A named line or band: x and y, float64 [k] each, and its colour."""

    name: str
    x: Array
    y: Array
    colour: str


def line_chart(series: Sequence[Series], x_label: str, y_label: str, y_top: float = 0.0, percent: bool = False) -> str:
    """Lines over common axes that begin at zero; ``y_top`` fixes the top, else the largest y does."""
    x_top = max((float(s.x.max()) for s in series if len(s.x)), default=1.0)
    top = y_top or max((float(s.y.max()) for s in series if len(s.y)), default=1.0)
    axes = _Axes(WIDE, x_top, top, percent)
    marks = [
        f'<polyline fill="none" stroke="{s.colour}" stroke-width="2" stroke-linejoin="round" '
        f'points="{axes.points(*_thin(s.x, s.y))}"><title>{escape(s.name)}</title></polyline>'
        for s in series
    ]
    return axes.svg(marks, x_label, y_label)


def area_chart(series: Sequence[Series], x_label: str, y_label: str, x_top: float, y_top: float) -> str:
    """Bands stacked in the order given; all series share one x. The tops are given so that charts compare."""
    axes = _Axes(NARROW, x_top, y_top)
    marks: List[str] = []
    below = np.zeros(len(series[0].y) if series else 0)
    for s in series:
        above = below + s.y
        x, low = _thin(s.x, below)
        _, high = _thin(s.x, above)
        outline = axes.points(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
        marks.append(f'<polygon fill="{s.colour}" points="{outline}"><title>{escape(s.name)}</title></polygon>')
        below = above
    return axes.svg(marks, x_label, y_label)


def legend(entries: Sequence[Tuple[str, str]]) -> str:
    """Names with their colours, as HTML."""
    items = "".join(
        f'<li><span class="swatch" style="background:{shade}"></span>{escape(name)}</li>' for name, shade in entries
    )
    return f'<ul class="legend">{items}</ul>'


def steps(x: Array, y: Array) -> Tuple[Array, Array]:
    """The corners of a staircase that takes the value y[k] from x[k] on; float64 [2k - 1] each."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


class _Axes:
    """Maps data to the plane of an SVG and draws frame, grid and labels."""

    def __init__(self, width: int, x_top: float, y_top: float, percent: bool = False) -> None:
        self.width = width
        self.x_ticks, self.y_ticks = nice_ticks(x_top), nice_ticks(y_top)
        self.x_top = max(x_top, 1e-12)
        self.y_top = max(y_top, self.y_ticks[-1], 1e-12)
        self.percent = percent

    def points(self, x: Array, y: Array) -> str:
        px = LEFT + np.asarray(x) / self.x_top * (self.width - LEFT - RIGHT)
        py = HEIGHT - BOTTOM - np.asarray(y) / self.y_top * (HEIGHT - TOP - BOTTOM)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py))

    def svg(self, marks: Sequence[str], x_label: str, y_label: str) -> str:
        parts: List[str] = []
        right, floor = self.width - RIGHT, HEIGHT - BOTTOM
        for tick in self.y_ticks:
            _, y = self.points(np.zeros(1), np.array([tick])).split(",")
            text = f"{tick:.0%}" if self.percent else f"{tick:g}"
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{text}</text>')
        for tick in self.x_ticks:
            x, _ = self.points(np.array([tick]), np.zeros(1)).split(",")
            parts.append(f'<text x="{x}" y="{floor + 17}" text-anchor="middle">{tick:g}</text>')
        middle = (LEFT + right) / 2
        parts += marks
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
        turn = f"translate(13 {(TOP + floor) / 2:.0f}) rotate(-90)"
        parts.append(f'<text transform="{turn}" text-anchor="middle">{escape(y_label)}</text>')
        label = escape(f"{y_label} over {x_label}")
        return f'<svg viewBox="0 0 {self.width} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def nice_ticks(top: float, about: int = 5) -> List[float]:
    """Round numbers from 0 up to ``top``, some ``about`` of them."""
    if not top > 0:
        return [0.0]
    rough = top / about
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(float(m * power) for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [float(f"{k * step:.6g}") for k in range(int(top / step + 1e-9) + 1)]


def _thin(x: Array, y: Array) -> Tuple[Array, Array]:
    """At most ``MOST_POINTS`` points, first and last among them."""
    if len(x) <= MOST_POINTS:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).astype(int))
    return x[keep], y[keep]
