"""Fixtures and options of all tests, and the selection of tests for `make quick`."""

import asyncio
import faulthandler
import functools
import gc
import inspect
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from hypothesis import settings

from tests.support.configured_logging import read_loggers
from tests.support.engines import write_tiny_model
from tests.support.file_marks import read_file_marks
from tests.support.processes import logs_since

settings.register_profile("untimed", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("untimed")

SLOW_MARKS = ("torch", "process", "redis", "server", "browser", "slow")
"""Marks of tests of which `make test` runs a share; pyproject.toml describes each mark."""
LEFT_OUT_MARKS = (*SLOW_MARKS, "long")
"""Marks of tests that `make quick` leaves out."""

TEST_S_MAX = 900.0
"""Seconds after which a test ends its test process, fixtures included. It is longer than every
`timeout`, which a test or fixture that catches all exceptions can outlive."""

SIGNAL_DELAY_S = 30.0
"""Seconds between the timeout of an async test and the signal that interrupts a test which blocks
its event loop."""

LONGEST_FILES = (
    "tests/browser/test_page.py",
    "tests/browser/test_page_views.py",
    "tests/browser/test_page_failures.py",
    "tests/browser/test_page_access.py",
    "tests/browser/test_web_units.py",
    "tests/clients/test_command.py",
    "tests/faults/test_fault_rows.py",
    "tests/bench/test_recovery.py",
    "tests/tools/test_small_forms.py",
    "tests/fuzz/test_fuzz.py",
    "tests/faults/test_apart_and_killed.py",
    "tests/deploy/test_distribution.py",
    "tests/engine/device/kernels/test_layer_kernels.py",
    "tests/bench/test_workloads.py",
    "tests/engine/device/kernels/test_sampling_kernels.py",
    "tests/parity/test_random_histories_of_families.py",
    "tests/attack/test_attacks.py",
    "tests/engine/device/native/test_native.py",
    "tests/deploy/test_compose.py",
    "tests/faults/test_operations.py",
    "tests/clients/test_openai_sdk.py",
    "tests/engine/device/attention/test_paged_triton.py",
)
"""Files that a run with several workers begins with, so that none is left alone at its end."""

QUICK_PATHS = ("tests/engine/", "tests/realtime/", "tests/reference/")
"""Folders of the unit tests, which `make quick` runs but for those that it leaves out."""

WHOLE_PATHS = ("tests/tools/", "tests/tree/", "tests/parity/test_gguf_keys.py")
"""Folders of tests that compare files of the repository with each other, and a file that draws its
own share: none is left out but those marked `slow`."""

STDERR = pytest.StashKey[int]()
"""File descriptor of the standard error that is not captured."""
START_S = pytest.StashKey[float]()
"""When the set-up of a test began, by the monotonic clock."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only tests that need no process, Redis, browser, torch or transformers",
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="rewrite the transcripts of tests/clients/golden, or a table in evidence/",
    )

    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="of the slow tests, run one in N, drawn by --share-seed (default: 1, all)",
    )
    parser.addoption(
        "--share-seed", default="0", metavar="TEXT", help="another text draws other tests"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    share, seed = config.getoption("share"), config.getoption("share_seed")
    if share == 1:
        return None
    return f"share: one in {share} of the slow tests, drawn by {seed}"


def pytest_configure(config: pytest.Config) -> None:
    # Servers that a test starts with the default store use none of the user's.
    state = tempfile.TemporaryDirectory(prefix="continuo-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    config.stash[STDERR] = os.dup(2)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailurePrinter(config))
    if config.getoption("quick"):
        settings.load_profile("quick")


class FailurePrinter:
    """Plugin that prints each failure when it comes: a run that is killed prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            error = next(
                (line for line in report.longreprtext.splitlines() if line.startswith("E ")), ""
            )
            reporter.ensure_newline()
            reporter.write_line(f"FAILED {report.nodeid} ({report.when}) {error}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Refuse slow work from now on in `make quick`: in the process of the tests, not in the one
    that starts workers for them."""
    config = session.config
    if config.getoption("quick") and (hasattr(config, "workerinput") or not config.getoption("tx")):
        sys.addaudithook(_refuse_slow_work)


def _refuse_slow_work(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook of `make quick`: raise if a test without a slow mark starts a process or imports
    torch or transformers. The error names the missing mark."""
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        raise RuntimeError("mark this test `process`: it starts a process")
    if event == "import" and arguments[0] in ("torch", "transformers"):
        raise RuntimeError(f"mark this file `torch`: it imports {arguments[0]}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file that is marked as a whole out of `make quick` without importing it: importing
    torch alone takes seconds."""
    if not config.getoption("quick") or not collection_path.name.startswith("test_"):
        return None
    marks = read_file_marks(collection_path.read_text("utf-8"))
    return True if marks & {*LEFT_OUT_MARKS} else None


def _end_after(
    timeout_s: float, test: Callable[..., Coroutine[Any, Any, None]]
) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run(**fixtures: object) -> None:
        async with asyncio.timeout(timeout_s):
            await test(**fixtures)

    return run


def _is_slow(item: pytest.Item) -> bool:
    """Whether a share leaves the test out unless it is drawn."""
    if item.nodeid.startswith(QUICK_PATHS):
        return any(map(item.get_closest_marker, SLOW_MARKS))
    is_whole = item.nodeid.startswith(WHOLE_PATHS)
    return not is_whole or item.get_closest_marker("slow") is not None


def _draw(items: list[pytest.Item], share: int, seed: str) -> set[pytest.Item]:
    """Draw one file in two, and of its tests one in `share / 2`: a file costs its imports and
    servers, however few of its tests are run. The file is one of a pair that takes about as long,
    the next two of LONGEST_FILES or with as many tests, so that every seed draws as much work."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("::")[0]].append(item)
    ranks = {file: rank for rank, file in enumerate(LONGEST_FILES)}
    files = sorted(tests, key=lambda file: (ranks.get(file, len(ranks)), -len(tests[file]), file))
    drawn: set[pytest.Item] = set()
    for pair in (files[begin : begin + 2] for begin in range(0, len(files), 2)):
        file = random.Random(f"{seed} {pair}").choice(pair)
        drawn.update(
            item
            for item in tests[file]
            if random.Random(f"{seed} {item.nodeid}").random() < 2 / share
        )
    return drawn


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, end async tests at their timeout, and leave out what
    `make quick` does without."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            # uvloop swallows the exception that pytest-timeout raises from its signal, and what
            # the signal interrupted may have been the end of the test. So it comes later.
            marker = item.get_closest_marker("timeout")
            timeout_s = marker.args[0] if marker else float(config.getini("timeout"))
            item.obj = _end_after(timeout_s, item.obj)
            item.add_marker(pytest.mark.timeout(timeout_s + SIGNAL_DELAY_S), append=False)
        fixtures = set(getattr(item, "fixturenames", ()))
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        if "redis" in fixtures or "redis" in map(str, parameters):
            item.add_marker("redis")
        if "server" in fixtures:
            item.add_marker("server")
    share = cast("int", config.getoption("share"))
    seed = cast("str", config.getoption("share_seed"))
    if share > 1:  # at least 2, as one file in two is drawn
        candidates = list(filter(_is_slow, items))
        unselected = set(candidates) - _draw(candidates, share, seed)
        config.hook.pytest_deselected(items=[item for item in candidates if item in unselected])
        items[:] = [item for item in items if item not in unselected]
    if hasattr(config, "workerinput"):
        ranks = {file: rank for rank, file in enumerate(LONGEST_FILES)}
        items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
    if config.getoption("quick"):
        left_out = {item for item in items if any(map(item.get_closest_marker, LEFT_OUT_MARKS))}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    gc.freeze()  # Modules and tests stay: full collections need not visit them.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the logs of its servers to the report of a failed test."""
    report = yield
    if call.when == "setup":
        item.stash[START_S] = time.monotonic() - call.duration
    if report.failed:
        report.sections += [
            (f"output of {command}", log) for command, log in logs_since(item.stash[START_S])
        ]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the timeout of the test
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the test process if the test takes longer than TEST_S_MAX. pytest-xdist reports which
    test it was."""
    faulthandler.dump_traceback_later(TEST_S_MAX, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run async tests on uvloop, the event loop of gateway and engine."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def unchanged_loggers() -> Iterator[None]:
    """Fail a test that leaves the loggers of a server otherwise than they were: a later test that
    counts their lines would find others."""
    before = read_loggers()
    yield
    assert read_loggers() == before, "use tests.support.configured_logging"


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint folder without weights, whose tokenizer has one id per letter."""
    return write_tiny_model(tmp_path_factory.mktemp("letters"))
