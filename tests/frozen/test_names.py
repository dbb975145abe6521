"""Tests of public names and of the golden transcripts of the OpenAI SDKs: they are as frozen."""

import json
from typing import Any

import pytest

from tests.frozen import goldens, names


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
