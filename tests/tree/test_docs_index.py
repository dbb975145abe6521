"""The indexes of the documentation list every page, and the map names paths that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(file.stem for file in DOCS.glob("*.md") if file.stem not in {"README", "index"})
CELL_CHARS_MAX = 150


@pytest.mark.parametrize("page", PAGES)
def test_page_is_in_both_indexes(page: str) -> None:
    assert f"]({page}.md)" in (DOCS / "README.md").read_text("utf-8")
    assert f"\n{page}\n" in (DOCS / "index.md").read_text("utf-8")


def test_no_cell_of_the_map_is_a_paragraph() -> None:
    rows = re.findall(r"^\|.*\|$", (DOCS / "structure.md").read_text("utf-8"), re.MULTILINE)
    cells = [cell.strip() for row in rows for cell in row.split("|")]
    assert not [cell for cell in cells if len(cell) > CELL_CHARS_MAX]


def test_paths_of_the_map_exist() -> None:
    text = re.sub(r"```.*?```", "", (DOCS / "structure.md").read_text("utf-8"), flags=re.DOTALL)
    paths = re.findall(r"`((?:\w+/)+[\w.]*|\w+\.(?:py|md|json|yaml))`", text)
    assert paths
    assert not [path for path in paths if not _exists(path)]


def _exists(path: str) -> bool:
    """Return whether a path, or the module of that name, is in the tree or in one of the rooms."""
    roots = (ROOT, ROOT / "engine", ROOT / "realtime")
    return any((root / f"{path}{end}").exists() for root in roots for end in ("", ".py"))
