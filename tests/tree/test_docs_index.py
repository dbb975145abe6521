"""The indexes of the documentation list every page, and the map names what exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVIDENCE = ROOT / "evidence"
MAP = (DOCS / "structure.md").read_text("utf-8")
PAGES = sorted(file.stem for file in DOCS.glob("*.md") if file.stem not in {"README", "index"})
CELL_CHARS_MAX = 150


@pytest.mark.parametrize("page", PAGES)
def test_page_is_in_both_indexes(page: str) -> None:
    assert f"]({page}.md)" in (DOCS / "README.md").read_text("utf-8")
    assert f"\n{page}\n" in (DOCS / "index.md").read_text("utf-8")


def test_index_of_evidence_lists_each_file() -> None:
    listed = set(re.findall(r"\]\(([\w./-]+)\)", (EVIDENCE / "README.md").read_text("utf-8")))
    assert {path.name for path in EVIDENCE.iterdir()} - listed == {"README.md"}


def test_no_cell_of_the_map_is_a_paragraph() -> None:
    cells = [
        cell.strip() for row in re.findall(r"^\|.*", MAP, re.MULTILINE) for cell in row.split("|")
    ]
    assert not [cell for cell in cells if len(cell) > CELL_CHARS_MAX]


def test_map_names_modules_and_paths_that_exist() -> None:
    assert not [path for path in _named_paths() if not _exists(path)]


def _named_paths() -> Iterator[str]:
    """Yield the paths in the map: modules and folders of the room of each list, and paths anywhere
    that begin in the root."""
    for section in re.split(r"^### ", MAP, flags=re.MULTILINE)[1:]:
        room = re.search(r"`(.*?)/?`", section.partition("\n")[0])
        assert room is not None
        for names in re.findall(r"^- (`.*?): ", section.partition("\n## ")[0], re.MULTILINE):
            yield from (f"{room[1]}/{name}" for name in re.findall(r"`(.*?)`", names))
    tops = "|".join(path.name for path in ROOT.iterdir() if path.is_dir())
    yield from re.findall(rf"`((?:{tops})/\S*)`", MAP)


def _exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()
