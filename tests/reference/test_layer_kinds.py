"""Tests of sessions on sliding-window and on hybrid models: SGLang's lists (streaming sessions with
a sliding-window cache, and with a Mamba cache), on this engine and small random checkpoints.

row of SGLang                          here
KV inheritance, output equal           test_later_turn_computes_its_new_ids_alone
abort in the middle, then continue     test_interrupted_session_continues_near_the_interruption
retraction under memory pressure       test_retracted_turns_have_the_same_output
branch from an earlier turn            test_branch_and_fork_of_an_earlier_turn
chunked prefill                        test_prompt_in_chunks_around_the_window
hierarchical cache                     test_idle_sessions_return_from_the_host_tier
window pages are freed                 test_pages_held_do_not_grow_with_the_session
"""

from array import array
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.wire.messages import Sampling, TurnEnded
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES
from tests.support.digest_runner import VOCABULARY
from tests.support.engines import EngineHarness, running_engine
from tests.support.retracting import RetractingScheduler

pytestmark = [pytest.mark.slow, pytest.mark.torch]

PAGE, WINDOW, CONTEXT = 8, 40, 512
TIE = 2e-4
"""Largest difference, relative to the largest logit, of two logits that tie."""
MAKERS: dict[str, Callable[..., Any]] = {each.name: each.make for each in ARCHITECTURES}
MODELS: dict[str, Callable[[], Any]] = {
    "window": partial(
        oracle.small_model, "Mistral", sliding_window=WINDOW, vocab_size=VOCABULARY, head_dim=24
    ),
    "full and window": partial(
        oracle.small_model,
        "Gemma3Text",
        vocab_size=VOCABULARY,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "full and convolution": partial(MAKERS["Lfm2ForCausalLM"], vocab_size=VOCABULARY),
    "full and delta net": partial(MAKERS["Qwen3_5ForCausalLM"], vocab_size=VOCABULARY),
}
RECURRENT = ("full and convolution", "full and delta net")


class Checkpoint:
    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.reference = MODELS[kind]()
        self.reference.save_pretrained(folder)

    @property
    def is_recurrent(self) -> bool:
        return self.kind in RECURRENT

    def make(self, **bounds: Any) -> Any:
        defaults: dict[str, Any] = {
            "block_size": PAGE,
            "max_model_len": CONTEXT,
            "max_num_batched_tokens": 32,
            "num_gpu_blocks_override": 4 * CONTEXT // PAGE,
        }
        return oracle.build_cpu_runner(self.folder, **(defaults | bounds))

    def check(self, log: list[int], output: list[int]) -> None:
        """Compare with one fresh prefill by transformers."""
        logits = oracle.full_logits(self.reference, log + output)[len(log) - 1 : -1]
        drawn = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.amax(1) - drawn).max() <= TIE * logits.abs().max()


