"""Fixtures and options of all tests."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from tests.support.engines import tiny_text

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="rewrite the transcripts of tests/clients/golden"
    )


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on uvloop, as gateway and engine run."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a tokenizer of one id per letter, and no weights."""
    return tiny_text(tmp_path_factory.mktemp("letters"))
