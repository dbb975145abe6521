"""Tests of the engine client: provisional spans, session modes, timeouts, bounds, crashes."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.errors import BadRequest, Busy, StaleEngineFence, TooLong, UnknownEngineSession
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import collect_ids, open_with
from tests.support.engines import EngineHarness, digest_engine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


async def generate_ids(engine: EngineClient, session: str, count: int) -> list[int]:
    return await collect_ids(await engine.generate(session, Sampling(max_tokens=count)))


async def wait_until_prefilled(harness: EngineHarness, session: str) -> None:
    """Wait until all appended ids are prefilled."""
    while True:
        info = await harness.engine.info(session)
        if info.state == "idle" and info.committed == info.length + info.provisional:
            return
        await asyncio.sleep(0.001)


# ---- provisional spans ---------------------------------------------------------------------


@AHEAD
async def test_committing_a_provisional_span_reuses_its_prefilled_kv(
    letters: Path, ahead: int
) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        engine = harness.engine
        session = await open_with(engine, list(range(20)))
        for span in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9, 8, 7, 6], [1, 2, 9, 8, 7, 6, 5]):
            assert await engine.append(session, span, "provisional") == 20
            await wait_until_prefilled(harness, session)
        before = harness.runner.token_count
        assert await engine.append(session, [1, 2, 9, 8, 7, 6, 5, 4], "commit") == 28
        assert await generate_ids(engine, session, 1) == oracle(
            [*range(20), 1, 2, 9, 8, 7, 6, 5, 4], 1
        )
        assert harness.runner.token_count - before <= 2


async def test_revised_provisional_span_keeps_the_kv_of_its_common_prefix(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        session = await harness.engine.open()
        await harness.engine.append(session, [*range(50)], "provisional")
        await wait_until_prefilled(harness, session)
        before = harness.runner.token_count
        await harness.engine.append(session, [*range(45), 3, 2, 1], "provisional")
        await wait_until_prefilled(harness, session)
        assert harness.runner.token_count - before == 3


async def test_append_inserts_ids_before_the_provisional_span(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        await engine.append(session, [7, 7, 7], "provisional")
        await wait_until_prefilled(harness, session)
        assert await engine.append(session, [3, 4]) == 4
        info = await engine.info(session)
        assert (info.length, info.provisional) == (4, 3)
        assert await engine.rewind(session, 3) == 3
        assert (await engine.info(session)).provisional == 3
        assert await engine.append(session, [7, 7], "commit") == 5
        assert await generate_ids(engine, session, 3) == oracle([1, 2, 3, 7, 7], 3)


@AHEAD
async def test_turn_ignores_the_provisional_span_and_restores_it(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        await engine.append(session, [7, 7, 7], "provisional")
        await wait_until_prefilled(harness, session)
        output = await generate_ids(engine, session, 4)
        assert output == oracle([1, 2], 4)
        await wait_until_prefilled(harness, session)
        info = await engine.info(session)
        assert (info.length, info.provisional) == (6, 3)
        assert await engine.append(session, [], "provisional") == 6
        assert (await engine.info(session)).provisional == 0
        assert await generate_ids(engine, session, 2) == oracle([1, 2, *output], 2)


async def test_provisional_append_during_a_turn_waits_for_its_end(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.02) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        turn = await engine.generate(session, Sampling(max_tokens=20))
        appends = [
            asyncio.create_task(engine.append(session, [5] * n, "provisional")) for n in range(1, 6)
        ]
        await asyncio.wait(appends[:4])
        assert turn.ended is None, (
            "only the latest provisional append waits for the end of the turn"
        )
        output = await collect_ids(turn)
        assert await appends[4] == 22
        await engine.append(session, [5, 5], "commit")
        assert await generate_ids(engine, session, 3) == oracle([1, 2, *output, 5, 5], 3)


async def test_provisional_append_during_a_turn_survives_engine_crashes(letters: Path) -> None:
    """Engines die during the turn and after it; each time the client restores the session."""
    async with digest_engine(letters, step_s=0.005) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        await engine.append(session, [9, 9, 9], "provisional")
        turn = await engine.generate(session, Sampling(max_tokens=20))
        output, appends = list[int](), list[asyncio.Task[int]]()
        async for piece in turn:
            output += piece.ids
            if len(output) in (3, 6, 9):
                span = engine.append(session, [5] * len(output), "provisional")
                appends.append(asyncio.create_task(span))
            if len(output) == 12:
                await asyncio.wait(appends[:2])
                harness.kill()
        assert output == oracle([1, 2], 20)
        assert await appends[2] == 22
        harness.kill()
        info = await engine.info(session)
        assert (info.length, info.provisional) == (22, 9)
        await engine.append(session, [5, 5], "commit")
        assert await generate_ids(engine, session, 3) == oracle([1, 2, *output, 5, 5], 3)


async def test_too_long_span_during_a_turn_keeps_the_previous_span(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.005) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2], capacity_tokens=30)
        turn = await engine.generate(session, Sampling(max_tokens=20))
        one, long, too_long = (
            asyncio.create_task(engine.append(session, [5] * length, "provisional"))
            for length in (3, 60, 15)
        )
        await one
        for refused in (long, too_long):
            with pytest.raises(TooLong):
                await refused
        assert await collect_ids(turn) == oracle([1, 2], 20)
        for _ in range(2):
            info = await engine.info(session)
            assert (info.length, info.provisional) == (22, 3)
            harness.kill()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_paused_turn_restores_the_provisional_span(letters: Path, cancelled: bool) -> None:
    async with digest_engine(letters, step_s=0.005) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        await engine.append(session, [7, 7, 7], "provisional")
        turn = await engine.generate(session, Sampling(max_tokens=100), "t")
        await engine.pause(session)
        await engine.append(session, [8], "provisional")
        if cancelled:
            await engine.cancel(session, "t")
            assert await collect_ids(turn) == oracle([1, 2], turn.received)
        length = (await engine.info(session)).length
        harness.kill()
        info = await engine.info(session)
        assert (info.length, info.provisional) == (length, 1)
        assert length == 2 + turn.received


async def test_provisional_span_is_never_shared(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine = harness.engine
        one, other = await engine.open(), await engine.open()
        await engine.append(one, list(range(8)))
        await engine.append(one, list(range(30)), "provisional")
        await wait_until_prefilled(harness, one)
        child = await engine.fork(one, 6)
        assert (await engine.info(child)).length == 6
        await engine.close(one)
        before = harness.runner.token_count
        await engine.append(other, [*range(8), *range(30)])
        await wait_until_prefilled(harness, other)
        assert harness.runner.token_count - before == 30


async def test_too_long_span_is_refused_and_the_previous_span_stays(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        session = await open_with(harness.engine, [1, 2, 3], capacity_tokens=10)
        await harness.engine.append(session, [4, 4], "provisional")
        with pytest.raises(TooLong, match="would be 11 tokens long"):
            await harness.engine.append(session, [4] * 8, "provisional")
        with pytest.raises(TooLong):
            await harness.engine.append(session, [4] * 6)
        info = await harness.engine.info(session)
        assert (info.length, info.provisional) == (3, 2)


# ---- regular sessions ----------------------------------------------------------------------


async def test_streaming_sessions_are_append_only(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        turn = await engine.generate(session, Sampling(max_tokens=5))
        for field, options in {
            "replace": {"replace": True},
            "drop_previous_output": {"drop_previous_output": True},
            "offset": {"offset": 1},
            "after": {"after": "t"},
        }.items():
            with pytest.raises(BadRequest, match=f"append-only: {field} is not allowed") as caught:
                await engine.append(session, [3], **options)
            assert caught.value.field == field
        output = await collect_ids(turn)
        assert await engine.append(session, [3], offset=0) == 8
        assert await generate_ids(engine, session, 2) == oracle([1, 2, *output, 3], 2)


@AHEAD
async def test_regular_session_branches_from_any_finished_turn(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        engine = harness.engine
        session = await engine.open(streaming=False)
        logs: dict[str, list[int]] = {"": []}

        async def turn(name: str, after: str | None, new: list[int], base: list[int]) -> None:
            await engine.append(session, new, after=after)
            output = await collect_ids(
                await engine.generate(session, Sampling(max_tokens=5), turn=name)
            )
            assert output == oracle(base + new, 5)
            logs[name] = base + new + output

        await turn("a", None, list(range(12)), [])
        await turn("b", None, [1, 1], logs["a"])
        await turn("c", "a", [2, 2], logs["a"])
        before = harness.runner.token_count
        await turn("d", "b", [3, 3], logs["b"])
        assert harness.runner.token_count - before <= 4 + 2 + 5 + 1, "the branch was still cached"
        await turn("e", None, [4], logs["d"])
        await engine.append(session, [5], drop_previous_output=True)
        logs["x"] = [*logs["d"], 4, 5]
        assert await generate_ids(engine, session, 3) == oracle(logs["x"], 3)
        await engine.append(session, [6], after="c", offset=-2)
        assert await generate_ids(engine, session, 3) == oracle([*logs["c"][:-2], 6], 3)


async def test_replace_deletes_a_turn_and_all_later_turns(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine = harness.engine
        session = await engine.open(streaming=False)
        for name, new in (("a", [1, 2]), ("b", [3]), ("c", [4])):
            await engine.append(session, new)
            await collect_ids(await engine.generate(session, Sampling(max_tokens=2), turn=name))
        await engine.append(session, [9], after="b", replace=True)
        log = [1, 2, *oracle([1, 2], 2), 9]
        assert await generate_ids(engine, session, 2) == oracle(log, 2)
        for deleted in ("b", "c"):
            with pytest.raises(BadRequest, match=f"turn {deleted} has not finished"):
                await engine.append(session, [1], after=deleted)
        # SGLang crashes here: replace without a turn on a session that has finished turns
        assert await engine.append(session, [8, 8], replace=True) == 2
        assert await generate_ids(engine, session, 2) == oracle([8, 8], 2)
        with pytest.raises(BadRequest, match="turn a has not finished"):
            await engine.append(session, [1], after="a")


async def test_streaming_regular_and_one_shot_modes_give_the_same_output(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine, log = harness.engine, list[int]()
        streaming = await engine.open(cache_scope="1")
        regular = await engine.open(streaming=False, cache_scope="2")
        for turn in range(6):
            new = [turn, 2, 3][: 1 + turn % 3]
            for session in (streaming, regular):
                await engine.append(session, new)
            one = await generate_ids(engine, streaming, 4)
            assert one == await generate_ids(engine, regular, 4)
            one_shot = await engine.complete(log + new, Sampling(max_tokens=4), cache_scope="3")
            assert one == await collect_ids(one_shot) == oracle(log + new, 4)
            log += new + one


async def test_one_shot_requests_share_cached_prefixes(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        log = list(range(40))
        for _ in range(3):
            turn = await harness.engine.complete(log, Sampling(max_tokens=8))
            before = harness.runner.token_count
            log += await collect_ids(turn)
        assert harness.runner.token_count - before <= 8 + 8
        assert await harness.engine.list_sessions() == []
        assert (await harness.engine.stats()).pages_leased == 0


# ---- timeouts and bounds -------------------------------------------------------------------


async def test_session_timeout_counts_from_the_end_of_the_turn(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.03) as harness:
        engine, expired = harness.engine, list[str]()
        engine.on_expired = expired.append
        session = await open_with(engine, [1, 2], timeout_s=0.6)
        output = await generate_ids(engine, session, 30)  # lasts longer than the timeout
        assert output == oracle([1, 2], 30)
        assert not expired
        await asyncio.sleep(0.2)
        with pytest.raises(TooLong):
            await engine.append(session, [1] * 1000)
        assert (await engine.info(session)).idle_s >= 0.2, "a refused command does not count as use"
        await wait_until(lambda: expired)
        assert expired == [session]
        with pytest.raises(UnknownEngineSession):
            await engine.append(session, [1])
        assert (await engine.stats()).pages_leased == 0


async def test_session_in_use_does_not_expire(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        session = await harness.engine.open(timeout_s=1.0)
        for _ in range(8):
            await harness.engine.append(session, [1])
            await asyncio.sleep(0.2)
        assert (await harness.engine.info(session)).length == 8
        with pytest.raises(BadRequest, match=r"timeout_s is 0.0; it must be above 0"):
            await harness.engine.open(timeout_s=0.0)


async def test_turn_queue_is_bounded_and_leaves_the_running_turn_alone(
    letters: Path,
) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        turn = await engine.generate(session, Sampling(max_tokens=20))
        queued = [
            asyncio.create_task(engine.generate(session, Sampling(max_tokens=1))) for _ in range(8)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="a turn in flight and 8 queued"):
            await engine.generate(session, Sampling())
        log = [1, 2, *await collect_ids(turn)]
        assert log == [1, 2, *oracle([1, 2], 20)]
        for waiting in queued:
            output = await collect_ids(await waiting)
            assert output == oracle(log, 1)
            log += output


async def test_queued_turn_can_be_cancelled(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        turn = await engine.generate(session, Sampling(max_tokens=10))
        queued = asyncio.create_task(engine.generate(session, Sampling(), turn="second"))
        await asyncio.sleep(0.004)
        await engine.cancel(session, "second")
        with pytest.raises(Exception, match="turn second was cancelled"):
            await queued
        assert await collect_ids(turn) == oracle([1, 2], 10)


# ---- engine crashes ------------------------------------------------------------------------


@AHEAD
async def test_sessions_and_turns_survive_an_engine_crash(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.001) as harness:
        engine = harness.engine
        idle, busy = await engine.open(), await engine.open()
        await engine.append(idle, [1, 2, 3])
        log = [1, 2, 3, *await generate_ids(engine, idle, 4)]
        await engine.append(idle, [9, 9], "provisional")
        await engine.append(busy, [4, 5])
        turn = await engine.generate(busy, Sampling(max_tokens=40, temperature=1.0, seed=3))
        output: list[int] = []
        async for piece in turn:
            output += piece.ids
            if len(output) in (5, 20):
                harness.kill()
        assert harness.launch_count == 3
        assert turn.ended is not None
        assert (turn.ended.reason, turn.ended.output_tokens) == ("length", 40)
        reference = await open_with(engine, [4, 5])
        undisturbed = await engine.generate(
            reference, Sampling(max_tokens=40, temperature=1.0, seed=3)
        )
        assert output == await collect_ids(undisturbed)
        info = await engine.info(idle)
        assert (info.length, info.provisional) == (7, 2)
        await engine.append(idle, [9, 8], "commit")
        assert await generate_ids(engine, idle, 3) == oracle([*log, 9, 8], 3)


async def test_branches_survive_an_engine_crash(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2], streaming=False)
        first = await collect_ids(await engine.generate(session, Sampling(max_tokens=3), turn="a"))
        await engine.append(session, [3])
        await collect_ids(await engine.generate(session, Sampling(max_tokens=3), turn="b"))
        harness.kill()
        await engine.append(session, [4], after="a")
        assert await generate_ids(engine, session, 3) == oracle([1, 2, *first, 4], 3)
        with pytest.raises(BadRequest, match="turn zz has not finished"):
            await engine.append(session, [4], after="zz")


async def test_fork_keeps_its_finished_turns_across_engine_crashes(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine = harness.engine
        session = await engine.open(streaming=False)
        log = [1, 2]
        await engine.append(session, log)
        log += await collect_ids(await engine.generate(session, Sampling(max_tokens=3), turn="a"))
        before = await engine.fork(session)
        harness.kill()
        await engine.append(session, [3])
        await collect_ids(await engine.generate(session, Sampling(max_tokens=3), turn="b"))
        after = await engine.fork(session)
        for child in (before, after):
            with pytest.raises(BadRequest, match="turn a has already finished") as caught:
                await engine.generate(child, Sampling(max_tokens=3), turn="a")
            assert caught.value.field == "turn"
            await engine.append(child, [4], after="a")
            assert await generate_ids(engine, child, 3) == oracle([*log, 4], 3)
        assert await engine.append(before, [5], drop_previous_output=True) == len(log) + 2
        harness.kill()
        assert await engine.append(after, [5], after="a", drop_previous_output=True) == 3
        assert await generate_ids(engine, after, 3) == oracle([1, 2, 5], 3)


async def test_sessions_stay_open_without_an_engine(letters: Path) -> None:
    """A session is attached to a new engine only when it is used again."""
    async with digest_engine(letters) as harness:
        engine = harness.engine
        for name, ids in (("a", [1, 2, 3]), ("b", [4])):
            await engine.open(name)
            await engine.append(name, ids)
        harness.kill()
        infos = {info.session: info for info in await engine.list_sessions()}
        assert harness.launch_count == 2
        assert {name: (i.length, i.lost_tokens) for name, i in infos.items()} == {
            "a": (3, 3),
            "b": (1, 1),
        }
        assert (await engine.stats()).sessions == 2
        with pytest.raises(BadRequest, match="already open") as caught:
            await engine.open("a")
        assert caught.value.field == "session_id"
        with pytest.raises(BadRequest, match="already open") as caught:
            await engine.fork("b", child="a")
        assert caught.value.field == "child"
        assert (await engine.info("a")).length == 3
        assert sorted(info.session for info in await engine.list_sessions()) == ["a", "b"]
        assert (await engine.stats()).sessions == 2
        closing = asyncio.create_task(engine.close("b"))
        await asyncio.sleep(0)
        await engine.open("b")
        await closing
        assert (await engine.info("b")).length == 0
        harness.kill()
        await engine.open("a", fence=1)
        assert (await engine.info("a")).length == 0
        with pytest.raises(StaleEngineFence):
            await engine.open("a")


async def test_idle_session_expires_without_an_engine(letters: Path) -> None:
    """Sessions with a turn that waits for the next engine, or is paused, do not expire."""
    async with digest_engine(letters, step_s=0.005) as harness:
        engine, expired = harness.engine, list[str]()
        engine.on_expired = expired.append
        idle, busy = await engine.open(timeout_s=1.0), await engine.open(timeout_s=1.0)
        lasting, paused = await engine.open(timeout_s=1000), await engine.open(timeout_s=1.0)
        for session in (busy, paused):
            await engine.append(session, [1, 2])
        paused_turn = await engine.generate(paused, Sampling(max_tokens=50))
        turn = await engine.generate(busy, Sampling(max_tokens=100))
        await engine.pause(paused)
        harness.launch_allowed.clear()
        harness.kill()
        await wait_until(lambda: expired)
        await asyncio.sleep(1.1)  # longer than the interval of the expiry check
        assert expired == [idle]
        harness.launch_allowed.set()
        await engine.resume(paused)
        assert await collect_ids(paused_turn) == oracle([1, 2], 50)
        assert await collect_ids(turn) == oracle([1, 2], 100)
        with pytest.raises(UnknownEngineSession):
            await engine.append(idle, [1])
        assert await engine.append(lasting, [1]) == 1


async def test_unanswered_commands_are_sent_again_after_an_engine_crash(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        engine = harness.engine
        session = await open_with(engine, [1])
        turn = await engine.generate(session, Sampling(max_tokens=10))
        waiting = asyncio.create_task(engine.append(session, [2, 2]))
        await asyncio.sleep(0.005)
        harness.kill()
        assert await collect_ids(turn) == oracle([1], 10)
        assert await waiting == 13
