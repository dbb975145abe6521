"""Sessions against the real engine on a device of digests.

What that device draws depends on every id before it, as KV holds it: an answer that equals `oracle`
of the conversation's ids shows that the engine's log is the conversation, whatever was edited,
cancelled or sent in between.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from continuo.engine import EngineLost, Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import (
    AppendText,
    CancelResponse,
    CommitText,
    ConfigureSession,
    CreateSessionResponse,
    DeleteItem,
    FetchItem,
    ReplaceText,
)
from continuo.realtime.protocol.events import (
    OutputItemStarted,
    ResponseEnded,
    ResponseStarted,
    TextDelta,
)
from continuo.realtime.protocol.items import ROOT, ItemReference, MessageItem
from continuo.realtime.protocol.settings import GenerationSettings, Tool, Truncation
from continuo.realtime.session.state import SessionState
from tests.support.digest_runner import oracle
from tests.support.engines import Bench, digest_engine
from tests.support.sessions import Talk, kinds, message, open_talk


async def test_a_turn_is_told_in_order(talk: Talk) -> None:
    await talk.say("hello")
    answer = await talk.turn(12)
    told = kinds(talk.ears)
    deltas = told.count("TextDelta")
    assert told == [
        "SessionOpened",
        "ItemAdded",
        "ResponseStarted",
        "OutputItemStarted",
        *["TextDelta"] * deltas,
        "OutputItemEnded",
        "ResponseEnded",
    ]
    (item,) = answer.items
    assert isinstance(item, MessageItem)
    text = "".join(tell.text for tell in talk.ears.heard if isinstance(tell, TextDelta))
    assert item.parts[0].text == text == talk.engine.text.decode(talk.sampled(answer))


async def test_many_turns_continue_one_log(talk: Talk) -> None:
    for turn in range(8):
        await talk.say(f"turn {turn}")
        await talk.turn()


async def test_items_are_prefilled_before_the_answer_is_wanted(talk: Talk) -> None:
    name = await talk.say("a rather long thing to say before anybody answers")
    (info,) = await talk.engine.list_sessions()
    assert info.length == talk.session.conversation.length
    assert talk.session.conversation.find(name) is not None


async def test_usage_counts_what_was_computed_before(talk: Talk) -> None:
    await talk.say("hello")
    first = (await talk.turn()).usage
    await talk.say("and again")
    second = (await talk.turn()).usage
    assert first is not None
    assert second is not None
    assert first.output_tokens == 6
    assert second.input_tokens > first.input_tokens + first.output_tokens
    assert first.input_tokens + 5 <= second.cached_tokens < second.input_tokens


async def test_history_edits_reach_the_engine(talk: Talk) -> None:
    first = await talk.say("one")
    await talk.turn()
    await talk.say("three")
    await talk.say("two", after=first)
    await talk.turn()
    await talk.session.execute(DeleteItem(first))
    await talk.turn()
    await talk.say("zero", after=ROOT)
    await talk.turn()


async def test_instructions_and_tools_change_under_a_history(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    for wish in (
        GenerationSettings(instructions="be kind"),
        GenerationSettings(instructions="be kind", tools=(Tool(name="look"),)),
        GenerationSettings(),
    ):
        await talk.session.execute(ConfigureSession(wish))
        assert talk.session.settings == wish
        await talk.say("more")
        await talk.turn()


async def test_an_unchanged_configuration_rewinds_nothing(talk: Talk) -> None:
    await talk.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    await talk.say("hello")
    await talk.turn()
    computed = talk.bench.runner.tokens_run
    warm = GenerationSettings(instructions="be kind", sampling=Sampling(temperature=1.0))
    await talk.session.execute(ConfigureSession(warm))
    await talk.say("x")
    await talk.respond(1)
    await talk.ended()
    new = talk.bench.runner.tokens_run - computed
    assert new < 40, "only the new message and the header"


async def test_overrides_are_of_one_response_alone(talk: Talk) -> None:
    await talk.say("hello")
    wish = GenerationSettings(instructions="answer in one word", max_output_tokens=5)
    told, header = talk.session.conversation.with_settings(wish).render_header()
    expected = oracle(told.ids() + header, 5, stop_ids=[0])
    await talk.session.execute(CreateSessionResponse(settings=wish))
    assert talk.sampled(await talk.ended()) == expected
    await talk.say("and now?")
    await talk.turn()


async def test_cancel_keeps_what_was_said(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta, 2)
    await talk.session.execute(CancelResponse())
    answer = await talk.ended()
    assert answer.status == "cancelled"
    assert answer.reason == "client_cancelled"
    (item,) = answer.items
    assert item.status == "incomplete"
    assert isinstance(item, MessageItem)
    assert item.parts[0].text == talk.engine.text.decode(talk.sampled(answer))
    await talk.say("go on")
    await talk.turn()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_cancel_after_any_delta(chatty: Path, ahead: int) -> None:
    async with digest_engine(
        chatty, pages=256, max_model_len=400, batched_tokens=64, steps_ahead=ahead, step_s=0.005
    ) as bench:
        for index in range(1, 8):
            talk = await open_talk(bench)
            while len(talk.expected(100)) < 100:  # it would end by itself
                await talk.say("hello")
            await talk.respond(None)
            await talk.ears.until(TextDelta, index)
            await talk.session.execute(CancelResponse())
            assert (await talk.ended()).status == "cancelled"
            assert kinds(talk.ears).count("ResponseEnded") == 1
            await talk.say("go on")
            await talk.turn()
            await talk.session.close()


async def test_cancel_at_once_leaves_no_trace(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation.ids()
    await talk.respond(None)
    await talk.session.execute(CancelResponse())
    answer = await talk.ended()
    assert answer.status == "cancelled"
    if not answer.items:
        assert talk.session.conversation.ids() == before
    with pytest.raises(Refusal, match="Cancellation failed"):
        await talk.session.execute(CancelResponse())
    await talk.say("hello again")
    await talk.turn()


async def test_a_second_answer_is_refused_and_the_first_goes_on(talk: Talk) -> None:
    await talk.say("hello")
    expected = talk.expected(20)
    await talk.respond(20)
    with pytest.raises(Refusal) as caught:
        await talk.respond(1)
    assert caught.value.code == "conversation_already_has_active_response"
    assert talk.sampled(await talk.ended()) == expected


async def test_items_sent_during_an_answer_follow_it(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.say("more", name="m1")
    assert kinds(talk.ears)[-1] == "ItemAdded", "acknowledged at once"
    answer = await talk.ended()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", answer.items[0].id, "m1"]
    await talk.turn()


async def test_what_came_during_an_answer_is_prefilled_when_it_ends(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(20)
    await talk.ears.until(TextDelta)
    await talk.say("more, and rather a lot of it")
    await talk.ended()
    wanted = talk.session.conversation.length
    while (await talk.engine.info(talk.session.id)).length < wanted:
        await asyncio.sleep(0)


async def test_a_long_text_and_the_end_of_an_answer_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await open_talk(bench, Limits(off_loop_chars_min=10))
    await talk.say("hello")

    async def slowly(make: Callable[[], Conversation]) -> Conversation:
        made = make()
        await talk.ears.until(ResponseEnded)
        return made

    await talk.respond(20)
    monkeypatch.setattr(asyncio, "to_thread", slowly)
    await talk.say("a text of more than ten characters")
    answer = await talk.ended()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", answer.items[0].id, "u2"], "neither has undone the other"
    await talk.turn()
    await talk.session.close()


async def test_an_item_of_a_running_answer_is_seen_but_not_dropped(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(None)
    started = await talk.ears.until(OutputItemStarted)
    assert isinstance(started, OutputItemStarted)
    await talk.session.execute(FetchItem(started.item.id))
    with pytest.raises(Refusal, match="still being generated"):
        await talk.session.execute(DeleteItem(started.item.id))
    await talk.session.execute(CancelResponse())
    await talk.ended()
    await talk.session.execute(DeleteItem(started.item.id))
    await talk.turn()


async def test_settings_change_during_an_answer(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.session.execute(ConfigureSession(GenerationSettings(instructions="be brief")))
    await talk.ended()
    await talk.say("and now?")
    await talk.turn()


# ---------------------------------------------------------------- beside the conversation


async def test_an_answer_apart_changes_nothing(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation
    context = (ItemReference("u1"), message("x", "what was that about?"))
    await talk.respond(5, is_out_of_band=True, context=context, metadata={"for": "title"})
    answer = await talk.ended()
    assert answer.conversation is None
    assert answer.metadata == {"for": "title"}
    assert answer.status in ("completed", "incomplete")
    assert talk.session.conversation is before
    await talk.turn()


async def test_an_answer_apart_from_a_running_one(talk: Talk) -> None:
    await talk.say("hello")
    expected = talk.expected(60)
    await talk.respond(60)
    await talk.ears.until(TextDelta)
    await talk.respond(3, is_out_of_band=True)
    answers = {answer.conversation: answer for answer in [await talk.ended(), await talk.ended()]}
    assert talk.sampled(answers[f"conv_{talk.session.id[5:]}"]) == expected
    assert None in answers


async def test_answers_apart_have_a_bound(bench: Bench) -> None:
    talk = await open_talk(bench, Limits(out_of_band_responses_max=1))
    await talk.respond(None, is_out_of_band=True)
    with pytest.raises(Refusal, match="the limit is 1") as caught:
        await talk.respond(None, is_out_of_band=True)
    assert caught.value.param == "response.conversation"
    (answer_id,) = [t.answer.id for t in talk.ears.heard if isinstance(t, ResponseStarted)]
    await talk.session.execute(CancelResponse(answer_id))
    assert (await talk.ended()).status == "cancelled"
    await talk.session.close()


async def test_a_context_of_its_own_still_answers_into_the_conversation(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(5, context=(message("x", "something else"),))
    answer = await talk.ended()
    assert [item.id for item in talk.session.conversation.items()] == ["u1", answer.items[0].id]
    await talk.say("go on")
    await talk.turn()


# ---------------------------------------------------------------- limits and faults


async def test_an_item_over_the_context_changes_nothing(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation
    with pytest.raises(Refusal, match=r"400 \(max_model_len\)") as caught:
        await talk.say("x" * 500)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "item")
    assert talk.session.conversation is before
    await talk.turn()


async def test_a_prompt_without_room_for_an_answer_is_refused(talk: Talk) -> None:
    limit = talk.engine.ready.max_model_len
    whole = GenerationSettings(truncation=Truncation(mode="disabled"))
    await talk.session.execute(ConfigureSession(whole))
    await talk.say("x")
    header = len(talk.session.conversation.render_header()[1])
    await talk.say("y" * (limit - 3 - header - 2 * talk.session.conversation.length + 1))
    while talk.session.conversation.length + header < limit:
        await talk.say("", name="")
    before = talk.session.conversation
    with pytest.raises(Refusal, match="one must be left") as caught:
        await talk.respond()
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "conversation")
    assert talk.session.conversation is before
    assert talk.session.state is SessionState.IDLE
    await talk.session.execute(DeleteItem("u2"))
    await talk.turn()


async def test_an_answer_ends_where_the_context_ends(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(None)
    answer = await talk.ended()
    assert answer.usage is not None
    used = answer.usage.input_tokens + answer.usage.output_tokens
    if answer.status == "incomplete":
        assert answer.reason == "max_output_tokens"
        assert used == talk.engine.ready.max_model_len
    else:
        assert talk.sampled(answer)[-1] == 0


async def test_a_turn_that_breaks_fails_alone(talk: Talk) -> None:
    await talk.say("hello")
    poison = talk.session.conversation.render_header()[1][-1]
    talk.bench.runner.poison = {poison}
    await talk.respond()
    answer = await talk.ended()
    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error.code == "turn_failed"
    assert answer.items == ()
    talk.bench.runner.poison = set()
    await talk.turn()


async def test_a_session_the_engine_let_go_of_is_made_again(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    await talk.engine.close(talk.session.id)
    await talk.say("still there?")
    await talk.turn()


async def test_an_engine_that_dies_is_replaced_and_the_answer_goes_on(bench: Bench) -> None:
    talk = await open_talk(bench)
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta)
    bench.kill()
    answer = await talk.ended()
    assert answer.status in ("completed", "incomplete")
    await talk.turn()
    assert bench.launches == 2
    await talk.session.close()


async def test_a_lost_engine_fails_the_answer(bench: Bench) -> None:
    talk = await open_talk(bench)
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta)
    await bench.engine.stop()
    answer = await talk.ended()
    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error.code == EngineLost.code
    with pytest.raises(Refusal) as caught:
        await talk.say("anyone?")
    assert (caught.value.code, caught.value.kind) == ("engine_lost", "server_error")
    await talk.session.close()


async def test_an_answer_says_its_seed(talk: Talk) -> None:
    await talk.say("hello")
    wish = GenerationSettings(sampling=Sampling(temperature=1.5), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=wish))
    first = await talk.ended()
    seed = first.settings.sampling.seed
    assert seed is not None
    await talk.session.execute(DeleteItem(first.items[0].id))
    again = GenerationSettings(sampling=Sampling(temperature=1.5, seed=seed), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=again))
    second = await talk.ended()
    assert second.settings.sampling.seed == seed
    (one,), (two,) = first.items, second.items
    assert isinstance(one, MessageItem)
    assert isinstance(two, MessageItem)
    assert one.parts == two.parts


async def test_closing_stops_what_runs(bench: Bench) -> None:
    talk = await open_talk(bench)
    await talk.say("hello")
    await talk.respond(None)
    await talk.respond(None, is_out_of_band=True)
    await talk.ears.until(TextDelta)
    await talk.session.close()
    stats = await bench.engine.stats()
    assert (stats.active_turns, stats.queued_turns, stats.sessions) == (0, 0, 0)
    with pytest.raises(Refusal, match="closed"):
        await talk.say("hello?")


async def test_long_texts_are_read_beside_the_loop(bench: Bench) -> None:
    talk = await open_talk(bench, Limits(off_loop_chars_min=10))
    await talk.say("a text of more than ten characters")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.say("another one, while an answer is being made")
    await talk.ended()
    await talk.turn()
    await talk.session.close()


# ---------------------------------------------------------------- any order

STEPS = st.lists(
    st.sampled_from(
        ["say", "turn", "cut", "drop", "front", "configure", "late", "apart", "hear", "commit"]
    ),
    min_size=1,
    max_size=7,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
async def test_any_history_answers_as_a_fresh_prefill(bench: Bench, steps: list[str]) -> None:
    talk = await open_talk(bench)
    for n, what in enumerate(steps):
        here = [item.id for item in talk.session.conversation.items()]
        match what:
            case "say":
                await talk.say(f"s{n}")
            case "turn":
                await talk.turn(4)
            case "cut":
                await talk.respond(40)
                await talk.ears.until(ResponseStarted, talk._answers + 1)
                await asyncio.sleep(0)
                await talk.session.execute(CancelResponse())
                await talk.ended()
            case "drop":
                if here:
                    await talk.session.execute(DeleteItem(here[n % len(here)]))
            case "front":
                await talk.say("front", after=ROOT)
            case "configure":
                await talk.session.execute(
                    ConfigureSession(GenerationSettings(instructions="i" * n))
                )
            case "late":
                await talk.respond(10)
                await talk.say(f"late {n}")
                await talk.ended()
            case "hear":
                await talk.session.execute(ReplaceText(f"words {n} of s{n // 2}"))
            case "commit":
                await talk.session.execute(AppendText(f" and {n}"))
                await talk.session.execute(CommitText(f"c{n}"))
            case _:
                await talk.respond(2, is_out_of_band=True)
                await talk.ended()
    await talk.turn(4)
    await talk.session.close()
