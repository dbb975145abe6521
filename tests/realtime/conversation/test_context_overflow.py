"""Context overflow: conversations that outgrow the context window."""

import asyncio
import json
from typing import Any

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import ConfigureSession, DeleteItem, FetchItem
from continuo.realtime.protocol.events import ItemFetched, SessionConfigured
from continuo.realtime.protocol.items import MessageItem
from continuo.realtime.protocol.realtime_api import (
    Encoder,
    decode_command,
    decode_frame,
    encode_frame,
)
from continuo.realtime.protocol.settings import GenerationSettings, Truncation
from continuo.realtime.session.state import SessionState
from tests.support.sessions import SessionDriver

pytestmark = pytest.mark.slow

LIMIT_TOKENS = 400
"""`max_model_len` of the fixture `bench`."""


async def configure(talk: SessionDriver, **truncation: Any) -> None:
    settings = GenerationSettings(instructions="be kind", truncation=Truncation(**truncation))
    await talk.session.execute(ConfigureSession(settings))


def ids_in_window(talk: SessionDriver) -> list[str]:
    return [item.id for span in talk.session.conversation.spans for item in span.items]


async def fill(talk: SessionDriver) -> list[str]:
    """Add messages until the first is out of window. Returns the ids of all."""
    names: list[str] = []
    while not talk.session.conversation.out_of_window:
        names.append(await talk.add_message("something to remember"))
        assert len(names) < 40, "no item left the context window"
    return names


async def test_auto_truncation_is_the_default_and_allows_500_turns(talk: SessionDriver) -> None:
    assert talk.session.settings.truncation.mode == "auto"
    for turn in range(500):
        await talk.add_message(f"this is turn {turn}")
        await talk.run_turn(2)
        assert talk.session.conversation.length <= LIMIT_TOKENS
    assert len(list(talk.session.conversation.items())) == 1000
    assert len(ids_in_window(talk)) < 60


async def test_auto_truncation_removes_the_oldest_items_after_the_head(talk: SessionDriver) -> None:
    await configure(talk)
    head = talk.session.conversation.head
    names = await fill(talk)
    conversation = talk.session.conversation
    removed = [item.id for item in conversation.out_of_window]
    assert removed == names[: len(removed)]
    assert ids_in_window(talk) == names[len(removed) :]
    assert conversation.head.ids == head.ids, "the instructions changed"
    assert conversation.length <= LIMIT_TOKENS * 0.8
    one_more = len(conversation.spans[0].ids)
    assert conversation.length + one_more > LIMIT_TOKENS * 0.8, (
        "more items than necessary left the window"
    )
    await talk.run_turn()


async def test_items_out_of_window_stay_retrievable(talk: SessionDriver) -> None:
    names = await fill(talk)
    await talk.session.execute(FetchItem(names[0]))
    fetched = talk.recorder.events[-1]
    assert isinstance(fetched, ItemFetched)
    assert fetched.item.id == names[0]
    with pytest.raises(Refusal) as caught:
        await talk.add_message("other words", name=names[0])
    assert caught.value.code == "item_create_duplicate_item_id"
    await talk.add_message("front", after=names[0], name="new")
    assert ids_in_window(talk)[0] == "new"
    await talk.session.execute(DeleteItem(names[0]))
    assert talk.session.conversation.find(names[0]) is None
    await talk.run_turn()


async def test_truncated_conversation_is_prefilled_while_idle(talk: SessionDriver) -> None:
    for turn in range(60):
        await talk.add_message(f"this is turn {turn}")
        out_of_window = len(talk.session.conversation.out_of_window)
        await talk.run_turn(20)
        if len(talk.session.conversation.out_of_window) > out_of_window:
            break
    else:
        raise AssertionError("no response filled the context")
    length = talk.session.conversation.length
    while (await talk.engine.info(talk.session.id)).committed < length:
        await asyncio.sleep(0)
    computed = talk.engine_harness.runner.token_count
    await talk.create_response(1)
    await talk.wait_response()
    assert talk.engine_harness.runner.token_count - computed < 20, (
        "more than the header was prefilled"
    )


