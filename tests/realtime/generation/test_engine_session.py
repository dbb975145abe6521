"""Tests of the engine session: when an engine, a link or a call was lost, it attaches the session
with the log that the session should have.

Socket and loop are real, on a null device: an output equals that of a fresh prefill."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from continuo.engine import (
    EngineClient,
    Sampling,
    SessionDetached,
    TooLong,
    TurnStream,
    UnknownEngineSession,
)
from continuo.engine.client import router
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.generation.engine_session import EngineSession
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness, digest_engine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

HEADER = [7]
SEED = 5


@pytest.fixture
async def harness(letters: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(letters, step_s=0.002) as harness:
        yield harness


@contextlib.asynccontextmanager
async def remote(*harnesses: EngineHarness) -> AsyncIterator[EngineClient]:
    """Yield a client of remote engines, whose links can be cut."""
    engine = EngineClient()
    for harness in harnesses:
        engine.fleet.add("127.0.0.1", await harness.listen())
    await engine.wait_until_ready()
    await wait_until(lambda: len(engine.fleet.loads()) == len(harnesses))
    yield engine
    await engine.stop()


async def wait_until_restarted(harness: EngineHarness) -> None:
    await wait_until(lambda: harness.launch_count == 2)
    await wait_until(lambda: harness.engine.fleet.is_available)


def span(*ids: int) -> Span:
    return Span(ids=ids)


def ids_of(spans: list[Span]) -> list[int]:
    return [id for each in spans for id in each.ids]


async def start(
    session: EngineSession, spans: list[Span], count: int | None = 20, turn: str = "t"
) -> TurnStream:
    return await session.start_turn(spans, HEADER, Sampling(max_tokens=count, seed=SEED), turn)


async def finish(session: EngineSession, turn: TurnStream) -> list[int]:
    """Read a turn to its end and commit it, as a generation does."""
    output: list[int] = []
    while turn.ended is None:
        try:
            await turn.consume(lambda piece: output.extend(piece.ids))
        except SessionDetached:
            await session.reattach_turn(turn)
    assert output == turn.ids, "ids were lost or doubled"
    session.commit_turn(turn, output)
    return output


async def test_log_and_draft_are_attached_after_an_engine_crash(harness: EngineHarness) -> None:
    engine, session = harness.engine, EngineSession(harness.engine, "s")
    spans = [span(1, 2), span(3)]
    await session.sync(spans, draft=[4])
    harness.kill()
    await wait_until_restarted(harness)
    with pytest.raises(SessionDetached):
        await engine.rewind("s", 0)
    await session.sync([*spans, span(5)], draft=[4, 4])
    info = await engine.info("s")
    assert (info.length, info.provisional) == (4, 2)
    harness.kill()
    assert await finish(session, await start(session, spans)) == oracle([1, 2, 3, *HEADER], 20)
    await session.close()
    assert await engine.fleet.list_sessions() == []


@pytest.mark.parametrize("kills", [1, 3])
async def test_turn_continues_after_engine_crashes(harness: EngineHarness, kills: int) -> None:
    session = EngineSession(harness.engine, "s")
    await session.sync([span(1, 2)], draft=[9, 9])
    spans = [span(1, 2), span(3)]
    turn = await start(session, spans, 60)
    reading = asyncio.create_task(finish(session, turn))
    for kill in range(kills):
        await wait_until(lambda kill=kill: turn.received >= 10 * kill + 5)
        harness.kill()
        await wait_until(lambda kill=kill: harness.launch_count == kill + 2)
    assert await reading == oracle([1, 2, 3, *HEADER], 60)
    assert turn.ended is not None
    assert (turn.ended.prompt_tokens, turn.ended.output_tokens) == (4, 60)
    spans.append(span(*HEADER, *turn.ids))
    next_turn = await start(session, spans, 5, "next")
    assert await finish(session, next_turn) == oracle([*ids_of(spans), *HEADER], 5)


async def test_turn_waits_for_an_engine_and_an_edit_does_not(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    await session.sync(spans)
    harness.launch_allowed.clear()
    harness.kill()
    await wait_until(lambda: not harness.engine.fleet.is_available)
    for changed in ([span(3)], [span(4)]):
        with pytest.raises(SessionDetached):
            await session.sync(changed)
    starting = asyncio.create_task(start(session, spans))
    await asyncio.sleep(0.02)
    assert not starting.done()
    harness.launch_allowed.set()
    turn = await starting
    assert await finish(session, turn) == oracle([1, 2, *HEADER], 20)
    assert turn.ended is not None
    assert turn.ended.cached_tokens == 0, "the prompt was prefilled before the turn began"


async def test_cut_link_keeps_kv_and_turn(harness: EngineHarness) -> None:
    async with remote(harness) as engine:
        session, spans = EngineSession(engine, "s", fence=3), [span(*range(80))]
        turn = await start(session, spans, 60)
        reading = asyncio.create_task(finish(session, turn))
        for length in (5, 15, 25):
            await wait_until(lambda length=length: turn.received >= length)
            harness.disconnect_clients()
        assert await reading == oracle([*range(80), *HEADER], 60)
        assert (await engine.fleet.stats()).tokens_drawn == 60, "the turn was not interrupted"
        before = harness.runner.token_count
        harness.disconnect_clients()
        spans.append(span(*HEADER, *turn.ids))
        next_turn = await start(session, spans, 5, "next")
        assert await finish(session, next_turn) == oracle([*ids_of(spans), *HEADER], 5)
        assert harness.runner.token_count - before <= 10, "KV was computed again"


async def test_paused_turn_stays_paused_when_it_is_attached(harness: EngineHarness) -> None:
    session, engine = EngineSession(harness.engine, "s"), harness.engine
    turn = await start(session, [span(1, 2)], 60)
    reading = asyncio.create_task(finish(session, turn))
    await wait_until(lambda: turn.received >= 3)
    await engine.pause("s")
    received = turn.received
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2)
    await asyncio.sleep(0.1)
    assert (turn.received, (await engine.fleet.stats()).active_turns) == (received, 0)
    assert [info.length for info in await engine.fleet.list_sessions()] == [3 + received]
    await engine.resume("s")
    assert await reading == oracle([1, 2, *HEADER], 60)


@pytest.mark.parametrize("is_back", [False, True])
async def test_turn_paused_and_resumed_without_an_engine(
    harness: EngineHarness, is_back: bool
) -> None:
    session, engine = EngineSession(harness.engine, "s"), harness.engine
    turn = await start(session, [span(1, 2)], 60)
    reading = asyncio.create_task(finish(session, turn))
    await wait_until(lambda: turn.received >= 3)
    harness.launch_allowed.clear()
    harness.kill()
    await wait_until(lambda: not engine.fleet.is_available)
    await engine.pause("s")
    received = turn.received
    if is_back:
        harness.launch_allowed.set()
        await wait_until(lambda: engine.fleet.is_available)
        await asyncio.sleep(0.1)
        assert turn.received == received
    await engine.resume("s")
    harness.launch_allowed.set()
    assert await reading == oracle([1, 2, *HEADER], 60)


async def test_turn_paused_while_its_link_is_cut(harness: EngineHarness) -> None:
    """The engine still runs the turn when the session is attached again."""
    async with remote(harness) as engine:
        session = EngineSession(engine, "s")
        turn = await start(session, [span(1, 2)], 150)
        await wait_until(lambda: turn.received >= 3)
        harness.disconnect_clients()
        with pytest.raises(SessionDetached):
            await turn.consume(lambda _piece: None)
        await engine.pause("s")
        await session.reattach_turn(turn)
        await asyncio.sleep(0.02)
        received = turn.received
        await asyncio.sleep(0.1)
        assert turn.received == received < 150
        await engine.resume("s")
        await turn.consume(lambda _piece: None)
        assert turn.ids == oracle([1, 2, *HEADER], 150)


async def test_edit_during_a_turn_does_not_disturb_it(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    turn = await start(session, spans)
    await session.sync([span(5)])
    assert await finish(session, turn) == oracle([1, 2, *HEADER], 20)
    await session.sync([span(5)], draft=[6])
    info = await harness.engine.info("s")
    assert (info.length, info.provisional) == (1, 1)


async def test_new_turn_replaces_one_that_was_not_committed(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    abandoned = await start(session, spans, None, "abandoned")
    reading = asyncio.create_task(finish(session, abandoned))
    turn = await start(session, spans, 10, "next")
    await reading
    assert abandoned.ended is not None
    assert abandoned.ended.reason == "cancelled"
    assert await finish(session, turn) == oracle([1, 2, *HEADER], 10)
    assert (await harness.engine.fleet.stats()).active_turns == 0


async def test_cancelled_call_is_followed_by_an_attach(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    await session.sync(spans)
    for wait_s in (0, 0.001, 0.003):
        calls = (session.sync([span(8, 8, 8)], draft=[4]), start(session, [span(9)], 50, "lost"))
        for call in calls:
            task = asyncio.create_task(call)
            await asyncio.sleep(wait_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if (turn := await task) is not None:  # the call was faster
                    await session.cancel_turn(turn)
                    await finish(session, turn)
            await session.sync(spans, draft=[])
            info = await harness.engine.info("s")
            assert (info.length, info.provisional) == (2, 0)
    assert await finish(session, await start(session, spans)) == oracle([1, 2, *HEADER], 20)
    assert harness.engine.fleet.active_turns == 0


async def test_refused_edit_leaves_a_session_that_can_be_used(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    await session.sync(spans)
    with pytest.raises(TooLong):
        await session.sync([span(3), span(*[1] * 300)])
    assert await finish(session, await start(session, spans)) == oracle([1, 2, *HEADER], 20)


async def test_fork_of_a_detached_session_computes_its_own_kv(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2), span(3)]
    await session.sync(spans)
    child = session.fork("child")
    harness.kill()
    await wait_until_restarted(harness)
    await child.sync(spans[:1])
    grandchild = child.fork("grandchild")
    for each, count in ((grandchild, 2), (child, 3), (session, 4)):
        assert await finish(each, await start(each, spans, count)) == oracle(
            [1, 2, 3, *HEADER], count
        )
        await each.close()
    assert await harness.engine.fleet.list_sessions() == []


async def test_session_closed_by_the_engine_is_attached_again(harness: EngineHarness) -> None:
    session, spans = EngineSession(harness.engine, "s"), [span(1, 2)]
    await session.sync(spans)
    await harness.engine.close("s")
    await session.sync([*spans, span(3)])
    assert (await harness.engine.info("s")).length == 3
    await harness.engine.close("s")
    assert await finish(session, await start(session, spans)) == oracle([1, 2, *HEADER], 20)
    await session.close()
    await session.close()
    with pytest.raises(UnknownEngineSession):
        await harness.engine.info("s")


async def test_session_moves_off_a_draining_engine_after_its_turn(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "PING_INTERVAL_S", 0.02)
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        remote(one, two) as engine,
    ):
        session, spans = EngineSession(engine, "s", fence=1), [span(1, 2)]
        turn = await start(session, spans, 150)
        place = engine.fleet.incarnation_of("s")
        draining, other = (one, two) if place == _incarnation(one) else (two, one)
        await draining.engine.fleet.drain()
        await wait_until(lambda: any(load.draining for load in engine.fleet.loads().values()))
        assert not turn.has_ended
        draining.disconnect_clients()
        assert await finish(session, turn) == oracle([1, 2, *HEADER], 150)
        assert engine.fleet.incarnation_of("s") == place
        spans += [span(*HEADER, *turn.ids), span(5)]
        await session.sync(spans)
        assert engine.fleet.incarnation_of("s") == _incarnation(other)
        assert (await engine.info("s")).length == len(ids_of(spans))
        await draining.wait_until_empty()
        next_turn = await start(session, spans, 5, "next")
        assert await finish(session, next_turn) == oracle([*ids_of(spans), *HEADER], 5)


def _incarnation(harness: EngineHarness) -> str:
    (incarnation,) = harness.engine.fleet.loads()
    return incarnation


@pytest.mark.parametrize("seed", range(12))
async def test_random_losses_change_no_output(letters: Path, seed: int) -> None:
    """Engines are killed, links cut and calls cancelled at random, also during turns."""
    rng = Random(seed)
    options = {"step_s": 0.001, "steps_ahead": seed % 2, "pages": 200}
    async with (
        digest_engine(letters, **options) as one,
        digest_engine(letters, **options) as two,
        remote(*[one, two][: 1 + seed % 2]) as engine,
    ):

        async def disturb() -> None:
            while True:
                await asyncio.sleep(rng.expovariate(20))
                harness = rng.choice([one, two])
                rng.choice([harness.kill, harness.disconnect_clients])()

        disturbing = asyncio.create_task(disturb())
        sessions = [EngineSession(engine, f"s{n}", fence=n) for n in range(3)]
        await asyncio.gather(
            *(
                use_at_random(session, Random(f"{seed} {session.session_id}"))
                for session in sessions
            )
        )
        disturbing.cancel()
        await asyncio.wait([disturbing])
        await wait_until(lambda: engine.fleet.is_available)
        assert engine.fleet.active_turns == 0
        for session in sessions:
            with contextlib.suppress(UnknownEngineSession):
                await session.close()
        for harness in (one, two):
            await harness.wait_until_empty()


async def use_at_random(session: EngineSession, rng: Random) -> None:
    spans: list[Span] = []
    for number in range(15):
        if spans and rng.random() < 0.2:
            del spans[rng.randrange(len(spans)) :]
        spans.append(span(*(rng.randrange(90) for _ in range(rng.randrange(1, 6)))))
        with contextlib.suppress(SessionDetached, TimeoutError):
            async with asyncio.timeout(rng.choice([0.001, 1.0])):
                await session.sync(spans, draft=[1, 2, 3] if rng.random() < 0.5 else [])
        if rng.random() < 0.6:
            count = rng.randrange(1, 30)
            turn = await start(session, spans, count, f"turn {number}")
            output = await finish(session, turn)
            assert output == oracle([*ids_of(spans), *HEADER], count)
            spans.append(span(*HEADER, *output))
        if len(ids_of(spans)) > 120:
            spans.clear()
