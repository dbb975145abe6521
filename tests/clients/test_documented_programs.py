"""The Python programs of the documentation, each run as a file, against a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, ROOT, SDK, Server

PAGES = ("README.md", "docs/tutorial.md", "docs/tools.md", "docs/resuming.md", "docs/engine.md")
NAMED_SERVER = "127.0.0.1:8000"


def programs_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PROGRAMS = [
    pytest.param(program, id=f"{page} {n}")
    for page in PAGES
    for n, program in enumerate(programs_of(page))
]


def test_every_page_has_a_program() -> None:
    assert all(map(programs_of, PAGES))


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs_as_a_file(program: str, server: Server, tmp_path: Path) -> None:
    """Only the address and the key are replaced, by those of the test's server."""
    assert NAMED_SERVER in program or "Engine()" in program
    address = server.url.removeprefix("http://").removesuffix("/v1")
    file = tmp_path / "example.py"
    file.write_text(program.replace(NAMED_SERVER, address).replace('"any"', repr(KEY)))
    run = subprocess.run(
        [SDK if "openai" in program else sys.executable, file],
        cwd=tmp_path,
        env={**os.environ, "CONTINUO_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()
