"""Tests of web/, one per file: the client library with a scripted server, and parts of the page."""

from pathlib import Path

import pytest

from tests.browser.vitest import TIMEOUT_S, Results, check, files, name_of, needs_node_modules

SCRIPT = "test"
pytestmark = [pytest.mark.browser, needs_node_modules, pytest.mark.timeout(TIMEOUT_S + 30)]


@pytest.mark.parametrize("file", [*files("client"), *files("page")], ids=name_of)
def test_client_library_and_page_pass_their_test_file(file: Path, results: Results) -> None:
    check(file, results)
