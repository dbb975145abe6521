"""Engine: conversations as text, on a null device whose text depends on every earlier token."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine import BadRequest, Chat, Engine, EngineLost, Sampling, TooLong
from tests.realtime.conftest import chat_folder
from tests.support.engines import EngineHarness, digest_engine

LONG = Sampling(max_tokens=40, ignore_eos=True)
SLOW_STEP_S = 0.005


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("chat_model"))


@pytest.fixture
async def harness(model: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(
        model, pages=256, page_size=4, max_model_len=300, batched_tokens=64
    ) as harness:
        yield harness


@pytest.fixture
def engine(harness: EngineHarness) -> Engine:
    """An engine that runs in the process of the test."""
    engine = Engine()
    engine._client = harness.engine
    return engine


async def check_log(chat: Chat, engine: Engine) -> None:
    """Assert that the ids of the conversation are those of rendering its messages afresh."""
    template = engine.client.text.template
    assert template is not None
    assert chat._ids == template.render(chat.messages)


async def test_answers_depend_on_the_conversation_and_cost_what_is_new(engine: Engine) -> None:
    chat = engine.chat("Be brief.")
    first = chat.ask("hello", Sampling(max_tokens=10))
    pieces = [piece async for piece in first]
    assert "".join(pieces) == await first == first.text
    second = chat.ask("and then?", Sampling(max_tokens=10))
    text = await second
    assert second.ended is not None
    assert second.ended.cached_tokens > len("Be brief.hello")
    assert [message.role for message in chat.messages] == ["system", *["user", "assistant"] * 2]
    assert chat.messages[-1].content == text
    await check_log(chat, engine)
    again = engine.chat("Be brief.")
    assert await again.ask("hello", Sampling(max_tokens=10)) == first.text
    assert await again.ask("and then?", Sampling(max_tokens=10)) == text
    other = engine.chat("Be kind.")
    assert await other.ask("hello", Sampling(max_tokens=10)) != first.text
    for one in (chat, again, other):
        await one.close()


async def test_questions_wait_for_each_other(engine: Engine) -> None:
    chat = engine.chat()
    one, two = chat.ask("one", LONG), chat.ask("two", LONG)
    await two
    assert [m.content for m in chat.messages] == ["one", one.text, "two", two.text]


async def test_completion_continues_the_text(engine: Engine) -> None:
    output = engine.complete("once", LONG)
    assert await output
    assert output.ended is not None
    assert (output.ended.prompt_tokens, output.ended.output_tokens) == (4, 40)


async def test_cancelled_answer_stays_in_the_conversation(
    engine: Engine, harness: EngineHarness
) -> None:
    harness.runner.step_s = SLOW_STEP_S
    chat = engine.chat()
    output = chat.ask("hello", LONG)
    async for _ in output:
        break
    text = await output.cancel()
    assert output.ended is not None
    assert output.ended.reason == "cancelled"
    assert chat.messages[-1].content == text
    assert await chat.ask("more", Sampling(max_tokens=4)) == chat.messages[-1].content
    await check_log(chat, engine)


async def test_answer_survives_the_loss_of_its_engine(
    engine: Engine, harness: EngineHarness
) -> None:
    undisturbed = engine.chat()
    expected = [await undisturbed.ask(text, LONG) for text in ("hello", "more")]
    chat = engine.chat()
    harness.runner.step_s = SLOW_STEP_S
    output, received = chat.ask("hello", LONG), ""
    async for piece in output:
        if not received:
            harness.kill()
        received += piece
    assert received == expected[0]
    harness.kill()
    assert await chat.ask("more", LONG) == expected[1], "a command finds no engine"
    completion = engine.complete("once", Sampling(max_tokens=200, ignore_eos=True))
    harness.runner.step_s = SLOW_STEP_S
    async for _ in completion:
        harness.kill()
        break
    with pytest.raises(EngineLost):
        await completion


async def test_question_that_does_not_fit_changes_nothing(engine: Engine) -> None:
    chat = engine.chat()
    first = await chat.ask("hello", Sampling(max_tokens=10))
    with pytest.raises(TooLong, match="context of the model holds 300"):
        await chat.ask("x" * 300)
    assert len(chat.messages) == 2
    undisturbed = engine.chat()
    assert await undisturbed.ask("hello", Sampling(max_tokens=10)) == first
    assert await chat.ask("more", LONG) == await undisturbed.ask("more", LONG)


def test_engine_must_be_started() -> None:
    with pytest.raises(BadRequest, match="async with"):
        Engine().chat()
