"""No part of the server uses the default executor of the event loop: work that blocks there delays
all other work in it, of any tenant."""

import ast
from pathlib import Path

from tests.support.processes import ROOT

CLIENT = ROOT / "realtime" / "client"
"""Runs in users' programs, whose tools may block."""


def find_default_executor(source: str) -> list[int]:
    """Return the lines that run work in the default executor."""
    lines = list[int]()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, first = node.func.attr, node.args[0] if node.args else None
        is_default = isinstance(first, ast.Constant) and first.value is None
        if name == "to_thread" or (name == "run_in_executor" and is_default):
            lines.append(node.lineno)
    return sorted(lines)


def test_default_executor_is_found() -> None:
    source = "await asyncio.to_thread(work)\nloop.run_in_executor(None, work)\n"
    assert find_default_executor(source) == [1, 2]
    assert find_default_executor("loop.run_in_executor(thread, work)") == []


def test_server_does_not_use_the_default_executor() -> None:
    def is_server(file: Path) -> bool:
        return CLIENT not in file.parents

    files = [file for room in ("engine", "realtime") for file in (ROOT / room).rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in filter(is_server, files)
        for line in find_default_executor(file.read_text("utf-8"))
    ]
    assert found == []