@pytest.fixture(scope="module", params=list(MODELS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Checkpoint(request.param, tmp_path_factory.mktemp("model"))


class Session:
    """A session whose outputs are compared with transformers'."""

    def __init__(self, engine: EngineClient, checkpoint: Checkpoint, name: str) -> None:
        self.engine, self.checkpoint, self.name = engine, checkpoint, name
        self.log: list[int] = []

    async def append(self, ids: list[int], **options: Any) -> None:
        await self.engine.append(self.name, ids, **options)
        self.log += ids

    async def speak(self, count: int, *, cancel_at: int | None = None) -> TurnEnded:
        """Run a turn; `cancel_at`: cancel it once that many ids were received."""
        turn = await self.engine.generate(self.name, Sampling(max_tokens=count))
        output: list[int] = []
        async for piece in turn:
            output += piece.ids
            if cancel_at is not None and len(output) >= cancel_at:
                await self.engine.cancel(self.name, turn.id)
        assert turn.ended is not None
        self.checkpoint.check(self.log, output)
        self.log += output
        return turn.ended


def words(count: int, seed: int = 0) -> list[int]:
    [ids] = oracle.random_prompts(seed, [count], VOCABULARY)
    return ids


async def computed(harness: EngineHarness) -> int:
    """Return how many tokens the engine has computed."""
    return (await harness.engine.fleet.stats()).tokens_computed


def evict_idle(harness: EngineHarness) -> None:
    """Evict idle sessions, by reserving more than there is."""
    cache = harness.cache
    lease = cache.open("greedy")
    tokens = cache.usage.available_pages() * cache.page_size
    if cache.reserve(lease, tokens):
        cache.commit(lease, tokens, 0)
    cache.close(lease, array("i"), 0)


@pytest.fixture
async def harness(checkpoint: Checkpoint, letters: Path) -> AsyncIterator[EngineHarness]:
    async with running_engine(letters, checkpoint.make) as running:
        yield running


@pytest.fixture
async def session(harness: EngineHarness, checkpoint: Checkpoint) -> Session:
    return Session(harness.engine, checkpoint, await harness.engine.open())


async def test_later_turn_computes_its_new_ids_alone(
    session: Session, harness: EngineHarness
) -> None:
    for turn in range(5):
        before, length = await computed(harness), len(session.log)
        await session.append(words(50, turn))
        await session.speak(20)
        assert await computed(harness) - before <= len(session.log) - length + PAGE


async def test_interrupted_session_continues_near_the_interruption(
    session: Session, harness: EngineHarness
) -> None:
    await session.append(words(150))
    await session.speak(10)
    for turn in range(4):
        await session.append(words(20, turn))
        start = len(session.log)
        await session.speak(150, cancel_at=60)
        heard = start + 30
        await session.engine.rewind(session.name, heard)
        del session.log[heard:]
        before = await computed(harness)
        await session.append(words(10, turn))
        await session.speak(5)
        assert await computed(harness) - before <= 64 + 2 * PAGE + 10 + 5


async def test_retracted_turns_have_the_same_output(checkpoint: Checkpoint, letters: Path) -> None:
    async with running_engine(letters, checkpoint.make, scheduler=RetractingScheduler) as harness:
        session = Session(harness.engine, checkpoint, await harness.engine.open())
        for turn in range(3):
            await session.append(words(10, turn))
            await session.speak(6)
        assert (await harness.engine.fleet.stats()).retractions > 0


async def test_branch_and_fork_of_an_earlier_turn(
    harness: EngineHarness, checkpoint: Checkpoint
) -> None:
    engine = harness.engine
    session = Session(engine, checkpoint, await engine.open(streaming=False))
    await session.append(words(120))
    first = await session.speak(30)
    log = list(session.log)
    await session.append(words(40, 1))
    await session.speak(30)
    before = await computed(harness)
    session.log = log
    await session.append(words(10, 2), after=first.turn)
    await session.speak(10)
    assert await computed(harness) - before <= 2 * PAGE + 10 + 10
    for at in (100, len(log), len(session.log) - 3):
        child = Session(engine, checkpoint, await engine.fork(session.name, at))
        child.log = session.log[:at]
        await child.append(words(7, at))
        await child.speak(12)
    await session.append(words(5))
    await session.speak(5)


@pytest.mark.parametrize("chunk", [3, 16, 64, 512])
async def test_prompt_in_chunks_around_the_window(
    checkpoint: Checkpoint, letters: Path, chunk: int
) -> None:
    make = partial(checkpoint.make, max_num_batched_tokens=chunk)
    async with running_engine(letters, make) as harness:
        sessions = [
            Session(harness.engine, checkpoint, await harness.engine.open()) for _ in range(3)
        ]
        for number, session in enumerate(sessions):
            await session.append(words(150 + 37 * number, number))
        for session in sessions:
            await session.speak(8)


async def test_idle_sessions_return_from_the_host_tier(
    checkpoint: Checkpoint, letters: Path
) -> None:
    pages = CONTEXT // PAGE + 4
    make = partial(checkpoint.make, num_gpu_blocks_override=pages, kv_offloading_size=0.5)
    async with running_engine(letters, make) as harness:
        sessions = [
            Session(harness.engine, checkpoint, await harness.engine.open()) for _ in range(6)
        ]
        for turn in range(3):
            for number, session in enumerate(sessions):
                await session.append(words(90, 10 * turn + number))
                ended = await session.speak(10)
                assert ended.residency in ("hot", "host", "none")
                evict_idle(harness)
        stats = await harness.engine.fleet.stats()
        assert stats.pages_recalled > 0


async def test_pages_held_do_not_grow_with_the_session(
    session: Session, harness: EngineHarness
) -> None:
    for turn in range(5):
        await session.append(words(80, turn))
        await session.speak(8)
    info = await harness.engine.info(session.name)
    full = -(-info.committed // PAGE)
    expected = {
        "window": WINDOW // PAGE + 2,
        "full and window": full + WINDOW // PAGE + 2,
    }.get(session.checkpoint.kind, full)
    assert expected - 2 <= info.held_pages <= expected
