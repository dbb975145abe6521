"""MessagePack frames: the events of the Realtime API under the subprotocol `realtime.msgpack`."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
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
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.web_servers import RunningServer

MSGPACK = CODECS["realtime.msgpack"]
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


# ---------------------------------------------------------------- the codec


@pytest.mark.parametrize("event", EVENTS, ids=[event["type"] for event in EVENTS])
def test_both_codecs_decode_the_same_events(event: dict[str, Any]) -> None:
    assert MSGPACK.decode(pack(event)) == JSON.decode(msgspec.json.encode(event))
    assert MSGPACK.extract_event_id(pack(event)) == event.get("event_id")


def test_both_codecs_encode_the_same_events() -> None:
    schema = '{"type": "object", "x": [1.5, null, 1180591620717411303424]}'
    tool = Tool(name="f", parameters=schema)
    item = MessageItem(id="m", role="user", parts=(ContentPart("input_text", "\u00e9\U0001f9ff"),))
    encoder = Encoder("sess_x", "demo")
    for emitted in (
        SessionOpened(GenerationSettings(tools=(tool,))),
        SessionConfigured(GenerationSettings(tools=(tool,)), Rewind(1, 2)),
        ItemAdded(item, None),
        TextDelta("resp_x", 0, "m", "words"),
        ResponseEnded(Response(id="resp_x", conversation=None, settings=GenerationSettings())),
    ):
        for event in encoder.encode(emitted, str):
            expected = msgspec.json.decode(JSON.encode(event))
            assert unpack(MSGPACK.encode(event)) == expected


def packable() -> list[tuple[str, str, str | None]]:
    """The bad frames of the JSON codec that MessagePack can represent."""
    found: list[tuple[str, str, str | None]] = []
    for frame, code, param, _ in BAD:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, OverflowError):
            pack(msgspec.json.decode(frame))
            found.append((frame, code, param))
    return found


@pytest.mark.parametrize(("frame", "code", "param"), packable())
def test_invalid_msgpack_event_is_refused_with_code_and_param(
    frame: str, code: str, param: str | None
) -> None:
    with pytest.raises(BadFrame) as caught:
        MSGPACK.decode(pack(msgspec.json.decode(frame)))
    assert caught.value.code == code
    if param is not None:
        assert caught.value.param == param
    if '"e1"' in frame:
        assert caught.value.event_id == "e1"


def with_parameters(packed: bytes) -> bytes:
    """A session.update whose tool has these bytes as its schema."""
    tool = {"type": "function", "name": "f", "parameters": msgspec.Raw(packed)}
    return pack({"type": "session.update", "session": {"type": "realtime", "tools": [tool]}})


@pytest.mark.parametrize(
    ("frame", "message"),
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
def test_malformed_msgpack_is_refused(frame: bytes, message: str) -> None:
    with pytest.raises(BadFrame, match=message) as caught:
        MSGPACK.decode(frame)
    assert caught.value.code == "invalid_msgpack"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary()
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.none() | st.integers(0, 9) | st.text("ab"), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def decode_or_refuse(frame: bytes) -> None:
    """Decode a frame to a command; only Refusal may be raised."""
    with contextlib.suppress(Refusal):
        decode_command(
            MSGPACK.decode(frame), GenerationSettings(), GenerationSettings(), generate_id
        )


@given(st.binary())
@example(b"\xdd\xff\xff\xff\xff")
def test_any_bytes_are_decoded_or_refused(frame: bytes) -> None:
    decode_or_refuse(frame)
    MSGPACK.extract_event_id(frame)


@given(st.sampled_from(EVENTS), st.sampled_from(["session", "item", "response", "text"]), VALUES)
def test_any_value_in_an_event_is_decoded_or_refused(
    event: dict[str, Any], key: str, value: object
) -> None:
    decode_or_refuse(pack({**event, key: value}))
    inner = event.get(key)
    if isinstance(inner, dict):
        for field in inner:
            decode_or_refuse(pack({**event, key: {**inner, field: value}}))


@given(VALUES)
def test_any_tool_schema_is_decoded_or_refused(value: object) -> None:
    decode_or_refuse(with_parameters(pack({"a": value})))


def frame_of_values(count: int, value: bytes) -> bytes:
    array = b"\xdd" + count.to_bytes(4, "big") + value * count
    return pack({"event_id": "e", "type": "response.cancel", "x": msgspec.Raw(array)})


@pytest.mark.parametrize(
    "value", [b"\xc0", b"\xcd\x01\x02", b"\xa2hi", b"\x81\xa1a\x05", b"\xc4\x01x"]
)
def test_frame_of_too_many_values_is_refused_before_it_is_decoded(value: bytes) -> None:
    with pytest.raises(BadFrame, match="the limit is 32,768") as caught:
        MSGPACK.decode(frame_of_values(2 * FRAME_VALUES_MAX, value))
    assert (caught.value.code, caught.value.event_id) == ("frame_too_large", "e")
    MSGPACK.decode(frame_of_values(FRAME_VALUES_MAX // 2, value))


def test_long_msgpack_text_counts_as_one_value() -> None:
    MSGPACK.decode(pack({"type": "input_text_buffer.append", "text": "\xcd\x01" * 200_000}))


# ---------------------------------------------------------------- over a socket


OFFERED = [Subprotocol("realtime.msgpack"), Subprotocol("realtime")]


async def test_conversation_over_msgpack_frames(server: RunningServer) -> None:
    async with open_realtime_session(server.url, subprotocols=OFFERED) as client:
        assert client.is_binary
        session = {"type": "realtime", "instructions": "be kind", "tools": [TOOL]}
        await client.send("session.update", session=session)
        updated = await client.wait_for("session.updated")
        assert updated["session"]["tools"][0]["parameters"] == TOOL["parameters"]
        await client.add_message("hello")
        response = await client.start_response(max_output_tokens=5)
        streamed = await client.wait_response(response)
        (item,) = client.ended_responses[response]["output"]
        assert item["content"] == [{"type": "output_text", "text": streamed}]


async def test_connection_stays_usable_after_a_bad_msgpack_frame(server: RunningServer) -> None:
    async with open_realtime_session(server.url, subprotocols=OFFERED) as client:
        for frame in (b"\xc1", pack({"type": "x.y", "event_id": "e"}), b"\xc0" * 1_100_000):
            await client.socket.send(frame)
        errors = [(await client.wait_for("error"))["error"] for _ in range(3)]
        assert [error["code"] for error in errors] == [
            "invalid_msgpack",
            "invalid_value",
            "frame_too_large",
        ]
        assert errors[1]["event_id"] == "e"
        await client.send("input_audio_buffer.clear")
        await client.wait_for("input_audio_buffer.cleared")


async def test_consecutive_bad_msgpack_frames_close_the_connection(server: RunningServer) -> None:
    async with open_realtime_session(server.url, subprotocols=OFFERED) as client:
        for _ in range(32):
            await client.socket.send(b"\xc1")
        assert await client.wait_close_code() == 1007


async def test_text_frame_closes_a_msgpack_connection(server: RunningServer) -> None:
    async with open_realtime_session(server.url, subprotocols=OFFERED) as client:
        await client.socket.send('{"type": "response.cancel"}')
        assert await client.wait_close_code() == 1003


async def test_unknown_model_is_reported_in_msgpack(server: RunningServer) -> None:
    url = f"{server.url}?model=gpt-9"
    async with connect_realtime(url, subprotocols=OFFERED[:1]) as client:
        assert client.is_binary
        assert (await client.expect("error"))["error"]["code"] == "model_not_found"
        assert await client.wait_close_code() == 1008
