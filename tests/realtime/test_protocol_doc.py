"""docs/conformance.md names a test for each row; every one of them must exist."""

import re
from pathlib import Path

from continuo.realtime.protocol import responses_api
from continuo.realtime.protocol.realtime_api.client_events import EVENT_TYPES

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/conformance.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    source = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+", DOC))
    assert len(named) > 20
    assert [name for name in sorted(named) if f"def {name}(" not in source] == []


def test_every_flow_that_is_named_exists() -> None:
    files = (ROOT / "tests/clients/flows").glob("*.py")
    source = "".join(file.read_text() for file in files)
    named = {name for name in re.findall(r"\*(\w+)\*", DOC) if not name.startswith("bad_input")}
    assert len(named) > 20
    assert [name for name in sorted(named) if f"async def {name}(" not in source] == []


def test_every_client_event_is_described() -> None:
    audio = {"input_audio_buffer", "output_audio_buffer"}
    for name in EVENT_TYPES:
        group, _, verb = name.rpartition(".")
        assert name in DOC or f"`.{verb}`" in DOC or group in audio, name


def test_every_client_event_of_responses_is_described() -> None:
    assert [name for name in responses_api.EVENT_TYPES if f"`{name}" not in DOC] == []
