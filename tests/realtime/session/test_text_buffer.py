"""The input text buffer: words reach the model before their speaker has finished."""

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
from tests.support.sessions import Talk, kinds


async def heard(talk: Talk, kind: type[ConversationEvent]) -> ConversationEvent:
    return [tell for tell in talk.ears.heard if type(tell) is kind][-1]


async def prefilled(talk: Talk) -> int:
    """Tokens of the words in the engine's log, once their KV is there."""
    while True:
        info = await talk.engine.info(talk.session.id)
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
def test_the_unstable_end_is_held_back(draft: str, kept: str) -> None:
    assert stable_prefix(draft) == kept


async def test_append_is_acknowledged_with_the_whole_length(talk: Talk) -> None:
    for text, length in (("hello", 5), (" there", 11), ("", 11)):
        await talk.session.execute(AppendText(text))
        assert await heard(talk, TextAppended) == TextAppended(length)
    await talk.session.execute(ReplaceText("hell"))
    assert await heard(talk, TextAppended) == TextAppended(4)


async def test_words_are_prefilled_as_they_come(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    for text in ("tell ", "me a ", "story"):
        await talk.session.execute(AppendText(text))
    role = 1 + len("user\n")
    assert await prefilled(talk) == role + len("tell me a")
    assert talk.session.conversation.find("draft") is None, "it is no item yet"


async def test_commit_leaves_the_held_back_end_to_prefill(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    await talk.session.execute(AppendText("tell me a long story about a dog"))
    await prefilled(talk)
    computed = talk.bench.runner.tokens_run
    await talk.session.execute(CommitText("c1"))
    expected = talk.expected(1)
    await talk.respond(1)
    answer = await talk.ended()
    assert talk.sampled(answer) == expected
    ending, header = 2, len(talk.session.conversation.render_header()[1])
    ahead = 1  # a step that ran behind the last id and was dropped
    behind = ending  # of the answer itself, which may have been prefilled by now
    prefilled_since = talk.bench.runner.tokens_run - computed
    assert prefilled_since <= len(" dog") + ending + header + ahead + behind


async def test_commit_makes_an_item(talk: Talk) -> None:
    name = await talk.say("hello")
    await talk.session.execute(AppendText("and you? "))
    await talk.session.execute(CommitText("c1"))
    assert kinds(talk.ears)[-2:] == ["TextCommitted", "ItemAdded"]
    assert await heard(talk, TextCommitted) == TextCommitted("c1", name)
    item = talk.session.conversation.find("c1")
    assert isinstance(item, MessageItem)
    assert (item.role, item.parts) == ("user", (ContentPart("input_text", "and you? "),))
    await talk.turn()
    await talk.session.execute(AppendText("x"))
    assert await heard(talk, TextAppended) == TextAppended(1), "a new buffer"


async def test_commit_of_nothing_is_refused(talk: Talk) -> None:
    for text in ("", "  "):
        await talk.session.execute(ReplaceText(text))
        with pytest.raises(Refusal) as caught:
            await talk.session.execute(CommitText("c1"))
        assert caught.value.code == "input_text_buffer_commit_empty"
    assert talk.session.conversation.find("c1") is None


async def test_clear_forgets(talk: Talk) -> None:
    await talk.say("hello")
    await talk.session.execute(AppendText("never mind this"))
    assert await prefilled(talk) > 0
    await talk.session.execute(ClearText())
    assert kinds(talk.ears)[-1] == "TextCleared"
    assert await prefilled(talk) == 0
    with pytest.raises(Refusal):
        await talk.session.execute(CommitText("c1"))
    await talk.turn()


async def test_replace_keeps_the_common_beginning(talk: Talk) -> None:
    await talk.say("hello")
    await talk.session.execute(AppendText("one two three four five six seven eight nine"))
    await prefilled(talk)
    computed = talk.bench.runner.tokens_run
    await talk.session.execute(ReplaceText("one two three four five six seven ate nine"))
    await prefilled(talk)
    assert talk.bench.runner.tokens_run - computed <= len(" ate")
    await talk.session.execute(CommitText("c1"))
    await talk.turn()


async def test_it_waits_while_an_answer_is_made(talk: Talk) -> None:
    await talk.say("hello")
    expected = talk.expected(40)
    await talk.respond(40)
    await talk.ears.until(TextDelta)
    await talk.session.execute(AppendText("meanwhile I "))
    assert kinds(talk.ears)[-1] == "TextAppended", "acknowledged at once"
    answer = await talk.ended()
    assert talk.sampled(answer) == expected, "the answer does not hear it"
    while not await prefilled(talk):
        await asyncio.sleep(0)
    await talk.session.execute(AppendText("spoke on"))
    await talk.session.execute(CommitText("c1"))
    await talk.turn()


async def test_a_response_does_not_hear_what_is_not_committed(talk: Talk) -> None:
    await talk.say("hello")
    await talk.session.execute(AppendText("I am still speak"))
    await talk.turn()
    await talk.say("an item goes before it")
    assert await prefilled(talk) > 0
    await talk.turn()
    await talk.session.execute(AppendText("ing"))
    await talk.session.execute(CommitText("c1"))
    await talk.turn()


async def test_commit_while_an_answer_is_made_follows_it(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.session.execute(AppendText("meanwhile"))
    await talk.session.execute(CommitText("c1"))
    answer = await talk.ended()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", answer.items[0].id, "c1"]
    await talk.turn()


async def test_a_draft_survives_the_engine(talk: Talk) -> None:
    await talk.say("hello")
    await talk.session.execute(AppendText("hear me out "))
    talk.bench.kill()
    await talk.session.execute(AppendText("please"))
    await talk.session.execute(CommitText("c1"))
    await talk.turn()
    assert talk.bench.launches == 2


async def test_the_buffer_has_a_bound(talk: Talk) -> None:
    await talk.session.execute(AppendText("x" * 10))
    with pytest.raises(Refusal) as caught:
        await talk.session.execute(AppendText("x" * TEXT_CHARS_MAX))
    assert caught.value.code == "string_above_max_length"
    await talk.session.execute(AppendText(""))
    assert await heard(talk, TextAppended) == TextAppended(10)


async def test_words_over_the_context_are_refused_when_committed(talk: Talk) -> None:
    await talk.say("hello")
    await talk.session.execute(AppendText("word " * 100))
    with pytest.raises(Refusal) as caught:
        await talk.session.execute(CommitText("c1"))
    assert caught.value.code == "context_length_exceeded"
    await talk.session.execute(ReplaceText("word"))
    await talk.session.execute(CommitText("c1"))
    await talk.turn()
