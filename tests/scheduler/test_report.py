"""The report is one well-formed page that needs no network, and its charts say what the results say."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from launcher.cli import main
from scheduler.charts import Series, line_chart, nice_ticks, steps


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("reports") / "one"
    arguments = ["simulate", "--policies", "drf,greedy-fit", "--draw", "1", "--jobs", "20", "--report", str(directory)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "index.html" in result.stderr
    return (directory / "index.html").read_text(encoding="utf-8")


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", page)


def test_it_holds_the_table_and_a_chart_of_each_kind(page: str) -> None:
    assert page.count("<svg") == 2 + 2  # JCT, utilisation, and allocations of each policy
    for text in ("mean JCT", "p90", "DRF→bound", "Job completion times", "Utilisation", "Allocations", "resnet-50"):
        assert text in page
    assert page.count("<td>greedy-fit</td>") == 1


def test_every_chart_is_well_formed_and_within_its_frame(page: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        root = ElementTree.fromstring(svg)
        width, height = (float(x) for x in root.attrib["viewBox"].split()[2:])
        marks = root.findall("polyline") + root.findall("polygon")
        assert marks
        for mark in marks:
            points = np.array([[float(v) for v in p.split(",")] for p in mark.attrib["points"].split()])
            assert np.isfinite(points).all()
            assert points.min() >= 0
            assert (points[:, 0] <= width).all()
            assert (points[:, 1] <= height).all()


def test_names_are_escaped() -> None:
    chart = line_chart([Series("<b>&", np.array([0.0, 1.0]), np.array([0.0, 1.0]), "#000")], "x", "y")
    ElementTree.fromstring(chart)
    assert "&lt;b&gt;&amp;" in chart


def test_ticks_are_round_and_cover_the_range() -> None:
    assert nice_ticks(1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(713) == [0.0, 200.0, 400.0, 600.0]
    assert nice_ticks(0) == [0.0]


def test_a_staircase_keeps_its_value_until_the_next() -> None:
    x, y = steps(np.array([0.0, 1.0, 3.0]), np.array([5.0, 7.0, 7.0]))
    assert x.tolist() == [0, 1, 1, 3, 3]
    assert y.tolist() == [5, 5, 7, 7, 7]


def test_a_report_cannot_replace_a_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("keep")
    result = CliRunner().invoke(main, ["simulate", "--policies", "drf", "--report", str(target)])
    assert result.exit_code == 2
    assert target.read_text() == "keep"
