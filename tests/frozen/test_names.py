"""Names that others know, and what the OpenAI SDKs see, are as frozen."""

import json
from typing import Any

import pytest

from tests.frozen import goldens, names


@pytest.fixture(scope="module")
def today() -> dict[str, Any]:
    return names.today()


@pytest.mark.parametrize("part", names.frozen())
def test_names_are_as_frozen(today: dict[str, Any], part: str) -> None:
    """As text: the order of fields counts too."""
    found, frozen = (json.dumps(all[part], indent=1) for all in (today, names.frozen()))
    assert found == frozen


def test_no_part_is_missing(today: dict[str, Any]) -> None:
    assert today.keys() == names.frozen().keys()


@pytest.mark.parametrize("sdk", ["node", "python"])
def test_golden_transcripts_are_as_frozen(sdk: str) -> None:
    found, frozen = (
        {digest: name for digest, of, name in rows if of == sdk}
        for rows in (goldens.today(), goldens.frozen())
    )
    assert {found[digest] for digest in found.keys() - frozen.keys()} == set()
    assert {frozen[digest] for digest in frozen.keys() - found.keys()} == set()
