"""The real Anthropic SDK against a real server: one test per flow of `anthropic_flows`."""

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, ROOT, Server

SOURCE = Path(__file__).with_name("anthropic_flows.py")
FLOWS = [
    node.name
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef) and "flow" in map(ast.unparse, node.decorator_list)
]


@pytest.fixture(scope="module")
def problems(server: Server, middleware: Path) -> dict[str, str | None]:
    run = subprocess.run(
        [middleware, "-m", "tests.clients.anthropic_flows", KEY, server.url.removesuffix("/v1")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FLOWS)
def test_flow_succeeds(name: str, problems: dict[str, str | None]) -> None:
    assert problems[name] is None, problems[name]
