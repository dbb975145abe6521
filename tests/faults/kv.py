"""F21 to F23: too little KV, cancelled at every step, cut and forked at every place."""

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


async def crowded(bench: Bench, chance: Random) -> None:
    """Pages for three sessions, twenty speak; some are cancelled, one fills nearly all of it."""
    engine = bench.engine

    async def live(n: int) -> None:
        talk = await Talk.open(engine, streaming=chance.random() < 0.8)
        for turn in range(2):
            said = words(chance.randrange(1, 8), seed=chance.randrange(1000))
            if chance.random() < 0.25:
                await talk.interrupt(said, chance.randrange(1, 4))
            else:
                await talk.say(said, chance.randrange(1, 10))
            if turn == 0 and chance.random() < 0.3:
                await asyncio.sleep(0)
        await talk.close()

    async def fill() -> None:
        """A prompt within a page of all there is, cancelled."""
        talk = await Talk.open(engine)
        room = PAGES * PAGE - chance.randrange(2, PAGE + 2)
        await talk.append(words(room, seed=chance.randrange(1000)))
        turn = await engine.generate(talk.session, Sampling())
        for _ in range(chance.randrange(50)):
            await asyncio.sleep(0)
        with contextlib.suppress(EngineError):
            await engine.cancel(talk.session, turn.id)
        said = await read(turn)
        assert said == oracle(talk.log, len(said))
        assert turn.ended is not None
        assert turn.ended.reason in ("cancelled", "length")
        await talk.close()

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for n in range(SESSIONS):
            group.create_task(live(n))
        group.create_task(fill())
    assert await is_healthy(engine, sessions=0)


@contextlib.asynccontextmanager
async def small_pool(folder: Path) -> AsyncIterator[Bench]:
    limit = PAGES * PAGE
    async with digest_engine(
        tiny_text(folder), pages=PAGES, page_size=PAGE, max_model_len=limit
    ) as b:
        yield b


async def cancelled(world: House, chance: Random) -> None:
    """At every step of a turn, exactly; then over the wire, at some delta of an answer."""
    prompt = chance.randrange(1, 40)
    _at_every_step(prompt, chance.randrange(2), chance.choice([1, 4, 16]), chance)
    caller = world.caller(chance.randrange(2))
    await caller.connect()
    for _ in range(2):
        await caller.say("x" * chance.randrange(1, 100))
        response = await caller.begin(max_output_tokens=200, ignore_eos=True)
        await caller.deltas(chance.randrange(6))
        cancel = {"type": "response.cancel"}
        await caller.send(**cancel)
        if response not in caller.ended:
            await caller.until("response.done")
        assert caller.ended[response]["status"] == "cancelled"
    await caller.say("and now?")
    session = world.session(caller)
    assert session is not None
    asked, header = session.conversation.render_header()
    said = oracle(asked.ids() + header, 6, stop_ids=[0])
    text = world.bench.engine.text.decode(said[:-1] if said[-1] == 0 else said)
    assert await caller.answer(max_output_tokens=6) == text
    await caller.leave()


def _at_every_step(prompt: int, ahead: int, page_size: int, chance: Random) -> None:
    steps = 0
    while True:
        desk = Desk(pages=64 if page_size > 1 else 256, page_size=page_size, batched_tokens=8)
        logs = {name: words(prompt, seed=ord(name)) for name in "ab"}
        for name, log in logs.items():
            desk.open(name)
            desk.append(name, list(log))
            desk.generate(name, 6)
        for _ in range(steps):
            nothing = desk.launch() is None
            if nothing and not desk.flying:
                break
            while desk.flying > (0 if nothing else ahead):
                desk.collect()
        over = desk.has_ended("a")
        for _ in range(chance.choice([1, 2])):
            desk.tell(CancelTurn(desk.n(), "a", "turn"))
        rows = desk.runner.rows_run
        while desk.flying:
            desk.collect()
        assert desk.runner.rows_run == rows, "no step after the one in flight"
        assert desk.has_ended("a"), "cancelled at once"
        assert len([e for e in desk.heard(TurnEnded) if e.session == "a"]) == 1
        said = desk.said("a")
        assert said == oracle(logs["a"], 6)[: len(said)]
        desk.generate("a", 3, "next")
        desk.run(ahead=ahead)
        assert desk.said("a", "next") == oracle(logs["a"] + said, 3)
        assert desk.said("b") == oracle(logs["b"], 6), "others are not disturbed"
        if over:
            return
        steps += 1


SPOKEN = "a\N{NAZAR AMULET}b\u00e9\u6f22\u5b57c\N{FAMILY} d"


async def cut(world: House, chance: Random) -> None:
    """An answer cut to any number of characters, a fork at any item: as if no more was said."""
    caller, expected = world.caller(chance.randrange(2)), world.expected()
    await caller.connect()
    await caller.say("tell me")
    said = item("item_said", SPOKEN, "assistant")
    await caller.send(type="conversation.item.create", item=said)
    await caller.until("conversation.item.done")
    if chance.random() < 0.5:
        await caller.say("to be forgotten")
        await caller.answer(max_output_tokens=4)
        for name in caller.items[2:]:
            await caller.send(type="conversation.item.delete", item_id=name)
            await caller.until("conversation.item.deleted")
    end = chance.randrange(len(SPOKEN) + 1)
    where = {"item_id": "item_said", "content_index": 0, "audio_end_ms": 0, "text_end": end}
    await caller.send(type="conversation.item.truncate", **where)
    await caller.until("conversation.item.truncated")
    await caller.send(type="conversation.item.retrieve", item_id="item_said")
    kept = (await caller.until("conversation.item.retrieved"))["item"]["content"][0]["text"]
    assert kept == SPOKEN[:end]
    expected.say("tell me")
    forked = world.expected()
    forked.ids = expected.ids[:]
    expected.said(kept)
    child = Caller(f"{caller.urls[0]}?fork={caller.session}&at=item_said")
    if chance.random() < 0.5:
        child.urls = (f"{caller.urls[0]}?fork={caller.session}&at={caller.items[0]}",)
    else:
        forked.ids = expected.ids[:]
    await child.connect()
    await child.settle()
    assert await child.answer(max_output_tokens=8) == forked.answer(8)
    assert await caller.answer(max_output_tokens=8) == expected.answer(8)
    for each in (child, caller):
        await each.leave()


@contextlib.asynccontextmanager
async def all_bytes(folder: Path) -> AsyncIterator[House]:
    """With a tokenizer that spells every character, most in several ids."""
    async with house(folder, bytes=True) as world:
        yield world


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
