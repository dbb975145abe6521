"""Tests of sampled, penalized and masked turns through the whole engine, on the C decoder with two
threads."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest

from continuo.engine.batch import Batch
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.weights import resolve
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import ModelText
from tests.support import transformers_oracle as oracle
from tests.support.engine_sessions import collect_ids, open_with
from tests.support.engines import running_engine

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed"),
]

COUNT = 40
DIGITS = Grammar("lark", "start: /[0-9]{60}/")
TURNS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.3},
    {"grammar": DIGITS},
    {"grammar": DIGITS, "temperature": 1.1, "top_k": 20, "presence_penalty": 1.0, "seed": 3},
]


async def run_turns(*, threads: int, together: bool) -> list[list[int]]:
    """Run TURNS, at once or one after the other. Returns their outputs."""
    folder = resolve(BUNDLED_MODEL, None, lambda what, fraction: None)
    text = ModelText(str(folder))
    prompt = text.encode("<|user|>Where do you live?<|end|><|assistant|>")

    def make() -> Any:
        return oracle.build_cpu_runner(folder, max_model_len=256, threads=threads)

    async with running_engine(folder, make) as harness:
        engine = harness.engine

        async def run(session: str, turn: dict[str, Any], max_tokens: int) -> list[int]:
            stop_ids = text.stop_ids if "grammar" in turn else ()
            sampling = Sampling(max_tokens=max_tokens, stop_ids=stop_ids, **turn)
            return await collect_ids(await engine.generate(session, sampling))

        await run(await open_with(engine, prompt), TURNS[-1], 1)  # compiles the grammar
        sessions = [await open_with(engine, prompt) for _ in TURNS]
        turns = [run(*each, COUNT) for each in zip(sessions, TURNS, strict=True)]
        outputs = await asyncio.gather(*turns) if together else [await turn for turn in turns]
        assert isinstance(harness.runner, NativeRunner)
        return list(outputs)


async def test_penalized_and_masked_turns_take_part_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the end of a step is computed, the next one is planned with all turns; and each turn
    draws what it draws alone, on one thread."""
    near_end_results, row_counts = list[bool](), list[int]()
    run_until_near_end, launch = NativeRunner.run_until_near_end, NativeRunner.launch

    def run_and_record(runner: NativeRunner, ticket: Any) -> bool:
        near_end_results.append(run_until_near_end(runner, ticket))
        return near_end_results[-1]

    def launch_and_record(runner: NativeRunner, batch: Batch) -> Any:
        row_counts.append(len(batch.rows))
        return launch(runner, batch)

    monkeypatch.setattr(NativeRunner, "run_until_near_end", run_and_record)
    monkeypatch.setattr(NativeRunner, "launch", launch_and_record)
    alone = await run_turns(threads=1, together=False)
    assert not any(near_end_results)
    near_end_results.clear()
    row_counts.clear()
    together = await run_turns(threads=2, together=True)
    assert together == alone
    assert [len(output) for output in together] == [COUNT] * len(TURNS)
    assert len({tuple(output) for output in together}) == len(TURNS)
    assert all(near_end_results)
    first = row_counts.index(len(TURNS))
    last = len(row_counts) - row_counts[::-1].index(len(TURNS))
    assert row_counts[first:last] == [len(TURNS)] * (last - first)
    assert last - first > COUNT // 2
