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
"""`max_model_len` of the fixture `harness`."""


async def configure(driver: SessionDriver, **truncation: Any) -> None:
    settings = GenerationSettings(instructions="be kind", truncation=Truncation(**truncation))
    await driver.session.execute(ConfigureSession(settings))


def ids_in_window(driver: SessionDriver) -> list[str]:
    return [item.id for span in driver.session.conversation.spans for item in span.items]


async def fill(driver: SessionDriver) -> list[str]:
    """Add messages until the first is out of window. Returns the ids of all."""
    names: list[str] = []
    while not driver.session.conversation.out_of_window:
        names.append(await driver.add_message("something to remember"))
        assert len(names) < 40, "no item left the context window"
    return names


async def test_auto_truncation_is_the_default_and_allows_500_turns(driver: SessionDriver) -> None:
    assert driver.session.settings.truncation.mode == "auto"
    for turn in range(500):
        await driver.add_message(f"this is turn {turn}")
        await driver.run_turn(2)
        assert driver.session.conversation.length <= LIMIT_TOKENS
    assert len(list(driver.session.conversation.items())) == 1000
    assert len(ids_in_window(driver)) < 60


async def test_auto_truncation_removes_the_oldest_items_after_the_head(
    driver: SessionDriver,
) -> None:
    await configure(driver)
    head = driver.session.conversation.head
    names = await fill(driver)
    conversation = driver.session.conversation
    removed = [item.id for item in conversation.out_of_window]
    assert removed == names[: len(removed)]
    assert ids_in_window(driver) == names[len(removed) :]
    assert conversation.head.ids == head.ids, "the instructions changed"
    assert conversation.length <= LIMIT_TOKENS * 0.8
    one_more = len(conversation.spans[0].ids)
    assert conversation.length + one_more > LIMIT_TOKENS * 0.8, (
        "more items than necessary left the window"
    )
    await driver.run_turn()


async def test_items_out_of_window_stay_retrievable(driver: SessionDriver) -> None:
    names = await fill(driver)
    await driver.session.execute(FetchItem(names[0]))
    fetched = driver.recorder.events[-1]
    assert isinstance(fetched, ItemFetched)
    assert fetched.item.id == names[0]
    with pytest.raises(Refusal) as caught:
        await driver.add_message("other words", name=names[0])
    assert caught.value.code == "item_create_duplicate_item_id"
    await driver.add_message("front", after=names[0], name="new")
    assert ids_in_window(driver)[0] == "new"
    await driver.session.execute(DeleteItem(names[0]))
    assert driver.session.conversation.find(names[0]) is None
    await driver.run_turn()


async def test_truncated_conversation_is_prefilled_while_idle(driver: SessionDriver) -> None:
    for turn in range(60):
        await driver.add_message(f"this is turn {turn}")
        out_of_window = len(driver.session.conversation.out_of_window)
        await driver.run_turn(20)
        if len(driver.session.conversation.out_of_window) > out_of_window:
            break
    else:
        raise AssertionError("no response filled the context")
    length = driver.session.conversation.length
    while (await driver.engine.info(driver.session.id)).committed < length:
        await asyncio.sleep(0)
    computed = driver.engine_harness.runner.token_count
    await driver.create_response(1)
    await driver.wait_response()
    assert driver.engine_harness.runner.token_count - computed < 20, (
        "more than the header was prefilled"
    )


async def test_context_window_begins_with_a_user_message(driver: SessionDriver) -> None:
    for turn in range(30):
        await driver.add_message(f"this is turn {turn}")
        await driver.run_turn(4)
        first = driver.session.conversation.spans[0].items[0]
        assert isinstance(first, MessageItem)
        assert first.role == "user"


async def test_retention_ratio_is_honoured(driver: SessionDriver) -> None:
    await configure(driver, mode="retention_ratio", ratio=0.4)
    await fill(driver)
    conversation = driver.session.conversation
    after = conversation.length - len(conversation.head.ids)
    assert after <= 0.4 * (LIMIT_TOKENS * 0.9 - len(conversation.head.ids))
    await driver.run_turn()


async def test_token_limits_are_honoured(driver: SessionDriver) -> None:
    await configure(driver, mode="retention_ratio", ratio=1.0, after_instructions=100)
    for n in range(6):
        await driver.add_message(f"something {n}")
        conversation = driver.session.conversation
        assert conversation.length - len(conversation.head.ids) <= 100
    await driver.run_turn()


async def test_smaller_window_takes_effect_at_once(driver: SessionDriver) -> None:
    for n in range(5):
        await driver.add_message(f"something to remember {n}")
    await configure(driver, mode="retention_ratio", ratio=1.0, after_instructions=60)
    assert driver.session.conversation.out_of_window
    await driver.run_turn()


async def test_disabled_truncation_refuses_with_the_token_counts(driver: SessionDriver) -> None:
    await configure(driver, mode="disabled")
    with pytest.raises(Refusal, match="length is 400 tokens") as caught:
        await fill(driver)
    assert caught.value.code == "context_length_exceeded"
    assert not driver.session.conversation.out_of_window
    await driver.session.execute(DeleteItem("u1"))
    await driver.run_turn()


async def test_item_larger_than_the_context_truncates_nothing(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    before = driver.session.conversation
    with pytest.raises(Refusal) as caught:
        await driver.add_message("x" * 500)
    assert caught.value.code == "context_length_exceeded"
    assert driver.session.conversation is before


async def test_context_filled_during_a_response_is_truncated_later(driver: SessionDriver) -> None:
    names = [await driver.add_message("something to remember") for _ in range(9)]
    expected = driver.expected_ids(20)
    await driver.create_response(20)
    for _ in range(4):
        names.append(await driver.add_message("something more to remember"))
    with pytest.raises(Refusal):
        await driver.add_message("x" * 500)
    response = await driver.wait_response()
    while driver.session.state is not SessionState.IDLE:
        await asyncio.sleep(0)
    assert response.usage is not None
    assert response.usage.output_tokens == len(expected)
    while not driver.session.conversation.out_of_window:
        await driver.add_message("more")
    assert ids_in_window(driver)[-1] != names[0]
    await driver.run_turn()


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
