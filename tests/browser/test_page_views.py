"""The page in a real Chromium: what it shows of a server, and how."""

from pathlib import Path

import pytest

from tests.browser.vitest import (
    TIMEOUT_S,
    VIEWS,
    Results,
    check,
    in_chromium,
    name_of,
    needs_chromium,
    needs_node_modules,
    needs_page,
)

SCRIPT = "test:browser"
pytestmark = pytest.mark.browser


@needs_node_modules
@needs_chromium
@needs_page
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize("file", in_chromium(*VIEWS), ids=name_of)
def test_page_passes_its_test_file_in_chromium(file: Path, results: Results) -> None:
    check(file, results)
