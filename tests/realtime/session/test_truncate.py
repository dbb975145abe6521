"""`conversation.item.truncate`: the conversation keeps the part of a message that was played."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo import engine
from continuo.engine import ModelText
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.item_truncation import find_sampled_prefix
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import AddItem, CancelResponse, DeleteItem, TruncateItem
from continuo.realtime.protocol.events import ItemTruncated, OutputItemStarted, TextDelta
from continuo.realtime.protocol.items import ContentPart, FunctionCallItem, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from tests.support.sessions import SessionDriver

FOLDER = next(Path(engine.__file__).parent.joinpath("bundled").iterdir())


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText(str(FOLDER))


def text_of(response: Response) -> str:
    (item,) = response.items
    assert isinstance(item, MessageItem)
    return item.parts[0].text


def truncate_at(item_id: str, end: int) -> TruncateItem:
    return TruncateItem(item_id, 0, text_end=end)


async def response_of_length(driver: SessionDriver, at_least: int) -> Response:
    """Create responses until one has `at_least` characters; the null device may end one early."""
    while True:
        await driver.add_message("tell me a story")
        response = await driver.run_turn(24)
        if len(text_of(response)) >= at_least:
            return response


# ---------------------------------------------------------------- tokens


@given(original=st.text(max_size=60), end=st.integers(0, 60))
def test_truncation_keeps_sampled_tokens_and_encodes_few_new_ones(
    text: ModelText, original: str, end: int
) -> None:
    ids = text.encode_untrusted(original)
    whole = text.decode(ids)
    end = min(end, len(whole))
    kept, length = find_sampled_prefix(text, ids, end)
    assert ids[: len(kept)] == kept
    assert text.decode(kept) == whole[:length]
    assert length <= end
    rest = text.encode_untrusted(whole[length:end])
    assert len(rest) <= 8
    assert text.decode([*kept, *rest]) == whole[:end]


def test_truncation_keeps_the_longest_sampled_prefix(text: ModelText) -> None:
    ids = text.encode_untrusted("the lighthouse keeper told me a story")
    pieces = [text.decode([id]) for id in ids]
    for n in range(len(ids) + 1):
        end = len("".join(pieces[:n]))
        assert find_sampled_prefix(text, ids, end) == (ids[:n], end)
        if n < len(ids) and len(pieces[n]) > 1:
            assert find_sampled_prefix(text, ids, end + 1) == (ids[:n], end)


def test_character_of_several_tokens_is_never_split(text: ModelText) -> None:
    ids = text.encode_untrusted("ab\U0001f9ff")
    assert len(ids) > 3
    kept, length = find_sampled_prefix(text, ids, 2)
    assert (text.decode(kept), length) == ("ab", 2)
    assert find_sampled_prefix(text, ids, 3) == (ids, 3)


def test_truncation_keeps_the_function_call_after_the_message(chat_model: Path) -> None:
    text = ModelText(str(chat_model))
    assert text.template is not None
    message = MessageItem(id="m", role="assistant", parts=(ContentPart("output_text", "I look"),))
    call = FunctionCallItem(id="c", call_id="x", name="look", arguments="{}")
    sampled = [*text.encode_untrusted("I look"), *text.encode_untrusted("call look {}"), 0]
    start = Conversation.start(text.template, GenerationSettings()).open_response("a")
    conversation = start.commit_response("a", (message, call), sampled)
    short = MessageItem(id="m", role="assistant", parts=(ContentPart("output_text", "I l"),))
    truncated = conversation.truncate_item(short, text)
    assert list(truncated.items()) == [short, call]
    assert truncated.spans[0].sampled_ids == tuple(text.encode_untrusted("I l"))
    assert truncated.spans[1].sampled_ids is None


# ---------------------------------------------------------------- sessions


async def test_truncate_keeps_the_text_before_its_text_end(driver: SessionDriver) -> None:
    response = await response_of_length(driver, 6)
    name = response.items[0].id
    await driver.session.execute(truncate_at(name, 5))
    event = driver.recorder.events[-1]
    assert isinstance(event, ItemTruncated)
    assert (event.item_id, event.content_index, event.text_end) == (name, 0, 5)
    item = driver.session.conversation.find(name)
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", text_of(response)[:5]),)
    assert item.status == "incomplete"
    sampled = driver.session.conversation.spans[-1].sampled_ids
    assert sampled is not None
    assert driver.engine.text.decode(sampled) == text_of(response)[:5]
    await driver.add_message("go on")
    await driver.run_turn()


async def test_truncate_prefills_nothing_again(driver: SessionDriver) -> None:
    response = await response_of_length(driver, 12)
    await driver.add_message("and then?")
    await driver.run_turn()
    await driver.session.execute(DeleteItem(list(driver.session.conversation.items())[-1].id))
    await driver.session.execute(DeleteItem(list(driver.session.conversation.items())[-1].id))
    computed = driver.engine_harness.runner.token_count
    await driver.session.execute(truncate_at(response.items[0].id, 10))
    await driver.add_message("x")
    await driver.create_response(1)
    await driver.wait_response()
    prompt = len("<|im_start|>user x<|im_end|> <|im_start|>assistant ".replace("<|im_start|>", "a"))
    assert driver.engine_harness.runner.token_count - computed <= prompt


@pytest.mark.long
async def test_barge_in_continues_from_the_truncated_text(driver: SessionDriver) -> None:
    """Cancel and truncate at once, as a voice client does; the next turn continues the cut text."""
    for turn in range(4):
        await driver.add_message(f"tell me more, {turn}")
        await driver.create_response(None)
        started = await driver.recorder.wait_for(OutputItemStarted, turn + 1)
        assert isinstance(started, OutputItemStarted)
        await asyncio.sleep(0.002 * turn)
        with contextlib.suppress(Refusal):  # if the response has ended before
            await driver.session.execute(CancelResponse())
        await driver.session.execute(
            truncate_at(started.item.id, min(turn, len(text_so_far(driver, started))))
        )
        await driver.wait_response()
        item = driver.session.conversation.find(started.item.id)
        assert isinstance(item, MessageItem)
        assert len(item.parts[0].text) <= turn
        await driver.run_turn(3)


def text_so_far(driver: SessionDriver, started: OutputItemStarted) -> str:
    return "".join(
        event.text
        for event in driver.recorder.events
        if isinstance(event, TextDelta) and event.item_id == started.item.id
    )


async def test_truncate_an_item_in_the_middle_of_a_conversation(driver: SessionDriver) -> None:
    response = await response_of_length(driver, 4)
    for n in range(2):
        await driver.add_message(f"more {n}")
        await driver.run_turn()
    await driver.session.execute(truncate_at(response.items[0].id, 2))
    await driver.run_turn()


async def test_truncate_to_nothing_and_to_the_whole_text(driver: SessionDriver) -> None:
    response = await response_of_length(driver, 2)
    before = driver.session.conversation
    await driver.session.execute(truncate_at(response.items[0].id, len(text_of(response))))
    assert driver.session.conversation is before
    await driver.session.execute(truncate_at(response.items[0].id, 0))
    await driver.add_message("what?")
    await driver.run_turn()


async def test_truncate_an_assistant_message_of_the_client(driver: SessionDriver) -> None:
    part = ContentPart("output_text", "I said a lot of things")
    item = MessageItem(id="a1", role="assistant", parts=(part,))
    await driver.add_message("hello")
    await driver.session.execute(AddItem(item))
    await driver.session.execute(truncate_at("a1", 6))
    found = driver.session.conversation.find("a1")
    assert isinstance(found, MessageItem)
    assert found.parts[0].text == "I said"
    await driver.add_message("go on")
    await driver.run_turn()


async def test_audio_end_ms_alone_is_refused_for_text(driver: SessionDriver) -> None:
    response = await response_of_length(driver, 2)
    before = driver.session.conversation
    name = response.items[0].id
    with pytest.raises(Refusal) as caught:
        await driver.session.execute(TruncateItem(name, 0, audio_end_ms=700))
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "text_end")
    assert driver.session.conversation is before


async def test_truncate_is_refused_for_other_items_and_positions(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    response = await driver.run_turn()
    name = response.items[0].id
    for command, param in (
        (truncate_at("unknown", 1), "item_id"),
        (truncate_at("u1", 1), "item_id"),
        (truncate_at(name, 10_000), "text_end"),
        (TruncateItem(name, 1, text_end=0), "content_index"),
    ):
        with pytest.raises(Refusal) as caught:
            await driver.session.execute(command)
        assert caught.value.param == param
    await driver.create_response(None)
    started = await driver.recorder.wait_for(OutputItemStarted, 2)
    assert isinstance(started, OutputItemStarted)
    with pytest.raises(Refusal, match="still being generated"):
        await driver.session.execute(truncate_at(started.item.id, 0))
    await driver.session.execute(CancelResponse())
    await driver.wait_response()
    await driver.run_turn()
