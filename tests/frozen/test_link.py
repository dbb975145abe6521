"""The bytes between gateway and engine are the frozen ones, whatever the classes are called."""

from typing import Any

import msgspec
import pytest

from continuo.engine.wire.messages import EngineCommand, EngineEvent
from tests.frozen import link


@pytest.mark.parametrize("part", ["commands", "events", "greeting", "flight recorder", "start"])
def test_the_bytes_are_as_frozen(part: str) -> None:
    assert link.today()[part] == link.frozen()[part]


def test_no_part_is_missing() -> None:
    assert link.today().keys() == link.frozen().keys()


@pytest.mark.parametrize(("part", "union"), [("commands", EngineCommand), ("events", EngineEvent)])
def test_frozen_messages_are_read(part: str, union: Any) -> None:
    decoder = msgspec.msgpack.Decoder(list[union])
    messages = [bytes.fromhex(text) for text in link.frozen()[part].values()]
    frame = bytes((0xDC, *len(messages).to_bytes(2, "big"))) + b"".join(messages)
    assert [msgspec.msgpack.encode(message) for message in decoder.decode(frame)] == messages
