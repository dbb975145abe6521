"""Random lives of eight sessions on real small models, one that torch's operations compute and one
that our own C does: whatever happened to them, each answer is what transformers gives for one fresh
prefill of the final ids.

What happens: appends of 1 to 64 ids, provisional words, cancels, rewinds, forks; turns retracted
and idle sessions evicted or spilled before every third step; the engine killed in the middle. In
fp32 the ids are identical; in bf16 each is the oracle's best but for the noise that chunking alone
makes. Log-probabilities are as near as that noise lets them be, in both.
"""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.device.native import native_runner as native
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.wire.messages import Sampling
from tests.support import transformers_oracle as oracle
from tests.support.digest_runner import VOCABULARY
from tests.support.disturbed import DisturbedScheduler
from tests.support.engines import Bench, engine_on

SESSIONS, DEEDS = 8, 7
CONTEXT = 300

SIZES: dict[str, dict[str, Any]] = {
    "torch": {"vocab_size": VOCABULARY, "head_dim": 24},
    "C": oracle.SIXTEENS,
}
SPREADS = {"float32": 0.25, "bfloat16": oracle.CALM}


class Told(NamedTuple):
    """An answer: all ids before it, those said, their log-probabilities if asked for."""

    log: list[int]
    said: list[int]
    logprobs: list[float] | None


class Subject(NamedTuple):
    """A model, as transformers has it and as a checkpoint."""

    native: bool
    """Our own C computes it."""
    dtype: str
    theirs: Any
    epsilon: float
    folder: Path


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=list(SIZES))
def subject(
    request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> Subject:
    if request.param == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    folder = tmp_path_factory.mktemp("qwen3")
    sizes = SIZES[request.param]
    theirs = oracle.small("Qwen3", spread=SPREADS[dtype], tie_word_embeddings=True, **sizes)
    theirs = theirs.to(getattr(torch, dtype))
    theirs.save_pretrained(folder)
    return Subject(request.param == "C", dtype, theirs, oracle.epsilon(theirs), folder)


async def live(engine: EngineClient, vocabulary: int, seed: int) -> list[Told]:
    """One session's life; returns what it was told."""
    source = random.Random(seed)
    session, log, answers = await engine.open(), list[int](), list[Told]()

    def words(most: int) -> list[int]:
        return [source.randrange(vocabulary) for _ in range(source.randint(1, most))]

    for _ in range(DEEDS):
        deed = source.choice(["append", "append", "speak", "rewind", "fork", "cancel"])
        if deed == "rewind" and log:
            del log[source.randint(0, len(log)) :]
            await engine.rewind(session, len(log))
        elif deed == "fork" and log:
            at = source.randint(1, len(log))
            session, log = await engine.fork(session, at), log[:at]
        elif deed == "speak":
            spoken = words(30)
            for end in range(5, len(spoken), 7):
                await engine.append(session, spoken[:end], "provisional")
                await asyncio.sleep(0)
            await engine.append(session, spoken, "commit")
            log += spoken
        if deed == "append" or not log:
            new = words(64)
            await engine.append(session, new)
            log += new
        if len(log) > CONTEXT - 80:
            log = log[: CONTEXT // 3]
            await engine.rewind(session, len(log))
        answers.append(await ask(engine, session, log, source, cancel=deed == "cancel"))
        log += answers[-1].said
    return answers


async def ask(
    engine: EngineClient, session: str, log: list[int], source: random.Random, *, cancel: bool
) -> Told:
    limit = source.randint(1, 10)
    stop_at = source.randint(1, limit) if cancel else limit + 1
    sampling = Sampling(max_tokens=limit, logprobs=0 if source.random() < 0.1 else None)
    turn = await engine.generate(session, sampling)
    said, logprobs = list[int](), list[float]()
    async for piece in turn:
        said += piece.ids
        logprobs += [each.drawn for each in piece.logprobs or []]
        if len(said) == stop_at:
            await engine.cancel(session, turn.id)
    return Told(list(log), said, None if sampling.logprobs is None else logprobs)


async def lives(bench: Bench, vocabulary: int, seed: int) -> list[Told]:
    """All of them at once; the engine dies when half of it is over."""

    async def crash() -> None:
        half = SESSIONS * DEEDS * 5 // 2
        async with asyncio.timeout(60):
            while (await bench.engine.stats()).tokens_drawn < half:
                await asyncio.sleep(0.002)
        bench.kill()

    crashing = asyncio.create_task(crash())
    each = (live(bench.engine, vocabulary, seed * 100 + n) for n in range(SESSIONS))
    told = await asyncio.gather(*each)
    await crashing
    assert bench.launches == 2
    return [answer for life in told for answer in life]


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
async def test_lives(
    subject: Subject,
    letters: Path,
    monkeypatch: pytest.MonkeyPatch,
    page_size: int,
    chunk: int,
    host: bool,
    ahead: int,
) -> None:
    """`ahead`: a step is planned before the one before is done. With our own C other threads do the
    end of that one, if all its ids are drawn there."""
    approached = list[bool]()
    if subject.native and ahead:
        monkeypatch.setattr(native, "SINGLE_THREAD_WORK_MAX", 0)
        approach = NativeRunner.run_until_near_end

        def told(runner: NativeRunner, ticket: Any) -> bool:
            approached.append(approach(runner, ticket))
            return approached[-1]

        monkeypatch.setattr(NativeRunner, "run_until_near_end", told)
    bounds: dict[str, Any] = {
        "block_size": page_size,
        "num_gpu_blocks_override": -(-CONTEXT // page_size) * 3 + 2,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": chunk,
        "kv_offloading_size": 0.01 if host else 0.0,
        "steps_ahead": 0 if subject.native else ahead,
        "threads": 1 + (subject.native and ahead),
    }

    def make() -> Any:
        return oracle.runner_of(subject.folder, subject.dtype, **bounds)

    vocabulary = subject.theirs.config.vocab_size
    async with engine_on(letters, make, scheduler=DisturbedScheduler) as bench:
        answers = await lives(bench, vocabulary, seed=page_size + chunk)
        stats = await bench.engine.stats()
        assert isinstance(bench.runner, NativeRunner) == subject.native
    assert stats.retractions > 0
    assert stats.evicted_pages > 0
    assert not host or stats.pages_recalled > 0
    assert sum(approached) > 20 or not (subject.native and ahead)
    assert len(answers) == SESSIONS * DEEDS
    for answer in answers:
        check(answer, subject)


def check(answer: Told, subject: Subject) -> None:
    """By one fresh prefill: see docs/structure.md, what the same output means."""
    log, said, logprobs = answer
    logits = oracle.whole(subject.theirs, log + said)[len(log) - 1 : -1]
    picked = logits.gather(1, torch.tensor(said)[:, None])[:, 0]
    if subject.dtype == "float32":
        assert said == logits.argmax(1).tolist()
    assert (logits.amax(1) - picked).max() <= subject.epsilon
    if logprobs is not None:
        assert len(logprobs) == len(said)
        expected = picked - logits.logsumexp(1)
        assert (expected - torch.tensor(logprobs)).abs().max() <= 2 * subject.epsilon
