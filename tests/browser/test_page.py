"""The page in a real Chromium: its conversations with the bundled model, and its size."""

import gzip
from pathlib import Path

import pytest

from continuo.realtime.server.http.page import ASSETS_DIR
from tests.browser.vitest import (
    TIMEOUT_S,
    Results,
    check,
    name_of,
    needs_chromium,
    needs_node_modules,
    needs_page,
    others_in_chromium,
)

SCRIPT = "test:browser"
pytestmark = pytest.mark.browser


@needs_node_modules
@needs_chromium
@needs_page
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("file", others_in_chromium(), ids=name_of)
def test_page_passes_its_test_file_in_chromium(file: Path, results: Results) -> None:
    check(file, results)


@needs_page
def test_page_is_under_130_kb_compressed_and_240_kb_with_all_that_it_loads_later() -> None:
    sizes = {
        file.relative_to(ASSETS_DIR).as_posix(): len(gzip.compress(file.read_bytes(), 9))
        for file in ASSETS_DIR.rglob("*")
        if file.is_file()
    }
    html = (ASSETS_DIR / "index.html").read_text()
    first = [name for name in sizes if name in html or name == "index.html"]
    assert len(first) >= 4, "the page has scripts and style sheets of its own"
    assert sum(sizes[name] for name in first) < 130_000
    assert sum(sizes.values()) < 240_000
