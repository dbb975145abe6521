"""Parity of speculative decoding: sessions on every supported architecture draw the same ids with
drafts as without, greedy and sampled, in fp32.

The drafts are those of a run without, and half of them are wrong somewhere; others are those of
prompt lookup. Sessions share steps, turns are retracted and idle sessions evicted, and forks take
over the KV of their parents.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.speculation import PromptLookup, Speculation
from continuo.engine.wire.messages import EngineStats, Sampling
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, Architecture
from tests.support.disturbed import DisturbedScheduler
from tests.support.drafting import EagerGain, recorded_speculation
from tests.support.engine_sessions import collect_ids
from tests.support.engines import EngineHarness, SpeculationFactory, running_engine

SESSIONS, TURNS, OUTPUT = 3, 3, 14
CONTEXT = 200
SUPPORTED = {each.name: each for each in ARCHITECTURES if each.way != "refused"}
KINDS = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "GptOssForCausalLM",
    "Qwen3_5ForCausalLM",
    "Lfm2ForCausalLM",
    "GraniteMoeHybridForCausalLM",
)
"""An architecture of every kind of layer memory, and of every way that one is run."""


async def run_session(harness: EngineHarness, number: int, vocabulary: int) -> list[list[int]]:
    """Run the turns of a session and one of its fork. Returns the logs of both."""
    engine, source = harness.engine, random.Random(number)
    session, log = await engine.open(streaming=number % 2 == 0), list[int]()

    async def run_turn(session: str, log: list[int], **options: Any) -> None:
        new = [source.randrange(vocabulary) for _ in range(source.randint(1, 20))]
        await engine.append(session, new)
        log += new
        seed = source.randrange(100)
        sampling = Sampling(max_tokens=OUTPUT, seed=seed, **options)
        log += await collect_ids(await engine.generate(session, sampling))

    for turn in range(TURNS):
        await run_turn(session, log, temperature=0.8 * (turn % 2))
    half = len(log) // 2
    child, child_log = await engine.fork(session, half), log[:half]
    await run_turn(child, child_log, temperature=0.8, top_p=0.9)
    return [log, child_log]


async def run_sessions(
    folder: Path,
    letters: Path,
    speculation: SpeculationFactory | None,
    scheduler: type[Scheduler],
    **bounds: Any,
) -> tuple[list[list[int]], EngineStats]:
    """Run all sessions at once. Returns their logs."""
    bounds = {"max_model_len": CONTEXT, **bounds}
    async with running_engine(
        letters,
        lambda: oracle.build_cpu_runner(folder, **bounds),
        scheduler=scheduler,
        speculation=speculation,
    ) as harness:
        vocabulary = harness.runner.geometry.vocab_size
        sessions = (run_session(harness, n, vocabulary) for n in range(SESSIONS))
        logs = [log for pair in await asyncio.gather(*sessions) for log in pair]
        return logs, await harness.engine.fleet.stats()


async def check(
    architecture: Architecture,
    letters: Path,
    folder: Path,
    scheduler: type[Scheduler] = Scheduler,
    **bounds: Any,
) -> None:
    if architecture.way == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    model = architecture.make()
    model.save_pretrained(folder)
    vocabulary = model.config.get_text_config().vocab_size
    plain, stats = await run_sessions(folder, letters, None, scheduler, **bounds)
    assert stats.draft_tokens == 0

    def recorded() -> Speculation:
        return recorded_speculation(random.Random(1), plain, vocabulary)

    drafted, stats = await run_sessions(folder, letters, recorded, scheduler, **bounds)
    assert drafted == plain
    assert 40 < stats.accepted_tokens < stats.draft_tokens

    def looked_up() -> Speculation:
        return Speculation(PromptLookup(1, 3), 4, EagerGain)

    drafted, stats = await run_sessions(folder, letters, looked_up, scheduler, **bounds)
    assert drafted == plain
    assert stats.draft_tokens > 0


@pytest.mark.parametrize("name", list(SUPPORTED))
async def test_drafts_do_not_change_the_output(name: str, letters: Path, tmp_path: Path) -> None:
    await check(SUPPORTED[name], letters, tmp_path)


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("name", KINDS)
async def test_drafts_do_not_change_the_output_of_disturbed_turns(
    name: str, page_size: int, letters: Path, tmp_path: Path
) -> None:
    """Turns are retracted and idle sessions evicted in the middle; some have pages on the host."""
    await check(
        SUPPORTED[name],
        letters,
        tmp_path,
        DisturbedScheduler,
        block_size=page_size,
        num_gpu_blocks_override=-(-CONTEXT // page_size) * 2 + 2,
        kv_offloading_size=0.01,
        max_num_batched_tokens=64,
    )


@pytest.mark.parametrize("name", KINDS)
async def test_drafts_do_not_change_the_output_where_steps_run_ahead(
    name: str, letters: Path, tmp_path: Path
) -> None:
    """With our C decoder, other threads compute the end of a step; in torch, another thread the
    whole one."""
    way = SUPPORTED[name].way
    await check(SUPPORTED[name], letters, tmp_path, threads=2, steps_ahead=int(way != "C"))
