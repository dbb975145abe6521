"""Tests of what a client learns of a lost server, of prompts that the server does not survive, and
of a server that is started anew with another model."""

import asyncio
from collections.abc import Callable

import pytest

from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.errors import TurnFailed
from continuo.engine.sampling import Sampling
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import collect_ids, open_with, prompt_ids
from tests.support.upstream_engines import UpstreamHarness
from tests.support.upstream_servers import FakeServer, Fault
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

PROMPT = prompt_ids(10, seed=3)
DEADLY = 96
SENDS_MAX = 3


async def generate(harness: UpstreamHarness, prompt: list[int], count: int) -> TurnStream:
    session = await open_with(harness.engine, prompt)
    return await harness.engine.generate(session, Sampling(max_tokens=count))


async def follow(turn: TurnStream) -> list[int | str]:
    """Consume a turn. Returns its ids, and "interrupted" where its client receives that."""
    seen: list[int | str] = []

    def extend(chunk: OutputChunk) -> None:
        seen.extend(chunk.ids)

    await turn.consume(extend, lambda: seen.append("interrupted"))
    return seen


def count_sent(fake: FakeServer, id: int) -> int:
    """Count the requests of turns whose prompt has an id."""
    return sum(id in body["prompt"] and not fake.is_prefill(body) for body in fake.requests)


@pytest.mark.parametrize("fault", [Fault(cut_after=4), Fault(fail_after=4), Fault(status=503)])
async def test_client_is_told_once_that_the_server_is_lost(
    harness: UpstreamHarness, fault: Fault
) -> None:
    harness.fake.faults.extend((fault, Fault(status=503), Fault(status=503)))
    received = fault.cut_after or fault.fail_after or 0
    expected = oracle(PROMPT, 9)
    assert await follow(await generate(harness, PROMPT, 9)) == [
        *expected[:received],
        "interrupted",
        *expected[received:],
    ]


async def test_client_of_an_overloaded_server_is_not_told(harness: UpstreamHarness) -> None:
    harness.fake.faults.extend([Fault(status=429)] * 4)
    assert await follow(await generate(harness, PROMPT, 9)) == oracle(PROMPT, 9)


async def test_prompt_that_the_server_does_not_survive_is_refused(
    harness: UpstreamHarness,
) -> None:
    fake, deadly = harness.fake, [*PROMPT, DEADLY]
    fake.deadly_id = DEADLY
    turn = await generate(harness, deadly, 9)
    with pytest.raises(TurnFailed, match="was lost 3 times while it computed this turn"):
        await collect_ids(turn)
    assert count_sent(fake, DEADLY) <= SENDS_MAX
    sent = len(fake.requests)
    await harness.engine.append(turn.session, PROMPT)
    again = await harness.engine.generate(turn.session, Sampling(max_tokens=4))
    with pytest.raises(TurnFailed, match="until some of them are replaced"):
        await collect_ids(again)
    assert len(fake.requests) == sent
    await harness.engine.rewind(turn.session, len(PROMPT))
    again = await harness.engine.generate(turn.session, Sampling(max_tokens=4))
    assert await collect_ids(again) == oracle(PROMPT, 4)


async def test_turns_beside_a_deadly_prompt_have_their_text(harness: UpstreamHarness) -> None:
    fake = harness.fake
    fake.deadly_id, fake.step_s = DEADLY, 0.01
    prompts = [[n, *PROMPT] for n in range(3)]
    turns = [await generate(harness, prompt, 40) for prompt in prompts]
    await asyncio.gather(*(anext(aiter(turn)) for turn in turns))
    deadly = await generate(harness, [*PROMPT, DEADLY], 40)
    results = await asyncio.gather(deadly_end(deadly), *map(collect_ids, turns))
    assert "was lost 3 times" in results[0]
    assert [turn.ids for turn in turns] == [oracle(prompt, 40) for prompt in prompts]
    assert count_sent(fake, DEADLY) <= SENDS_MAX


async def deadly_end(turn: TurnStream) -> str:
    with pytest.raises(TurnFailed) as failed:
        await collect_ids(turn)
    return str(failed.value)


def rename(fake: FakeServer) -> None:
    fake.model_name = "another"


def shorten(fake: FakeServer) -> None:
    fake.context_tokens = 500


def retokenize(fake: FakeServer) -> None:
    fake.make_ids = lambda text: [1] * len(text)


def lengthen(fake: FakeServer) -> None:
    fake.context_tokens = 2000


async def restart(harness: UpstreamHarness, change: Callable[[FakeServer], None]) -> TurnStream:
    """Restart the server, changed, during a turn of 9 ids of which 3 were received."""
    harness.fake.faults.append(Fault(pause_after=3))
    turn = await generate(harness, PROMPT, 9)
    await wait_until(lambda: turn.received == 3)
    await harness.stop_server()
    change(harness.fake)
    await harness.start_server()
    return turn


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename, "serves another.* now; this engine was started for m"),
        (shorten, "max_model_len is 1000; the server has 500"),
        (retokenize, "serves a model with another tokenizer"),
    ],
)
async def test_server_that_returns_with_another_model_is_refused_by_name(
    harness: UpstreamHarness, change: Callable[[FakeServer], None], words: str
) -> None:
    turn = await restart(harness, change)
    with pytest.raises(TurnFailed, match=words):
        await collect_ids(turn)
    assert turn.ids == oracle(PROMPT, 3)
    assert harness.core.sessions.measure_load().draining
    sent = len(harness.fake.requests)
    again = await harness.engine.generate(turn.session, Sampling(max_tokens=4))
    with pytest.raises(TurnFailed, match=words):
        await collect_ids(again)
    assert len(harness.fake.requests) == sent
    fake = harness.fake
    fake.model_name, fake.context_tokens = "m", 1000
    fake.make_ids = harness._text.encode_untrusted
    await harness.core.watch.confirm()
    assert not harness.core.sessions.measure_load().draining
    again = await harness.engine.generate(turn.session, Sampling(max_tokens=4))
    assert await collect_ids(again) == oracle(PROMPT + turn.ids, 4)


async def test_server_that_returns_with_a_longer_context_continues(
    harness: UpstreamHarness,
) -> None:
    turn = await restart(harness, lengthen)
    await collect_ids(turn)
    assert turn.ids == oracle(PROMPT, 9)


async def test_other_model_is_noticed_while_no_turn_runs(harness: UpstreamHarness) -> None:
    await harness.core.watch.measure()
    rename(harness.fake)
    await harness.core.watch.measure()
    assert harness.core.sessions.measure_load().draining
