"""Several fronts on one engine: sessions change hands by fences, and nothing is lost or doubled.

Real links over TCP, a real loop, a device of digests: an answer is what one fresh prefill gives.
"""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from continuo.engine.client.connection import LinkSecurity
from continuo.engine.client.engine_client import EngineClient, TurnStream, UnfinishedTurn
from continuo.engine.config import EngineConfig
from continuo.engine.errors import EngineLost, StaleEngineFence, UnknownEngineSession
from continuo.engine.wire.messages import GetModelFiles, Sampling
from tests.faults.proxy import Proxy
from tests.support.certificates import certificate as make_certificate
from tests.support.digest_runner import oracle
from tests.support.engines import Bench, digest_engine

PROMPT = [1, 2, 3]
SECRET = b"a secret of the right length"


@contextlib.asynccontextmanager
async def front(
    port: int, secret: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[EngineClient]:
    engine = EngineClient()
    engine.add_engine("127.0.0.1", port, LinkSecurity(secret, tls))
    try:
        async with asyncio.timeout(20):
            await engine.wait_until_ready()
        yield engine
    finally:
        await engine.stop()


@pytest.fixture
async def bench(letters: Path) -> AsyncIterator[Bench]:
    async with digest_engine(letters, step_s=0.002, max_model_len=200) as bench:
        yield bench


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


async def begin(
    engine: EngineClient, count: int, after: int, fence: int
) -> tuple[TurnStream, list[int]]:
    """A turn of `count` ids in session `s`, read to at least `after`."""
    await engine.open("s", fence=fence)
    await engine.append("s", PROMPT)
    turn = await engine.generate("s", Sampling(max_tokens=count), "t")
    said: list[int] = []
    async for piece in turn:
        said += piece.ids
        if len(said) >= after:
            break
    return turn, said


def unfinished(count: int, said: int) -> UnfinishedTurn:
    return UnfinishedTurn("t", Sampling(max_tokens=count, seed=1), said)


async def read(turn: TurnStream | None) -> list[int]:
    assert turn is not None
    return [id async for piece in turn for id in piece.ids]


async def test_a_turn_goes_on_with_another_front(bench: Bench) -> None:
    port = await bench.listen()
    async with front(port) as one, front(port) as two:
        turn, said = await begin(one, 60, 5, fence=1)
        drawn = (await two.stats()).tokens_drawn
        journalled = said[:3]
        taken = await two.attach("s", PROMPT + journalled, unfinished=unfinished(60, 3), fence=2)
        with pytest.raises(StaleEngineFence):
            await read(turn)
        assert drawn < 60, "it ran while it changed hands"
        assert await read(taken) == oracle(PROMPT, 60), "whole, nothing twice"
        assert (await two.stats()).tokens_drawn == 60, "nothing was drawn again"
        assert taken is not None
        assert taken.ended is not None
        assert taken.ended.output_tokens == 60


async def test_a_stale_front_can_neither_write_nor_hear(bench: Bench) -> None:
    port = await bench.listen()
    async with front(port) as one, front(port) as two:
        turn, said = await begin(one, 100, 2, fence=5)
        waiting = asyncio.create_task(one.append("s", [9, 9, 9]))
        await asyncio.sleep(0.01)
        taken = await two.attach("s", PROMPT + said, unfinished=unfinished(100, len(said)), fence=6)
        with pytest.raises(StaleEngineFence):
            await waiting
        heard = turn.received
        with pytest.raises(StaleEngineFence):
            await read(turn)
        one.set_fence("s", 5)
        for late in (
            one.append("s", [8]),
            one.rewind("s", 0),
            one.generate("s", Sampling()),
            one.cancel("s"),
            one.close("s"),
        ):
            with pytest.raises((StaleEngineFence, UnknownEngineSession)):
                await late
        with pytest.raises(StaleEngineFence, match="fence"):
            await one.attach("s", PROMPT, fence=5)
        with pytest.raises(StaleEngineFence):
            await one.open("s", fence=5)
        assert await read(taken) == oracle(PROMPT, 100)
        assert turn.received == heard, "nothing was heard after it was taken over"


async def test_of_many_racers_one_has_it(bench: Bench) -> None:
    port = await bench.listen()
    async with contextlib.AsyncExitStack() as stack:
        fronts = [await stack.enter_async_context(front(port)) for _ in range(6)]
        _, said = await begin(fronts[0], 40, 3, fence=1)
        log = PROMPT + said

        async def race(fence: int) -> list[int]:
            turn = await fronts[fence % 6].attach(
                "s", log, unfinished=unfinished(40, len(said)), fence=fence
            )
            return await read(turn)

        order = [7, 3, 11, 5, 2, 10, 4, 9]
        results = await asyncio.gather(*map(race, order), return_exceptions=True)
        whole = [result for result in results if isinstance(result, list)]
        assert whole == [oracle(PROMPT, 40)]
        assert results[order.index(11)] == whole[0], "the highest fence has it"
        assert all(isinstance(r, StaleEngineFence) for r in results if not isinstance(r, list))


async def test_a_turn_that_ended_meanwhile_is_told_whole(bench: Bench) -> None:
    port = await bench.listen()
    async with front(port) as two:
        async with front(port) as one:
            _, said = await begin(one, 30, 4, fence=1)
        async with asyncio.timeout(20):
            while (await two.stats()).tokens_drawn < 30 or (await two.stats()).active_turns:
                await asyncio.sleep(0.005)
        taken = await two.attach("s", PROMPT + said[:2], unfinished=unfinished(30, 2), fence=2)
        assert await read(taken) == oracle(PROMPT, 30)
        assert taken is not None
        assert taken.ended is not None
        assert (taken.ended.reason, taken.ended.length) == ("length", 33)
        assert (await two.stats()).tokens_drawn == 30
        await two.append("s", [7])
        turn = await two.generate("s", Sampling(max_tokens=3))
        assert await read(turn) == oracle([*PROMPT, *oracle(PROMPT, 30), 7], 3)


async def test_a_turn_that_was_cut_since_is_made_anew(bench: Bench) -> None:
    """Who takes over knows of an unfinished turn; its end, and that it was cut, were lost."""
    port = await bench.listen()
    whole = oracle(PROMPT, 30)
    async with front(port) as one, front(port) as two:
        for fence, behind in ((1, []), (3, [7] * 40)):
            await one.open("s", fence=fence)
            await one.append("s", PROMPT)
            assert await read(await one.generate("s", Sampling(max_tokens=30), "t")) == whole
            await one.rewind("s", len(PROMPT) + 10)
            await one.append("s", behind)
            taken = await two.attach(
                "s", PROMPT + whole[:4], unfinished=unfinished(30, 4), fence=fence + 1
            )
            assert await read(taken) == whole
            await two.close("s")


@pytest.mark.parametrize("paused", [False, True])
async def test_a_turn_that_was_dropped_is_made_anew(bench: Bench, paused: bool) -> None:
    """Who takes over has heard that it began, and not that whoever began it gave it up."""
    port = await bench.listen()
    async with front(port) as one, front(port) as two:
        turn, _ = await begin(one, 150, 4, fence=1)
        if paused:
            await one.pause("s")
        assert await one.cancel("s", "t", discard_output=True) == len(PROMPT)
        await read(turn)
        taken = await two.attach("s", PROMPT, unfinished=unfinished(150, 0), fence=2)
        async with asyncio.timeout(20):
            assert await read(taken) == oracle(PROMPT, 150)


async def test_a_lost_link_pauses_the_turn_after_a_grace(bench: Bench) -> None:
    bench.config = EngineConfig(detach_grace_s=0.05)
    bench.kill()
    await until(lambda: bench.launches == 2)
    port = await bench.listen()
    async with front(port) as two:
        async with front(port) as one:
            _, said = await begin(one, 190, 4, fence=1)
        async with asyncio.timeout(20):
            while (await two.stats()).active_turns:
                await asyncio.sleep(0.005)
        drawn = (await two.stats()).tokens_drawn
        assert drawn < 190
        assert (await two.list_sessions())[0].session == "s"
        computed = bench.runner.tokens_run
        taken = await two.attach("s", PROMPT + said, unfinished=unfinished(190, len(said)), fence=2)
        assert await read(taken) == oracle(PROMPT, 190)
        assert bench.runner.tokens_run - computed <= 190 - drawn + 1, "its KV was kept"


async def test_a_session_nobody_wants_is_closed(bench: Bench) -> None:
    bench.config = EngineConfig(detach_grace_s=0.01, detach_keep_s=0.05)
    bench.kill()
    await until(lambda: bench.launches == 2)
    port = await bench.listen()
    async with front(port) as one:
        await begin(one, 190, 1, fence=1)
    async with asyncio.timeout(20):
        while await bench.engine.list_sessions():
            await asyncio.sleep(0.005)
    assert (await bench.engine.stats()).pages_leased == 0


async def test_a_cut_link_comes_back_and_nothing_is_lost(bench: Bench) -> None:
    port = await bench.listen()
    async with front(port) as one:
        turn, said = await begin(one, 150, 3, fence=1)
        for _ in range(3):
            bench.cut()
            await asyncio.sleep(0.02)
        waiting = asyncio.create_task(one.append("s", [5]))
        bench.cut()
        said += await read(turn)
        assert said == oracle(PROMPT, 150)
        assert await waiting == len(PROMPT) + 151
        assert (await one.stats()).tokens_drawn == 150
        again = await one.generate("s", Sampling(max_tokens=4))
        assert await read(again) == oracle([*PROMPT, *said, 5], 4)


async def test_attach_makes_the_log_what_it_says(bench: Bench) -> None:
    """Whatever is there: nothing, more, less, something else."""
    port = await bench.listen()
    log = list(range(40))
    async with front(port) as one, front(port) as two:
        for fence, known in enumerate(([], log, log[:20], [*log, 7, 7], [*log[:10], 50, 51]), 1):
            await one.open("s", fence=fence)
            await one.append("s", known)
            while (await one.info("s")).committed < len(known):
                await asyncio.sleep(0.005)
            computed = bench.runner.tokens_run
            assert await two.attach("s", log, fence=fence + 1) is None
            assert (await two.info("s")).length == 40
            turn = await two.generate("s", Sampling(max_tokens=3))
            assert await read(turn) == oracle(log, 3)
            if known == [*log, 7, 7]:
                assert bench.runner.tokens_run - computed <= 4, "what is the same keeps its KV"
            await two.close("s", keep_prefix=False)


async def test_attach_goes_on_where_the_engine_knows_nothing(bench: Bench) -> None:
    """From the ids that were said, with the seed it was begun with, in the middle or at the end."""
    whole: list[int] = []
    for said in (0, 1, 7, 12):
        sampling = Sampling(max_tokens=12, temperature=1.0, seed=99)
        name = f"s{said}"
        unfinished = UnfinishedTurn("t", sampling, said)
        turn = await bench.engine.attach(name, PROMPT + whole[:said], unfinished=unfinished)
        told = await read(turn)
        whole = whole or told
        assert told == whole
        assert turn is not None
        assert turn.ended is not None
        assert turn.ended.reason == "length"
        await bench.engine.close(name)
    stop = whole[5]
    end = whole.index(stop) + 1
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=99, stop_ids=(stop,))
    turn = await bench.engine.attach(
        "s", PROMPT + whole[:end], unfinished=UnfinishedTurn("t", sampling, end)
    )
    assert await read(turn) == whole[:end]
    assert turn is not None
    assert turn.ended is not None
    assert turn.ended.reason == "stop"


