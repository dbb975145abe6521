"""Out-of-band responses: forks beside the conversation."""

import asyncio

import pytest

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import CreateSessionResponse
from continuo.realtime.protocol.items import ItemReference, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from tests.support.digest_runner import oracle
from tests.support.sessions import Talk, message


def words(answer: Response) -> str:
    return "".join(
        part.text for item in answer.items if isinstance(item, MessageItem) for part in item.parts
    )


def told(talk: Talk, conversation: Conversation, tokens: int) -> str:
    """What a fresh prefill answers, as text."""
    asked, header = conversation.render_header()
    ids = oracle(asked.ids() + header, tokens, stop_ids=[0])
    return talk.engine.text.decode(ids)


async def history(talk: Talk) -> None:
    for n in range(3):
        await talk.say(f"some words of turn {n}")
        await talk.turn()


async def test_it_shares_the_conversations_kv(talk: Talk) -> None:
    await history(talk)
    await talk.say("and now?")
    expected = told(talk, talk.session.conversation, 5)
    while (await talk.engine.info(talk.session.id)).committed < talk.session.conversation.length:
        await asyncio.sleep(0)
    computed = talk.bench.runner.tokens_run
    await talk.respond(5, is_out_of_band=True)
    answer = await talk.ended()
    assert words(answer) == expected
    assert answer.usage is not None
    header = len(talk.session.conversation.render_header()[1])
    assert answer.usage.cached_tokens >= answer.usage.input_tokens - header
    assert talk.bench.runner.tokens_run - computed <= header + 6
    await talk.turn()


async def test_items_that_are_referred_to_share_it_too(talk: Talk) -> None:
    await history(talk)
    known = [item.id for item in talk.session.conversation.items()][:4]
    question = message("q", "what was that about?")
    context = (*(ItemReference(name) for name in known), question)
    await talk.respond(5, is_out_of_band=True, context=context)
    answer = await talk.ended()
    shared = sum(len(span.ids) for span in talk.session.conversation.all_spans[:5])
    assert answer.usage is not None
    assert answer.usage.cached_tokens >= shared
    start = Conversation.start(talk.session.conversation.template, GenerationSettings())
    spans = talk.session.conversation.spans[:4]
    made = start.with_spans(spans).add_item(question)
    assert words(answer) == told(talk, made, 5)
    await talk.turn()


async def test_an_unknown_reference_is_refused(talk: Talk) -> None:
    with pytest.raises(Refusal) as caught:
        await talk.respond(5, is_out_of_band=True, context=(ItemReference("nobody"),))
    assert caught.value.code == "item_reference_invalid_item_id"


async def test_own_input_replaces_the_context(talk: Talk) -> None:
    await history(talk)
    start = Conversation.start(talk.session.conversation.template, GenerationSettings())
    for context in ((message("x", "only this"),), ()):
        made = start
        for item in context:
            made = made.add_item(item)
        await talk.respond(4, is_out_of_band=True, context=context)
        assert words(await talk.ended()) == told(talk, made, 4)
    await talk.turn()


async def test_several_beside_the_default_one(talk: Talk) -> None:
    await history(talk)
    await talk.say("and now?")
    expected = talk.expected(60)
    beside = told(talk, talk.session.conversation, 6)
    for n in range(2):
        await talk.respond(6, is_out_of_band=True, metadata={"n": str(n)})
    await talk.respond(60)
    for n in range(2, 4):
        await talk.respond(6, is_out_of_band=True, metadata={"n": str(n)})
    answers = [await talk.ended() for _ in range(5)]
    (main,) = [answer for answer in answers if answer.conversation is not None]
    assert talk.sampled(main) == expected
    others = [answer for answer in answers if answer.conversation is None]
    assert [words(answer) for answer in others] == [beside] * 4
    assert {(answer.metadata or {}).get("n") for answer in others} == {"0", "1", "2", "3"}
    await talk.turn()


async def test_its_own_instructions_stay_its_own(talk: Talk) -> None:
    await history(talk)
    wish = GenerationSettings(instructions="be brief", max_output_tokens=4)
    made = talk.session.conversation.with_settings(wish)
    await talk.session.execute(CreateSessionResponse(settings=wish, is_out_of_band=True))
    assert words(await talk.ended()) == told(talk, made, 4)
    await talk.turn()
