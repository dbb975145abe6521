"""The marks that a test file gives to all of its tests, read without importing the file."""

import ast


def read_file_marks(source: str) -> set[str]:
    """Return the names of the marks in the `pytestmark` of a file, over however many lines."""
    if "pytestmark" not in source:
        return set()
    values = [
        statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id == "pytestmark" for to in statement.targets)
    ]
    return {
        node.attr
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    }
