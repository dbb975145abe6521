"""Parity of random histories: eight sessions of several groups on real small models, one on torch's
operations and one on our C decoder. Every output equals that of transformers for one fresh prefill.

The pool is for one to two of these sessions, and in some worlds rows have drafts. The history:
appends of 1 to 64 ids, provisional ids, cancellations, rewinds and forks; turns retracted and idle
sessions evicted or spilled before every third step; the engine killed halfway. In fp32 the ids are
identical; in bf16 each is the oracle's most likely id within the noise of chunking.
Log-probabilities are equal within that noise in both.
"""

import asyncio
import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import torch

from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.core.speculation import PromptLookup, Speculation
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.errors import SessionDetached
from continuo.engine.wire.messages import Sampling
from tests.support import transformers_oracle as oracle
from tests.support.digest_runner import VOCABULARY
from tests.support.disturbed import DisturbedScheduler
from tests.support.drafting import DRAFTS_MAX, EagerGain
from tests.support.engine_sessions import recovered, with_recovery
from tests.support.engines import EngineHarness, RunnerFactory, running_engine
from tests.support.worlds import World, crowded_world

T = TypeVar("T")
SESSIONS, ACTIONS = 8, 7
CONTEXT = 300

SIZES: dict[str, dict[str, Any]] = {
    "torch": {"vocab_size": VOCABULARY, "head_dim": 24},
    "C": oracle.NATIVE_SIZES,
}
SPREADS = {"float32": 0.25, "bfloat16": oracle.BF16_SPREAD}


class TurnOutput(NamedTuple):
    """The ids of a turn, the log before it, and log-probabilities if they were requested."""

    log: list[int]
    ids: list[int]
    logprobs: list[float] | None
    sampling: Sampling


