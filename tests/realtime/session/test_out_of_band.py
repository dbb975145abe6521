"""Out-of-band responses: forks of the conversation that leave the conversation unchanged."""

import asyncio

import pytest

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import CreateSessionResponse
from continuo.realtime.protocol.items import ItemReference, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from tests.support.digest_runner import oracle
from tests.support.sessions import SessionDriver, user_message


def text_of(response: Response) -> str:
    return "".join(
        part.text for item in response.items if isinstance(item, MessageItem) for part in item.parts
    )


def expected_text(talk: SessionDriver, conversation: Conversation, tokens: int) -> str:
    """The text of a response after a fresh prefill of `conversation`."""
    prompt, header = conversation.render_header()
    ids = oracle(prompt.ids() + header, tokens, stop_ids=[0])
    return talk.engine.text.decode(ids)


async def three_turns(talk: SessionDriver) -> None:
    for n in range(3):
        await talk.add_message(f"some words of turn {n}")
        await talk.run_turn()


async def test_out_of_band_response_shares_the_kv_of_the_conversation(talk: SessionDriver) -> None:
    await three_turns(talk)
    await talk.add_message("and now?")
    expected = expected_text(talk, talk.session.conversation, 5)
    while (await talk.engine.info(talk.session.id)).committed < talk.session.conversation.length:
        await asyncio.sleep(0)
    computed = talk.engine_harness.runner.token_count
    await talk.create_response(5, is_out_of_band=True)
    response = await talk.wait_response()
    assert text_of(response) == expected
    assert response.usage is not None
    header = len(talk.session.conversation.render_header()[1])
    assert response.usage.cached_tokens >= response.usage.input_tokens - header
    assert talk.engine_harness.runner.token_count - computed <= header + 6
    await talk.run_turn()


async def test_referenced_items_share_the_kv_of_the_conversation(talk: SessionDriver) -> None:
    await three_turns(talk)
    known = [item.id for item in talk.session.conversation.items()][:4]
    question = user_message("q", "what was that about?")
    context = (*(ItemReference(name) for name in known), question)
    await talk.create_response(5, is_out_of_band=True, context=context)
    response = await talk.wait_response()
    shared = sum(len(span.ids) for span in talk.session.conversation.all_spans[:5])
    assert response.usage is not None
    assert response.usage.cached_tokens >= shared
    start = Conversation.start(talk.session.conversation.template, GenerationSettings())
    spans = talk.session.conversation.spans[:4]
    conversation = start.with_spans(spans).add_item(question)
    assert text_of(response) == expected_text(talk, conversation, 5)
    await talk.run_turn()


async def test_unknown_item_reference_is_refused(talk: SessionDriver) -> None:
    with pytest.raises(Refusal) as caught:
        await talk.create_response(5, is_out_of_band=True, context=(ItemReference("unknown"),))
    assert caught.value.code == "item_reference_invalid_item_id"


async def test_own_input_replaces_the_conversation_as_context(talk: SessionDriver) -> None:
    await three_turns(talk)
    start = Conversation.start(talk.session.conversation.template, GenerationSettings())
    for context in ((user_message("x", "only this"),), ()):
        conversation = start
        for item in context:
            conversation = conversation.add_item(item)
        await talk.create_response(4, is_out_of_band=True, context=context)
        assert text_of(await talk.wait_response()) == expected_text(talk, conversation, 4)
    await talk.run_turn()


async def test_several_out_of_band_responses_run_beside_one_in_the_conversation(
    talk: SessionDriver,
) -> None:
    await three_turns(talk)
    await talk.add_message("and now?")
    expected = talk.expected_ids(60)
    expected_out_of_band = expected_text(talk, talk.session.conversation, 6)
    for n in range(2):
        await talk.create_response(6, is_out_of_band=True, metadata={"n": str(n)})
    await talk.create_response(60)
    for n in range(2, 4):
        await talk.create_response(6, is_out_of_band=True, metadata={"n": str(n)})
    responses = [await talk.wait_response() for _ in range(5)]
    (in_conversation,) = [response for response in responses if response.conversation is not None]
    assert talk.sampled_ids(in_conversation) == expected
    out_of_band = [response for response in responses if response.conversation is None]
    assert [text_of(response) for response in out_of_band] == [expected_out_of_band] * 4
    assert {(response.metadata or {}).get("n") for response in out_of_band} == {"0", "1", "2", "3"}
    await talk.run_turn()


async def test_instructions_of_an_out_of_band_response_apply_to_that_one_only(
    talk: SessionDriver,
) -> None:
    await three_turns(talk)
    settings = GenerationSettings(instructions="be brief", max_output_tokens=4)
    conversation = talk.session.conversation.with_settings(settings)
    await talk.session.execute(CreateSessionResponse(settings=settings, is_out_of_band=True))
    assert text_of(await talk.wait_response()) == expected_text(talk, conversation, 4)
    await talk.run_turn()