async def test_pause_and_resume(bench: Bench) -> None:
    turn, said = await begin(bench.engine, 80, 3, fence=0)
    await bench.engine.pause("s")
    assert (await bench.engine.stats()).active_turns == 0
    bench.kill()
    await until(lambda: bench.launches == 2)
    assert (await bench.engine.stats()).active_turns == 0, "nor does it go on elsewhere"
    await bench.engine.resume("s")
    said += await read(turn)
    assert said == oracle(PROMPT, 80)


async def test_a_paused_turn_can_be_cancelled(bench: Bench) -> None:
    turn, said = await begin(bench.engine, 80, 3, fence=0)
    await bench.engine.pause("s")
    length = await bench.engine.cancel("s", "t")
    said += await read(turn)
    assert turn.ended is not None
    assert turn.ended.reason == "cancelled"
    assert length == turn.ended.length == len(PROMPT) + len(said)
    await bench.engine.resume("s")
    assert (await bench.engine.stats()).active_turns == 0


@pytest.mark.parametrize("how", ["cancel", "drop", "close"])
async def test_a_paused_turn_ends_though_its_engine_has_died(bench: Bench, how: str) -> None:
    turn, said = await begin(bench.engine, 80, 3, fence=0)
    await bench.engine.pause("s")
    bench.kill()
    await until(lambda: bench.launches == 2)
    if how == "close":
        await bench.engine.close("s")
    else:
        length = await bench.engine.cancel("s", "t", discard_output=how == "drop")
        assert length == len(PROMPT) + (0 if how == "drop" else turn.received)
        assert (await bench.engine.info("s")).length == length
    said += await read(turn)
    assert turn.ended is not None
    assert turn.ended.reason == "cancelled"
    assert said == oracle(PROMPT, len(said))


