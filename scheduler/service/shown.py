"""What the service answers, as its clients show it on a terminal."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List

import click


def deciding(body: Dict[str, Any]) -> str:
    """Who decides, in a line, and how the learning goes in another."""
    line = f"policy: {body['policy']}" + (f", fallen back: {body['fallen']['why']}" if body["fallen"] else "")
    if body["shadow"]:
        line += f"; {body['shadow']} is asked besides"
    learning = body["learning"]
    if not learning:
        return line
    told = f"{learning['rounds']} rounds, the agent written {learning['written']} times"
    if learning["written"]:
        told += f"; mean JCT {learning['written_jct']} slots where it learns, {learning['start_jct']} as it began"
    if learning["doing"] != "learns":
        told += f"; {learning['doing']}"
    return f"{line}\nlearning {learning['policy']}: {told}"


def task_as_text(task: Dict[str, Any]) -> Dict[str, Any]:
    """A task as `describe` shows it: memory in MB, and whether it runs or how it ended."""
    memory = f"{task['memory'] / 1e6:.0f} MB" if task["memory"] else None
    status = task["status"]
    if status is None:
        return {**task, "memory": memory, "state": "runs"}
    how = f"status {status}" if status >= 0 else f"signal {-status}"
    return {**task, "memory": memory, "state": f"ended: {task['reason'] or how}"}


def decisions(rows: List[Dict[str, Any]]) -> str:
    """What was decided for each job, a line each; by the clock of who reads it."""
    lines = []
    for row in rows:
        at = time.strftime("%H:%M:%S", time.localtime(row["at"]))
        for job in row["jobs"]:
            sizes = {name: f"{size[0]}+{size[1]}" for name, size in job.items() if isinstance(size, list)}
            lines.append({"at": at, "policy": row["policy"], "job": job["job"], **sizes})
    shadow = next((row["shadow"] for row in reversed(rows) if row["shadow"]), "")
    columns = ["at", "policy", "job", "had", "asked", "given"]
    if not lines:
        return "nothing was decided yet"
    if not shadow:
        return table(lines, columns)
    return table([{**line, shadow: line.pop("shadow", "")} for line in lines], [*columns, shadow])


def show(body: Any, as_json: bool, text: str) -> None:
    click.echo(json.dumps(body, indent=2) if as_json else text)


def table(rows: List[Dict[str, Any]], columns: Any) -> str:
    """Rows as aligned text."""
    cells = [list(columns)] + [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in cells)


def cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
