"""An engine on a real server: turns, changes of the log, and kills of the server.

The expected ids are those of our own engine. What differs by design is in `other-servers.md`.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.errors import TurnFailed
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import ModelText
from continuo.engine.upstream.errors import OtherModel
from continuo.engine.upstream.model_check import ModelCheck
from tests.support.engine_sessions import collect_ids, open_with, recover_ids
from tests.support.upstream_engines import ServerHarness, engine_on
from tests.support.waiting import wait_until
from tests.upstream.servers import SLOTS, RealServer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

LIVES = 6
TURNS = 5
WORDS = "who are you tell me a story about the sea and count from one to ten please what is"
LONG_TOKENS = 800
LONG = {
    "greedy": Sampling(max_tokens=LONG_TOKENS, ignore_eos=True),
    "penalty": Sampling(
        max_tokens=LONG_TOKENS, ignore_eos=True, temperature=1.0, seed=7, presence_penalty=0.5
    ),
}
LOGPROB_TOLERANCE = 0.02

Figure = Callable[[str], None]


@pytest_asyncio.fixture(loop_scope="session")
async def harness(server: RealServer, demo: Path) -> AsyncIterator[ServerHarness]:
    async with engine_on(server.url, demo, ModelText(str(demo)).vocab_size) as harness:
        yield harness


@pytest.fixture(scope="session")
def text(demo: Path) -> ModelText:
    return ModelText(str(demo))


@pytest.fixture(scope="session")
def prompt(text: ModelText) -> list[int]:
    return text.encode("<|user|>Tell me a story.<|end|><|assistant|>")


async def draw(engine: EngineClient, ids: Sequence[int], sampling: Sampling) -> list[int]:
    return await collect_ids(await engine.complete(ids, sampling))


async def receive(turn: TurnStream, count: int) -> None:
    """Receive ids of a turn until it has `count`."""
    async for _ in turn:
        if len(turn.ids) >= count:
            return


async def test_random_lives_have_the_ids_of_our_engine(
    server: RealServer, harness: ServerHarness, own: EngineClient, text: ModelText, figure: Figure
) -> None:
    """Each life has messages that are typed in pieces, rewinds, and turns. Ids that differ must be
    about equally likely."""
    version = (await harness.server.describe()).version
    figure(f"{server.kind}: {version}, the start took {server.start_s:.1f} s")
    drawn = equal = 0
    for seed in range(LIVES):
        source, log = random.Random(seed), list[int]()
        session = await harness.engine.open()
        for _ in range(TURNS):
            if log and source.random() < 0.5:
                del log[-source.randint(1, min(len(log), 20)) :]
                await harness.engine.rewind(session, len(log))
            words = source.choices(WORDS.split(), k=source.randint(1, 9))
            message = text.encode(f"<|user|>{' '.join(words)}<|end|><|assistant|>")
            for length in range(1, len(message), 3):
                await harness.engine.append(session, message[:length], "provisional")
            await harness.engine.append(session, message, "commit")
            log += message
            sampling = Sampling(max_tokens=source.randint(5, 40), stop_ids=text.stop_ids)
            output = await collect_ids(await harness.engine.generate(session, sampling))
            expected = await draw(own, log, sampling)
            equal += output == expected
            if output != expected:
                await check_tie(own, log, output, expected)
            log += output
            drawn += len(output)
        await harness.engine.close(session)
    figure(f"{server.kind}: {equal} of {LIVES * TURNS} turns equal, the others tie; {drawn} ids")
    assert equal >= 0.9 * LIVES * TURNS


async def check_tie(
    own: EngineClient, log: list[int], output: list[int], expected: list[int]
) -> None:
    """Assert that the first ids that differ are about equally likely for our engine."""
    at = next(
        n for n, (one, other) in enumerate(zip(output, expected, strict=False)) if one != other
    )
    turn = await own.complete([*log, *output[:at]], Sampling(max_tokens=1, logprobs=2))
    ((first, second),) = [
        [logprob for _, logprob in one.top] async for piece in turn for one in piece.logprobs or ()
    ]
    assert first - second < LOGPROB_TOLERANCE


async def test_fork_continues_apart_from_its_parent(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    long = prompt * 12
    parent = await open_with(harness.engine, long)
    await collect_ids(await harness.engine.generate(parent, Sampling(max_tokens=1)))
    child = await harness.engine.fork(parent, len(long))
    turn = await harness.engine.generate(child, Sampling(max_tokens=20))
    assert await collect_ids(turn) == await draw(own, long, Sampling(max_tokens=20))
    assert turn.ended is not None
    assert (turn.ended.cached_tokens or 0) >= len(long) - 64


async def test_session_goes_on_after_others_took_all_slots(
    server: RealServer, harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    """llama-server has its KV in a file."""
    long = prompt * 12
    session = await open_with(harness.engine, long)
    await collect_ids(await harness.engine.generate(session, Sampling(max_tokens=1)))
    await harness.engine.rewind(session, len(long))
    for number in range(SLOTS):
        other = await open_with(harness.engine, [*prompt[number:], *long])
        await collect_ids(await harness.engine.generate(other, Sampling(max_tokens=1)))
    turn = await harness.engine.generate(session, Sampling(max_tokens=20))
    assert await collect_ids(turn) == await draw(own, long, Sampling(max_tokens=20))
    assert turn.ended is not None
    assert (turn.ended.cached_tokens or 0) >= len(long) - 64
    assert turn.ended.residency == ("host" if server.kind == "llama-server" else "unknown")


async def test_turn_ends_exactly_at_a_stop_string(
    harness: ServerHarness, own: EngineClient, text: ModelText, prompt: list[int]
) -> None:
    expected = await draw(own, prompt, Sampling(max_tokens=40))
    stop = text.decode(expected[8:10])
    sampling = Sampling(max_tokens=40, stop=(stop,))
    turn = await harness.engine.complete(prompt, sampling)
    assert await collect_ids(turn) == await draw(own, prompt, sampling)
    assert turn.ended is not None
    assert (turn.ended.reason, turn.ended.stop) == ("stop", stop)


async def test_turn_ends_at_any_stop_id(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    expected = await draw(own, prompt, Sampling(max_tokens=40))
    sampling = Sampling(max_tokens=40, stop_ids=(expected[7],))
    output = await draw(harness.engine, prompt, sampling)
    assert output == expected[: expected.index(expected[7]) + 1]


async def test_seed_reproduces_a_turn(harness: ServerHarness, prompt: list[int]) -> None:
    sampling = Sampling(temperature=1.0, seed=2**40 + 3, max_tokens=30)
    first = await draw(harness.engine, prompt, sampling)
    assert await draw(harness.engine, prompt, sampling) == first


async def test_logprobs_are_those_of_our_engine(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    sampling = Sampling(max_tokens=5, logprobs=3)
    found, expected = [
        [
            one
            async for piece in await engine.complete(prompt, sampling)
            for one in piece.logprobs or ()
        ]
        for engine in (harness.engine, own)
    ]
    assert len(found) == len(expected) == 5
    for one, other in zip(found, expected, strict=True):
        assert one.drawn == pytest.approx(other.drawn, abs=LOGPROB_TOLERANCE)
        assert [id for id, _ in one.top] == [id for id, _ in other.top]
        for (_, value), (_, right) in zip(one.top, other.top, strict=True):
            assert value == pytest.approx(right, abs=10 * LOGPROB_TOLERANCE)


async def test_logit_bias_and_repetition_penalty_are_those_of_our_engine(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    (first,) = await draw(own, prompt, Sampling(max_tokens=1))
    sampling = Sampling(max_tokens=30, logit_bias={first: -100.0}, repetition_penalty=1.3)
    assert await draw(harness.engine, prompt, sampling) == await draw(own, prompt, sampling)


async def test_schema_is_enforced(
    harness: ServerHarness, text: ModelText, prompt: list[int]
) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    grammar = Grammar("json_schema", json.dumps(schema))
    sampling = Sampling(max_tokens=60, grammar=grammar, stop_ids=text.stop_ids)
    output = await draw(harness.engine, prompt, sampling)
    assert json.loads(text.decode(output)) in ({"n": 1}, {"n": 2})


async def test_characters_of_several_ids_arrive_whole(
    harness: ServerHarness, text: ModelText, prompt: list[int]
) -> None:
    """llama-server leaves out their ids."""
    grammar = Grammar("json_schema", json.dumps({"const": "日本 ß 😀!"}))
    sampling = Sampling(max_tokens=60, grammar=grammar, stop_ids=text.stop_ids)
    output = await draw(harness.engine, prompt, sampling)
    assert json.loads(text.decode(output)) == "日本 ß 😀!"


async def test_lark_is_enforced_or_refused(
    server: RealServer, harness: ServerHarness, text: ModelText, prompt: list[int]
) -> None:
    lark = Grammar("lark", 'start: "yes" | "no"')
    sampling = Sampling(max_tokens=20, grammar=lark, stop_ids=text.stop_ids)
    if server.kind == "llama-server":
        with pytest.raises(TurnFailed, match="no Lark"):
            await draw(harness.engine, prompt, sampling)
    else:
        output = await draw(harness.engine, prompt, sampling)
        assert text.decode(output) in ("yes", "no")


async def test_penalty_of_output_is_that_of_our_engine_unless_it_counts_the_prompt(
    server: RealServer, harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    """llama-server counts the prompt too."""
    sampling = Sampling(max_tokens=30, presence_penalty=0.8, frequency_penalty=0.2)
    output = await draw(harness.engine, prompt, sampling)
    assert len(output) == 30
    if server.kind == "vllm":
        assert output == await draw(own, prompt, sampling)


async def test_output_continues_after_eos_where_it_is_ignored(
    server: RealServer, harness: ServerHarness, own: EngineClient, text: ModelText
) -> None:
    """llama-server never draws EOS then."""
    ids = text.encode("<|user|>Hello<|end|><|assistant|>")
    sampling = Sampling(max_tokens=120, ignore_eos=True)
    output, expected = await draw(harness.engine, ids, sampling), await draw(own, ids, sampling)
    assert len(output) == 120
    assert set(text.stop_ids) & set(expected)
    if server.kind == "vllm":
        assert output == expected
    else:
        assert not set(text.stop_ids) & set(output)


async def test_cancelled_turn_leaves_the_server_idle(
    harness: ServerHarness, prompt: list[int], server: RealServer, figure: Figure
) -> None:
    turn = await harness.engine.complete(prompt, Sampling(max_tokens=LONG_TOKENS, ignore_eos=True))
    await receive(turn, 20)
    began_s = time.monotonic()
    await harness.engine.cancel(turn.session)
    while (await harness.server.measure()).running:
        assert time.monotonic() - began_s < 5
    figure(f"{server.kind}: idle {1000 * (time.monotonic() - began_s):.0f} ms after a cancel")


async def test_paused_turn_continues(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    sampling = Sampling(max_tokens=200, stop_ids=())
    turn = await harness.engine.complete(prompt, sampling)
    await receive(turn, 10)
    await harness.engine.pause(turn.session)
    await harness.engine.resume(turn.session)
    await collect_ids(turn)
    assert turn.ids == await draw(own, prompt, sampling)


async def test_typed_ids_are_computed_before_the_turn(
    harness: ServerHarness, prompt: list[int]
) -> None:
    session = await harness.engine.open()
    for length in range(4, len(prompt * 20), 40):
        await harness.engine.append(session, (prompt * 20)[:length], "provisional")
    await harness.engine.append(session, prompt * 20, "commit")
    sequence = harness.core.sessions._find(session)
    block = harness.server.reuse_tokens
    await wait_until(lambda: sequence.computed >= len(prompt * 20) // block * block)
    turn = await harness.engine.generate(session, Sampling(max_tokens=1))
    await collect_ids(turn)
    assert turn.ended is not None
    assert (turn.ended.cached_tokens or 0) >= len(prompt * 20) - 2 * block


@pytest.mark.parametrize("kind", LONG)
async def test_turn_continues_when_the_server_is_killed(
    server: RealServer, harness: ServerHarness, prompt: list[int], kind: str, figure: Figure
) -> None:
    """Greedy it continues after its last id; with a penalty its output is repeated."""
    sampling = LONG[kind]
    expected = await draw(harness.engine, prompt, sampling)
    turn = await harness.engine.complete(prompt, sampling)
    await receive(turn, 50)
    server.stop()
    received, killed_s = len(turn.ids), time.monotonic()
    assert received < LONG_TOKENS
    starting = asyncio.create_task(server.start())
    await receive(turn, received + 1)
    gap_s = time.monotonic() - killed_s
    await starting
    await collect_ids(turn)
    assert turn.ids == expected
    figure(
        f"{server.kind}: killed after {received} of {LONG_TOKENS} ids, {kind}: equal, continues"
        f" after {gap_s:.2f} s; the start took {server.start_s:.2f} s"
    )


async def test_turn_continues_on_the_next_engine(
    harness: ServerHarness, own: EngineClient, prompt: list[int]
) -> None:
    session = await open_with(harness.engine, prompt)
    turn = await harness.engine.generate(session, Sampling(max_tokens=200))
    await receive(turn, 10)
    harness.kill()
    await recover_ids(harness.engine, turn, prompt)
    assert turn.ids == await draw(own, prompt, Sampling(max_tokens=200))


async def test_another_tokenizer_is_refused(
    server: RealServer, harness: ServerHarness, letters: Path
) -> None:
    check = ModelCheck(server.url, ModelText(str(letters)))
    with pytest.raises(OtherModel, match="another tokenizer"):
        await check.compare(harness.server, await harness.server.describe())
