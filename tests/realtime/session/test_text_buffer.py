"""The input text buffer: text is prefilled before the user has finished it."""

import asyncio

import pytest

from continuo.realtime.conversation.rendering import UNSTABLE_WORD_CHARS_MAX, stable_prefix
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TEXT_CHARS_MAX
from continuo.realtime.protocol.commands import AppendText, ClearText, CommitText, ReplaceText
from continuo.realtime.protocol.events import (
    ConversationEvent,
    TextAppended,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import ContentPart, MessageItem
from tests.support.sessions import SessionDriver, event_type_names


def last_event(driver: SessionDriver, kind: type[ConversationEvent]) -> ConversationEvent:
    return [event for event in driver.recorder.events if type(event) is kind][-1]


async def prefilled(driver: SessionDriver) -> int:
    """Wait for the KV of the whole token log. Returns the number of tokens of the draft."""
    while True:
        info = await driver.engine.info(driver.session.id)
        if info.committed >= info.length + info.provisional:
            return info.provisional
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        ("", ""),
        ("hel", ""),
        ("hello wor", "hello"),
        ("hello world ", "hello world"),
        ("hello  world", "hello"),
        ("x" * (UNSTABLE_WORD_CHARS_MAX + 5), "x" * 5),
        ("hello " + "x" * (UNSTABLE_WORD_CHARS_MAX + 1), "hello x"),
        (" ", ""),
    ],
)
def test_last_word_of_the_buffer_is_held_back_from_prefill(draft: str, kept: str) -> None:
    assert stable_prefix(draft) == kept


async def test_append_is_acknowledged_with_the_length_of_the_buffer(driver: SessionDriver) -> None:
    for text, length in (("hello", 5), (" there", 11), ("", 11)):
        await driver.session.execute(AppendText(text))
        assert last_event(driver, TextAppended) == TextAppended(length)
    await driver.session.execute(ReplaceText("hell"))
    assert last_event(driver, TextAppended) == TextAppended(4)


