"""Tests of turns under a grammar: the output equals that of one fresh masked prefill, even after
retraction, cancellation or an engine crash. On the null device, with the real matcher."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.errors import BadRequest, EngineError
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import ModelText
from continuo.engine.text.grammar import SOURCE_BYTES_MAX
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.disturbed import DisturbedScheduler
from tests.support.engine_sessions import collect_ids, open_with, prompt_ids, recovered
from tests.support.engines import digest_engine, write_tiny_model
from tests.support.retracting import RetractingScheduler

END = 96
NUMBERS = Grammar("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 3}')
PAIR = Grammar("lark", 'start: /[0-9]{2}/ "-" /[A-Z]{3}/')
SLOW = Grammar("lark", 'start: "x" | %json {"enum": [' + ",".join(map(str, range(20000))) + "]}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path)


def sampling(grammar: Grammar, **options: Any) -> Sampling:
    base: dict[str, Any] = {"max_tokens": 40, "stop_ids": (END,), "grammar": grammar}
    return Sampling(**{**base, **options})


def expected(folder: Path, log: list[int], grammar: Grammar, count: int = 40) -> list[int]:
    matcher = (
        ModelText(str(folder))
        .create_grammar_compiler(VOCABULARY, lambda: None)
        .create_matcher(grammar, (END,))
    )
    return oracle(log, count, (END,), matcher)


async def append_and_generate(
    engine: EngineClient, session: str, ids: list[int], options: Sampling
) -> list[int]:
    await engine.append(session, ids)
    return await collect_ids(await engine.generate(session, options))


@pytest.mark.parametrize("grammar", [NUMBERS, PAIR])
@pytest.mark.parametrize("ahead", [0, 1])
async def test_turn_output_follows_its_grammar(folder: Path, grammar: Grammar, ahead: int) -> None:
    async with digest_engine(folder, steps_ahead=ahead) as harness:
        session = await harness.engine.open()
        output = await append_and_generate(
            harness.engine, session, prompt_ids(9), sampling(grammar)
        )
        assert output == expected(folder, prompt_ids(9), grammar)


@pytest.mark.parametrize("scheduler", [RetractingScheduler, DisturbedScheduler])
async def test_masked_and_free_turns_share_steps_under_retraction(
    folder: Path, scheduler: type[RetractingScheduler]
) -> None:
    async with digest_engine(folder, pages=40, rows=4, scheduler=scheduler) as harness:
        engine = harness.engine
        sessions = [await engine.open() for _ in range(4)]
        samplings = [sampling(NUMBERS), Sampling(max_tokens=12), sampling(PAIR), sampling(NUMBERS)]
        logs = [prompt_ids(7, n) for n in range(4)]
        outputs = await asyncio.gather(
            *(
                append_and_generate(engine, *each)
                for each in zip(sessions, logs, samplings, strict=True)
            )
        )
        assert outputs[1] == oracle(logs[1], 12)
        for n, grammar in ((0, NUMBERS), (2, PAIR), (3, NUMBERS)):
            assert outputs[n] == expected(folder, logs[n], grammar)


async def test_grammar_matcher_state_is_not_shared_between_turns(folder: Path) -> None:
    """A turn cut off by `max_tokens` leaves no matcher state for the next turn."""
    async with digest_engine(folder) as harness:
        engine = harness.engine
        session = await engine.open()
        first = await append_and_generate(
            engine, session, prompt_ids(5), sampling(NUMBERS, max_tokens=3)
        )
        assert first == expected(folder, prompt_ids(5), NUMBERS, 3)
        log = [*prompt_ids(5), *first, *prompt_ids(4, 2)]
        assert await append_and_generate(
            engine, session, prompt_ids(4, 2), sampling(PAIR)
        ) == expected(folder, log, PAIR)


async def test_grammar_turn_continues_after_an_engine_crash(folder: Path) -> None:
    async with digest_engine(folder, step_s=0.002) as harness:
        engine = harness.engine
        session = await open_with(engine, prompt_ids(9))
        turn = await engine.generate(session, sampling(NUMBERS))
        output: list[int] = []
        async for piece in recovered(engine, turn, prompt_ids(9)):
            output += piece.ids
            if len(output) == 3 and harness.launch_count == 1:
                harness.kill()
        assert harness.launch_count == 2
        assert output == expected(folder, prompt_ids(9), NUMBERS)


async def test_equal_seeds_give_the_same_grammar_output(folder: Path) -> None:
    async with digest_engine(folder) as harness:
        outputs = []
        for _ in range(2):
            session = await harness.engine.open()
            options = sampling(NUMBERS, temperature=1.0, seed=7, logprobs=2)
            outputs.append(
                await append_and_generate(harness.engine, session, prompt_ids(9), options)
            )
        assert outputs[0] == outputs[1]


async def test_stop_string_ends_a_grammar_turn(folder: Path) -> None:
    async with digest_engine(folder) as harness:
        session = await open_with(harness.engine, prompt_ids(9))
        turn = await harness.engine.generate(session, sampling(PAIR, stop=("-",)))
        text = "".join([piece.text async for piece in turn])
        assert turn.ended is not None
        assert (turn.ended.stop, len(text)) == ("-", 2)


REFUSED = [
    ({"grammar": Grammar("json_schema", '{"not": {}}')}, "grammar", "not"),
    ({"grammar": Grammar("json_schema", "nonsense")}, "grammar", "not JSON"),
    ({"grammar": Grammar("lark", "start: nowhere")}, "grammar", "nowhere"),
    ({"grammar": Grammar("lark", "#" * (SOURCE_BYTES_MAX + 1))}, "grammar", "bytes"),
    ({"ignore_eos": True}, "ignore_eos", "grammar"),
    ({"stop_ids": ()}, "stop_ids", "stop_ids"),
]


@pytest.mark.parametrize(("options", "field", "message"), REFUSED)
async def test_unenforceable_grammar_is_refused(
    folder: Path, options: dict[str, object], field: str, message: str
) -> None:
    async with digest_engine(folder) as harness:
        session = await open_with(harness.engine, prompt_ids(9))
        for _ in range(2):  # the second time from the cache
            with pytest.raises(BadRequest, match=message) as caught:
                await harness.engine.generate(session, sampling(**{"grammar": PAIR, **options}))
            assert caught.value.field == field
        assert await append_and_generate(harness.engine, session, [], sampling(PAIR)) == expected(
            folder, prompt_ids(9), PAIR
        )


async def test_commands_keep_their_order_while_a_grammar_is_compiled(folder: Path) -> None:
    async with digest_engine(folder) as harness:
        engine = harness.engine
        session, other = await engine.open(), await engine.open()
        await engine.append(session, prompt_ids(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW)))
        deferred = asyncio.create_task(engine.append(session, prompt_ids(3)))
        assert await append_and_generate(
            engine, other, prompt_ids(5), Sampling(max_tokens=4)
        ) == oracle(prompt_ids(5), 4)
        output = await collect_ids(await waiting)
        assert output == expected(folder, prompt_ids(9), SLOW)
        assert await deferred == 9 + len(output) + 3


async def test_turn_can_be_cancelled_while_its_grammar_is_compiled(folder: Path) -> None:
    async with digest_engine(folder) as harness:
        engine = harness.engine
        session = await open_with(engine, prompt_ids(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW), "turn"))
        deferred = asyncio.create_task(engine.append(session, prompt_ids(3)))
        await asyncio.sleep(0)
        await engine.cancel(session, "turn")
        with pytest.raises(EngineError, match="cancelled"):
            await waiting
        assert await deferred == 12


async def test_session_can_be_closed_while_its_grammar_is_compiled(folder: Path) -> None:
    async with digest_engine(folder) as harness:
        engine = harness.engine
        session = await open_with(engine, prompt_ids(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW)))
        await asyncio.sleep(0)
        await engine.close(session)
        with pytest.raises(EngineError, match="closed"):
            await waiting
        assert await engine.fleet.list_sessions() == []
