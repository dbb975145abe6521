"""MessagePack frames: the same events, under the subprotocol realtime.msgpack."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import FRAME_VALUES_MAX
from continuo.realtime.protocol.events import (
    ItemAdded,
    ResponseEnded,
    Rewind,
    SessionConfigured,
    SessionOpened,
    TextDelta,
)
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.realtime_api import CODECS, JSON, Encoder, decode_command
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests.fuzz.corpus import EVENTS, TOOL
from tests.realtime.protocol.realtime_api.test_realtime_codec import BAD
from tests.support.web_servers import BEARER, Running

MSGPACK = CODECS["realtime.msgpack"]
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


# ---------------------------------------------------------------- the codec


@pytest.mark.parametrize("event", EVENTS, ids=[event["type"] for event in EVENTS])
def test_both_codecs_read_the_same(event: dict[str, Any]) -> None:
    assert MSGPACK.decode(pack(event)) == JSON.decode(msgspec.json.encode(event))
    assert MSGPACK.extract_event_id(pack(event)) == event.get("event_id")


def test_both_codecs_write_the_same() -> None:
    odd = '{"type": "object", "x": [1.5, null, 1180591620717411303424]}'
    tool = Tool(name="f", parameters=odd)
    item = MessageItem(id="m", role="user", parts=(ContentPart("input_text", "\u00e9\U0001f9ff"),))
    voice = Encoder("sess_x", "demo")
    for tell in (
        SessionOpened(GenerationSettings(tools=(tool,))),
        SessionConfigured(GenerationSettings(tools=(tool,)), Rewind(1, 2)),
        ItemAdded(item, None),
        TextDelta("resp_x", 0, "m", "words"),
        ResponseEnded(Response(id="resp_x", conversation=None, settings=GenerationSettings())),
    ):
        for event in voice.encode(tell, str):
            said = msgspec.json.decode(JSON.encode(event))
            assert unpack(MSGPACK.encode(event)) == said


def readable() -> list[tuple[str, str, str | None]]:
    """Of the bad frames, those that MessagePack can say."""
    found: list[tuple[str, str, str | None]] = []
    for frame, code, param, _ in BAD:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, OverflowError):
            pack(msgspec.json.decode(frame))
            found.append((frame, code, param))
    return found


@pytest.mark.parametrize(("frame", "code", "param"), readable())
def test_a_bad_packed_frame_is_explained(frame: str, code: str, param: str | None) -> None:
    with pytest.raises(BadFrame) as caught:
        MSGPACK.decode(pack(msgspec.json.decode(frame)))
    assert caught.value.code == code
    if param is not None:
        assert caught.value.param == param
    if '"e1"' in frame:
        assert caught.value.event_id == "e1"


def with_parameters(packed: bytes) -> bytes:
    """A session.update whose tool has these bytes for a schema."""
    tool = {"type": "function", "name": "f", "parameters": msgspec.Raw(packed)}
    return pack({"type": "session.update", "session": {"type": "realtime", "tools": [tool]}})


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (pack({"type": "response.cancel"})[:-3], "truncated"),
        (pack({"type": "response.cancel"}) + b"x", "trailing"),
        (b"\x81\xa4type\xa1\xff", "UTF-8"),
        (with_parameters(pack({"a": {None: 1}})), "keys"),
        (with_parameters(pack({"a": msgspec.msgpack.Ext(5, b"x")})), "Ext"),
        (with_parameters(b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0"), "deep"),
        (with_parameters(b"\x81\xa1a\x81\x80\xc0"), "MessagePack"),
    ],
)
def test_what_is_no_messagepack_event_is_refused(frame: bytes, words: str) -> None:
    with pytest.raises(BadFrame, match=words) as caught:
        MSGPACK.decode(frame)
    assert caught.value.code == "invalid_msgpack"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary()
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.none() | st.integers(0, 9) | st.text("ab"), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def taken(frame: bytes) -> None:
    """As an event that can be heard, or refused."""
    with contextlib.suppress(Refusal):
        decode_command(
            MSGPACK.decode(frame), GenerationSettings(), GenerationSettings(), generate_id
        )


@given(st.binary())
@example(b"\xdd\xff\xff\xff\xff")
def test_any_bytes_are_an_event_or_refused(frame: bytes) -> None:
    taken(frame)
    MSGPACK.extract_event_id(frame)


@given(st.sampled_from(EVENTS), st.sampled_from(["session", "item", "response", "text"]), VALUES)
def test_any_value_is_heard_or_refused(event: dict[str, Any], key: str, value: object) -> None:
    taken(pack({**event, key: value}))
    inner = event.get(key)
    if isinstance(inner, dict):
        for place in inner:
            taken(pack({**event, key: {**inner, place: value}}))


@given(VALUES)
def test_any_schema_is_heard_or_refused(value: object) -> None:
    taken(with_parameters(pack({"a": value})))


def many(count: int, value: bytes) -> bytes:
    array = b"\xdd" + count.to_bytes(4, "big") + value * count
    return pack({"event_id": "e", "type": "response.cancel", "x": msgspec.Raw(array)})


@pytest.mark.parametrize(
    "value", [b"\xc0", b"\xcd\x01\x02", b"\xa2hi", b"\x81\xa1a\x05", b"\xc4\x01x"]
)
def test_too_many_packed_values_are_refused_before_they_are_made(value: bytes) -> None:
    with pytest.raises(BadFrame, match="the limit is 32,768") as caught:
        MSGPACK.decode(many(2 * FRAME_VALUES_MAX, value))
    assert (caught.value.code, caught.value.event_id) == ("frame_too_large", "e")
    MSGPACK.decode(many(FRAME_VALUES_MAX // 2, value))


def test_a_long_packed_text_is_one_value() -> None:
    MSGPACK.decode(pack({"type": "input_text_buffer.append", "text": "\xcd\x01" * 200_000}))


# ---------------------------------------------------------------- the wire


def dial(running: Running) -> Any:
    offered = [Subprotocol("realtime.msgpack"), Subprotocol("realtime")]
    return connect(running.url, additional_headers=BEARER, subprotocols=offered)


async def recv(socket: ClientConnection) -> dict[str, Any]:
    frame = await asyncio.wait_for(socket.recv(), 20)
    assert isinstance(frame, bytes), "binary frames only"
    return unpack(frame)


async def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while (event := await recv(socket))["type"] != kind:
        pass
    return event


async def code(socket: ClientConnection) -> int:
    """The code it is closed with, whatever it says before."""
    try:
        while True:
            await recv(socket)
    except ConnectionClosed as end:
        return end.rcvd.code if end.rcvd else 1006


async def test_a_conversation_in_messagepack(running: Running) -> None:
    async with dial(running) as socket:
        assert socket.subprotocol == "realtime.msgpack"
        assert (await recv(socket))["type"] == "session.created"
        session = {"type": "realtime", "instructions": "be kind", "tools": [TOOL]}
        await socket.send(pack({"type": "session.update", "session": session}))
        updated = await until(socket, "session.updated")
        assert updated["session"]["tools"][0]["parameters"] == TOOL["parameters"]
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await socket.send(pack({"type": "conversation.item.create", "item": item}))
        await until(socket, "conversation.item.done")
        await socket.send(pack({"type": "response.create", "response": {"max_output_tokens": 5}}))
        said = ""
        while (event := await recv(socket))["type"] != "response.done":
            said += event.get("delta", "")
        (answer,) = event["response"]["output"]
        assert answer["content"] == [{"type": "output_text", "text": said}]


async def test_a_bad_packed_frame_leaves_the_connection_good(running: Running) -> None:
    async with dial(running) as socket:
        await recv(socket)
        for frame in (b"\xc1", pack({"type": "x.y", "event_id": "e"}), b"\xc0" * 1_100_000):
            await socket.send(frame)
        errors = [(await until(socket, "error"))["error"] for _ in range(3)]
        told = [error["code"] for error in errors]
        assert told == ["invalid_msgpack", "invalid_value", "frame_too_large"]
        assert errors[1]["event_id"] == "e"
        await socket.send(pack({"type": "input_audio_buffer.clear"}))
        await until(socket, "input_audio_buffer.cleared")


async def test_frames_that_are_never_messagepack_close(running: Running) -> None:
    async with dial(running) as socket:
        for _ in range(32):
            await socket.send(b"\xc1")
        assert await code(socket) == 1007


async def test_a_text_frame_closes_where_messagepack_was_agreed(running: Running) -> None:
    async with dial(running) as socket:
        await socket.send('{"type": "response.cancel"}')
        assert await code(socket) == 1003


async def test_an_unknown_model_is_said_in_messagepack(running: Running) -> None:
    offered = [Subprotocol("realtime.msgpack")]
    url = f"{running.url}?model=gpt-9"
    async with connect(url, additional_headers=BEARER, subprotocols=offered) as socket:
        assert (await recv(socket))["error"]["code"] == "model_not_found"
        assert await code(socket) == 1008