async def test_appended_text_is_prefilled_before_the_commit(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.run_turn()
    for text in ("tell ", "me a ", "story"):
        await driver.session.execute(AppendText(text))
    role = 1 + len("user\n")
    assert await prefilled(driver) == role + len("tell me a")
    assert driver.session.conversation.find("draft") is None, (
        "the buffer became an item before its commit"
    )


async def test_commit_prefills_only_the_held_back_end(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.run_turn()
    await driver.session.execute(AppendText("tell me a long story about a dog"))
    await prefilled(driver)
    computed = driver.engine_harness.runner.token_count
    await driver.session.execute(CommitText("c1"))
    expected = driver.expected_ids(1)
    await driver.create_response(1)
    response = await driver.wait_response()
    assert driver.sampled_ids(response) == expected
    ending, header = 2, len(driver.session.conversation.render_header()[1])
    ahead = 1  # of a step launched after the last id and discarded
    behind = ending  # of the response itself, if prefilled by now
    prefilled_since = driver.engine_harness.runner.token_count - computed
    assert prefilled_since <= len(" dog") + ending + header + ahead + behind


async def test_commit_adds_an_item_and_empties_the_buffer(driver: SessionDriver) -> None:
    name = await driver.add_message("hello")
    await driver.session.execute(AppendText("and you? "))
    await driver.session.execute(CommitText("c1"))
    assert event_type_names(driver.recorder)[-2:] == ["TextCommitted", "ItemAdded"]
    assert last_event(driver, TextCommitted) == TextCommitted("c1", name)
    item = driver.session.conversation.find("c1")
    assert isinstance(item, MessageItem)
    assert (item.role, item.parts) == ("user", (ContentPart("input_text", "and you? "),))
    await driver.run_turn()
    await driver.session.execute(AppendText("x"))
    assert last_event(driver, TextAppended) == TextAppended(1), (
        "the commit did not empty the buffer"
    )


async def test_commit_of_an_empty_buffer_is_refused(driver: SessionDriver) -> None:
    for text in ("", "  "):
        await driver.session.execute(ReplaceText(text))
        with pytest.raises(Refusal) as caught:
            await driver.session.execute(CommitText("c1"))
        assert caught.value.code == "input_text_buffer_commit_empty"
    assert driver.session.conversation.find("c1") is None


async def test_clear_empties_the_buffer_and_its_kv(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.session.execute(AppendText("never mind this"))
    assert await prefilled(driver) > 0
    await driver.session.execute(ClearText())
    assert event_type_names(driver.recorder)[-1] == "TextCleared"
    assert await prefilled(driver) == 0
    with pytest.raises(Refusal):
        await driver.session.execute(CommitText("c1"))
    await driver.run_turn()


async def test_replace_keeps_the_kv_of_the_common_prefix(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.session.execute(AppendText("one two three four five six seven eight nine"))
    await prefilled(driver)
    computed = driver.engine_harness.runner.token_count
    await driver.session.execute(ReplaceText("one two three four five six seven ate nine"))
    await prefilled(driver)
    assert driver.engine_harness.runner.token_count - computed <= len(" ate")
    await driver.session.execute(CommitText("c1"))
    await driver.run_turn()


async def test_text_appended_during_a_response_is_prefilled_when_it_ends(
    driver: SessionDriver,
) -> None:
    await driver.add_message("hello")
    expected = driver.expected_ids(40)
    await driver.create_response(40)
    await driver.recorder.wait_for(TextDelta)
    await driver.session.execute(AppendText("meanwhile I "))
    assert event_type_names(driver.recorder)[-1] == "TextAppended", "not acknowledged at once"
    response = await driver.wait_response()
    assert driver.sampled_ids(response) == expected, "the draft changed the response"
    while not await prefilled(driver):
        await asyncio.sleep(0)
    await driver.session.execute(AppendText("spoke on"))
    await driver.session.execute(CommitText("c1"))
    await driver.run_turn()


async def test_response_ignores_text_that_is_not_committed(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.session.execute(AppendText("I am still speak"))
    await driver.run_turn()
    await driver.add_message("an item goes before it")
    assert await prefilled(driver) > 0
    await driver.run_turn()
    await driver.session.execute(AppendText("ing"))
    await driver.session.execute(CommitText("c1"))
    await driver.run_turn()


async def test_item_committed_during_a_response_follows_it(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(30)
    await driver.recorder.wait_for(TextDelta)
    await driver.session.execute(AppendText("meanwhile"))
    await driver.session.execute(CommitText("c1"))
    response = await driver.wait_response()
    names = [item.id for item in driver.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "c1"]
    await driver.run_turn()


async def test_text_buffer_survives_the_loss_of_its_engine(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.session.execute(AppendText("hear me out "))
    driver.engine_harness.kill()
    await driver.session.execute(AppendText("please"))
    await driver.session.execute(CommitText("c1"))
    await driver.run_turn()
    assert driver.engine_harness.launch_count == 2


async def test_text_buffer_has_a_maximum_length(driver: SessionDriver) -> None:
    await driver.session.execute(AppendText("x" * 10))
    with pytest.raises(Refusal) as caught:
        await driver.session.execute(AppendText("x" * TEXT_CHARS_MAX))
    assert caught.value.code == "string_above_max_length"
    await driver.session.execute(AppendText(""))
    assert last_event(driver, TextAppended) == TextAppended(10)


async def test_commit_of_text_longer_than_the_context_is_refused(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.session.execute(AppendText("word " * 100))
    with pytest.raises(Refusal) as caught:
        await driver.session.execute(CommitText("c1"))
    assert caught.value.code == "context_length_exceeded"
    await driver.session.execute(ReplaceText("word"))
    await driver.session.execute(CommitText("c1"))
    await driver.run_turn()
