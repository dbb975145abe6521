"""Tests of `ResponseService`: prompts of continued responses, and how long they are kept."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from continuo.engine import SessionGroup
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.events import ResponseEvent, TextDelta
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    MessageItem,
)
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings, Truncation
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.store import Store, open_store
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness
from tests.support.sessions import user_message
from tests.support.store_refusals import locked_sqlite

REQUESTER = Requester("acme", "conn_1")


@contextlib.asynccontextmanager
async def response_service(
    harness: EngineHarness, limits: Limits | None = None, store: Store | None = None
) -> AsyncIterator[ResponseService]:
    template = harness.engine.text.template
    assert template is not None
    responses = ResponseService(
        harness.engine,
        template,
        GenerationSettings(),
        limits or Limits(),
        SessionGroup,
        store,
    )
    responses._connections.add("conn_1")
    yield responses
    await responses.close()
    assert await harness.engine.fleet.list_sessions() == [], "nothing is left open in the engine"


def request(
    text: str,
    previous: str | None = None,
    *,
    store: bool = False,
    instructions: str = "",
    truncate: bool = False,
    tokens: int = 4,
    generate: bool = True,
) -> CreateResponse:
    settings = GenerationSettings(
        max_output_tokens=tokens,
        truncation=Truncation(mode="auto" if truncate else "disabled"),
        instructions=instructions,
    )
    item = user_message("u", text)
    return CreateResponse(
        settings=settings,
        input=(item,),
        previous_response_id=previous,
        store=store,
        generate=generate,
    )


async def turn(
    responses: ResponseService, command: CreateResponse, requester: Requester = REQUESTER
) -> Response:
    return await (await responses.create(command, requester)).event_stream.wait_for_end()


async def is_unknown(responses: ResponseService, id: str) -> bool:
    try:
        await turn(responses, request("x", id))
    except Refusal as refusal:
        return refusal.code == "previous_response_not_found"
    return False


async def test_response_from_any_continuation_point_equals_a_fresh_prefill(
    harness: EngineHarness,
) -> None:
    """A tree of responses, grown at random, several at a time."""
    rng = random.Random(7)
    async with response_service(harness) as responses:
        points: list[str | None] = [None]
        for _ in range(12):
            parents = [rng.choice(points) for _ in range(rng.randint(1, 3))]
            commands = [
                request(
                    f"say {rng.randint(0, 9)}", parent, instructions=rng.choice(["", "be kind"])
                )
                for parent in parents
            ]
            created = await asyncio.gather(*(turn(responses, command) for command in commands))
            for response in created:
                point = responses.continuations.find(response.id, "acme", "conn_1")
                assert point is not None
                conversation = point.conversation
                [span] = [span for span in conversation.spans if span.response_id == response.id]
                assert span.sampled_ids is not None
                before = msgspec.structs.replace(conversation, spans=conversation.spans[:-1])
                prompt, header = before.render_header()
                expected = oracle(prompt.ids() + header, 4, stop_ids=[0])
                assert list(span.sampled_ids) == expected
                assert response.usage is not None
                assert response.usage.input_tokens == len(prompt.ids()) + len(header)
                points.append(response.id)


async def test_fork_shares_kv_while_the_other_branch_is_generated(harness: EngineHarness) -> None:
    async with response_service(harness) as responses:
        first = await turn(responses, request("hello, this is the beginning of it"))
        assert first.usage is not None
        length = first.usage.input_tokens + first.usage.output_tokens
        one = await responses.create(request("one", first.id), REQUESTER)
        other = await responses.create(request("two", first.id), REQUESTER)
        for run in (one, other):
            response = await run.event_stream.wait_for_end()
            assert response.usage is not None
            assert response.usage.cached_tokens >= length - 1


async def test_continuation_points_are_limited_in_number_and_bytes(harness: EngineHarness) -> None:
    limits = Limits(
        continuation_points_max=3,
        connection_continuation_points_max=2,
        continuation_bytes_max=100_000,
    )
    async with response_service(harness, limits) as responses:
        unstored = [(await turn(responses, request("hello"))).id for _ in range(3)]
        assert await is_unknown(responses, unstored[0])
        assert not await is_unknown(responses, unstored[1])
        for text in ("x" * 150, "y" * 150, "z" * 150):
            last = await turn(responses, request(text, store=True))
            assert not await is_unknown(responses, last.id)
        assert responses.continuations.held_bytes <= 100_000
        assert len(responses.continuations) <= 3
        async with asyncio.timeout(20):
            while len(await harness.engine.fleet.list_sessions()) > len(responses.continuations):
                await asyncio.sleep(0.01)


async def test_unused_continuation_points_expire(harness: EngineHarness) -> None:
    async with response_service(harness, Limits(continuation_point_ttl_s=0.2)) as responses:
        first = await turn(responses, request("hello"))
        async with asyncio.timeout(20):
            while len(responses.continuations) or await harness.engine.fleet.list_sessions():
                await asyncio.sleep(0.02)
        assert await is_unknown(responses, first.id)


async def test_evicted_continuation_point_is_restored_from_the_store(
    harness: EngineHarness,
) -> None:
    store = await open_store("sqlite://:memory:")
    async with response_service(harness, Limits(continuation_points_max=1), store) as responses:
        first = await turn(responses, request("hello", store=True))
        before = await turn(responses, request("on", first.id, store=True))
        await turn(responses, request("something else", store=True))
        repeated = await turn(responses, request("on", first.id, store=True))
        assert [text(item) for item in repeated.items] == [text(item) for item in before.items]
        assert repeated.usage is not None
        assert before.usage is not None
        assert repeated.usage.input_tokens == before.usage.input_tokens
    await store.aclose()


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_items_of_the_history_that_are_sent_again_are_not_doubled(
    harness: EngineHarness, is_in_memory: bool
) -> None:
    store = await open_store("sqlite://:memory:")
    call = FunctionCallItem(id="fc", call_id="c", name="f", arguments='{"a": 1}')
    question = user_message("q", "hello")
    more = user_message("more", "on")
    async with response_service(harness, store=store) as responses:
        first = await turn(responses, with_input(request("", store=True), question, call))
        answer = first.items[0]
        assert isinstance(answer, MessageItem)

        async def count_input(*items: Item | ItemReference) -> int:
            if not is_in_memory:
                responses.continuations.remove(first.id)
            command = with_input(request("", first.id, store=True), *items)
            response = await turn(responses, command)
            assert response.usage is not None
            return response.usage.input_tokens

        alone = await count_input(more)
        assert await count_input(question, call, answer, more) == alone
        assert await count_input(ItemReference(answer.id), more) == alone
        in_one_part = ContentPart("output_text", text(answer))
        edited = msgspec.structs.replace(answer, parts=(in_one_part,), status="completed")
        assert await count_input(edited, more) == alone
        other_role = msgspec.structs.replace(question, role="system")
        assert await count_input(other_role, more) > alone, "other content is taken as sent"
        other_id = msgspec.structs.replace(question, id="msg_of_the_client")
        assert await count_input(other_id, more) > alone, "only an id tells that it is the same"
        assert await count_input() < alone
    await store.aclose()


async def test_last_output_that_is_sent_again_without_ids_is_not_doubled(
    harness: EngineHarness,
) -> None:
    """LiveKit sends the answer again beside the id of its response, with the next message."""
    async with response_service(harness) as responses:
        last = await turn(responses, request("hello"))
        for n in range(6):
            (answer,) = last.items
            message = user_message(f"u{n}", "on")

            async def count_input(*items: Item, previous: str = last.id) -> int:
                command = with_input(request("", previous), *items)
                return await responses.count_input_tokens(command, REQUESTER)

            alone = await count_input(message)
            again = msgspec.structs.replace(answer, id=f"a{n}")
            assert await count_input(again, message) == alone
            assert await count_input(message, again) > alone, "only the start is known without ids"
            shortened = MessageItem(
                id="s", role="assistant", parts=(ContentPart("output_text", "x"),)
            )
            assert await count_input(shortened, message) > alone
            last = await turn(responses, with_input(request("", last.id), again, message))
            assert last.usage is not None
            assert last.usage.input_tokens == alone


async def test_calls_that_are_sent_again_are_known_without_ids(harness: EngineHarness) -> None:
    said = MessageItem(id="m", role="assistant", parts=(ContentPart("output_text", "Wait."),))
    calls = [
        FunctionCallItem(id=f"fc{n}", call_id=f"c{n}", name="f", arguments="{}") for n in range(2)
    ]
    new = FunctionCallOutputItem(id="o", call_id="c0", output="1")
    async with response_service(harness) as responses:
        first = await turn(
            responses,
            with_input(request("", generate=False), user_message("u", "hi"), said, *calls),
        )

        async def count_input(*items: Item) -> int:
            renamed = [
                msgspec.structs.replace(item, id=f"client_{n}") for n, item in enumerate(items)
            ]
            command = with_input(request("", first.id), *renamed)
            return await responses.count_input_tokens(command, REQUESTER)

        alone = await count_input(new)
        assert await count_input(said, *calls, new) == alone
        assert await count_input(*calls, new) > alone, "a part of the output is taken as sent"
        other = msgspec.structs.replace(calls[1], arguments='{"a": 1}')
        assert await count_input(said, calls[0], other, new) > alone


def with_input(command: CreateResponse, *items: Item | ItemReference) -> CreateResponse:
    return msgspec.structs.replace(command, input=items)


def text(item: Item) -> str:
    assert isinstance(item, MessageItem)
    return "".join(part.text for part in item.parts)


async def test_prompt_over_the_context_is_refused_or_truncated(harness: EngineHarness) -> None:
    async with response_service(harness) as responses:
        response = await turn(responses, request("x" * 300))
        with pytest.raises(Refusal, match="maximum context length is 400 tokens"):
            await responses.create(request("y" * 80, response.id), REQUESTER)
        ended = await turn(responses, request("y" * 80, response.id, truncate=True))
        assert ended.usage is not None
        assert ended.usage.input_tokens < 200, "no items were truncated"
        assert not await is_unknown(responses, response.id)


async def test_failed_response_leaves_its_predecessor_usable(harness: EngineHarness) -> None:
    async with response_service(harness) as responses:
        first = await turn(responses, request("hello"))
        steps = (await harness.engine.fleet.stats()).steps
        harness.runner.failing_steps.update(range(steps, steps + 3))
        failed = await turn(responses, request("on", first.id))
        assert failed.status == "failed"
        harness.runner.failing_steps.clear()
        repeated = await turn(responses, request("on", first.id))
        assert repeated.status in ("completed", "incomplete")


async def test_response_continues_after_the_loss_of_its_engine(harness: EngineHarness) -> None:
    async with response_service(harness) as responses:
        first = await turn(responses, request("hello"))
        run = await responses.create(request("on", first.id, tokens=60, store=True), REQUESTER)
        async with contextlib.aclosing(run.event_stream.follow()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    harness.kill()
                    break
        response = await run.event_stream.wait_for_end()
        assert response.status in ("completed", "incomplete")
        point = responses.continuations.find(response.id, "acme", "conn_1")
        assert point is not None
        conversation = point.conversation
        prompt, header = msgspec.structs.replace(
            conversation, spans=conversation.spans[:-1]
        ).render_header()
        assert conversation.spans[-1].sampled_ids == tuple(
            oracle(prompt.ids() + header, 60, stop_ids=[0])
        )
        assert not await is_unknown(responses, response.id)


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def sqlite(store_file: Path) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite:///{store_file}")
    yield store
    await store.aclose()


@pytest.mark.long
@pytest.mark.parametrize("background", [False, True])
async def test_response_to_be_stored_is_refused_while_the_store_is_down(
    harness: EngineHarness, sqlite: Store, store_file: Path, background: bool
) -> None:
    async with response_service(harness, store=sqlite) as responses:
        async with locked_sqlite(store_file, sqlite):
            command = request("hello", store=True)
            command = msgspec.structs.replace(command, background=background)
            with pytest.raises(Refusal) as refused:
                await responses.create(command, REQUESTER)
            assert (refused.value.code, refused.value.kind) == ("store_unavailable", "server_error")
            assert (await harness.engine.fleet.stats()).tokens_drawn == 0, "nothing was generated"
            with pytest.raises(Refusal) as refused:
                await responses.create(request("x", "resp_unknown"), REQUESTER)
            assert (refused.value.code, refused.value.kind) == ("store_unavailable", "server_error")
        assert (await turn(responses, request("hello", store=True))).is_stored


@pytest.mark.long
async def test_response_that_is_not_stored_needs_no_store(
    harness: EngineHarness, sqlite: Store, store_file: Path
) -> None:
    async with (
        response_service(harness, store=sqlite) as responses,
        locked_sqlite(store_file, sqlite),
    ):
        response = await turn(responses, request("hello"))
        assert response.status in ("completed", "incomplete")
        assert not await is_unknown(responses, response.id)


@pytest.mark.long
async def test_stored_response_is_continued_from_memory_while_the_store_is_down(
    harness: EngineHarness, sqlite: Store, store_file: Path
) -> None:
    async with response_service(harness, store=sqlite) as responses:
        first = await turn(responses, request("hello", store=True))
        async with locked_sqlite(store_file, sqlite):
            assert not await is_unknown(responses, first.id)
            response = await turn(responses, request("on", first.id))
            assert response.status in ("completed", "incomplete")


@pytest.mark.long
async def test_response_waits_for_a_store_that_is_lost_while_it_is_generated(
    harness: EngineHarness, sqlite: Store, store_file: Path
) -> None:
    async with response_service(harness, store=sqlite) as responses:
        run = await responses.create(request("hello", store=True, tokens=60), REQUESTER)
        async with locked_sqlite(store_file, sqlite):
            assert not run.ended.is_set(), "the end waits for the store"
        response = await run.event_stream.wait_for_end()
        assert response.status in ("completed", "incomplete")
        assert response.is_stored
        assert await sqlite.find_response(response.id) is not None


@pytest.mark.long
async def test_response_fails_that_the_store_did_not_keep(
    harness: EngineHarness, sqlite: Store, store_file: Path
) -> None:
    """The client is given no id that cannot be continued."""
    limits = Limits(response_store_timeout_s=0.1)
    async with response_service(harness, limits, sqlite) as responses:
        run = await responses.create(request("hello", store=True, tokens=60), REQUESTER)
        async with locked_sqlite(store_file, sqlite):
            response = await run.event_stream.wait_for_end()
            assert response.status == "failed"
            assert response.error is not None
            assert (response.error.code, response.is_stored) == ("store_unavailable", False)
        assert await is_unknown(responses, response.id)


async def test_event_stream_gives_all_events_to_readers_at_any_time(harness: EngineHarness) -> None:
    async with response_service(harness) as responses:
        run = await responses.create(request("hello"), REQUESTER)

        async def read(stream: EventStream) -> list[ResponseEvent]:
            return [event async for event in stream.follow()]

        early = asyncio.create_task(read(run.event_stream))
        await asyncio.sleep(0)
        late = asyncio.create_task(read(run.event_stream))
        assert await early == await late == await read(run.event_stream)
