"""conversation.item.truncate: history keeps what was heard."""

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
from tests.support.sessions import Talk

FOLDER = next(Path(engine.__file__).parent.joinpath("bundled").iterdir())


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText(str(FOLDER))


def words(answer: Response) -> str:
    (item,) = answer.items
    assert isinstance(item, MessageItem)
    return item.parts[0].text


def cut(item_id: str, end: int) -> TruncateItem:
    return TruncateItem(item_id, 0, text_end=end)


async def long_answer(talk: Talk, at_least: int) -> Response:
    """One whose text is long enough to be cut; the device of digests may end early."""
    while True:
        await talk.say("tell me a story")
        answer = await talk.turn(24)
        if len(words(answer)) >= at_least:
            return answer


# ---------------------------------------------------------------- tokens


@given(said=st.text(max_size=60), end=st.integers(0, 60))
def test_whole_tokens_are_kept_and_few_are_made(text: ModelText, said: str, end: int) -> None:
    ids = text.encode_untrusted(said)
    whole = text.decode(ids)
    end = min(end, len(whole))
    kept, length = find_sampled_prefix(text, ids, end)
    assert ids[: len(kept)] == kept
    assert text.decode(kept) == whole[:length]
    assert length <= end
    rest = text.encode_untrusted(whole[length:end])
    assert len(rest) <= 8
    assert text.decode([*kept, *rest]) == whole[:end]


def test_the_longest_beginning_is_kept(text: ModelText) -> None:
    ids = text.encode_untrusted("the lighthouse keeper told me a story")
    pieces = [text.decode([id]) for id in ids]
    for n in range(len(ids) + 1):
        end = len("".join(pieces[:n]))
        assert find_sampled_prefix(text, ids, end) == (ids[:n], end)
        if n < len(ids) and len(pieces[n]) > 1:
            assert find_sampled_prefix(text, ids, end + 1) == (ids[:n], end)


def test_a_character_of_several_tokens_is_kept_whole_or_not_at_all(text: ModelText) -> None:
    ids = text.encode_untrusted("ab\U0001f9ff")
    assert len(ids) > 3
    kept, length = find_sampled_prefix(text, ids, 2)
    assert (text.decode(kept), length) == ("ab", 2)
    assert find_sampled_prefix(text, ids, 3) == (ids, 3)


def test_a_call_behind_the_message_stays(chatty: Path) -> None:
    text = ModelText(str(chatty))
    assert text.template is not None
    said = MessageItem(id="m", role="assistant", parts=(ContentPart("output_text", "I look"),))
    call = FunctionCallItem(id="c", call_id="x", name="look", arguments="{}")
    sampled = [*text.encode_untrusted("I look"), *text.encode_untrusted("call look {}"), 0]
    start = Conversation.start(text.template, GenerationSettings()).open_response("a")
    made = start.commit_response("a", (said, call), sampled)
    short = MessageItem(id="m", role="assistant", parts=(ContentPart("output_text", "I l"),))
    now = made.truncate_item(short, text)
    assert list(now.items()) == [short, call]
    assert now.spans[0].sampled_ids == tuple(text.encode_untrusted("I l"))
    assert now.spans[1].sampled_ids is None


# ---------------------------------------------------------------- sessions


async def test_truncate_keeps_what_was_heard(talk: Talk) -> None:
    answer = await long_answer(talk, 6)
    name = answer.items[0].id
    await talk.session.execute(cut(name, 5))
    told = talk.ears.heard[-1]
    assert isinstance(told, ItemTruncated)
    assert (told.item_id, told.content_index, told.text_end) == (name, 0, 5)
    item = talk.session.conversation.find(name)
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("output_text", words(answer)[:5]),)
    assert item.status == "incomplete"
    sampled = talk.session.conversation.spans[-1].sampled_ids
    assert sampled is not None
    assert talk.engine.text.decode(sampled) == words(answer)[:5]
    await talk.say("go on")
    await talk.turn()


