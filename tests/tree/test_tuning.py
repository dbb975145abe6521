"""docs/tuning.md quotes figures that were measured: each is in the section that its link names, and
one that no published result has says when it was measured."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tuning.md").read_text("utf-8")
LINK = re.compile(r"\(\[([^\]]+)\]\(([\w/.-]+\.md)(?:#([\w-]+))?\)\)")
PUBLISHED = re.compile(r"<!-- result: (.*?)<!-- end of result -->", re.DOTALL)
AS_WRITTEN = re.compile(r"(?<=\d),(?=\d{3})|(?<=\d)\.0\b")
"""Characters of a number that differ on a page and in a table that a program writes."""
DATE = re.compile(r" of 2\d{3}-\d\d-\d\d$")
NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*(?![\w])")
NAMES = re.compile(r"`[^`]*`|\w+[.\d]*-[\d.]+\w*|llama\.cpp")


def tables() -> list[list[str]]:
    """Return the last cells of the tables that quote figures, without their headings."""
    found: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        heading, _, *rows = table.splitlines()
        if heading.endswith("| measured |"):
            found.append([row.strip("|").split(" | ")[-1].strip() for row in rows])
    return found


CELLS = [cell for cells in tables() for cell in cells]


def section(page: str, anchor: str | None) -> str:
    """Return a section of a page with what is below it, or all of the page."""
    text = (DOCS / page).read_text("utf-8")
    if anchor is None:
        return text
    parts = re.split(r"^(#+) (.+)$", text, flags=re.MULTILINE)
    for n in range(1, len(parts), 3):
        slug = re.sub(r"[^\w -]", "", parts[n + 1].lower()).strip().replace(" ", "-")
        if slug == anchor:
            end = n + 3
            while end < len(parts) and len(parts[end]) > len(parts[n]):
                end += 3
            return "".join(parts[n:end])
    raise AssertionError(f"{page} has no section #{anchor}")


def quotes(cell: str) -> list[tuple[str, str]]:
    """Return each number of a cell with the text of the section that the next link names; of the
    benchmarks, only with the results published there if the link has no date."""
    found: list[tuple[str, str]] = []
    start = 0
    for link in LINK.finditer(cell):
        source = section(link[2], link[3])
        if link[2].endswith("benchmarks.md") and not DATE.search(link[1]):
            source = "".join(PUBLISHED.findall(source))
        numbers = NUMBER.findall(NAMES.sub(" ", cell[start : link.start()]))
        source = AS_WRITTEN.sub("", source)
        found += [(AS_WRITTEN.sub("", number.rstrip(",.")), source) for number in numbers]
        start = link.end()
    return found


@pytest.mark.parametrize("cell", CELLS)
def test_figures_are_in_the_section_that_is_linked(cell: str) -> None:
    found = quotes(cell)
    assert found, "a cell has a figure and a link"
    missing = [
        number
        for number, source in found
        if not re.search(rf"(?<![\w.,]){re.escape(number)}(?![\w]|[.,]\d)", source)
    ]
    assert missing == []


def test_tables_with_figures_are_found() -> None:
    assert [len(cells) for cells in tables()] == [12, 4]


def test_an_invented_figure_is_found() -> None:
    cell = "first id after 3.2 ms ([idle-sessions](../evidence/benchmarks.md#idle-sessions))"
    ((number, source),) = quotes(cell)
    assert number == "3.2"
    assert number not in source
