"""Tests of web/, one per file: the client library with a scripted server, parts of the page, and
the page in a real Chromium with a real server and the bundled model.

The files of each suite run in one process, and those of the page share Chromium and its servers.
"""

import functools
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from continuo.realtime.server.http.page import ASSETS_DIR

pytestmark = pytest.mark.browser

WEB = Path(__file__).parents[2] / "web"
CHROMIUM = os.environ.get("CONTINUO_CHROMIUM", "/usr/bin/chromium")
FOLDERS = {"test": ("client", "page"), "test:browser": ("browser",)}
"""Folders of the suites, by their npm scripts."""
TIMEOUT_S = {"test": 270.0, "test:browser": 1470.0}
"""Limits of a whole suite, whose tests have limits of their own."""

needs_node_modules = pytest.mark.skipif(
    not (WEB / "node_modules/vitest").is_dir() or shutil.which("npm") is None,
    reason="node_modules is missing: make web installs it, with Node.js 20",
)
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed"
)
needs_page = pytest.mark.skipif(
    not (ASSETS_DIR / "index.html").exists(), reason="make web has not been run"
)


class FileResult(msgspec.Struct):
    """Result of one file in the JSON report of vitest."""

    name: str
    status: str
    message: str
    assertion_results: list[dict[str, object]] = msgspec.field(name="assertionResults")


class Report(msgspec.Struct):
    test_results: list[FileResult] = msgspec.field(name="testResults")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Callable[[str, Path], FileResult]:
    """Run the selected files of a suite at the first call, and return the result of one."""
    selected = [
        cast("Path", item.callspec.params["file"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    ]
    run = functools.cache(lambda script: run_npm(script, selected, TIMEOUT_S[script]))

    def result_of(script: str, file: Path) -> FileResult:
        reported, output = run(script)
        assert file in reported, output
        return reported[file]

    return result_of


def run_npm(
    script: str, selected: list[Path], timeout_s: float
) -> tuple[dict[Path, FileResult], str]:
    """Run those of the selected files that belong to a suite. Returns their results, and what was
    printed."""
    folder_names = FOLDERS[script]
    names = [str(file) for file in selected if file.parent.name in folder_names]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        reporters = ["--reporter=default", "--reporter=json", f"--outputFile.json={report}"]
        result = subprocess.run(
            ["npm", "run", "--silent", script, "--", *reporters, *names],
            cwd=WEB,
            env={**os.environ, "CONTINUO_PYTHON": sys.executable, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        if not report.exists():
            return {}, result.stdout
        reported = msgspec.json.decode(report.read_bytes(), type=Report).test_results
    return {Path(one.name): one for one in reported}, result.stdout


def check(result: FileResult) -> None:
    failures = [
        f"{one['fullName']}\n{message}"
        for one in result.assertion_results
        for message in cast("list[str]", one["failureMessages"])
    ]
    assert result.status == "passed", "\n\n".join([result.message, *failures])


def files(folder: str) -> list[Path]:
    return sorted((WEB / "tests" / folder).glob("*.test.ts"))


def name_of(file: Path) -> str:
    return file.name.removesuffix(".test.ts")


@needs_node_modules
@pytest.mark.timeout(TIMEOUT_S["test"] + 30)
@pytest.mark.parametrize("file", [*files("client"), *files("page")], ids=name_of)
def test_client_library_and_page_pass_their_test_file(
    file: Path, results: Callable[[str, Path], FileResult]
) -> None:
    check(results("test", file))


@needs_node_modules
@needs_chromium
@needs_page
@pytest.mark.timeout(TIMEOUT_S["test:browser"] + 30)
@pytest.mark.parametrize("file", files("browser"), ids=name_of)
def test_page_passes_its_test_file_in_chromium(
    file: Path, results: Callable[[str, Path], FileResult]
) -> None:
    check(results("test:browser", file))


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