# ---- who may join ------------------------------------------------------------------------------


async def test_a_front_must_know_the_secret(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    port = await bench.listen(file)
    async with front(port, SECRET) as one:
        await one.open("s")
        for wrong in (b"another secret of some length", b""):
            stranger = EngineClient()
            stranger.add_engine("127.0.0.1", port, LinkSecurity(secret=wrong))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stranger.wait_until_ready(), 0.3)
            await stranger.stop()
        assert len(await one.list_sessions()) == 1


async def test_an_engine_must_know_it_too(bench: Bench) -> None:
    """Who pretends to be one is told nothing."""
    heard = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((1).to_bytes(4, "little") + b"x")
        while data := await reader.read(1000):
            heard.extend(data)
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    engine = EngineClient()
    engine.add_engine("127.0.0.1", server.sockets[0].getsockname()[1], LinkSecurity(secret=SECRET))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.wait_until_ready(), 0.3)
    await engine.stop()
    server.close()
    assert SECRET not in heard
    assert heard.count(b"continuo link") >= 1


async def test_numbers_of_two_fronts_do_not_mix(bench: Bench) -> None:
    port = await bench.listen()
    async with front(port) as one, front(port) as two:
        await asyncio.gather(*(e.open(n) for e, n in ((one, "a"), (two, "b"))))
        lengths = await asyncio.gather(
            *(e.append(n, ids) for e, n, ids in ((one, "a", [1]), (two, "b", [1, 2, 3])))
        )
        assert lengths == [1, 3]
        with pytest.raises(UnknownEngineSession):
            await two.append("a", [1])


