"""F21 to F23: too little KV; cancels at every step; truncation and forks at every position."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from continuo.engine import EngineError
from continuo.engine.wire.messages import CancelTurn, Sampling, TurnEnded
from tests.faults.caller import Caller, item
from tests.faults.deployment import House, house
from tests.faults.row import Row
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import Talk, is_healthy, read, words
from tests.support.engines import Bench, digest_engine, tiny_text

PAGES, PAGE, SESSIONS = 30, 4, 20


async def crowded(bench: Bench, rng: Random) -> None:
    """Run SESSIONS sessions on pages for three, some with cancels, and one that fills the pool."""
    engine = bench.engine

    async def run_session() -> None:
        session = await Talk.open(engine, streaming=rng.random() < 0.8)
        for turn in range(2):
            prompt = words(rng.randrange(1, 8), seed=rng.randrange(1000))
            if rng.random() < 0.25:
                await session.interrupt(prompt, rng.randrange(1, 4))
            else:
                await session.say(prompt, rng.randrange(1, 10))
            if turn == 0 and rng.random() < 0.3:
                await asyncio.sleep(0)
        await session.close()

    async def fill_pool() -> None:
        """Cancel a turn whose prompt leaves at most about one page free."""
        session = await Talk.open(engine)
        prompt_tokens = PAGES * PAGE - rng.randrange(2, PAGE + 2)
        await session.append(words(prompt_tokens, seed=rng.randrange(1000)))
        turn = await engine.generate(session.session, Sampling())
        for _ in range(rng.randrange(50)):
            await asyncio.sleep(0)
        with contextlib.suppress(EngineError):
            await engine.cancel(session.session, turn.id)
        output = await read(turn)
        assert output == oracle(session.log, len(output))
        assert turn.ended is not None
        assert turn.ended.reason in ("cancelled", "length")
        await session.close()

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for _ in range(SESSIONS):
            group.create_task(run_session())
        group.create_task(fill_pool())
    assert await is_healthy(engine, sessions=0)


@contextlib.asynccontextmanager
async def small_pool(folder: Path) -> AsyncIterator[Bench]:
    limit = PAGES * PAGE
    async with digest_engine(
        tiny_text(folder), pages=PAGES, page_size=PAGE, max_model_len=limit
    ) as bench:
        yield bench


async def cancelled(deployment: House, rng: Random) -> None:
    """Cancel at every step of a turn in the engine core, then over the wire at a random delta."""
    prompt_tokens = rng.randrange(1, 40)
    _cancel_at_each_step(prompt_tokens, rng.randrange(2), rng.choice([1, 4, 16]), rng)
    client = deployment.caller(rng.randrange(2))
    await client.connect()
    for _ in range(2):
        await client.say("x" * rng.randrange(1, 100))
        response = await client.begin(max_output_tokens=200, ignore_eos=True)
        await client.deltas(rng.randrange(6))
        await client.send(type="response.cancel")
        if response not in client.ended:
            await client.until("response.done")
        assert client.ended[response]["status"] == "cancelled"
    await client.say("and now?")
    session = deployment.session(client)
    assert session is not None
    prompt, header = session.conversation.render_header()
    output = oracle(prompt.ids() + header, 6, stop_ids=[0])
    text = deployment.bench.engine.text.decode(output[:-1] if output[-1] == 0 else output)
    assert await client.answer(max_output_tokens=6) == text
    await client.leave()


def _cancel_at_each_step(prompt_tokens: int, steps_ahead: int, page_size: int, rng: Random) -> None:
    """Run turn `a` beside turn `b`, cancelled after 0, 1, 2 … steps until it ends by itself."""
    steps = 0
    while True:
        core = Desk(pages=64 if page_size > 1 else 256, page_size=page_size, batched_tokens=8)
        prompts = {name: words(prompt_tokens, seed=ord(name)) for name in "ab"}
        for name, ids in prompts.items():
            core.open(name)
            core.append(name, list(ids))
            core.generate(name, 6)
        for _ in range(steps):
            is_idle = core.launch() is None
            if is_idle and not core.flying:
                break
            while core.flying > (0 if is_idle else steps_ahead):
                core.collect()
        ended_before_cancel = core.has_ended("a")
        for _ in range(rng.choice([1, 2])):
            core.tell(CancelTurn(core.n(), "a", "turn"))
        rows = core.runner.rows_run
        while core.flying:
            core.collect()
        assert core.runner.rows_run == rows, "another step was launched after the cancel"
        assert core.has_ended("a"), "not cancelled with the step in flight"
        assert len([e for e in core.heard(TurnEnded) if e.session == "a"]) == 1
        output = core.said("a")
        assert output == oracle(prompts["a"], 6)[: len(output)]
        core.generate("a", 3, "next")
        core.run(ahead=steps_ahead)
        assert core.said("a", "next") == oracle(prompts["a"] + output, 3)
        assert core.said("b") == oracle(prompts["b"], 6), "the cancel disturbed another turn"
        if ended_before_cancel:
            return
        steps += 1


SPOKEN = "a\N{NAZAR AMULET}b\u00e9\u6f22\u5b57c\N{FAMILY} d"


async def cut(deployment: House, rng: Random) -> None:
    """Truncate an assistant item at a random character, and fork the session at a random item.

    The next response must be as if the removed text had never been in the conversation.
    """
    client, expected = deployment.caller(rng.randrange(2)), deployment.expected()
    await client.connect()
    await client.say("tell me")
    assistant_item = item("item_said", SPOKEN, "assistant")
    await client.send(type="conversation.item.create", item=assistant_item)
    await client.until("conversation.item.done")
    if rng.random() < 0.5:
        await client.say("to be forgotten")
        await client.answer(max_output_tokens=4)
        for name in client.items[2:]:
            await client.send(type="conversation.item.delete", item_id=name)
            await client.until("conversation.item.deleted")
    end = rng.randrange(len(SPOKEN) + 1)
    position = {"item_id": "item_said", "content_index": 0, "audio_end_ms": 0, "text_end": end}
    await client.send(type="conversation.item.truncate", **position)
    await client.until("conversation.item.truncated")
    await client.send(type="conversation.item.retrieve", item_id="item_said")
    kept = (await client.until("conversation.item.retrieved"))["item"]["content"][0]["text"]
    assert kept == SPOKEN[:end]
    expected.say("tell me")
    forked = deployment.expected()
    forked.ids = expected.ids[:]
    expected.said(kept)
    child = Caller(f"{client.urls[0]}?fork={client.session}&at=item_said")
    if rng.random() < 0.5:
        child.urls = (f"{client.urls[0]}?fork={client.session}&at={client.items[0]}",)
    else:
        forked.ids = expected.ids[:]
    await child.connect()
    await child.settle()
    assert await child.answer(max_output_tokens=8) == forked.answer(8)
    assert await client.answer(max_output_tokens=8) == expected.answer(8)
    for each in (child, client):
        await each.leave()


@contextlib.asynccontextmanager
async def all_bytes(folder: Path) -> AsyncIterator[House]:
    """Deployment with a tokenizer for every character, most of them of several ids."""
    async with house(folder, bytes=True) as deployment:
        yield deployment


ROWS = (
    Row(
        id="F21",
        fault=f"{SESSIONS} sessions speak where there are pages for three; a prompt of nearly all",
        passes="every turn ends, with the ids of a fresh prefill; no page is left over",
        world=small_pool,
        trial=crowded,
        full=200,
        few=3,
    ),
    Row(
        id="F22",
        fault="cancel at every step of a turn, once and twice; at any delta over the wire",
        passes="no step after the one in flight, one end, others undisturbed, the next turn right",
        world=house,
        trial=cancelled,
        full=200,
        few=3,
    ),
    Row(
        id="F23",
        fault="an answer cut at any character, also of several tokens; a fork at any item",
        passes="the next answer is that of a fresh prefill; no character is half",
        world=all_bytes,
        trial=cut,
        full=500,
        few=6,
    ),
)
