"""A class that does not fit on three screens says what it owns, who may call it, what holds."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 150
"""Longest class that may do without a docstring."""


def test_every_long_class_has_a_docstring() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for folder in ("engine", "realtime")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and (node.end_lineno or 0) - node.lineno >= LINES_MAX
        and ast.get_docstring(node) is None
    ]
    assert not missing
