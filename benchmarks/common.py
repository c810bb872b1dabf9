"""What all benchmarks share: the machine's description, the models' key shapes, tables and JSON on the last line."""

from __future__ import annotations

import json
import os
import platform
import statistics
from importlib.metadata import version
from typing import Any, Dict, List, Sequence, Tuple

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
Shapes = List[Tuple[int, ...]]


def machine() -> str:
    """One line: processor, cores, memory, kernel and the versions that matter."""
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = " ".join(f"{name} {version(name)}" for name in ("mxnet", "numpy", "pyzmq"))
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}; load before the run {load:.1f}"
    )


def resnet50() -> Shapes:
    """The shapes of ResNet-50's 161 parameters with gradients, 25.6 M numbers: 54 kernels, 53 pairs, and the output."""
    shapes: Shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for kernel in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [kernel, kernel[:1], kernel[:1]]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def vgg16() -> Shapes:
    """The shapes of VGG-16's 32 parameters, 138 M numbers."""
    shapes: Shapes = []
    channels = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            shapes += [(width, channels, 3, 3), (width,)]
            channels = width
    for wide, narrow in ((25088, 4096), (4096, 4096), (4096, 1000)):
        shapes += [(narrow, wide), (narrow,)]
    return shapes


def keys(name: str) -> Shapes:
    """The shapes of the keys that `--keys` names; `tiny` is for tests."""
    return {
        "resnet50": resnet50,
        "vgg16": vgg16,
        "small": lambda: [(128,)] * 200,
        "big": lambda: [(25_000_000,)],
        "tiny": lambda: [(300, 10), (7,), (1,)],
    }[name]()  # type: ignore[no-any-return]


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown, its columns aligned."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def finish(result: Dict[str, Any], as_json: bool) -> None:
    """Print the result as the last line where JSON was asked for."""
    if as_json:
        print(json.dumps(result), flush=True)