# ---- several engines -----------------------------------------------------------------------


async def test_sessions_of_a_lost_engine_go_on_elsewhere(letters: Path) -> None:
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
    ):
        ports = [await one.listen(), await two.listen()]
        engine = EngineClient()
        for port in ports:
            engine.add_engine("127.0.0.1", port)
        await engine.wait_until_ready()
        await until(lambda: len(engine.loads()) == 2)
        names = [await engine.open() for _ in range(6)]
        assert len({engine.incarnation_of(name) for name in names}) == 2, "both have some"
        for name in names:
            await engine.append(name, PROMPT)
        turns = [await engine.generate(name, Sampling(max_tokens=80)) for name in names]
        reading = [asyncio.create_task(read(turn)) for turn in turns]
        await asyncio.sleep(0.03)
        one.may_launch.clear()
        one.kill()
        assert await asyncio.gather(*reading) == [oracle(PROMPT, 80)] * 6
        assert len(engine.loads()) == 1
        await engine.append(names[0], [4])
        again = await engine.generate(names[0], Sampling(max_tokens=3))
        assert await read(again) == oracle([*PROMPT, *oracle(PROMPT, 80), 4], 3)
        two.may_launch.clear()
        two.kill()
        waiting = asyncio.create_task(engine.append(names[1], [4]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        one.may_launch.set()
        assert await waiting == len(PROMPT) + 81
        await engine.stop()
        with pytest.raises(EngineLost):
            await engine.append(names[1], [4])
        two.may_launch.set()
        await until(lambda: one.engine.is_available and two.engine.is_available)


async def test_a_new_session_goes_where_there_is_room(letters: Path) -> None:
    """Though the other one has fewer sessions: they hold its pages."""
    async with (
        digest_engine(letters) as full,
        digest_engine(letters) as other,
        front(await full.listen()) as filling,
        front(await other.listen()) as engine,
    ):
        await engine.open("first")
        roomy = engine.incarnation_of("first")
        await filling.open("long")
        await filling.append("long", [n % 50 + 1 for n in range(199)])
        loaded = filling.incarnation_of("long")
        engine.add_engine("127.0.0.1", await full.listen())
        await until(lambda: sum(load.pages_leased > 45 for load in engine.loads().values()) == 1)
        names = [await engine.open() for _ in range(6)]
        assert loaded in engine.loads()
        assert {engine.incarnation_of(name) for name in names} == {roomy}


async def is_only_on(bench: Bench, *, not_on: Bench) -> None:
    """The session, soon, and nothing of it is left."""
    async with asyncio.timeout(20):
        while await not_on.engine.list_sessions():
            await asyncio.sleep(0.005)
    assert [info.session for info in await bench.engine.list_sessions()] == ["s"]
    assert (await not_on.engine.stats()).pages_leased == 0


async def test_a_session_that_went_elsewhere_is_ended_where_it_was(letters: Path) -> None:
    """Its engine could not be told when it went: its link was lost."""
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        Proxy(await one.listen()).running() as proxy,
        front(proxy.port) as engine,
    ):
        turn, said = await begin(engine, 150, 3, fence=5)
        engine.add_engine("127.0.0.1", await two.listen())
        await until(lambda: len(engine.loads()) == 2)
        proxy.refusing = True
        proxy.cut()
        said += await read(turn)
        assert said == oracle(PROMPT, 150)
        for bench in (one, two):
            assert [info.session for info in await bench.engine.list_sessions()] == ["s"]
        proxy.refusing = False
        await is_only_on(two, not_on=one)


async def test_a_session_taken_up_elsewhere_is_ended_where_it_was(letters: Path) -> None:
    """Who takes it up does not reach that engine yet."""
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        front(await two.listen()) as heir,
        front(await one.listen()) as owner,
        Proxy(await one.listen()).running() as proxy,
    ):
        proxy.refusing = True
        heir.add_engine("127.0.0.1", proxy.port)
        _, said = await begin(owner, 150, 3, fence=5)
        await owner.stop()
        log = PROMPT + said
        taken = await heir.attach("s", log, unfinished=unfinished(150, len(said)), fence=6)
        assert await read(taken) == oracle(PROMPT, 150)
        assert [info.session for info in await one.engine.list_sessions()] == ["s"]
        proxy.refusing = False
        await is_only_on(two, not_on=one)


