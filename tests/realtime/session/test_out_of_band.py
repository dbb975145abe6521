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


def expected_text(driver: SessionDriver, conversation: Conversation, tokens: int) -> str:
    """The text of a response after a fresh prefill of `conversation`."""
    prompt, header = conversation.render_header()
    ids = oracle(prompt.ids() + header, tokens, stop_ids=[0])
    return driver.engine.text.decode(ids)


async def three_turns(driver: SessionDriver) -> None:
    for n in range(3):
        await driver.add_message(f"some words of turn {n}")
        await driver.run_turn()


async def test_out_of_band_response_shares_the_kv_of_the_conversation(
    driver: SessionDriver,
) -> None:
    await three_turns(driver)
    await driver.add_message("and now?")
    expected = expected_text(driver, driver.session.conversation, 5)
    while (
        await driver.engine.info(driver.session.id)
    ).committed < driver.session.conversation.length:
        await asyncio.sleep(0)
    computed = driver.engine_harness.runner.token_count
    await driver.create_response(5, is_out_of_band=True)
    response = await driver.wait_response()
    assert text_of(response) == expected
    assert response.usage is not None
    header = len(driver.session.conversation.render_header()[1])
    assert response.usage.cached_tokens >= response.usage.input_tokens - header
    assert driver.engine_harness.runner.token_count - computed <= header + 6
    await driver.run_turn()


async def test_referenced_items_share_the_kv_of_the_conversation(driver: SessionDriver) -> None:
    await three_turns(driver)
    known = [item.id for item in driver.session.conversation.items()][:4]
    question = user_message("q", "what was that about?")
    context = (*(ItemReference(name) for name in known), question)
    await driver.create_response(5, is_out_of_band=True, context=context)
    response = await driver.wait_response()
    shared = sum(len(span.ids) for span in driver.session.conversation.all_spans[:5])
    assert response.usage is not None
    assert response.usage.cached_tokens >= shared
    start = Conversation.start(driver.session.conversation.template, GenerationSettings())
    spans = driver.session.conversation.spans[:4]
    conversation = start.with_spans(spans).add_item(question)
    assert text_of(response) == expected_text(driver, conversation, 5)
    await driver.run_turn()


async def test_unknown_item_reference_is_refused(driver: SessionDriver) -> None:
    with pytest.raises(Refusal) as caught:
        await driver.create_response(5, is_out_of_band=True, context=(ItemReference("unknown"),))
    assert caught.value.code == "item_reference_invalid_item_id"


async def test_own_input_replaces_the_conversation_as_context(driver: SessionDriver) -> None:
    await three_turns(driver)
    start = Conversation.start(driver.session.conversation.template, GenerationSettings())
    for context in ((user_message("x", "only this"),), ()):
        conversation = start
        for item in context:
            conversation = conversation.add_item(item)
        await driver.create_response(4, is_out_of_band=True, context=context)
        assert text_of(await driver.wait_response()) == expected_text(driver, conversation, 4)
    await driver.run_turn()


async def test_several_out_of_band_responses_run_beside_one_in_the_conversation(
    driver: SessionDriver,
) -> None:
    await three_turns(driver)
    await driver.add_message("and now?")
    expected = driver.expected_ids(60)
    expected_out_of_band = expected_text(driver, driver.session.conversation, 6)
    for n in range(2):
        await driver.create_response(6, is_out_of_band=True, metadata={"n": str(n)})
    await driver.create_response(60)
    for n in range(2, 4):
        await driver.create_response(6, is_out_of_band=True, metadata={"n": str(n)})
    responses = [await driver.wait_response() for _ in range(5)]
    (in_conversation,) = [response for response in responses if response.conversation is not None]
    assert driver.sampled_ids(in_conversation) == expected
    out_of_band = [response for response in responses if response.conversation is None]
    assert [text_of(response) for response in out_of_band] == [expected_out_of_band] * 4
    assert {(response.metadata or {}).get("n") for response in out_of_band} == {"0", "1", "2", "3"}
    await driver.run_turn()


async def test_response_begins_and_another_ends_while_generation_is_paused(
    driver: SessionDriver,
) -> None:
    for n in range(3):
        await driver.create_response(None, is_out_of_band=True, metadata={"n": str(n)})
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.session.pause_generation())
        group.create_task(driver.create_response(4, is_out_of_band=True, metadata={"n": "3"}))
        group.create_task(driver.session.cancel_responses())
    await driver.session.cancel_responses()
    ended = [await driver.wait_response() for _ in range(4)]
    assert sorted((response.metadata or {})["n"] for response in ended) == ["0", "1", "2", "3"]
    assert driver.session._active_responses._tenant.turns.running_count == 0


async def test_instructions_of_an_out_of_band_response_apply_to_that_one_only(
    driver: SessionDriver,
) -> None:
    await three_turns(driver)
    settings = GenerationSettings(instructions="be brief", max_output_tokens=4)
    conversation = driver.session.conversation.with_settings(settings)
    await driver.session.execute(CreateSessionResponse(settings=settings, is_out_of_band=True))
    assert text_of(await driver.wait_response()) == expected_text(driver, conversation, 4)
    await driver.run_turn()