class ModelUnderTest(NamedTuple):
    """A model of transformers and its checkpoint."""

    native: bool
    """Whether our C decoder runs it."""
    dtype: str
    reference: Any
    epsilon: float
    folder: Path


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=list(SIZES))
def model(
    request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> ModelUnderTest:
    if request.param == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    folder = tmp_path_factory.mktemp("qwen3")
    sizes = SIZES[request.param]
    reference = oracle.small_model(
        "Qwen3", spread=SPREADS[dtype], tie_word_embeddings=True, **sizes
    )
    reference = reference.to(getattr(torch, dtype))
    reference.save_pretrained(folder)
    return ModelUnderTest(
        request.param == "C", dtype, reference, oracle.logit_tolerance(reference), folder
    )


async def run_session(
    engine: EngineClient, vocabulary: int, seed: int, group: SessionGroup
) -> list[TurnOutput]:
    """Run random actions on one session. Returns its outputs."""
    source = random.Random(seed)
    session, log, outputs = await engine.open(group=group), list[int](), list[TurnOutput]()

    def words(max_count: int) -> list[int]:
        return [source.randrange(vocabulary) for _ in range(source.randint(1, max_count))]

    async def run(command: Callable[[], Awaitable[T]]) -> T:
        return await with_recovery(engine, session, log, command)

    for _ in range(ACTIONS):
        action = source.choice(["append", "append", "draft", "rewind", "fork", "cancel"])
        if action == "rewind" and log:
            del log[source.randint(0, len(log)) :]
            await run(partial(engine.rewind, session, len(log)))
        elif action == "fork" and log:
            length = source.randint(1, len(log))
            session, log = await run(partial(engine.fork, session, length)), log[:length]
        elif action == "draft":
            draft = words(30)
            for end in range(5, len(draft), 7):
                await run(partial(engine.append, session, draft[:end], "provisional"))
                await asyncio.sleep(0)
            await run(partial(engine.append, session, draft, "commit"))
            log += draft
        if action == "append" or not log:
            new = words(64)
            await run(partial(engine.append, session, new))
            log += new
        if len(log) > CONTEXT - 80:
            log = log[: CONTEXT // 3]
            await run(partial(engine.rewind, session, len(log)))
        outputs.append(await run_turn(engine, session, log, source, cancel=action == "cancel"))
        log += outputs[-1].ids
    return outputs


async def run_turn(
    engine: EngineClient, session: str, log: list[int], source: random.Random, *, cancel: bool
) -> TurnOutput:
    limit = source.randint(1, 10)
    stop_at = source.randint(1, limit) if cancel else limit + 1
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    chosen: dict[str, Any] = {n: value for n, value in penalties.items() if source.random() < 0.2}
    logprobs_count = 0 if source.random() < 0.1 else None
    sampling = Sampling(max_tokens=limit, logprobs=logprobs_count, **chosen)
    turn = await with_recovery(engine, session, log, lambda: engine.generate(session, sampling))
    output, logprobs = list[int](), list[float]()
    async for piece in recovered(engine, turn, log):
        output += piece.ids
        logprobs += [each.drawn for each in piece.logprobs or []]
        if len(output) == stop_at:
            try:
                await engine.cancel(session, turn.id)
            except SessionDetached:
                await engine.attach(session, [*log, *turn.ids], unfinished=turn)
                await engine.cancel(session, turn.id)
    return TurnOutput(list(log), output, None if sampling.logprobs is None else logprobs, sampling)


def crowded_engine(
    letters: Path, make: RunnerFactory, world: World
) -> contextlib.AbstractAsyncContextManager[EngineHarness]:
    """Run an engine of a world whose turns are retracted also without need."""

    def look_up() -> Speculation:
        return Speculation(PromptLookup(1, 3), DRAFTS_MAX, EagerGain)

    return running_engine(
        letters,
        make,
        scheduler=DisturbedScheduler,
        speculation=look_up if world.has_drafts else None,
        max_group_share=world.max_group_share,
    )


async def run_sessions(
    harness: EngineHarness, vocabulary: int, seed: int, world: World
) -> list[TurnOutput]:
    """Run all sessions at once and kill the engine when half of the tokens are drawn."""

    async def kill_halfway() -> None:
        half_of_tokens = SESSIONS * ACTIONS * 5 // 2
        async with asyncio.timeout(60):
            while (await harness.engine.fleet.stats()).tokens_drawn < half_of_tokens:
                await asyncio.sleep(0.002)
        harness.kill()

    killing = asyncio.create_task(kill_halfway())
    sessions = (
        run_session(harness.engine, vocabulary, seed * 100 + n, SessionGroup(*world.group(n)))
        for n in range(SESSIONS)
    )
    results = await asyncio.gather(*sessions)
    await killing
    assert harness.launch_count == 2
    return [output for session_outputs in results for output in session_outputs]


@pytest.mark.parametrize(
    ("page_size", "chunk", "host", "ahead"),
    [
        (1, 8, False, 0),
        (1, 512, True, 1),
        (16, 8, True, 1),
        (16, 512, False, 0),
        (256, 8, True, 0),
        (256, 512, False, 1),
    ],
)
async def test_output_after_random_histories_equals_one_prefill(
    model: ModelUnderTest,
    letters: Path,
    monkeypatch: pytest.MonkeyPatch,
    page_size: int,
    chunk: int,
    host: bool,
    ahead: int,
) -> None:
    """`ahead`: a step is planned before the previous one is done. With our C decoder, other threads
    run the end of the previous step, if that draws all ids.
    """
    near_end_results = list[bool]()
    if model.native and ahead:
        run_until_near_end = NativeRunner.run_until_near_end

        def run_and_record(runner: NativeRunner, ticket: Any) -> bool:
            near_end_results.append(run_until_near_end(runner, ticket))
            return near_end_results[-1]

        monkeypatch.setattr(NativeRunner, "run_until_near_end", run_and_record)
    seed = page_size + chunk
    world = crowded_world(random.Random(seed), page_size=page_size, session_tokens=CONTEXT)
    bounds: dict[str, Any] = {
        "block_size": page_size,
        "num_gpu_blocks_override": world.pages,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": chunk,
        "kv_offloading_size": 0.01 if host else 0.0,
        "steps_ahead": 0 if model.native else ahead,
        "threads": 1 + (model.native and ahead),
    }

    def make() -> Any:
        return oracle.build_cpu_runner(model.folder, model.dtype, **bounds)

    vocabulary = model.reference.config.vocab_size
    async with crowded_engine(letters, make, world) as harness:
        outputs = await run_sessions(harness, vocabulary, seed, world)
        stats = await harness.engine.fleet.stats()
        assert isinstance(harness.runner, NativeRunner) == model.native
    assert stats.retractions > 0
    assert stats.evicted_pages > 0
    assert not host or stats.pages_recalled > 0
    assert sum(near_end_results) > 20 or not (model.native and ahead)
    assert len(outputs) == SESSIONS * ACTIONS
    torch.set_num_threads(1)  # more would only wait for one another
    for output in outputs:
        check(output, model)


def penalise(logits: torch.Tensor, log: list[int], output: list[int], sampling: Sampling) -> None:
    """Apply penalties in place, as vLLM defines them."""
    seen, factor = list({*log, *output}), sampling.repetition_penalty
    logits[seen] = torch.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    for id, count in Counter(output).items():
        logits[id] -= sampling.presence_penalty + sampling.frequency_penalty * count


def check(turn_output: TurnOutput, model: ModelUnderTest) -> None:
    """Compare with one fresh prefill; docs/structure.md defines equal output."""
    log, output, logprobs, sampling = turn_output
    logits = oracle.full_logits(model.reference, log + output)[len(log) - 1 : -1].clone()
    for count, row in enumerate(logits):
        penalise(row, log, output[:count], sampling)
    epsilon = model.epsilon * sampling.repetition_penalty
    drawn = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    if model.dtype == "float32":
        assert output == logits.argmax(1).tolist()
    assert (logits.amax(1) - drawn).max() <= epsilon
    if logprobs is not None:
        assert len(logprobs) == len(output)
        expected = drawn - logits.logsumexp(1)
        assert (expected - torch.tensor(logprobs)).abs().max() <= 2 * epsilon
