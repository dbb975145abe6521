"""Responses below the wire: what they are made from, what is kept of them and for how long."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.events import ResponseEvent, TextDelta
from continuo.realtime.protocol.items import Item, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings, Truncation
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.store import Store, StoreUnavailable, open_store
from tests.support.digest_runner import oracle
from tests.support.engines import Bench
from tests.support.sessions import message

HERE = Requester("acme", "conn_1")


@contextlib.asynccontextmanager
async def answering(
    bench: Bench, limits: Limits | None = None, store: Store | None = None
) -> AsyncIterator[ResponseService]:
    template = bench.engine.text.template
    assert template is not None
    responses = ResponseService(
        bench.engine,
        template,
        GenerationSettings(),
        limits or Limits(),
        lambda tenant: tenant,
        store,
    )
    responses._connections.add("conn_1")
    yield responses
    await responses.close()
    assert await bench.engine.list_sessions() == [], "nothing is left open in the engine"


def wish(
    text: str,
    previous: str | None = None,
    *,
    keep: bool = False,
    instructions: str = "",
    drop: bool = False,
    tokens: int = 4,
) -> CreateResponse:
    settings = GenerationSettings(
        max_output_tokens=tokens,
        truncation=Truncation(mode="auto" if drop else "disabled"),
        instructions=instructions,
    )
    given = (message("u", text),)
    return CreateResponse(settings=settings, input=given, previous_response_id=previous, store=keep)


async def turn(
    responses: ResponseService, ask: CreateResponse, visitor: Requester = HERE
) -> Response:
    return await (await responses.create(ask, visitor)).event_stream.wait_for_end()


async def gone(responses: ResponseService, id: str) -> bool:
    try:
        await turn(responses, wish("x", id))
    except Refusal as refusal:
        return refusal.code == "previous_response_not_found"
    return False


async def test_whatever_it_goes_on_from_it_is_what_a_fresh_prefill_gives(bench: Bench) -> None:
    """A tree of responses, grown at random, several at a time."""
    rng = random.Random(7)
    async with answering(bench) as responses:
        points: list[str | None] = [None]
        for _ in range(12):
            parents = [rng.choice(points) for _ in range(rng.randint(1, 3))]
            asks = [
                wish(f"say {rng.randint(0, 9)}", parent, instructions=rng.choice(["", "be kind"]))
                for parent in parents
            ]
            answers = await asyncio.gather(*(turn(responses, ask) for ask in asks))
            for answer in answers:
                point = responses.continuations.find(answer.id, "acme", "conn_1")
                assert point is not None
                made = point.conversation
                [span] = [span for span in made.spans if span.response_id == answer.id]
                assert span.sampled_ids is not None
                before = msgspec.structs.replace(made, spans=made.spans[:-1])
                asked, header = before.render_header()
                drawn = oracle(asked.ids() + header, 4, stop_ids=[0])
                assert list(span.sampled_ids) == drawn
                assert answer.usage is not None
                assert answer.usage.input_tokens == len(asked.ids()) + len(header)
                points.append(answer.id)


async def test_a_fork_shares_kv_while_the_other_is_being_made(bench: Bench) -> None:
    async with answering(bench) as responses:
        first = await turn(responses, wish("hello, this is the beginning of it"))
        assert first.usage is not None
        length = first.usage.input_tokens + first.usage.output_tokens
        one = await responses.create(wish("one", first.id), HERE)
        other = await responses.create(wish("two", first.id), HERE)
        for making in (one, other):
            answer = await making.event_stream.wait_for_end()
            assert answer.usage is not None
            assert answer.usage.cached_tokens >= length - 1


async def test_what_is_too_much_is_forgotten(bench: Bench) -> None:
    limits = Limits(
        continuation_points_max=3, connection_continuation_points_max=2, continuation_tokens_max=150
    )
    async with answering(bench, limits) as responses:
        alone = [(await turn(responses, wish("hello"))).id for _ in range(3)]
        assert await gone(responses, alone[0])
        assert not await gone(responses, alone[1])
        for text in ("x" * 60, "y" * 60, "z" * 60):
            await turn(responses, wish(text, keep=True))
        assert responses.continuations.token_count <= 150
        assert len(responses.continuations) <= 3
        async with asyncio.timeout(20):
            while len(await bench.engine.list_sessions()) > len(responses.continuations):
                await asyncio.sleep(0.01)


async def test_what_is_not_used_is_forgotten(bench: Bench) -> None:
    async with answering(bench, Limits(continuation_point_ttl_s=0.2)) as responses:
        first = await turn(responses, wish("hello"))
        async with asyncio.timeout(20):
            while len(responses.continuations) or await bench.engine.list_sessions():
                await asyncio.sleep(0.02)
        assert await gone(responses, first.id)


async def test_what_is_forgotten_goes_on_from_the_store(bench: Bench) -> None:
    store = await open_store("sqlite://:memory:")
    async with answering(bench, Limits(continuation_points_max=1), store) as responses:
        first = await turn(responses, wish("hello", keep=True))
        here = await turn(responses, wish("on", first.id, keep=True))
        await turn(responses, wish("something else", keep=True))
        again = await turn(responses, wish("on", first.id, keep=True))
        assert [text(item) for item in again.items] == [text(item) for item in here.items]
        assert again.usage is not None
        assert here.usage is not None
        assert again.usage.input_tokens == here.usage.input_tokens
    await store.aclose()


def text(item: Item) -> str:
    assert isinstance(item, MessageItem)
    return "".join(part.text for part in item.parts)


async def test_too_much_is_refused_or_dropped(bench: Bench) -> None:
    async with answering(bench) as responses:
        answer = await turn(responses, wish("x" * 300))
        with pytest.raises(Refusal, match=r"tokens, but the context of the model holds 400"):
            await responses.create(wish("y" * 80, answer.id), HERE)
        ended = await turn(responses, wish("y" * 80, answer.id, drop=True))
        assert ended.usage is not None
        assert ended.usage.input_tokens < 200, "the oldest was dropped"
        assert not await gone(responses, answer.id)


async def test_a_failed_response_costs_nothing_but_itself(bench: Bench) -> None:
    async with answering(bench) as responses:
        first = await turn(responses, wish("hello"))
        steps = (await bench.engine.stats()).steps
        bench.runner.fail_at.update(range(steps, steps + 3))
        failed = await turn(responses, wish("on", first.id))
        assert failed.status == "failed"
        bench.runner.fail_at.clear()
        again = await turn(responses, wish("on", first.id))
        assert again.status in ("completed", "incomplete")


async def test_it_goes_on_when_the_engine_dies(bench: Bench) -> None:
    async with answering(bench) as responses:
        first = await turn(responses, wish("hello"))
        making = await responses.create(wish("on", first.id, tokens=60, keep=True), HERE)
        async with contextlib.aclosing(making.event_stream.follow()) as following:
            async for told in following:
                if isinstance(told, TextDelta):
                    bench.kill()
                    break
        answer = await making.event_stream.wait_for_end()
        assert answer.status in ("completed", "incomplete")
        point = responses.continuations.find(answer.id, "acme", "conn_1")
        assert point is not None
        made = point.conversation
        asked, header = msgspec.structs.replace(made, spans=made.spans[:-1]).render_header()
        assert made.spans[-1].sampled_ids == tuple(oracle(asked.ids() + header, 60, stop_ids=[0]))
        assert not await gone(responses, answer.id)


class Refusing:
    """A store that is not there."""

    async def put_response(self, response: object, ttl_s: float) -> None:
        raise StoreUnavailable("gone")

    async def find_response(self, response_id: str) -> None:
        raise StoreUnavailable("gone")


async def test_without_the_store_it_says_that_it_is_not_kept(bench: Bench) -> None:
    async with answering(bench, store=cast("Store", Refusing())) as responses:
        answer = await turn(responses, wish("hello", keep=True))
        assert (answer.status in ("completed", "incomplete"), answer.kept) == (True, False)
        with pytest.raises(Refusal) as refused:
            await responses.create(wish("x", "resp_unknown"), HERE)
        assert (refused.value.code, refused.value.kind) == ("store_unavailable", "server_error")
        assert await turn(responses, wish("on", answer.id)), "it is in memory all the same"


async def test_a_recording_is_followed_from_anywhere(bench: Bench) -> None:
    async with answering(bench) as responses:
        making = await responses.create(wish("hello"), HERE)

        async def hear(recording: EventStream) -> list[ResponseEvent]:
            return [told async for told in recording.follow()]

        early = asyncio.create_task(hear(making.event_stream))
        await asyncio.sleep(0)
        late = asyncio.create_task(hear(making.event_stream))
        assert await early == await late == await hear(making.event_stream)
