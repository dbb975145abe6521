"""Constructors of many parameters explain each in a list, whose form is:

Args:
name: what type and name do not say: unit, owner, lifetime, bound, what None or 0 means.
    Further lines are indented.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "realtime")
PARAMETERS_MAX = 4
"""Most parameters that a constructor may have without a list of them."""
ENTRY = re.compile(r"(\w+): \S")


class Constructor(NamedTuple):
    parameters: list[str]
    explained: list[str]


def constructors(source: str) -> Iterator[tuple[str, Constructor]]:
    """Yield the name of each class that has a constructor of many parameters, and these."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                arguments = method.args
                named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                parameters = [each.arg for each in named[1:]]
                docstrings = [ast.get_docstring(each) or "" for each in (method, node)]
                if len(parameters) > PARAMETERS_MAX:
                    explained = list_explained(docstrings[0]) or list_explained(docstrings[1])
                    yield node.name, Constructor(parameters, explained)


def list_explained(docstring: str) -> list[str]:
    """List the parameters that a docstring explains after the line `Args:`."""
    _, _, entries = f"\n{docstring}".partition("\nArgs:\n")
    lines = entries.partition("\n\n")[0].splitlines()
    matches = [ENTRY.match(line) for line in lines if not line.startswith(" ")]
    return [match[1] if match else "" for match in matches]


def all_constructors() -> dict[str, Constructor]:
    return {
        f"{file.relative_to(ROOT)}: {name}": constructor
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name, constructor in constructors(file.read_text("utf-8"))
    }


def test_every_constructor_of_many_parameters_explains_each_in_order() -> None:
    wrong = {
        place: constructor
        for place, constructor in all_constructors().items()
        if constructor.explained != constructor.parameters
    }
    assert not wrong


@pytest.mark.parametrize(
    ("docstring", "explained"),
    [
        ("Args:\na: one\nb: two\n    and more", ["a", "b"]),
        ("Open it.\n\nArgs:\na: one\n\nRaises KeyError.", ["a"]),
        ("Args:\na: one\nb:", ["a", ""]),
        ("Args: a: one", []),
        ("`a`: one. `b`: two.", []),
    ],
)
def test_list_of_parameters_has_one_form(docstring: str, explained: list[str]) -> None:
    assert list_explained(docstring) == explained


def test_parameters_of_all_kinds_count_but_self_does_not() -> None:
    source = 'class A:\n def __init__(self, a, /, b, c=0, *, d, e=1):\n  """Args:\n  a: one\n  """'
    parameters = ["a", "b", "c", "d", "e"]
    assert [*constructors(source)] == [("A", Constructor(parameters, ["a"]))]
    assert not [*constructors("class A:\n def __init__(self, a, b, c, d): ...")]
