"""Turns that follow a grammar: whatever happens to the session meanwhile, what they say is what one
fresh masked prefill would say. On the digest device, with the real matcher."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.errors import BadRequest, EngineError
from continuo.engine.text import ModelText
from continuo.engine.text.grammar import SOURCE_BYTES_MAX
from continuo.engine.wire.messages import Grammar, Sampling
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.disturbed import DisturbedScheduler
from tests.support.engine_sessions import read, words
from tests.support.engines import digest_engine, tiny_text
from tests.support.retracting import RetractingScheduler

END = 96
NUMBERS = Grammar("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 3}')
PAIR = Grammar("lark", 'start: /[0-9]{2}/ "-" /[A-Z]{3}/')
SLOW = Grammar("lark", 'start: "x" | %json {"enum": [' + ",".join(map(str, range(20000))) + "]}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_text(tmp_path)


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


async def say(engine: EngineClient, session: str, ids: list[int], wish: Sampling) -> list[int]:
    await engine.append(session, ids)
    return await read(await engine.generate(session, wish))


@pytest.mark.parametrize("grammar", [NUMBERS, PAIR])
@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_turn_says_what_its_grammar_allows(
    folder: Path, grammar: Grammar, ahead: int
) -> None:
    async with digest_engine(folder, steps_ahead=ahead) as bench:
        session = await bench.engine.open()
        said = await say(bench.engine, session, words(9), sampling(grammar))
        assert said == expected(folder, words(9), grammar)


@pytest.mark.parametrize("scheduler", [RetractingScheduler, DisturbedScheduler])
async def test_masked_and_free_turns_side_by_side_under_retraction(
    folder: Path, scheduler: type[RetractingScheduler]
) -> None:
    async with digest_engine(folder, pages=40, rows=4, scheduler=scheduler) as bench:
        engine = bench.engine
        talks = [await engine.open() for _ in range(4)]
        wishes = [sampling(NUMBERS), Sampling(max_tokens=12), sampling(PAIR), sampling(NUMBERS)]
        logs = [words(7, n) for n in range(4)]
        said = await asyncio.gather(
            *(say(engine, *each) for each in zip(talks, logs, wishes, strict=True))
        )
        assert said[1] == oracle(logs[1], 12)
        for n, grammar in ((0, NUMBERS), (2, PAIR), (3, NUMBERS)):
            assert said[n] == expected(folder, logs[n], grammar)


async def test_the_matcher_is_the_turns_own(folder: Path) -> None:
    """A turn that was cut off in the middle leaves nothing behind for the next one."""
    async with digest_engine(folder) as bench:
        engine = bench.engine
        session = await engine.open()
        first = await say(engine, session, words(5), sampling(NUMBERS, max_tokens=3))
        assert first == expected(folder, words(5), NUMBERS, 3)
        log = [*words(5), *first, *words(4, 2)]
        assert await say(engine, session, words(4, 2), sampling(PAIR)) == expected(
            folder, log, PAIR
        )


async def test_a_turn_goes_on_in_another_engine(folder: Path) -> None:
    async with digest_engine(folder, step_s=0.002) as bench:
        engine = bench.engine
        session = await engine.open()
        await engine.append(session, words(9))
        turn = await engine.generate(session, sampling(NUMBERS))
        said: list[int] = []
        async for piece in turn:
            said += piece.ids
            if len(said) == 3 and bench.launches == 1:
                bench.kill()
        assert bench.launches == 2
        assert said == expected(folder, words(9), NUMBERS)


async def test_equal_seeds_say_the_same(folder: Path) -> None:
    async with digest_engine(folder) as bench:
        said = []
        for _ in range(2):
            session = await bench.engine.open()
            wish = sampling(NUMBERS, temperature=1.0, seed=7, logprobs=2)
            said.append(await say(bench.engine, session, words(9), wish))
        assert said[0] == said[1]


async def test_a_stop_string_ends_it(folder: Path) -> None:
    async with digest_engine(folder) as bench:
        session = await bench.engine.open()
        await bench.engine.append(session, words(9))
        turn = await bench.engine.generate(session, sampling(PAIR, stop=("-",)))
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


@pytest.mark.parametrize(("options", "field", "words_of_it"), REFUSED)
async def test_what_cannot_be_enforced_is_refused(
    folder: Path, options: dict[str, object], field: str, words_of_it: str
) -> None:
    async with digest_engine(folder) as bench:
        session = await bench.engine.open()
        await bench.engine.append(session, words(9))
        for _ in range(2):  # the second time from memory
            with pytest.raises(BadRequest, match=words_of_it) as caught:
                await bench.engine.generate(session, sampling(**{"grammar": PAIR, **options}))
            assert caught.value.field == field
        assert await say(bench.engine, session, [], sampling(PAIR)) == expected(
            folder, words(9), PAIR
        )


async def test_commands_keep_their_order_while_a_grammar_is_compiled(folder: Path) -> None:
    async with digest_engine(folder) as bench:
        engine = bench.engine
        session, other = await engine.open(), await engine.open()
        await engine.append(session, words(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW)))
        later = asyncio.create_task(engine.append(session, words(3)))
        assert await say(engine, other, words(5), Sampling(max_tokens=4)) == oracle(words(5), 4)
        said = await read(await waiting)
        assert said == expected(folder, words(9), SLOW)
        assert await later == 9 + len(said) + 3


async def test_a_turn_that_waits_for_its_grammar_can_be_cancelled(folder: Path) -> None:
    async with digest_engine(folder) as bench:
        engine = bench.engine
        session = await engine.open()
        await engine.append(session, words(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW), "turn"))
        later = asyncio.create_task(engine.append(session, words(3)))
        await asyncio.sleep(0)
        await engine.cancel(session, "turn")
        with pytest.raises(EngineError, match="cancelled"):
            await waiting
        assert await later == 12


async def test_a_session_can_be_closed_while_it_waits(folder: Path) -> None:
    async with digest_engine(folder) as bench:
        engine = bench.engine
        session = await engine.open()
        await engine.append(session, words(9))
        waiting = asyncio.create_task(engine.generate(session, sampling(SLOW)))
        await asyncio.sleep(0)
        await engine.close(session)
        with pytest.raises(EngineError, match="closed"):
            await waiting
        assert await engine.list_sessions() == []
