"""Tests of sessions against the real engine on the null device.

Each id that the device draws depends on every id before it, as KV holds it: a response that equals
`oracle` of the conversation's ids shows that the engine's token log is the conversation, whatever
was edited, cancelled or sent in between.
"""

import asyncio
import threading
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


async def test_events_of_a_turn_are_emitted_in_order(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    response = await driver.run_turn(12)
    events = event_type_names(driver.recorder)
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
    text = "".join(event.text for event in driver.recorder.events if isinstance(event, TextDelta))
    assert item.parts[0].text == text == driver.engine.text.decode(driver.sampled_ids(response))


async def test_many_turns_continue_one_token_log(driver: SessionDriver) -> None:
    for turn in range(8):
        await driver.add_message(f"turn {turn}")
        await driver.run_turn()


async def test_items_are_prefilled_before_a_response_is_requested(driver: SessionDriver) -> None:
    name = await driver.add_message("a rather long thing to say before anybody answers")
    (info,) = await driver.engine.fleet.list_sessions()
    assert info.length == driver.session.conversation.length
    assert driver.session.conversation.find(name) is not None


async def test_usage_counts_tokens_cached_by_earlier_turns(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    first = (await driver.run_turn()).usage
    await driver.add_message("and again")
    second = (await driver.run_turn()).usage
    assert first is not None
    assert second is not None
    assert first.output_tokens == 6
    assert second.input_tokens > first.input_tokens + first.output_tokens
    assert first.input_tokens + 5 <= second.cached_tokens < second.input_tokens


async def test_history_edits_reach_the_engine(driver: SessionDriver) -> None:
    first = await driver.add_message("one")
    await driver.run_turn()
    await driver.add_message("three")
    await driver.add_message("two", after=first)
    await driver.run_turn()
    await driver.session.execute(DeleteItem(first))
    await driver.run_turn()
    await driver.add_message("zero", after=ROOT)
    await driver.run_turn()


async def test_changed_instructions_and_tools_reach_the_engine(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.run_turn()
    for changed in (
        GenerationSettings(instructions="be kind"),
        GenerationSettings(instructions="be kind", tools=(Tool(name="look"),)),
        GenerationSettings(),
    ):
        await driver.session.execute(ConfigureSession(changed))
        assert driver.session.settings == changed
        await driver.add_message("more")
        await driver.run_turn()


async def test_update_with_the_same_instructions_rewinds_nothing(driver: SessionDriver) -> None:
    await driver.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    await driver.add_message("hello")
    await driver.run_turn()
    computed = driver.engine_harness.runner.token_count
    warm = GenerationSettings(instructions="be kind", sampling=Sampling(temperature=1.0))
    await driver.session.execute(ConfigureSession(warm))
    await driver.add_message("x")
    await driver.create_response(1)
    await driver.wait_response()
    new = driver.engine_harness.runner.token_count - computed
    assert new < 40, "more than the new message and the header was prefilled"


async def test_response_settings_override_one_response_only(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    overrides = GenerationSettings(instructions="answer in one word", max_output_tokens=5)
    prompt, header = driver.session.conversation.with_settings(overrides).render_header()
    expected = oracle(prompt.ids() + header, 5, stop_ids=[0])
    await driver.session.execute(CreateSessionResponse(settings=overrides))
    assert driver.sampled_ids(await driver.wait_response()) == expected
    await driver.add_message("and now?")
    await driver.run_turn()


async def test_cancel_keeps_the_text_generated_so_far(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.recorder.wait_for(TextDelta, 2)
    await driver.session.execute(CancelResponse())
    response = await driver.wait_response()
    assert response.status == "cancelled"
    assert response.reason == "client_cancelled"
    (item,) = response.items
    assert item.status == "incomplete"
    assert isinstance(item, MessageItem)
    assert item.parts[0].text == driver.engine.text.decode(driver.sampled_ids(response))
    await driver.add_message("go on")
    await driver.run_turn()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_cancel_after_any_delta(chat_model: Path, ahead: int) -> None:
    async with digest_engine(
        chat_model, pages=256, max_model_len=400, batched_tokens=64, steps_ahead=ahead, step_s=0.005
    ) as harness:
        for index in range(1, 8):
            driver = await open_session(harness)
            while (
                len(driver.expected_ids(100)) < 100
            ):  # else the response would end before the cancel
                await driver.add_message("hello")
            await driver.create_response(None)
            await driver.recorder.wait_for(TextDelta, index)
            await driver.session.execute(CancelResponse())
            assert (await driver.wait_response()).status == "cancelled"
            assert event_type_names(driver.recorder).count("ResponseEnded") == 1
            await driver.add_message("go on")
            await driver.run_turn()
            await driver.session.close()


async def test_immediate_cancel_leaves_no_trace_in_the_conversation(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    before = driver.session.conversation.ids()
    await driver.create_response(None)
    await driver.session.execute(CancelResponse())
    response = await driver.wait_response()
    assert response.status == "cancelled"
    if not response.items:
        assert driver.session.conversation.ids() == before
    with pytest.raises(Refusal, match="Cancellation failed"):
        await driver.session.execute(CancelResponse())
    await driver.add_message("hello again")
    await driver.run_turn()


async def test_second_response_is_refused_and_the_first_continues(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    expected = driver.expected_ids(20)
    await driver.create_response(20)
    with pytest.raises(Refusal) as caught:
        await driver.create_response(1)
    assert caught.value.code == "conversation_already_has_active_response"
    assert driver.sampled_ids(await driver.wait_response()) == expected


async def test_items_added_during_a_response_follow_it(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(30)
    await driver.recorder.wait_for(TextDelta)
    await driver.add_message("more", name="m1")
    assert event_type_names(driver.recorder)[-1] == "ItemAdded", "not acknowledged at once"
    response = await driver.wait_response()
    names = [item.id for item in driver.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "m1"]
    await driver.run_turn()


async def test_items_added_during_a_response_are_prefilled_when_it_ends(
    driver: SessionDriver,
) -> None:
    await driver.add_message("hello")
    await driver.create_response(20)
    await driver.recorder.wait_for(TextDelta)
    await driver.add_message("more, and rather a lot of it")
    await driver.wait_response()
    length = driver.session.conversation.length
    while (await driver.engine.info(driver.session.id)).length < length:
        await asyncio.sleep(0)


async def test_long_text_tokenized_while_a_response_ends_keeps_both(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await open_session(
        harness, await create_registry(harness, Limits(off_loop_chars_min=10))
    )
    await driver.add_message("hello")

    async def finish_after_response(make: Callable[[], Conversation]) -> Conversation:
        made = make()
        await driver.recorder.wait_for(ResponseEnded)
        return made

    await driver.create_response(20)
    monkeypatch.setattr(asyncio, "to_thread", finish_after_response)
    await driver.add_message("a text of more than ten characters")
    response = await driver.wait_response()
    names = [item.id for item in driver.session.conversation.items()]
    assert names == ["u1", response.items[0].id, "u2"], "one change overwrote the other"
    await driver.run_turn()
    await driver.session.close()


async def test_item_being_generated_can_be_fetched_but_not_deleted(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(None)
    started = await driver.recorder.wait_for(OutputItemStarted)
    assert isinstance(started, OutputItemStarted)
    await driver.session.execute(FetchItem(started.item.id))
    with pytest.raises(Refusal, match="still being generated"):
        await driver.session.execute(DeleteItem(started.item.id))
    await driver.session.execute(CancelResponse())
    await driver.wait_response()
    await driver.session.execute(DeleteItem(started.item.id))
    await driver.run_turn()


async def test_settings_changed_during_a_response_apply_to_the_next(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(30)
    await driver.recorder.wait_for(TextDelta)
    await driver.session.execute(ConfigureSession(GenerationSettings(instructions="be brief")))
    await driver.wait_response()
    await driver.add_message("and now?")
    await driver.run_turn()


# ---------------------------------------------------------------- out-of-band responses


async def test_out_of_band_response_changes_nothing_in_the_conversation(
    driver: SessionDriver,
) -> None:
    await driver.add_message("hello")
    before = driver.session.conversation
    context = (ItemReference("u1"), user_message("x", "what was that about?"))
    await driver.create_response(5, is_out_of_band=True, context=context, metadata={"for": "title"})
    response = await driver.wait_response()
    assert response.conversation is None
    assert response.metadata == {"for": "title"}
    assert response.status in ("completed", "incomplete")
    assert driver.session.conversation is before
    await driver.run_turn()


async def test_out_of_band_response_runs_beside_one_in_the_conversation(
    driver: SessionDriver,
) -> None:
    await driver.add_message("hello")
    expected = driver.expected_ids(60)
    await driver.create_response(60)
    await driver.recorder.wait_for(TextDelta)
    await driver.create_response(3, is_out_of_band=True)
    ended = {
        response.conversation: response
        for response in [await driver.wait_response(), await driver.wait_response()]
    }
    assert driver.sampled_ids(ended[f"conv_{driver.session.id[5:]}"]) == expected
    assert None in ended


async def test_out_of_band_responses_have_a_limit(harness: EngineHarness) -> None:
    driver = await open_session(
        harness, await create_registry(harness, Limits(out_of_band_responses_max=1))
    )
    await driver.create_response(None, is_out_of_band=True)
    with pytest.raises(Refusal, match="the limit is 1") as caught:
        await driver.create_response(None, is_out_of_band=True)
    assert caught.value.param == "response.conversation"
    (response_id,) = [
        event.response.id for event in driver.recorder.events if isinstance(event, ResponseStarted)
    ]
    await driver.session.execute(CancelResponse(response_id))
    assert (await driver.wait_response()).status == "cancelled"
    await driver.session.close()


async def test_response_to_its_own_input_is_added_to_the_conversation(
    driver: SessionDriver,
) -> None:
    await driver.add_message("hello")
    await driver.create_response(5, context=(user_message("x", "something else"),))
    response = await driver.wait_response()
    assert [item.id for item in driver.session.conversation.items()] == ["u1", response.items[0].id]
    await driver.add_message("go on")
    await driver.run_turn()


# ---------------------------------------------------------------- limits and faults


async def test_item_longer_than_the_context_is_refused(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    before = driver.session.conversation
    with pytest.raises(Refusal, match="length is 400 tokens") as caught:
        await driver.add_message("x" * 500)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "item")
    assert driver.session.conversation is before
    await driver.run_turn()


async def test_prompt_without_room_for_output_is_refused(driver: SessionDriver) -> None:
    limit = driver.engine.ready.max_model_len
    whole = GenerationSettings(truncation=Truncation(mode="disabled"))
    await driver.session.execute(ConfigureSession(whole))
    await driver.add_message("x")
    header = len(driver.session.conversation.render_header()[1])
    await driver.add_message(
        "y" * (limit - 3 - header - 2 * driver.session.conversation.length + 1)
    )
    while driver.session.conversation.length + header < limit:
        await driver.add_message("", name="")
    before = driver.session.conversation
    with pytest.raises(Refusal, match="one token must be left") as caught:
        await driver.create_response()
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "conversation")
    assert driver.session.conversation is before
    assert driver.session.state is SessionState.IDLE
    await driver.session.execute(DeleteItem("u2"))
    await driver.run_turn()


async def test_response_ends_at_the_end_of_the_context(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.create_response(None)
    response = await driver.wait_response()
    assert response.usage is not None
    used = response.usage.input_tokens + response.usage.output_tokens
    if response.status == "incomplete":
        assert response.reason == "max_output_tokens"
        assert used == driver.engine.ready.max_model_len
    else:
        assert driver.sampled_ids(response)[-1] == 0


async def test_failed_turn_leaves_the_session_usable(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    poison = driver.session.conversation.render_header()[1][-1]
    driver.engine_harness.runner.nan_ids = {poison}
    await driver.create_response()
    response = await driver.wait_response()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "turn_failed"
    assert response.items == ()
    driver.engine_harness.runner.nan_ids = set()
    await driver.run_turn()


async def test_session_closed_in_the_engine_is_created_again(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    await driver.run_turn()
    await driver.engine.close(driver.session.id)
    await driver.add_message("still there?")
    await driver.run_turn()


async def test_response_continues_after_the_engine_is_replaced(harness: EngineHarness) -> None:
    driver = await open_session(harness)
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.recorder.wait_for(TextDelta)
    harness.kill()
    response = await driver.wait_response()
    assert response.status in ("completed", "incomplete")
    await driver.run_turn()
    assert harness.launch_count == 2
    await driver.session.close()


async def test_response_fails_when_the_engine_is_stopped(harness: EngineHarness) -> None:
    driver = await open_session(harness)
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.recorder.wait_for(TextDelta)
    await harness.engine.stop()
    response = await driver.wait_response()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == EngineLost.code
    await driver.add_message("anyone?")
    await driver.create_response(None)
    response = await driver.wait_response()
    assert response.error is not None
    assert response.error.code == EngineLost.code
    await driver.session.close()


async def test_response_reports_its_seed(driver: SessionDriver) -> None:
    await driver.add_message("hello")
    overrides = GenerationSettings(sampling=Sampling(temperature=1.5), max_output_tokens=12)
    await driver.session.execute(CreateSessionResponse(settings=overrides))
    first = await driver.wait_response()
    seed = first.settings.sampling.seed
    assert seed is not None
    await driver.session.execute(DeleteItem(first.items[0].id))
    seeded = GenerationSettings(sampling=Sampling(temperature=1.5, seed=seed), max_output_tokens=12)
    await driver.session.execute(CreateSessionResponse(settings=seeded))
    second = await driver.wait_response()
    assert second.settings.sampling.seed == seed
    (one,), (two,) = first.items, second.items
    assert isinstance(one, MessageItem)
    assert isinstance(two, MessageItem)
    assert one.parts == two.parts


async def test_close_cancels_running_responses(harness: EngineHarness) -> None:
    driver = await open_session(harness)
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.create_response(None, is_out_of_band=True)
    await driver.recorder.wait_for(TextDelta)
    await driver.session.close()
    stats = await harness.engine.fleet.stats()
    assert (stats.active_turns, stats.queued_turns, stats.sessions) == (0, 0, 0)
    with pytest.raises(Refusal, match="closed"):
        await driver.add_message("hello?")


async def test_long_texts_are_tokenized_off_the_event_loop(harness: EngineHarness) -> None:
    driver = await open_session(
        harness, await create_registry(harness, Limits(off_loop_chars_min=10))
    )
    await driver.add_message("a text of more than ten characters")
    await driver.create_response(30)
    await driver.recorder.wait_for(TextDelta)
    await driver.add_message("another one, while an answer is being made")
    await driver.wait_response()
    await driver.run_turn()
    await driver.session.close()


async def test_short_texts_are_tokenized_on_the_event_loop_however_long_the_conversation(
    harness: EngineHarness,
) -> None:
    limits = Limits(off_loop_chars_min=120)
    driver = await open_session(harness, await create_registry(harness, limits))
    before = set(threading.enumerate())
    for _ in range(8):
        await driver.add_message("a few words")
        await driver.run_turn()
    assert driver.session.conversation.length > 2 * limits.off_loop_chars_min
    started = {thread.name for thread in threading.enumerate() if thread not in before}
    assert not [name for name in started if name.startswith("tokenizer")]
    await driver.session.close()


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
    harness: EngineHarness, steps: list[str]
) -> None:
    driver = await open_session(harness)
    for n, step in enumerate(steps):
        item_ids = [item.id for item in driver.session.conversation.items()]
        match step:
            case "say":
                await driver.add_message(f"s{n}")
            case "turn":
                await driver.run_turn(4)
            case "cancel":
                await driver.create_response(40)
                await driver.recorder.wait_for(ResponseStarted, driver._ended_responses + 1)
                await asyncio.sleep(0)
                await driver.session.execute(CancelResponse())
                await driver.wait_response()
            case "delete":
                if item_ids:
                    await driver.session.execute(DeleteItem(item_ids[n % len(item_ids)]))
            case "front":
                await driver.add_message("front", after=ROOT)
            case "configure":
                await driver.session.execute(
                    ConfigureSession(GenerationSettings(instructions="i" * n))
                )
            case "late":
                await driver.create_response(10)
                await driver.add_message(f"late {n}")
                await driver.wait_response()
            case "replace":
                await driver.session.execute(ReplaceText(f"words {n} of s{n // 2}"))
            case "commit":
                await driver.session.execute(AppendText(f" and {n}"))
                await driver.session.execute(CommitText(f"c{n}"))
            case _:
                await driver.create_response(2, is_out_of_band=True)
                await driver.wait_response()
    await driver.run_turn(4)
    await driver.session.close()