async def test_context_window_begins_with_a_user_message(talk: SessionDriver) -> None:
    for turn in range(30):
        await talk.add_message(f"this is turn {turn}")
        await talk.run_turn(4)
        first = talk.session.conversation.spans[0].items[0]
        assert isinstance(first, MessageItem)
        assert first.role == "user"


async def test_retention_ratio_is_honoured(talk: SessionDriver) -> None:
    await configure(talk, mode="retention_ratio", ratio=0.4)
    await fill(talk)
    conversation = talk.session.conversation
    after = conversation.length - len(conversation.head.ids)
    assert after <= 0.4 * (LIMIT_TOKENS * 0.9 - len(conversation.head.ids))
    await talk.run_turn()


async def test_token_limits_are_honoured(talk: SessionDriver) -> None:
    await configure(talk, mode="retention_ratio", ratio=1.0, after_instructions=100)
    for n in range(6):
        await talk.add_message(f"something {n}")
        conversation = talk.session.conversation
        assert conversation.length - len(conversation.head.ids) <= 100
    await talk.run_turn()


async def test_smaller_window_takes_effect_at_once(talk: SessionDriver) -> None:
    for n in range(5):
        await talk.add_message(f"something to remember {n}")
    await configure(talk, mode="retention_ratio", ratio=1.0, after_instructions=60)
    assert talk.session.conversation.out_of_window
    await talk.run_turn()


async def test_disabled_truncation_refuses_with_the_token_counts(talk: SessionDriver) -> None:
    await configure(talk, mode="disabled")
    with pytest.raises(Refusal, match=r"400 \(max_model_len\)") as caught:
        await fill(talk)
    assert caught.value.code == "context_length_exceeded"
    assert not talk.session.conversation.out_of_window
    await talk.session.execute(DeleteItem("u1"))
    await talk.run_turn()


async def test_item_larger_than_the_context_truncates_nothing(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    before = talk.session.conversation
    with pytest.raises(Refusal) as caught:
        await talk.add_message("x" * 500)
    assert caught.value.code == "context_length_exceeded"
    assert talk.session.conversation is before


async def test_context_filled_during_a_response_is_truncated_later(talk: SessionDriver) -> None:
    names = [await talk.add_message("something to remember") for _ in range(9)]
    expected = talk.expected_ids(20)
    await talk.create_response(20)
    for _ in range(4):
        names.append(await talk.add_message("something more to remember"))
    with pytest.raises(Refusal):
        await talk.add_message("x" * 500)
    response = await talk.wait_response()
    while talk.session.state is not SessionState.IDLE:
        await asyncio.sleep(0)
    assert response.usage is not None
    assert response.usage.output_tokens == len(expected)
    while not talk.session.conversation.out_of_window:
        await talk.add_message("more")
    assert ids_in_window(talk)[-1] != names[0]
    await talk.run_turn()


TRUNCATIONS = [
    ("auto", "auto"),
    ("disabled", "disabled"),
    (
        {"type": "retention_ratio", "retention_ratio": 0.5},
        {"type": "retention_ratio", "retention_ratio": 0.5},
    ),
    (
        {
            "type": "retention_ratio",
            "retention_ratio": 0.5,
            "token_limits": {"post_instructions": 9},
        },
        {
            "type": "retention_ratio",
            "retention_ratio": 0.5,
            "token_limits": {"post_instructions": 9},
        },
    ),
    (None, "auto"),
]


@pytest.mark.parametrize(("sent", "reported"), TRUNCATIONS)
def test_truncation_setting_is_decoded_and_reported(sent: object, reported: object) -> None:
    session = {"type": "realtime", "truncation": sent}
    event = decode_frame(json.dumps({"type": "session.update", "session": session}))
    default = GenerationSettings()
    command = decode_command(event, default, default, lambda prefix: prefix)
    assert isinstance(command, ConfigureSession)
    (updated,) = Encoder("sess_x", "m").encode(SessionConfigured(command.settings), str)
    assert json.loads(encode_frame(updated))["session"]["truncation"] == reported
