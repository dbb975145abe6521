"""Classes have few public methods; those that may have more are named here, with the reason."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "realtime")
METHODS_MAX = 20
EXCEPTIONS = {
    "engine/core/cache/components.py: Components": "answers for all components as one Component",
    "engine/core/cache/window_pages.py: WindowPages": "implements the protocol Component",
    "realtime/client/client.py: RealtimeClient": "is all that a user of the client calls",
    "realtime/conversation/conversation.py: Conversation": "is a value with many small edits",
    "realtime/store/sqlite/tables.py: Tables": "implements the protocol Store, in one process",
}
"""Classes with more methods, and why each may have them."""
FIELDS = {"property", "cached_property", "setter", "deleter"}
"""Decorators that make a field of a method."""


def public_methods(node: ast.ClassDef) -> set[str]:
    """Return the names of the public methods that a class defines; overloads count once."""
    return {
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not each.name.startswith("_")
        and not any(is_field(decorator) for decorator in each.decorator_list)
    }


def is_field(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] in FIELDS


def find_large_classes() -> dict[str, int]:
    """Return the number of public methods of each class that has more than METHODS_MAX."""
    counts = {
        f"{file.relative_to(ROOT)}: {node.name}": len(public_methods(node))
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    return {place: count for place, count in counts.items() if count > METHODS_MAX}


def test_no_other_class_has_many_public_methods() -> None:
    assert {p: n for p, n in find_large_classes().items() if p not in EXCEPTIONS} == {}


def test_every_exception_still_has_many_public_methods() -> None:
    assert EXCEPTIONS.keys() - find_large_classes().keys() == set()


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("def a(self): ...\n async def b(self): ...\n @classmethod\n def c(cls): ...", "abc"),
        ("def _a(self): ...\n def __len__(self): ...", ""),
        ("@property\n def a(self): ...\n @a.setter\n def a(self, value): ...", ""),
        ("@functools.cached_property\n def a(self): ...", ""),
        ("@overload\n def a(self): ...\n @overload\n def a(self, b): ...", "a"),
    ],
)
def test_properties_and_private_methods_do_not_count(body: str, names: str) -> None:
    [node] = ast.parse(f"class A:\n {body}").body
    assert isinstance(node, ast.ClassDef)
    assert public_methods(node) == set(names)
