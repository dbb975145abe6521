"""Conversations that outgrow the context of the model."""

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
from tests.support.sessions import Talk

LIMIT = 400
"""Of the bench."""


async def configure(talk: Talk, **truncation: Any) -> None:
    wish = GenerationSettings(instructions="be kind", truncation=Truncation(**truncation))
    await talk.session.execute(ConfigureSession(wish))


def live(talk: Talk) -> list[str]:
    return [item.id for span in talk.session.conversation.spans for item in span.items]


async def fill(talk: Talk) -> list[str]:
    """Says things until the first of them is dropped; gives the names."""
    names: list[str] = []
    while not talk.session.conversation.out_of_window:
        names.append(await talk.say("something to remember"))
        assert len(names) < 40, "something is dropped in the end"
    return names


async def test_auto_is_the_default_and_goes_on(talk: Talk) -> None:
    assert talk.session.settings.truncation.mode == "auto"
    for turn in range(500):
        await talk.say(f"this is turn {turn}")
        await talk.turn(2)
        assert talk.session.conversation.length <= LIMIT
    assert len(list(talk.session.conversation.items())) == 1000
    assert len(live(talk)) < 60


async def test_auto_drops_the_oldest_after_the_instructions(talk: Talk) -> None:
    await configure(talk)
    head = talk.session.conversation.head
    names = await fill(talk)
    conversation = talk.session.conversation
    gone = [item.id for item in conversation.out_of_window]
    assert gone == names[: len(gone)]
    assert live(talk) == names[len(gone) :]
    assert conversation.head.ids == head.ids, "the instructions stay"
    assert conversation.length <= LIMIT * 0.8
    one_more = len(conversation.spans[0].ids)
    assert conversation.length + one_more > LIMIT * 0.8, "no more than it needs"
    await talk.turn()


async def test_dropped_items_stay_retrievable(talk: Talk) -> None:
    names = await fill(talk)
    await talk.session.execute(FetchItem(names[0]))
    fetched = talk.ears.heard[-1]
    assert isinstance(fetched, ItemFetched)
    assert fetched.item.id == names[0]
    with pytest.raises(Refusal) as caught:
        await talk.say("other words", name=names[0])
    assert caught.value.code == "item_create_duplicate_item_id"
    await talk.say("front", after=names[0], name="new")
    assert live(talk)[0] == "new"
    await talk.session.execute(DeleteItem(names[0]))
    assert talk.session.conversation.find(names[0]) is None
    await talk.turn()


async def test_it_prefills_once_more_while_idle(talk: Talk) -> None:
    for turn in range(60):
        await talk.say(f"this is turn {turn}")
        dropped = len(talk.session.conversation.out_of_window)
        await talk.turn(20)
        if len(talk.session.conversation.out_of_window) > dropped:
            break
    else:
        raise AssertionError("an answer fills the context once")
    wanted = talk.session.conversation.length
    while (await talk.engine.info(talk.session.id)).committed < wanted:
        await asyncio.sleep(0)
    computed = talk.bench.runner.tokens_run
    await talk.respond(1)
    await talk.ended()
    assert talk.bench.runner.tokens_run - computed < 20, "the header alone"


async def test_a_question_comes_first_in_what_is_kept(talk: Talk) -> None:
    for turn in range(30):
        await talk.say(f"this is turn {turn}")
        await talk.turn(4)
        first = talk.session.conversation.spans[0].items[0]
        assert isinstance(first, MessageItem)
        assert first.role == "user"


async def test_retention_ratio_is_honoured(talk: Talk) -> None:
    await configure(talk, mode="retention_ratio", ratio=0.4)
    await fill(talk)
    conversation = talk.session.conversation
    after = conversation.length - len(conversation.head.ids)
    assert after <= 0.4 * (LIMIT * 0.9 - len(conversation.head.ids))
    await talk.turn()


async def test_token_limits_are_honoured(talk: Talk) -> None:
    await configure(talk, mode="retention_ratio", ratio=1.0, after_instructions=100)
    for n in range(6):
        await talk.say(f"something {n}")
        conversation = talk.session.conversation
        assert conversation.length - len(conversation.head.ids) <= 100
    await talk.turn()


async def test_a_smaller_window_takes_effect_at_once(talk: Talk) -> None:
    for n in range(5):
        await talk.say(f"something to remember {n}")
    await configure(talk, mode="retention_ratio", ratio=1.0, after_instructions=60)
    assert talk.session.conversation.out_of_window
    await talk.turn()


async def test_disabled_is_an_error_with_the_numbers(talk: Talk) -> None:
    await configure(talk, mode="disabled")
    with pytest.raises(Refusal, match=r"400 \(max_model_len\)") as caught:
        await fill(talk)
    assert caught.value.code == "context_length_exceeded"
    assert not talk.session.conversation.out_of_window
    await talk.session.execute(DeleteItem("u1"))
    await talk.turn()


async def test_an_item_larger_than_the_context_drops_nothing(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation
    with pytest.raises(Refusal) as caught:
        await talk.say("x" * 500)
    assert caught.value.code == "context_length_exceeded"
    assert talk.session.conversation is before


async def test_a_full_context_while_an_answer_is_made(talk: Talk) -> None:
    names = [await talk.say("something to remember") for _ in range(9)]
    expected = talk.expected(20)
    await talk.respond(20)
    for _ in range(4):
        names.append(await talk.say("something more to remember"))
    with pytest.raises(Refusal):
        await talk.say("x" * 500)
    answer = await talk.ended()
    while talk.session.state is not SessionState.IDLE:
        await asyncio.sleep(0)
    assert answer.usage is not None
    assert answer.usage.output_tokens == len(expected)
    while not talk.session.conversation.out_of_window:
        await talk.say("more")
    assert live(talk)[-1] != names[0]
    await talk.turn()


WIRE = [
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


@pytest.mark.parametrize(("sent", "reported"), WIRE)
def test_truncation_on_the_wire(sent: object, reported: object) -> None:
    session = {"type": "realtime", "truncation": sent}
    event = decode_frame(json.dumps({"type": "session.update", "session": session}))
    default = GenerationSettings()
    asked = decode_command(event, default, default, lambda prefix: prefix)
    assert isinstance(asked, ConfigureSession)
    (updated,) = Encoder("sess_x", "m").encode(SessionConfigured(asked.settings), str)
    assert json.loads(encode_frame(updated))["session"]["truncation"] == reported
