"""The real OpenAI SDK for Python against a real server: one test a flow of `flows`."""

import ast
from pathlib import Path

import pytest

from tests.clients.conftest import Told

SOURCES = sorted((Path(__file__).parent / "flows").glob("*.py"))
BUNDLED_ONLY = {"a_name_is_recalled_ten_turns_later", "a_tool_is_called_and_its_result_used"}


def names() -> list[str]:
    """Read from the source: this environment cannot import it."""
    found: list[str] = []
    for node in (node for source in SOURCES for node in ast.parse(source.read_text()).body):
        if isinstance(node, ast.AsyncFunctionDef) and node.decorator_list:
            found.append(node.name)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "BAD":
            assert isinstance(node.value, ast.Dict)
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            found += [f"bad_input_{key}" for key in keys]
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_flow(name: str, flows: dict[str, Told], model: str) -> None:
    if model != "demo" and name in BUNDLED_ONLY:
        pytest.skip("only the bundled model can")
    assert flows[name]["problem"] is None, flows[name]["problem"]


def test_no_flow_is_forgotten(flows: dict[str, Told]) -> None:
    assert sorted(flows) == sorted(names())
