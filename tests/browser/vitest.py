"""Test files of web/, which vitest runs: what the tests of a module select, in one process."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec
import pytest

from continuo.realtime.server.http.page import ASSETS_DIR

Script = Literal["test", "test:browser"]
"""npm script: of the client library and of parts of the page, or of the page in Chromium."""

WEB = Path(__file__).parents[2] / "web"
CHROMIUM = os.environ.get("CONTINUO_CHROMIUM", "/usr/bin/chromium")
TIMEOUT_S = 600.0
"""Limit of one run of vitest, whose tests have limits of their own."""

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


Results = tuple[dict[Path, FileResult], str]
"""Results of the files that were run, and what was printed."""


def run(script: Script, selected: list[Path], environment: Mapping[str, str] = {}) -> Results:
    """Run the selected files in one process. Those of the page share Chromium and its servers.
    `environment`: further variables of the process."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        reporters = ["--reporter=default", "--reporter=json", f"--outputFile.json={report}"]
        result = subprocess.run(
            ["npm", "run", "--silent", script, "--", *reporters, *map(str, selected)],
            cwd=WEB,
            env={
                **os.environ,
                "CONTINUO_PYTHON": sys.executable,
                "NO_COLOR": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        if not report.exists():
            return {}, result.stdout
        reported = msgspec.json.decode(report.read_bytes(), type=Report).test_results
    return {Path(one.name): one for one in reported}, result.stdout


def check(file: Path, results: Results) -> None:
    """Assert that a file was run, and that its tests passed."""
    reported, output = results
    assert file in reported, output
    result = reported[file]
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


VIEWS = (
    "accessibility_and_layout",
    "kv_residency",
    "metrics_panel",
    "queue",
    "rendering",
)
FAILURES = (
    "failures",
    "gateway_failover",
    "reconnect",
    "server_loss",
    "suspend_and_offline",
)
ACCESS = (
    "admin",
    "authentication",
    "client_library",
    "openai_sdk",
    "root_path",
)


def in_chromium(*names: str) -> list[Path]:
    """Return the files of the page that have these names."""
    return [WEB / "tests/browser" / f"{name}.test.ts" for name in names]


def others_in_chromium() -> list[Path]:
    """Return the files of the page that are in no list above."""
    listed = in_chromium(*VIEWS, *FAILURES, *ACCESS)
    return [file for file in files("browser") if file not in listed]
