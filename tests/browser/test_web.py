"""The tests of web/, a file each: the client library against a scripted server, and the page in a
real Chromium against a real server with the bundled model."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from continuo.realtime.server.http.page import ASSETS_DIR

WEB = Path(__file__).parents[2] / "web"
CHROMIUM = os.environ.get("CONTINUO_CHROMIUM", "/usr/bin/chromium")

fetched = pytest.mark.skipif(
    not (WEB / "node_modules/vitest").is_dir() or shutil.which("npm") is None,
    reason="the page's tools are not here: make web fetches them, with Node.js 20",
)
seen = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not here")
built = pytest.mark.skipif(
    not (ASSETS_DIR / "index.html").exists(), reason="make web has not been run"
)


def run(script: str, file: Path, timeout_s: float) -> None:
    ran = subprocess.run(
        ["npm", "run", "--silent", script, "--", file.stem],
        cwd=WEB,
        env={**os.environ, "CONTINUO_PYTHON": sys.executable, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert ran.returncode == 0, ran.stdout


def files(folder: str) -> list[Path]:
    return sorted((WEB / "tests" / folder).glob("*.test.ts"))


def name_of(file: Path) -> str:
    return file.name.removesuffix(".test.ts")


@fetched
@pytest.mark.parametrize("file", files("client"), ids=name_of)
def test_the_client(file: Path) -> None:
    run("test", file, 110)


@fetched
@seen
@built
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", files("browser"), ids=name_of)
def test_the_page(file: Path) -> None:
    run("test:browser", file, 590)


@built
def test_the_page_is_small() -> None:
    files = [file for file in ASSETS_DIR.rglob("*") if file.is_file()]
    assert sum(len(gzip.compress(file.read_bytes(), 9)) for file in files) < 150_000
