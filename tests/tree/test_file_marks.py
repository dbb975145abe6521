"""The marks of whole files, by which `make quick` knows what it need not import."""

import re
from pathlib import Path

import pytest

from tests.support.file_marks import read_file_marks

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("pytestmark = pytest.mark.torch\n", {"torch"}),
        ("pytestmark = [pytest.mark.torch, pytest.mark.timeout(9)]\n", {"torch", "timeout"}),
        (
            "pytestmark = [\n    pytest.mark.torch,\n"
            '    pytest.mark.skipif(X is None, reason="no redis"),\n]\n',
            {"torch", "skipif"},
        ),
        ("@pytest.mark.torch\ndef test_a() -> None:\n    pytestmark = 1\n", set()),
    ],
    ids=["one", "one line", "several lines", "of a test"],
)
def test_marks_of_a_file_are_read(source: str, marks: set[str]) -> None:
    assert read_file_marks(source) == marks


def test_marks_of_every_file_are_read() -> None:
    marked = {
        path: read_file_marks(source)
        for path in TESTS.rglob("test_*.py")
        if "node_modules" not in path.parts
        and re.search(r"^pytestmark\b", source := path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(marked) > 100
    assert [path for path, marks in marked.items() if not marks] == []