async def test_truncate_prefills_nothing_again(talk: Talk) -> None:
    answer = await long_answer(talk, 12)
    await talk.say("and then?")
    await talk.turn()
    await talk.session.execute(DeleteItem(list(talk.session.conversation.items())[-1].id))
    await talk.session.execute(DeleteItem(list(talk.session.conversation.items())[-1].id))
    computed = talk.bench.runner.tokens_run
    await talk.session.execute(cut(answer.items[0].id, 10))
    await talk.say("x")
    await talk.respond(1)
    await talk.ended()
    asked = len("<|im_start|>user x<|im_end|> <|im_start|>assistant ".replace("<|im_start|>", "a"))
    assert talk.bench.runner.tokens_run - computed <= asked


async def test_barge_in(talk: Talk) -> None:
    """Cancel and truncate at once, as a voice client does; the next turn knows what was heard."""
    for turn in range(4):
        await talk.say(f"tell me more, {turn}")
        await talk.respond(None)
        started = await talk.ears.until(OutputItemStarted, turn + 1)
        assert isinstance(started, OutputItemStarted)
        await asyncio.sleep(0.002 * turn)
        with contextlib.suppress(Refusal):  # it has ended by itself
            await talk.session.execute(CancelResponse())
        await talk.session.execute(
            cut(started.item.id, min(turn, len(spoken_so_far(talk, started))))
        )
        await talk.ended()
        item = talk.session.conversation.find(started.item.id)
        assert isinstance(item, MessageItem)
        assert len(item.parts[0].text) <= turn
        await talk.turn(3)


def spoken_so_far(talk: Talk, started: OutputItemStarted) -> str:
    return "".join(
        tell.text
        for tell in talk.ears.heard
        if isinstance(tell, TextDelta) and tell.item_id == started.item.id
    )


async def test_truncate_in_the_middle_of_a_history(talk: Talk) -> None:
    answer = await long_answer(talk, 4)
    for n in range(2):
        await talk.say(f"more {n}")
        await talk.turn()
    await talk.session.execute(cut(answer.items[0].id, 2))
    await talk.turn()


async def test_truncate_to_nothing_and_to_everything(talk: Talk) -> None:
    answer = await long_answer(talk, 2)
    before = talk.session.conversation
    await talk.session.execute(cut(answer.items[0].id, len(words(answer))))
    assert talk.session.conversation is before
    await talk.session.execute(cut(answer.items[0].id, 0))
    await talk.say("what?")
    await talk.turn()


async def test_truncate_what_the_client_wrote(talk: Talk) -> None:
    part = ContentPart("output_text", "I said a lot of things")
    item = MessageItem(id="a1", role="assistant", parts=(part,))
    await talk.say("hello")
    await talk.session.execute(AddItem(item))
    await talk.session.execute(cut("a1", 6))
    found = talk.session.conversation.find("a1")
    assert isinstance(found, MessageItem)
    assert found.parts[0].text == "I said"
    await talk.say("go on")
    await talk.turn()


async def test_audio_end_ms_alone_changes_nothing(talk: Talk) -> None:
    answer = await long_answer(talk, 2)
    before = talk.session.conversation
    name = answer.items[0].id
    await talk.session.execute(TruncateItem(name, 0, audio_end_ms=700))
    assert talk.ears.heard[-1] == ItemTruncated(name, 0, 700, None)
    assert talk.session.conversation is before


async def test_what_cannot_be_truncated(talk: Talk) -> None:
    await talk.say("hello")
    answer = await talk.turn()
    name = answer.items[0].id
    for ask, param in (
        (cut("nobody", 1), "item_id"),
        (cut("u1", 1), "item_id"),
        (cut(name, 10_000), "text_end"),
        (TruncateItem(name, 1, text_end=0), "content_index"),
    ):
        with pytest.raises(Refusal) as caught:
            await talk.session.execute(ask)
        assert caught.value.param == param
    await talk.respond(None)
    started = await talk.ears.until(OutputItemStarted, 2)
    assert isinstance(started, OutputItemStarted)
    with pytest.raises(Refusal, match="still being generated"):
        await talk.session.execute(cut(started.item.id, 0))
    await talk.session.execute(CancelResponse())
    await talk.ended()
    await talk.turn()
