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
from tests.support.engines import EngineHarness, digest_engine
from tests.support.sessions import (
    SessionDriver,
    create_registry,
    event_type_names,
    open_session,
    user_message,
)

pytestmark = pytest.mark.slow


async def test_events_of_a_turn_are_emitted_in_order(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    response = await talk.run_turn(12)
    events = event_type_names(talk.recorder)
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
    text = "".join(event.text for event in talk.recorder.events if isinstance(event, TextDelta))
    assert item.parts[0].text == text == talk.engine.text.decode(talk.sampled_ids(response))


async def test_many_turns_continue_one_token_log(talk: SessionDriver) -> None:
    for turn in range(8):
        await talk.add_message(f"turn {turn}")
        await talk.run_turn()


async def test_items_are_prefilled_before_a_response_is_requested(talk: SessionDriver) -> None:
    name = await talk.add_message("a rather long thing to say before anybody answers")
    (info,) = await talk.engine.list_sessions()
    assert info.length == talk.session.conversation.length
    assert talk.session.conversation.find(name) is not None


async def test_usage_counts_tokens_cached_by_earlier_turns(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    first = (await talk.run_turn()).usage
    await talk.add_message("and again")
    second = (await talk.run_turn()).usage
    assert first is not None
    assert second is not None
    assert first.output_tokens == 6
    assert second.input_tokens > first.input_tokens + first.output_tokens
    assert first.input_tokens + 5 <= second.cached_tokens < second.input_tokens


async def test_history_edits_reach_the_engine(talk: SessionDriver) -> None:
    first = await talk.add_message("one")
    await talk.run_turn()
    await talk.add_message("three")
    await talk.add_message("two", after=first)
    await talk.run_turn()
    await talk.session.execute(DeleteItem(first))
    await talk.run_turn()
    await talk.add_message("zero", after=ROOT)
    await talk.run_turn()


async def test_changed_instructions_and_tools_reach_the_engine(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.run_turn()
    for changed in (
        GenerationSettings(instructions="be kind"),
        GenerationSettings(instructions="be kind", tools=(Tool(name="look"),)),
        GenerationSettings(),
    ):
        await talk.session.execute(ConfigureSession(changed))
        assert talk.session.settings == changed
        await talk.add_message("more")
        await talk.run_turn()


async def test_update_with_the_same_instructions_rewinds_nothing(talk: SessionDriver) -> None:
    await talk.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    await talk.add_message("hello")
    await talk.run_turn()
    computed = talk.engine_harness.runner.token_count
    warm = GenerationSettings(instructions="be kind", sampling=Sampling(temperature=1.0))
    await talk.session.execute(ConfigureSession(warm))
    await talk.add_message("x")
    await talk.create_response(1)
    await talk.wait_response()
    new = talk.engine_harness.runner.token_count - computed
    assert new < 40, "more than the new message and the header was prefilled"


async def test_response_settings_override_one_response_only(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    overrides = GenerationSettings(instructions="answer in one word", max_output_tokens=5)
    prompt, header = talk.session.conversation.with_settings(overrides).render_header()
    expected = oracle(prompt.ids() + header, 5, stop_ids=[0])
    await talk.session.execute(CreateSessionResponse(settings=overrides))
    assert talk.sampled_ids(await talk.wait_response()) == expected
    await talk.add_message("and now?")
    await talk.run_turn()


async def test_cancel_keeps_the_text_generated_so_far(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(None)
    await talk.recorder.wait_for(TextDelta, 2)
    await talk.session.execute(CancelResponse())
    response = await talk.wait_response()
    assert response.status == "cancelled"
    assert response.reason == "client_cancelled"
    (item,) = response.items
    assert item.status == "incomplete"
    assert isinstance(item, MessageItem)
    assert item.parts[0].text == talk.engine.text.decode(talk.sampled_ids(response))
    await talk.add_message("go on")
    await talk.run_turn()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_cancel_after_any_delta(chatty: Path, ahead: int) -> None:
    async with digest_engine(
        chatty, pages=256, max_model_len=400, batched_tokens=64, steps_ahead=ahead, step_s=0.005
    ) as bench:
        for index in range(1, 8):
            talk = await open_session(bench)
            while (
                len(talk.expected_ids(100)) < 100
            ):  # else the response would end before the cancel
                await talk.add_message("hello")
            await talk.create_response(None)
            await talk.recorder.wait_for(TextDelta, index)
            await talk.session.execute(CancelResponse())
            assert (await talk.wait_response()).status == "cancelled"
            assert event_type_names(talk.recorder).count("ResponseEnded") == 1
            await talk.add_message("go on")
            await talk.run_turn()
            await talk.session.close()


async def test_immediate_cancel_leaves_no_trace_in_the_conversation(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    before = talk.session.conversation.ids()
    await talk.create_response(None)
    await talk.session.execute(CancelResponse())
    response = await talk.wait_response()
    assert response.status == "cancelled"
    if not response.items:
        assert talk.session.conversation.ids() == before
    with pytest.raises(Refusal, match="Cancellation failed"):
        await talk.session.execute(CancelResponse())
    await talk.add_message("hello again")
    await talk.run_turn()


async def test_second_response_is_refused_and_the_first_continues(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    expected = talk.expected_ids(20)
    await talk.create_response(20)
    with pytest.raises(Refusal) as caught:
        await talk.create_response(1)
    assert caught.value.code == "conversation_already_has_active_response"
    assert talk.sampled_ids(await talk.wait_response()) == expected


async def test_items_added_during_a_response_follow_it(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(30)
    await talk.recorder.wait_for(TextDelta)
    await talk.add_message("more", name="m1")
    assert event_type_names(talk.recorder)[-1] == "ItemAdded", "not acknowledged at once"
    response = await talk.wait_response()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "m1"]
    await talk.run_turn()


async def test_items_added_during_a_response_are_prefilled_when_it_ends(
    talk: SessionDriver,
) -> None:
    await talk.add_message("hello")
    await talk.create_response(20)
    await talk.recorder.wait_for(TextDelta)
    await talk.add_message("more, and rather a lot of it")
    await talk.wait_response()
    length = talk.session.conversation.length
    while (await talk.engine.info(talk.session.id)).length < length:
        await asyncio.sleep(0)


async def test_long_text_tokenized_while_a_response_ends_keeps_both(
    bench: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await open_session(bench, await create_registry(bench, Limits(off_loop_chars_min=10)))
    await talk.add_message("hello")

    async def finish_after_response(make: Callable[[], Conversation]) -> Conversation:
        made = make()
        await talk.recorder.wait_for(ResponseEnded)
        return made

    await talk.create_response(20)
    monkeypatch.setattr(asyncio, "to_thread", finish_after_response)
    await talk.add_message("a text of more than ten characters")
    response = await talk.wait_response()
    names = [item.id for item in talk.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "u2"], "one change overwrote the other"
    await talk.run_turn()
    await talk.session.close()


async def test_item_being_generated_can_be_fetched_but_not_deleted(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(None)
    started = await talk.recorder.wait_for(OutputItemStarted)
    assert isinstance(started, OutputItemStarted)
    await talk.session.execute(FetchItem(started.item.id))
    with pytest.raises(Refusal, match="still being generated"):
        await talk.session.execute(DeleteItem(started.item.id))
    await talk.session.execute(CancelResponse())
    await talk.wait_response()
    await talk.session.execute(DeleteItem(started.item.id))
    await talk.run_turn()


async def test_settings_changed_during_a_response_apply_to_the_next(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(30)
    await talk.recorder.wait_for(TextDelta)
    await talk.session.execute(ConfigureSession(GenerationSettings(instructions="be brief")))
    await talk.wait_response()
    await talk.add_message("and now?")
    await talk.run_turn()


# ---------------------------------------------------------------- out-of-band responses


async def test_out_of_band_response_changes_nothing_in_the_conversation(
    talk: SessionDriver,
) -> None:
    await talk.add_message("hello")
    before = talk.session.conversation
    context = (ItemReference("u1"), user_message("x", "what was that about?"))
    await talk.create_response(5, is_out_of_band=True, context=context, metadata={"for": "title"})
    response = await talk.wait_response()
    assert response.conversation is None
    assert response.metadata == {"for": "title"}
    assert response.status in ("completed", "incomplete")
    assert talk.session.conversation is before
    await talk.run_turn()


async def test_out_of_band_response_runs_beside_one_in_the_conversation(
    talk: SessionDriver,
) -> None:
    await talk.add_message("hello")
    expected = talk.expected_ids(60)
    await talk.create_response(60)
    await talk.recorder.wait_for(TextDelta)
    await talk.create_response(3, is_out_of_band=True)
    ended = {
        response.conversation: response
        for response in [await talk.wait_response(), await talk.wait_response()]
    }
    assert talk.sampled_ids(ended[f"conv_{talk.session.id[5:]}"]) == expected
    assert None in ended


async def test_out_of_band_responses_have_a_limit(bench: EngineHarness) -> None:
    talk = await open_session(
        bench, await create_registry(bench, Limits(out_of_band_responses_max=1))
    )
    await talk.create_response(None, is_out_of_band=True)
    with pytest.raises(Refusal, match="the limit is 1") as caught:
        await talk.create_response(None, is_out_of_band=True)
    assert caught.value.param == "response.conversation"
    (response_id,) = [
        event.answer.id for event in talk.recorder.events if isinstance(event, ResponseStarted)
    ]
    await talk.session.execute(CancelResponse(response_id))
    assert (await talk.wait_response()).status == "cancelled"
    await talk.session.close()


async def test_response_to_its_own_input_is_added_to_the_conversation(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(5, context=(user_message("x", "something else"),))
    response = await talk.wait_response()
    assert [item.id for item in talk.session.conversation.items()] == ["u1", response.items[0].id]
    await talk.add_message("go on")
    await talk.run_turn()


# ---------------------------------------------------------------- limits and faults


async def test_item_longer_than_the_context_is_refused(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    before = talk.session.conversation
    with pytest.raises(Refusal, match=r"400 \(max_model_len\)") as caught:
        await talk.add_message("x" * 500)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "item")
    assert talk.session.conversation is before
    await talk.run_turn()


async def test_prompt_without_room_for_output_is_refused(talk: SessionDriver) -> None:
    limit = talk.engine.ready.max_model_len
    whole = GenerationSettings(truncation=Truncation(mode="disabled"))
    await talk.session.execute(ConfigureSession(whole))
    await talk.add_message("x")
    header = len(talk.session.conversation.render_header()[1])
    await talk.add_message("y" * (limit - 3 - header - 2 * talk.session.conversation.length + 1))
    while talk.session.conversation.length + header < limit:
        await talk.add_message("", name="")
    before = talk.session.conversation
    with pytest.raises(Refusal, match="one must be left") as caught:
        await talk.create_response()
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "conversation")
    assert talk.session.conversation is before
    assert talk.session.state is SessionState.IDLE
    await talk.session.execute(DeleteItem("u2"))
    await talk.run_turn()


async def test_response_ends_at_the_end_of_the_context(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.create_response(None)
    response = await talk.wait_response()
    assert response.usage is not None
    used = response.usage.input_tokens + response.usage.output_tokens
    if response.status == "incomplete":
        assert response.reason == "max_output_tokens"
        assert used == talk.engine.ready.max_model_len
    else:
        assert talk.sampled_ids(response)[-1] == 0


async def test_failed_turn_leaves_the_session_usable(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    poison = talk.session.conversation.render_header()[1][-1]
    talk.engine_harness.runner.nan_ids = {poison}
    await talk.create_response()
    response = await talk.wait_response()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "turn_failed"
    assert response.items == ()
    talk.engine_harness.runner.nan_ids = set()
    await talk.run_turn()


async def test_session_closed_in_the_engine_is_created_again(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    await talk.run_turn()
    await talk.engine.close(talk.session.id)
    await talk.add_message("still there?")
    await talk.run_turn()


async def test_response_continues_after_the_engine_is_replaced(bench: EngineHarness) -> None:
    talk = await open_session(bench)
    await talk.add_message("hello")
    await talk.create_response(None)
    await talk.recorder.wait_for(TextDelta)
    bench.kill()
    response = await talk.wait_response()
    assert response.status in ("completed", "incomplete")
    await talk.run_turn()
    assert bench.launch_count == 2
    await talk.session.close()


async def test_response_fails_when_the_engine_is_stopped(bench: EngineHarness) -> None:
    talk = await open_session(bench)
    await talk.add_message("hello")
    await talk.create_response(None)
    await talk.recorder.wait_for(TextDelta)
    await bench.engine.stop()
    response = await talk.wait_response()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == EngineLost.code
    with pytest.raises(Refusal) as caught:
        await talk.add_message("anyone?")
    assert (caught.value.code, caught.value.kind) == ("engine_lost", "server_error")
    await talk.session.close()


async def test_response_reports_its_seed(talk: SessionDriver) -> None:
    await talk.add_message("hello")
    overrides = GenerationSettings(sampling=Sampling(temperature=1.5), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=overrides))
    first = await talk.wait_response()
    seed = first.settings.sampling.seed
    assert seed is not None
    await talk.session.execute(DeleteItem(first.items[0].id))
    seeded = GenerationSettings(sampling=Sampling(temperature=1.5, seed=seed), max_output_tokens=12)
    await talk.session.execute(CreateSessionResponse(settings=seeded))
    second = await talk.wait_response()
    assert second.settings.sampling.seed == seed
    (one,), (two,) = first.items, second.items
    assert isinstance(one, MessageItem)
    assert isinstance(two, MessageItem)
    assert one.parts == two.parts


async def test_close_cancels_running_responses(bench: EngineHarness) -> None:
    talk = await open_session(bench)
    await talk.add_message("hello")
    await talk.create_response(None)
    await talk.create_response(None, is_out_of_band=True)
    await talk.recorder.wait_for(TextDelta)
    await talk.session.close()
    stats = await bench.engine.stats()
    assert (stats.active_turns, stats.queued_turns, stats.sessions) == (0, 0, 0)
    with pytest.raises(Refusal, match="closed"):
        await talk.add_message("hello?")


async def test_long_texts_are_tokenized_off_the_event_loop(bench: EngineHarness) -> None:
    talk = await open_session(bench, await create_registry(bench, Limits(off_loop_chars_min=10)))
    await talk.add_message("a text of more than ten characters")
    await talk.create_response(30)
    await talk.recorder.wait_for(TextDelta)
    await talk.add_message("another one, while an answer is being made")
    await talk.wait_response()
    await talk.run_turn()
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
    bench: EngineHarness, steps: list[str]
) -> None:
    talk = await open_session(bench)
    for n, step in enumerate(steps):
        item_ids = [item.id for item in talk.session.conversation.items()]
        match step:
            case "say":
                await talk.add_message(f"s{n}")
            case "turn":
                await talk.run_turn(4)
            case "cancel":
                await talk.create_response(40)
                await talk.recorder.wait_for(ResponseStarted, talk._ended_responses + 1)
                await asyncio.sleep(0)
                await talk.session.execute(CancelResponse())
                await talk.wait_response()
            case "delete":
                if item_ids:
                    await talk.session.execute(DeleteItem(item_ids[n % len(item_ids)]))
            case "front":
                await talk.add_message("front", after=ROOT)
            case "configure":
                await talk.session.execute(
                    ConfigureSession(GenerationSettings(instructions="i" * n))
                )
            case "late":
                await talk.create_response(10)
                await talk.add_message(f"late {n}")
                await talk.wait_response()
            case "replace":
                await talk.session.execute(ReplaceText(f"words {n} of s{n // 2}"))
            case "commit":
                await talk.session.execute(AppendText(f" and {n}"))
                await talk.session.execute(CommitText(f"c{n}"))
            case _:
                await talk.create_response(2, is_out_of_band=True)
                await talk.wait_response()
    await talk.run_turn(4)
    await talk.session.close()
