"""Tests of sessions against the real engine on the null device.

Each id that the device draws depends on every id before it, as KV holds it: a response that equals
`oracle` of the conversation's ids shows that the engine's token log is the conversation, whatever
was edited, cancelled or sent in between.
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


async def test_events_of_a_turn_are_emitted_in_order(talk: Talk) -> None:
    await talk.say("hello")
    response = await talk.turn(12)
    events = kinds(talk.ears)
    deltas = events.count("TextDelta")
    assert events == [
        "SessionOpened",
        "ItemAdded",
        "ResponseStarted",
        "OutputItemStarted",
        *["TextDelta"] * deltas,
        "OutputItemEnded",
        "ResponseEnded",
    ]
    (item,) = response.items
    assert isinstance(item, MessageItem)
    text = "".join(event.text for event in talk.ears.heard if isinstance(event, TextDelta))
    assert item.parts[0].text == text == talk.engine.text.decode(talk.sampled(response))


async def test_many_turns_continue_one_token_log(talk: Talk) -> None:
    for turn in range(8):
        await talk.say(f"turn {turn}")
        await talk.turn()


async def test_items_are_prefilled_before_a_response_is_requested(talk: Talk) -> None:
    name = await talk.say("a rather long thing to say before anybody answers")
    (info,) = await talk.engine.list_sessions()
    assert info.length == talk.session.conversation.length
    assert talk.session.conversation.find(name) is not None


async def test_usage_counts_tokens_cached_by_earlier_turns(talk: Talk) -> None:
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


async def test_changed_instructions_and_tools_reach_the_engine(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    for changed in (
        GenerationSettings(instructions="be kind"),
        GenerationSettings(instructions="be kind", tools=(Tool(name="look"),)),
        GenerationSettings(),
    ):
        await talk.session.execute(ConfigureSession(changed))
        assert talk.session.settings == changed
        await talk.say("more")
        await talk.turn()


async def test_update_with_the_same_instructions_rewinds_nothing(talk: Talk) -> None:
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
    assert new < 40, "more than the new message and the header was prefilled"


async def test_response_settings_override_one_response_only(talk: Talk) -> None:
    await talk.say("hello")
    overrides = GenerationSettings(instructions="answer in one word", max_output_tokens=5)
    prompt, header = talk.session.conversation.with_settings(overrides).render_header()
    expected = oracle(prompt.ids() + header, 5, stop_ids=[0])
    await talk.session.execute(CreateSessionResponse(settings=overrides))
    assert talk.sampled(await talk.ended()) == expected
    await talk.say("and now?")
    await talk.turn()


async def test_cancel_keeps_the_text_generated_so_far(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta, 2)
    await talk.session.execute(CancelResponse())
    response = await talk.ended()
    assert response.status == "cancelled"
    assert response.reason == "client_cancelled"
    (item,) = response.items
    assert item.status == "incomplete"
    assert isinstance(item, MessageItem)
    assert item.parts[0].text == talk.engine.text.decode(talk.sampled(response))
    await talk.say("go on")
    await talk.turn()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_cancel_after_any_delta(chatty: Path, ahead: int) -> None:
    async with digest_engine(
        chatty, pages=256, max_model_len=400, batched_tokens=64, steps_ahead=ahead, step_s=0.005
    ) as bench:
        for index in range(1, 8):
            talk = await open_talk(bench)
            while len(talk.expected(100)) < 100:  # else the response would end before the cancel
                await talk.say("hello")
            await talk.respond(None)
            await talk.ears.until(TextDelta, index)
            await talk.session.execute(CancelResponse())
            assert (await talk.ended()).status == "cancelled"
            assert kinds(talk.ears).count("ResponseEnded") == 1
            await talk.say("go on")
            await talk.turn()
            await talk.session.close()


async def test_immediate_cancel_leaves_no_trace_in_the_conversation(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation.ids()
    await talk.respond(None)
    await talk.session.execute(CancelResponse())
    response = await talk.ended()
    assert response.status == "cancelled"
    if not response.items:
        assert talk.session.conversation.ids() == before
    with pytest.raises(Refusal, match="Cancellation failed"):
        await talk.session.execute(CancelResponse())
    await talk.say("hello again")
    await talk.turn()


async def test_second_response_is_refused_and_the_first_continues(talk: Talk) -> None:
    await talk.say("hello")
    expected = talk.expected(20)
    await talk.respond(20)
    with pytest.raises(Refusal) as caught:
        await talk.respond(1)
    assert caught.value.code == "conversation_already_has_active_response"
    assert talk.sampled(await talk.ended()) == expected


async def test_items_added_during_a_response_follow_it(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.say("more", name="m1")
    assert kinds(talk.ears)[-1] == "ItemAdded", "not acknowledged at once"
    response = await talk.ended()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "m1"]
    await talk.turn()


async def test_items_added_during_a_response_are_prefilled_when_it_ends(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(20)
    await talk.ears.until(TextDelta)
    await talk.say("more, and rather a lot of it")
    await talk.ended()
    length = talk.session.conversation.length
    while (await talk.engine.info(talk.session.id)).length < length:
        await asyncio.sleep(0)


async def test_long_text_tokenized_while_a_response_ends_keeps_both(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await open_talk(bench, Limits(off_loop_chars_min=10))
    await talk.say("hello")

    async def finish_after_response(make: Callable[[], Conversation]) -> Conversation:
        made = make()
        await talk.ears.until(ResponseEnded)
        return made

    await talk.respond(20)
    monkeypatch.setattr(asyncio, "to_thread", finish_after_response)
    await talk.say("a text of more than ten characters")
    response = await talk.ended()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "u2"], "one change overwrote the other"
    await talk.turn()
    await talk.session.close()


async def test_item_being_generated_can_be_fetched_but_not_deleted(talk: Talk) -> None:
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


async def test_settings_changed_during_a_response_apply_to_the_next(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.session.execute(ConfigureSession(GenerationSettings(instructions="be brief")))
    await talk.ended()
    await talk.say("and now?")
    await talk.turn()


# ---------------------------------------------------------------- out-of-band responses


async def test_out_of_band_response_changes_nothing_in_the_conversation(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation
    context = (ItemReference("u1"), message("x", "what was that about?"))
    await talk.respond(5, is_out_of_band=True, context=context, metadata={"for": "title"})
    response = await talk.ended()
    assert response.conversation is None
    assert response.metadata == {"for": "title"}
    assert response.status in ("completed", "incomplete")
    assert talk.session.conversation is before
    await talk.turn()


async def test_out_of_band_response_runs_beside_one_in_the_conversation(talk: Talk) -> None:
    await talk.say("hello")
    expected = talk.expected(60)
    await talk.respond(60)
    await talk.ears.until(TextDelta)
    await talk.respond(3, is_out_of_band=True)
    ended = {
        response.conversation: response for response in [await talk.ended(), await talk.ended()]
    }
    assert talk.sampled(ended[f"conv_{talk.session.id[5:]}"]) == expected
    assert None in ended


async def test_out_of_band_responses_have_a_limit(bench: Bench) -> None:
    talk = await open_talk(bench, Limits(out_of_band_responses_max=1))
    await talk.respond(None, is_out_of_band=True)
    with pytest.raises(Refusal, match="the limit is 1") as caught:
        await talk.respond(None, is_out_of_band=True)
    assert caught.value.param == "response.conversation"
    (response_id,) = [
        event.answer.id for event in talk.ears.heard if isinstance(event, ResponseStarted)
    ]
    await talk.session.execute(CancelResponse(response_id))
    assert (await talk.ended()).status == "cancelled"
    await talk.session.close()


async def test_response_to_its_own_input_is_added_to_the_conversation(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(5, context=(message("x", "something else"),))
    response = await talk.ended()
    assert [item.id for item in talk.session.conversation.items()] == ["u1", response.items[0].id]
    await talk.say("go on")
    await talk.turn()


# ---------------------------------------------------------------- limits and faults


async def test_item_longer_than_the_context_is_refused(talk: Talk) -> None:
    await talk.say("hello")
    before = talk.session.conversation
    with pytest.raises(Refusal, match=r"400 \(max_model_len\)") as caught:
        await talk.say("x" * 500)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "item")
    assert talk.session.conversation is before
    await talk.turn()


async def test_prompt_without_room_for_output_is_refused(talk: Talk) -> None:
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


async def test_response_ends_at_the_end_of_the_context(talk: Talk) -> None:
    await talk.say("hello")
    await talk.respond(None)
    response = await talk.ended()
    assert response.usage is not None
    used = response.usage.input_tokens + response.usage.output_tokens
    if response.status == "incomplete":
        assert response.reason == "max_output_tokens"
        assert used == talk.engine.ready.max_model_len
    else:
        assert talk.sampled(response)[-1] == 0


async def test_failed_turn_leaves_the_session_usable(talk: Talk) -> None:
    await talk.say("hello")
    poison = talk.session.conversation.render_header()[1][-1]
    talk.bench.runner.poison = {poison}
    await talk.respond()
    response = await talk.ended()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "turn_failed"
    assert response.items == ()
    talk.bench.runner.poison = set()
    await talk.turn()


async def test_session_closed_in_the_engine_is_created_again(talk: Talk) -> None:
    await talk.say("hello")
    await talk.turn()
    await talk.engine.close(talk.session.id)
    await talk.say("still there?")
    await talk.turn()


async def test_response_continues_after_the_engine_is_replaced(bench: Bench) -> None:
    talk = await open_talk(bench)
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta)
    bench.kill()
    response = await talk.ended()
    assert response.status in ("completed", "incomplete")
    await talk.turn()
    assert bench.launches == 2
    await talk.session.close()


async def test_response_fails_when_the_engine_is_stopped(bench: Bench) -> None:
    talk = await open_talk(bench)
    await talk.say("hello")
    await talk.respond(None)
    await talk.ears.until(TextDelta)
    await bench.engine.stop()
    response = await talk.ended()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == EngineLost.code
    with pytest.raises(Refusal) as caught:
        await talk.say("anyone?")
    assert (caught.value.code, caught.value.kind) == ("engine_lost", "server_error")
    await talk.session.close()


async def test_response_reports_its_seed(talk: Talk) -> None:
    await talk.say("hello")
    overrides = GenerationSettings(sampling=Sampling(temperature=1.5), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=overrides))
    first = await talk.ended()
    seed = first.settings.sampling.seed
    assert seed is not None
    await talk.session.execute(DeleteItem(first.items[0].id))
    seeded = GenerationSettings(sampling=Sampling(temperature=1.5, seed=seed), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=seeded))
    second = await talk.ended()
    assert second.settings.sampling.seed == seed
    (one,), (two,) = first.items, second.items
    assert isinstance(one, MessageItem)
    assert isinstance(two, MessageItem)
    assert one.parts == two.parts


async def test_close_cancels_running_responses(bench: Bench) -> None:
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


async def test_long_texts_are_tokenized_off_the_event_loop(bench: Bench) -> None:
    talk = await open_talk(bench, Limits(off_loop_chars_min=10))
    await talk.say("a text of more than ten characters")
    await talk.respond(30)
    await talk.ears.until(TextDelta)
    await talk.say("another one, while an answer is being made")
    await talk.ended()
    await talk.turn()
    await talk.session.close()


# ---------------------------------------------------------------- random histories

STEPS = st.lists(
    st.sampled_from(
        [
            "say",
            "turn",
            "cancel",
            "delete",
            "front",
            "configure",
            "late",
            "out of band",
            "replace",
            "commit",
        ]
    ),
    min_size=1,
    max_size=7,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
async def test_response_to_any_history_equals_that_of_a_fresh_prefill(
    bench: Bench, steps: list[str]
) -> None:
    talk = await open_talk(bench)
    for n, step in enumerate(steps):
        item_ids = [item.id for item in talk.session.conversation.items()]
        match step:
            case "say":
                await talk.say(f"s{n}")
            case "turn":
                await talk.turn(4)
            case "cancel":
                await talk.respond(40)
                await talk.ears.until(ResponseStarted, talk._answers + 1)
                await asyncio.sleep(0)
                await talk.session.execute(CancelResponse())
                await talk.ended()
            case "delete":
                if item_ids:
                    await talk.session.execute(DeleteItem(item_ids[n % len(item_ids)]))
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
            case "replace":
                await talk.session.execute(ReplaceText(f"words {n} of s{n // 2}"))
            case "commit":
                await talk.session.execute(AppendText(f" and {n}"))
                await talk.session.execute(CommitText(f"c{n}"))
            case _:
                await talk.respond(2, is_out_of_band=True)
                await talk.ended()
    await talk.turn(4)
    await talk.session.close()
