"""The page in a real Chromium when a server or the network fails."""

from pathlib import Path

import pytest

from tests.browser.vitest import (
    FAILURES,
    TIMEOUT_S,
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
@pytest.mark.parametrize("file", in_chromium(*FAILURES), ids=name_of)
def test_page_passes_its_test_file_in_chromium(file: Path, results: Results) -> None:
    check(file, results)
