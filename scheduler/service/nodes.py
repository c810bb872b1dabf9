"""The local cluster's nodes: this machine, or parts of it as a file declares them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import List, Mapping

from scheduler.service.slot import Node
from scheduler.service.spec import GIB, SpecError, parse_memory, read_yaml

NODE_FIELDS = ("name", "cpus", "memory", "gpus", "cores")


def this_machine() -> List[Node]:
    """This machine as one node: the cores that this process may use, and its memory."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return [Node("local", (float(len(cores)), memory, 0.0), cores)]


def read_nodes(path: Path) -> List[Node]:
    """Nodes from a YAML list of name, cpus, memory, gpus (0), and cores (any).

    Raises:
        SpecError: the file is no such list; one line.
    """
    rows = read_yaml(path).value
    rows = rows.get("nodes") if isinstance(rows, Mapping) else rows
    if not isinstance(rows, list) or not rows:
        raise SpecError(f"{path}: a list of nodes is needed, each with name, cpus and memory")
    nodes = []
    for number, row in enumerate(rows):
        where = f"{path}: node {number}"
        if not isinstance(row, Mapping) or not {"name", "cpus", "memory"} <= set(row):
            raise SpecError(f"{where}: name, cpus and memory are needed, not {row!r}")
        unknown = sorted(set(map(str, row)) - set(NODE_FIELDS))
        if unknown:
            raise SpecError(f"{where}: there is no field {unknown[0]!r}: there are {', '.join(NODE_FIELDS)}")
        try:
            capacity = (float(row["cpus"]), parse_memory(row["memory"]) / GIB, float(row.get("gpus", 0)))
            if not (0 < capacity[0] < math.inf and 0 < capacity[1] < math.inf and 0 <= capacity[2] < math.inf):
                raise ValueError(f"cpus and memory are more than 0, gpus 0 or more, not {row!r}")
            cores = tuple(int(core) for core in row.get("cores", ()))
        except (TypeError, ValueError) as error:
            raise SpecError(f"{where}: {error}") from error
        if not set(cores) <= os.sched_getaffinity(0):
            raise SpecError(f"{where}: cores {list(cores)} are not all there: {sorted(os.sched_getaffinity(0))} are")
        nodes.append(Node(str(row["name"]), capacity, cores))
    if len({node.name for node in nodes}) < len(nodes):
        raise SpecError(f"{path}: two nodes have the same name")
    return nodes
