"""Fixtures that many tests use."""

from pathlib import Path

import pytest

from tests.support.engines import tiny_text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="write the transcripts of tests/clients/golden anew"
    )


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a tokenizer of one letter an id, and no weights."""
    return tiny_text(tmp_path_factory.mktemp("letters"))
