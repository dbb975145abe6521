"""Tests of web/, one per file: the client library with a scripted server, and the page in a real
Chromium with a real server and the bundled model.
"""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from continuo.realtime.server.http.page import ASSETS_DIR

pytestmark = pytest.mark.browser

WEB = Path(__file__).parents[2] / "web"
CHROMIUM = os.environ.get("CONTINUO_CHROMIUM", "/usr/bin/chromium")

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


def run_npm(script: str, file: Path, timeout_s: float) -> None:
    result = subprocess.run(
        ["npm", "run", "--silent", script, "--", file.stem],
        cwd=WEB,
        env={**os.environ, "CONTINUO_PYTHON": sys.executable, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert result.returncode == 0, result.stdout


def files(folder: str) -> list[Path]:
    return sorted((WEB / "tests" / folder).glob("*.test.ts"))


def name_of(file: Path) -> str:
    return file.name.removesuffix(".test.ts")


@needs_node_modules
@pytest.mark.parametrize("file", files("client"), ids=name_of)
def test_client_library_passes_its_test_file(file: Path) -> None:
    run_npm("test", file, 110)


@needs_node_modules
@needs_chromium
@needs_page
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", files("browser"), ids=name_of)
def test_page_passes_its_test_file_in_chromium(file: Path) -> None:
    run_npm("test:browser", file, 590)


@needs_page
def test_page_is_under_150_kb_compressed() -> None:
    files = [file for file in ASSETS_DIR.rglob("*") if file.is_file()]
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in files) < 150_000
