"""Fixtures and options of all tests, and the selection of tests for `make quick`."""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from tests.support.engines import write_tiny_model

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SLOW_MARKS = ("torch", "process", "redis", "server", "browser", "slow")
"""Marks of tests that `make quick` skips; pyproject.toml describes each mark."""
MARKED_FILE = re.compile(rf"^pytestmark = .*\b({'|'.join(SLOW_MARKS)})\b", re.MULTILINE)
"""Pattern that finds, in the source of a test file, a slow mark for the whole file. `make quick`
does not even import such a file, because importing torch alone takes seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only tests that need no process, Redis, browser, torch or transformers",
    )
    parser.addoption(
        "--record", action="store_true", help="rewrite the transcripts of tests/clients/golden"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Servers that a test starts with the default store use none of the user's.
    state = tempfile.TemporaryDirectory(prefix="continuo-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    if config.getoption("quick"):
        sys.addaudithook(_refuse_slow_work)


def _refuse_slow_work(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook of `make quick`: raise if a test without a slow mark starts a process or imports
    torch or transformers. The error names the missing mark."""
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        raise RuntimeError("mark this test `process`: it starts a process")
    if event == "import" and arguments[0] in ("torch", "transformers"):
        raise RuntimeError(f"mark this file `torch`: it imports {arguments[0]}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("quick") or not collection_path.name.startswith("test_"):
        return None
    return bool(MARKED_FILE.search(collection_path.read_text("utf-8"))) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, and leave out what `make quick` does without."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        if "redis" in fixtures or "redis" in map(str, parameters):
            item.add_marker("redis")
        if "server" in fixtures:
            item.add_marker("server")
    if config.getoption("quick"):
        slow = [item for item in items if any(map(item.get_closest_marker, SLOW_MARKS))]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run async tests on uvloop, the event loop of gateway and engine."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint folder without weights, whose tokenizer has one id per letter."""
    return write_tiny_model(tmp_path_factory.mktemp("letters"))
