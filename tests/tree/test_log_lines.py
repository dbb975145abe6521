"""docs/logs.md has every line that the product logs, and docs/errors.md quotes real messages."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "realtime")
LOGGERS = ("log", "logger")
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error and critical",
    "exception": "error and critical",
    "critical": "error and critical",
}
"""Section of docs/logs.md of each method of a logger."""
REQUESTS = {("info", "request"), ("info", "connection")}
"""Lines of `request_observer`, whose level and text are chosen when they are written."""
PLACE = re.compile(r"%[#0 +-]*[\d.]*[sdrfx]")


@cache
def trees() -> list[ast.Module]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [ast.parse(path.read_text("utf-8")) for path in paths]


def nodes() -> Iterator[ast.AST]:
    for tree in trees():
        yield from ast.walk(tree)


def logged() -> Iterator[tuple[str, str]]:
    """Yield the section and the text of each line, with "…" for what is filled in."""
    for node in nodes():
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[text, *_]
            ) if name in LOGGERS and method in LEVELS:
                assert isinstance(text, ast.Constant), ast.unparse(node)
                yield LEVELS[method], PLACE.sub("…", str(text.value))


def documented() -> Iterator[tuple[str, str]]:
    """Yield the section and the text of each row, and check that its last cell says something."""
    page = (ROOT / "docs/logs.md").read_text("utf-8")
    for section in page.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        for line, rest in re.findall(r"^\| `(.+?)` \| (.*) \|$", section, re.MULTILINE):
            assert rest.strip(), line
            yield title, line


def test_every_line_is_documented_at_its_level() -> None:
    lines = {*logged()} | REQUESTS
    assert len(lines) > 60
    rows = [*documented()]
    assert sorted(lines - {*rows}) == []
    assert sorted({*rows} - lines) == []
    assert len(rows) == len({*rows})


def test_fields_are_named_in_the_source() -> None:
    page = (ROOT / "docs/logs.md").read_text("utf-8")
    rows = re.findall(r"Fields?: (.*) \|$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 10
    assert named - {*texts()} == set()


def test_other_lines_are_those_of_requests() -> None:
    source = (ROOT / "realtime/server/http/request_observer.py").read_text("utf-8")
    assert '"connection" if is_connection else "request"' in source


@cache
def texts() -> list[str]:
    """Return the strings of the source, with "{}" for what f-strings fill in."""
    found: list[str] = []
    for node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append("".join(map(str, parts)))
    return found


MESSAGES = re.findall(
    r"^\| `(.+?)` \| (.*?) \| (.*) \|$",
    (ROOT / "docs/errors.md").read_text("utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("message", "do"),
    [pytest.param(message, do, id=message) for message, _, do in MESSAGES if " " in message],
)
def test_message_is_one_of_the_product(message: str, do: str) -> None:
    text = re.sub(r"^: | $", "", message)
    assert [one for one in texts() if message in one or text in one.split(": ")]
    assert do.strip()
