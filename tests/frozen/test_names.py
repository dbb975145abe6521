"""Tests of public names and of the golden transcripts of the OpenAI SDKs: they are as frozen."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import goldens, names

FORMER_WORDS = re.compile(
    r"\b(answers?|answer_id|answer_lost|answering|said|once|once_bytes|kept|kept_tenants"
    r"|tenants_kept|begun|packed|apart)\b"
)
"""Names that became `response`, `responding`, `output_ids`, `idempotency_keys`, `stored_responses`,
`checkpoint`, `body` and `is_out_of_band`. As words of a sentence they are in use."""
SOURCES_OF_NAMES = ("realtime/store", "realtime/protocol/events.py", "realtime/session/state.py")


@pytest.fixture(scope="module")
def current_names() -> dict[str, Any]:
    return names.current()


@pytest.mark.parametrize("part", names.frozen())
def test_names_are_as_frozen(current_names: dict[str, Any], part: str) -> None:
    """Compare as text, because the order of fields matters too."""
    current, frozen = (json.dumps(of[part], indent=1) for of in (current_names, names.frozen()))
    assert current == frozen


def test_parts_of_names_are_the_frozen_parts(current_names: dict[str, Any]) -> None:
    assert current_names.keys() == names.frozen().keys()


@pytest.mark.parametrize("sdk", ["node", "python"])
def test_golden_transcripts_are_as_frozen(sdk: str) -> None:
    current, frozen = (
        {digest: name for digest, of, name in rows if of == sdk}
        for rows in (goldens.current(), goldens.frozen())
    )
    assert {current[digest] for digest in current.keys() - frozen.keys()} == set()
    assert {frozen[digest] for digest in frozen.keys() - current.keys()} == set()


def test_no_recorded_name_is_a_former_word() -> None:
    assert FORMER_WORDS.findall(names.FILE.read_text()) == []


def test_no_name_of_the_store_or_of_an_event_is_a_former_word() -> None:
    found = {
        (file.name, name)
        for path in SOURCES_OF_NAMES
        for file in _files_of(names.ROOT / path)
        for name in _names_in(file)
        if FORMER_WORDS.fullmatch(name)
    }
    assert found == set()


def _files_of(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _names_in(file: Path) -> Iterator[str]:
    """Yield the names of variables, parameters, attributes, functions and classes of a module, and
    its strings without a space."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.keyword(arg=str() as name) | ast.FunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Constant(value=str() as name) if " " not in name:
                yield name
            case _:
                pass
