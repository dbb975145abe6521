"""Random lives of eight sessions on a real small model: whatever happened to them, each answer is
what transformers gives for one fresh prefill of the final ids.

What happens: appends of 1 to 64 ids, provisional words, cancels, rewinds, forks; turns retracted
and idle sessions evicted or spilled before every third step; the engine killed in the middle. In
fp32 the ids are identical; in bf16 each is the oracle's best but for the noise that chunking alone
makes.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch

from engine.front import Engine
from engine.messages import Sampling
from tests.support.digest_runner import VOCABULARY
from tests.support.disturbed import DisturbedScheduler
from tests.support.engines import Bench, engine_on

SESSIONS, DEEDS = 8, 7
CONTEXT = 300
NOISE_FACTOR = 4.0
LOGPROB_TOLERANCE = 1e-3

Answer = tuple[list[int], list[int], list[float]]
"""(all ids before, ids said, their log-probabilities)"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("qwen3")
    made = oracle.small("Qwen3", vocab_size=VOCABULARY, head_dim=24, tie_word_embeddings=True)
    made.save_pretrained(folder)
    return made, folder


async def live(engine: Engine, seed: int) -> list[Answer]:
    """One session's life; returns what it was told."""
    source = random.Random(seed)
    session, log, answers = await engine.open(), list[int](), list[Answer]()

    def words(most: int) -> list[int]:
        return [source.randrange(VOCABULARY) for _ in range(source.randint(1, most))]

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
        log += answers[-1][1]
    return answers


async def ask(
    engine: Engine, session: str, log: list[int], source: random.Random, *, cancel: bool
) -> Answer:
    limit = source.randint(1, 10)
    stop_at = source.randint(1, limit) if cancel else limit + 1
    turn = await engine.generate(session, Sampling(max_tokens=limit, logprobs=0))
    said, logprobs = list[int](), list[float]()
    async for piece in turn:
        said += piece.ids
        logprobs += [each.drawn for each in piece.logprobs or []]
        if len(said) == stop_at:
            await engine.cancel(session, turn.id)
    return list(log), said, logprobs


async def lives(bench: Bench, seed: int) -> list[Answer]:
    """All of them at once; the engine dies when half of it is over."""

    async def crash() -> None:
        half = SESSIONS * DEEDS * 5 // 2
        async with asyncio.timeout(60):
            while (await bench.engine.stats()).tokens_drawn < half:
                await asyncio.sleep(0.002)
        bench.kill()

    crashing = asyncio.create_task(crash())
    told = await asyncio.gather(*(live(bench.engine, seed * 100 + n) for n in range(SESSIONS)))
    await crashing
    assert bench.launches == 2
    return [answer for life in told for answer in life]


def settings(page_size: int, chunk: int, host: bool, ahead: int) -> dict[str, Any]:
    return {
        "block_size": page_size,
        "num_gpu_blocks_override": -(-CONTEXT // page_size) * 3 + 2,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": chunk,
        "kv_offloading_size": 0.01 if host else 0.0,
        "steps_ahead": ahead,
    }


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
async def test_lives_in_fp32(
    model: tuple[Any, Path], letters: Path, page_size: int, chunk: int, host: bool, ahead: int
) -> None:
    made, folder = model
    bounds = settings(page_size, chunk, host, ahead)

    def make() -> Any:
        return oracle.runner_of(folder, **bounds)

    async with engine_on(letters, make, scheduler=DisturbedScheduler) as bench:
        answers = await lives(bench, seed=page_size + chunk)
        stats = await bench.engine.stats()
        assert ahead or stats.retractions > 0, "a step ahead, hardly anything can be retracted"
        assert stats.evicted_pages > 0
        assert not host or stats.pages_recalled > 0
    assert len(answers) == SESSIONS * DEEDS
    for log, said, logprobs in answers:
        logits = oracle.whole(made, log + said)[len(log) - 1 : -1]
        assert said == logits.argmax(1).tolist()
        expected = logits.log_softmax(1).gather(1, torch.tensor(said)[:, None])[:, 0]
        assert (expected - torch.tensor(logprobs)).abs().max() < LOGPROB_TOLERANCE


@pytest.mark.parametrize(("page_size", "chunk"), [(16, 8), (1, 512)])
async def test_lives_in_bf16(
    model: tuple[Any, Path], letters: Path, tmp_path: Path, page_size: int, chunk: int
) -> None:
    """The teacher-forced rule: see docs/structure.md, what the same output means."""
    made = type(model[0])(model[0].config)
    made.load_state_dict(model[0].state_dict())
    made = made.to(torch.bfloat16).eval()
    made.save_pretrained(tmp_path)
    bounds = settings(page_size, chunk, host=True, ahead=0)

    def make() -> Any:
        return oracle.runner_of(tmp_path, "bfloat16", **bounds)

    async with engine_on(letters, make, scheduler=DisturbedScheduler) as bench:
        answers = await lives(bench, seed=7)
    wanted = [oracle.whole(made, log + said) for log, said, _ in answers]
    made.set_attn_implementation("sdpa")
    stepped = [oracle.token_by_token(made, log + said) for log, said, _ in answers[:6]]
    noise = max((a - b).abs().max().item() for a, b in zip(wanted, stepped, strict=False))
    epsilon = NOISE_FACTOR * noise
    assert 0 < epsilon < torch.cat(wanted).std(), "the rule would accept nothing, or anything"
    for (log, said, logprobs), logits in zip(answers, wanted, strict=True):
        answers_at = logits[len(log) - 1 : -1]
        picked = answers_at.gather(1, torch.tensor(said)[:, None])[:, 0]
        assert (answers_at.amax(1) - picked).max() <= epsilon
        expected = picked - answers_at.logsumexp(1)
        assert (expected - torch.tensor(logprobs)).abs().max() <= 2 * epsilon
