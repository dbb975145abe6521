"""Tests of the page of results: it equals its sources, and a result is written into its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from continuo.bench import main, published

PAGE = """# Benchmarks

<!-- result: scheduling -->
old
<!-- end of result -->

**Meaning.** Prose.
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE)
    monkeypatch.setattr(published, "PAGE", page)
    monkeypatch.setattr(published, "FOLDER", tmp_path / "benchmarks")
    return page


def test_page_and_plots_equal_what_the_results_say() -> None:
    stale = [
        path.name for path, text in published.write_files().items() if path.read_text() != text
    ]
    assert not stale, "run python -m tools.write_benchmarks"


def test_each_place_of_the_page_is_of_a_workload_and_each_workload_has_one() -> None:
    places = published.list_places(published.PAGE.read_text())
    assert len(places) == len(set(places))
    for name in main.BENCHES:
        assert [place for place in places if place == name or place.startswith(f"{name}-")]


def test_publish_writes_tables_command_and_plot_into_the_place_of_the_result(page: Path) -> None:
    arguments = ["scheduling", "--only", "cache", "--publish", "scheduling"]
    assert main.main(arguments) == 0
    text = page.read_text()
    assert "old" not in text
    assert text.endswith("<!-- end of result -->\n\n**Meaning.** Prose.\n")
    assert " the same, in 2 cache scopes |" in text
    assert "`continuo bench scheduling --only cache`: 20" in text, "how to measure it again"
    [result] = published.FOLDER.iterdir()
    data: dict[str, Any] = json.loads(result.read_text())
    data["plot"] = {"title": "T", "x_label": "turn", "y_label": "ms", "x": [2, 3]}
    data["plot"]["lines"] = {"a": [1.5, 2.0]}
    published.publish("scheduling", data)
    assert "![T](benchmarks/scheduling.svg)" in page.read_text()
    assert (published.FOLDER / "scheduling.svg").read_text().startswith("<svg ")
    assert json.loads(result.read_text()) == data
    written = {path: path.read_text() for path in published.write_files()}
    assert published.write_files() == written, "writing it again changes nothing"


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gateway", "gateway is not scheduling, nor begins with scheduling-"),
        ("scheduling-2", "evidence/benchmarks.md has no `<!-- result: scheduling-2 -->`"),
    ],
)
def test_name_without_a_place_is_refused_before_anything_is_measured(
    name: str, problem: str
) -> None:
    with pytest.raises(SystemExit, match=problem):
        main.main(["scheduling", "--publish", name])


def test_place_without_a_result_says_so() -> None:
    assert "\n*scheduling: not published.*\n<!-- end" in published.write_page(PAGE, {})


def test_result_without_a_place_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no place for throughput"):
        published.write_page(PAGE, {"throughput": {}})