async def test_a_session_is_attached_where_it_is(letters: Path) -> None:
    """Whichever engine has most room."""
    async with digest_engine(letters, step_s=0.002) as first, digest_engine(letters) as second:
        ports = [await first.listen(), await second.listen()]
        async with front(ports[0]) as one:
            for fullness in range(3):
                await one.open(f"full{fullness}")
            _, said = await begin(one, 100, 3, fence=1)
            place = one.incarnation_of("s")
            two = EngineClient()
            for port in ports:
                two.add_engine("127.0.0.1", port)
            await two.wait_until_ready()
            await until(lambda: len(two.loads()) == 2)
            taken = await two.attach(
                "s", PROMPT + said, unfinished=unfinished(100, len(said)), fence=2
            )
            assert two.incarnation_of("s") == place
            assert await read(taken) == oracle(PROMPT, 100)
            await two.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """PEM files: the certificate, its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_a_link_with_tls(bench: Bench, certificate: tuple[Path, Path]) -> None:
    port = await bench.listen(certificate=certificate[0], key=certificate[1])
    trust = ssl.create_default_context(cafile=certificate[0])
    trust.check_hostname = False
    async with front(port, tls=trust) as one:
        turn, said = await begin(one, 30, 3, fence=1)
        assert said + await read(turn) == oracle(PROMPT, 30)
    unknown = ssl.create_default_context()
    unknown.check_hostname = False
    for tls in (None, unknown):
        stranger = EngineClient()
        stranger.add_engine("127.0.0.1", port, LinkSecurity(tls=tls))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.wait_until_ready(), 0.3)
        await stranger.stop()


async def test_a_front_needs_no_folder_of_the_model(letters: Path, tmp_path: Path) -> None:
    """It is told on the link how the model is read and spoken; the weights stay where they are."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(letters, folder)
    (folder / "model.safetensors").write_bytes(b"not for fronts")
    async with digest_engine(folder) as bench:
        port = await bench.listen()
        engine = EngineClient()
        engine.add_engine("127.0.0.1", port)
        await engine.wait_until_ready()
        files = (await engine._router.request(GetModelFiles(engine._router.next_number()))).files
        assert files is not None
        assert sorted(files) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
        assert engine.text.decode([0, 1, 2]) == "abc"
        await engine.stop()
