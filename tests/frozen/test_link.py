"""Tests of the bytes between gateway and engine: they are as frozen, whatever the class names."""

from types import GenericAlias
from typing import Any

import msgspec
import pytest

from continuo.engine.wire.messages import EngineCommand, EngineEvent
from tests.frozen import link


@pytest.mark.parametrize("part", ["commands", "events", "greeting", "flight recorder", "start"])
def test_link_bytes_are_as_frozen(part: str) -> None:
    assert link.current()[part] == link.frozen()[part]


def test_link_parts_are_the_frozen_parts() -> None:
    assert link.current().keys() == link.frozen().keys()


@pytest.mark.parametrize(("part", "union"), [("commands", EngineCommand), ("events", EngineEvent)])
def test_frozen_messages_decode_and_encode_to_the_same_bytes(part: str, union: Any) -> None:
    frame_type: Any = GenericAlias(list, (union,))
    decoder: Any = msgspec.msgpack.Decoder(frame_type)
    messages = [bytes.fromhex(text) for text in link.frozen()[part].values()]
    frame = bytes((0xDC, *len(messages).to_bytes(2, "big"))) + b"".join(messages)
    assert [msgspec.msgpack.encode(message) for message in decoder.decode(frame)] == messages
