"""Writes what a simulation found as one HTML page that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import numpy as np

from scheduler.charts import Series, area_chart, colour, legend, line_chart, steps
from scheduler.core import Array
from scheduler.evaluate import RunResult
from scheduler.workload import Workload

Column = Tuple[str, str, int]

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#d9dde2;--page:#fff;--card:#f6f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a3abb6;--line:#3a4048;--page:#15181c;--card:#1e2227}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1180px;margin:0 auto;
padding:24px 16px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:36px 0 4px}h3{font-size:15px;margin:0 0 4px}
p{color:var(--soft);margin:4px 0 12px;max-width:80ch}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}tr.best td{font-weight:700}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
.card{background:var(--card);border-radius:8px;padding:12px}
svg{width:100%;height:auto;display:block}svg text{font-size:12px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.wide svg{min-width:720px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:4px 0 8px}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
"""


def write_report(
    directory: Path,
    workload: Workload,
    results: Dict[str, List[RunResult]],
    table: Dict[str, Dict[str, float]],
    columns: Sequence[Column],
    percent: Sequence[str],
) -> Path:
    """Writes ``index.html`` into the directory, which is made if need be.

    Args:
        results: by policy, one per trace; recorded, so that allocations can be shown.
        table: by policy the fields of a summary.
        columns: field, heading and digits of the summary's columns; ``percent`` fields are shares.
    """
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "index.html"
    page.write_text(_page(workload, results, table, columns, percent), encoding="utf-8")
    return page


def _page(
    workload: Workload,
    results: Dict[str, List[RunResult]],
    table: Dict[str, Dict[str, float]],
    columns: Sequence[Column],
    percent: Sequence[str],
) -> str:
    runs = next(iter(results.values()))
    jobs = sum(len(run.jct) for run in runs)
    title = f"Scheduling {workload.name}"
    first = escape(runs[0].trace)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{workload.nodes} nodes, {len(runs)} traces with {jobs} jobs in all, slots of {workload.slot_seconds:g} s. "
        "All times are in slots.</p>",
        "<h2>Summary</h2><p>The bound is the mean JCT with no contention, each job alone at its best size; “DRF→bound” "
        "is the share of the way from DRF to that bound. Means over traces; median and p90 over all jobs.</p>",
        _table(table, columns, percent),
        "<h2>Job completion times</h2><p>The share of jobs that took no longer than so many slots, over all traces. "
        "Grey: the bound.</p>",
        _cdf(results),
        f"<h2>Utilisation</h2><p>The share in use of the resource that is used most, slot by slot; trace {first}.</p>",
        _utilisation(results, workload),
        f"<h2>Allocations</h2><p>Servers and workers by job type, slot by slot; trace {first}.</p>",
        _allocations(results, workload),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _table(table: Dict[str, Dict[str, float]], columns: Sequence[Column], percent: Sequence[str]) -> str:
    shown = [column for column in columns if any(column[0] in row for row in table.values())]
    head = "".join(f"<th>{escape(heading)}</th>" for _, heading, _ in shown)
    best = min(row["mean_jct"] for row in table.values())
    rows = []
    for name, row in table.items():
        cells = "".join(
            f"<td>{row[f] * 100:.{digits}f} %</td>" if f in percent else f"<td>{row[f]:.{digits}f}</td>"
            for f, _, digits in shown
        )
        mark = ' class="best"' if row["mean_jct"] == best else ""
        rows.append(f"<tr{mark}><td>{escape(name)}</td>{cells}</tr>")
    return f'<div class="scroll"><table><tr><th>policy</th>{head}</tr>{"".join(rows)}</table></div>'


def _cdf(results: Dict[str, List[RunResult]]) -> str:
    series = []
    bound = np.concatenate([run.bound for run in next(iter(results.values()))])
    for index, (name, runs) in enumerate([("bound", None), *results.items()]):
        times = np.sort(bound if runs is None else np.concatenate([run.jct for run in runs]))
        x, y = steps(np.concatenate([[0.0], times]), np.arange(len(times) + 1) / len(times))
        series.append(Series(name, x, y, "#9aa1ab" if runs is None else colour(index - 1)))
    chart = line_chart(series, "JCT, slots", "share of jobs", y_top=1.0, percent=True)
    return _card(series, chart)


def _utilisation(results: Dict[str, List[RunResult]], workload: Workload) -> str:
    totals = workload.capacity.sum(axis=0)
    series = []
    for index, (name, runs) in enumerate(results.items()):
        share = (runs[0].used / np.where(totals > 0, totals, np.inf)).max(axis=1)
        x, y = steps(np.arange(len(share) + 1.0), np.append(share, share[-1:]))
        series.append(Series(name, x, y, colour(index)))
    chart = line_chart(series, "slot", "in use", y_top=1.0, percent=True)
    return _card(series, chart)


def _card(series: Sequence[Series], chart: str) -> str:
    names = legend([(s.name, s.colour) for s in series])
    return f'<div class="card">{names}<div class="scroll wide">{chart}</div></div>'


def _allocations(results: Dict[str, List[RunResult]], workload: Workload) -> str:
    names = [kind.name for kind in workload.types]
    tasks = {name: _tasks_by_type(runs[0], len(names)) for name, runs in results.items()}
    busiest = np.argsort(-sum(t.sum(axis=0) for t in tasks.values()), kind="stable")
    shown = [int(t) for t in busiest[:8] if any(tasks[p][:, t].any() for p in tasks)]
    others = [t for t in range(len(names)) if t not in shown]
    top = max(float(t.sum(axis=1).max(initial=0)) for t in tasks.values())
    slots = float(max(len(t) for t in tasks.values()))
    entries = [(names[t], colour(k)) for k, t in enumerate(shown)]
    if others and any(t[:, others].any() for t in tasks.values()):
        entries.append((f"{len(others)} other types", "#9aa1ab"))
    cards = []
    for policy, counts in tasks.items():
        bands = [counts[:, t] for t in shown]
        if len(entries) > len(shown):
            bands.append(counts[:, others].sum(axis=1))
        x = np.arange(len(counts) + 1.0)
        series = [
            Series(name, *steps(x, np.append(band, band[-1:])), shade) for (name, shade), band in zip(entries, bands)
        ]
        chart = area_chart(series, "slot", "tasks", x_top=slots, y_top=top)
        cards.append(f'<div class="card"><h3>{escape(policy)}</h3>{chart}</div>')
    return f'{legend(entries)}<div class="pair">{"".join(cards)}</div>'


def _tasks_by_type(run: RunResult, types: int) -> Array:
    """Servers and workers in all by slot and job type, float64 [slots, types]."""
    counts = np.zeros((len(run.history), types))
    for slot, (jobs, servers, workers) in enumerate(run.history):
        counts[slot] = np.bincount(run.type_index[jobs], weights=servers + workers, minlength=types)
    return counts
