"""The Python programs of the documentation, each run as a file, against a real server."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, SDK, Server
from tests.support.fenced_blocks import Block, blocks_in

OTHER_RUNNERS = ("docs/recipes.md", "docs/models.md")
"""Pages with snippets that continue from one another (`test_recipes`), and with quoted source."""
NAMED_SERVER = "127.0.0.1:8000"
MIDDLEWARE = re.compile(
    r"^(?:from|import) (?:langchain|litellm|anthropic|agents|pydantic_ai)", re.MULTILINE
)
OPENAI_CLIENT = """\
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="YOUR_KEY")
"""
"""Names that the prose before a snippet introduces."""

PROGRAMS = [block for block in blocks_in("python") if block.page not in OTHER_RUNNERS]


def complete(program: str) -> str:
    """Return a program; of a snippet that awaits outside of functions, one that contains it."""
    try:
        compile(program, "program", "exec")
    except SyntaxError:
        body = textwrap.indent(f"{OPENAI_CLIENT}\n{program}", "    ")
        return f"import asyncio\n\n\nasync def main():\n{body}\n\nasyncio.run(main())\n"
    return program


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in PROGRAMS])
def test_program_runs_as_a_file(
    block: Block, server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Only the address and the key are replaced, by those of the test's server."""
    program = complete(block.text)
    assert NAMED_SERVER in program or "Engine()" in program
    address = server.url.removeprefix("http://").removesuffix("/v1")
    python = Path(sys.executable)
    if MIDDLEWARE.search(program):
        python = request.getfixturevalue("middleware")
    elif "openai" in program:
        python = SDK
    file = tmp_path / "example.py"
    file.write_text(re.sub('"any"|"YOUR_KEY"', repr(KEY), program.replace(NAMED_SERVER, address)))
    run = subprocess.run(
        [python, file],
        cwd=tmp_path,
        env={**os.environ, "CONTINUO_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=110,  # LiteLLM and openai-agents take long to import
    )
    assert run.returncode == 0, run.stderr
    assert not run.stderr or MIDDLEWARE.search(program), run.stderr
    assert run.stdout.strip()
