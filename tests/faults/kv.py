"""F21 to F23: too little KV; cancels at every step; truncation and forks at every position."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from continuo.engine import EngineError
from continuo.engine.wire.messages import CancelTurn, Sampling, TurnEnded
from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.row import FaultRow
from tests.support.clients import message_item
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import CheckedSession, collect_ids, is_healthy, prompt_ids
from tests.support.engines import EngineHarness, digest_engine, write_tiny_model

PAGES, PAGE_SIZE, SESSION_COUNT = 30, 4, 20


async def crowd_small_pool(harness: EngineHarness, rng: Random) -> None:
    """Run SESSIONS sessions on pages for three, some with cancels, and one that fills the pool."""
    engine = harness.engine

    async def run_session() -> None:
        session = await CheckedSession.open(engine, streaming=rng.random() < 0.8)
        for turn in range(2):
            prompt = prompt_ids(rng.randrange(1, 8), seed=rng.randrange(1000))
            if rng.random() < 0.25:
                await session.run_cancelled_turn(prompt, rng.randrange(1, 4))
            else:
                await session.run_turn(prompt, rng.randrange(1, 10))
            if turn == 0 and rng.random() < 0.3:
                await asyncio.sleep(0)
        await session.close()

    async def fill_pool() -> None:
        """Cancel a turn whose prompt leaves at most about one page free."""
        session = await CheckedSession.open(engine)
        prompt_tokens = PAGES * PAGE_SIZE - rng.randrange(2, PAGE_SIZE + 2)
        await session.append(prompt_ids(prompt_tokens, seed=rng.randrange(1000)))
        turn = await engine.generate(session.id, Sampling())
        for _ in range(rng.randrange(50)):
            await asyncio.sleep(0)
        with contextlib.suppress(EngineError):
            await engine.cancel(session.id, turn.id)
        output = await collect_ids(turn)
        assert output == oracle(session.token_ids, len(output))
        assert turn.ended is not None
        assert turn.ended.reason in ("cancelled", "length")
        await session.close()

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for _ in range(SESSION_COUNT):
            group.create_task(run_session())
        group.create_task(fill_pool())
    assert await is_healthy(engine, sessions=0)


@contextlib.asynccontextmanager
async def engine_with_small_pool(folder: Path) -> AsyncIterator[EngineHarness]:
    limit = PAGES * PAGE_SIZE
    async with digest_engine(
        write_tiny_model(folder), pages=PAGES, page_size=PAGE_SIZE, max_model_len=limit
    ) as harness:
        yield harness


async def cancel_at_every_step(deployment: Deployment, rng: Random) -> None:
    """Cancel at every step of a turn in the engine core, then over the wire at a random delta."""
    prompt_tokens = rng.randrange(1, 40)
    _cancel_at_each_step(prompt_tokens, rng.randrange(2), rng.choice([1, 4, 16]), rng)
    client = deployment.create_client(rng.randrange(2))
    await client.connect()
    for _ in range(2):
        await client.add_message("x" * rng.randrange(1, 100))
        response = await client.start_response(max_output_tokens=200, ignore_eos=True)
        await client.wait_deltas(rng.randrange(6))
        await client.send(type="response.cancel")
        if response not in client.ended_responses:
            await client.wait_for("response.done")
        assert client.ended_responses[response]["status"] == "cancelled"
    await client.add_message("and now?")
    session = deployment.find_session(client)
    assert session is not None
    prompt, header = session.conversation.render_header()
    output = oracle(prompt.ids() + header, 6, stop_ids=[0])
    text = deployment.engine_harness.engine.text.decode(output[:-1] if output[-1] == 0 else output)
    assert await client.complete_response(max_output_tokens=6) == text
    await client.close_session()


def _cancel_at_each_step(prompt_tokens: int, steps_ahead: int, page_size: int, rng: Random) -> None:
    """Run turn `a` beside turn `b`, cancelled after 0, 1, 2 … steps until it ends by itself."""
    steps = 0
    while True:
        core = CoreHarness(
            pages=64 if page_size > 1 else 256, page_size=page_size, batched_tokens=8
        )
        prompts = {name: prompt_ids(prompt_tokens, seed=ord(name)) for name in "ab"}
        for name, ids in prompts.items():
            core.open(name)
            core.append(name, list(ids))
            core.generate(name, 6)
        for _ in range(steps):
            is_idle = core.launch() is None
            if is_idle and not core.steps_in_flight:
                break
            while core.steps_in_flight > (0 if is_idle else steps_ahead):
                core.collect()
        ended_before_cancel = core.has_turn_ended("a")
        for _ in range(rng.choice([1, 2])):
            core.submit(CancelTurn(core.next_number(), "a", "turn"))
        rows = core.runner.row_count
        while core.steps_in_flight:
            core.collect()
        assert core.runner.row_count == rows, "another step was launched after the cancel"
        assert core.has_turn_ended("a"), "not cancelled with the step in flight"
        assert len([e for e in core.events_of(TurnEnded) if e.session == "a"]) == 1
        output = core.turn_ids("a")
        assert output == oracle(prompts["a"], 6)[: len(output)]
        core.generate("a", 3, "next")
        core.run(ahead=steps_ahead)
        assert core.turn_ids("a", "next") == oracle(prompts["a"] + output, 3)
        assert core.turn_ids("b") == oracle(prompts["b"], 6), "the cancel disturbed another turn"
        if ended_before_cancel:
            return
        steps += 1


ASSISTANT_TEXT = "a\N{NAZAR AMULET}b\u00e9\u6f22\u5b57c\N{FAMILY} d"


async def truncate_and_fork(deployment: Deployment, rng: Random) -> None:
    """Truncate an assistant item at a random character, and fork the session at a random item.

    The next response must be as if the removed text had never been in the conversation.
    """
    client, expected = (
        deployment.create_client(rng.randrange(2)),
        deployment.expected_conversation(),
    )
    await client.connect()
    await client.add_message("tell me")
    assistant_item = message_item(ASSISTANT_TEXT, "item_said", "assistant")
    await client.send(type="conversation.item.create", item=assistant_item)
    await client.wait_for("conversation.item.done")
    if rng.random() < 0.5:
        await client.add_message("to be forgotten")
        await client.complete_response(max_output_tokens=4)
        for name in client.item_ids[2:]:
            await client.send(type="conversation.item.delete", item_id=name)
            await client.wait_for("conversation.item.deleted")
    end = rng.randrange(len(ASSISTANT_TEXT) + 1)
    position = {"item_id": "item_said", "content_index": 0, "audio_end_ms": 0, "text_end": end}
    await client.send(type="conversation.item.truncate", **position)
    await client.wait_for("conversation.item.truncated")
    await client.send(type="conversation.item.retrieve", item_id="item_said")
    kept = (await client.wait_for("conversation.item.retrieved"))["item"]["content"][0]["text"]
    assert kept == ASSISTANT_TEXT[:end]
    expected.add_user_message("tell me")
    forked = deployment.expected_conversation()
    forked.ids = expected.ids[:]
    expected.add_assistant_message(kept)
    child = ReconnectingClient(f"{client.urls[0]}?fork={client.session_id}&at=item_said")
    if rng.random() < 0.5:
        child.urls = (f"{client.urls[0]}?fork={client.session_id}&at={client.item_ids[0]}",)
    else:
        forked.ids = expected.ids[:]
    await child.connect()
    await child.synchronize()
    assert await child.complete_response(max_output_tokens=8) == forked.compute_response(8)
    assert await client.complete_response(max_output_tokens=8) == expected.compute_response(8)
    for each in (child, client):
        await each.close_session()


@contextlib.asynccontextmanager
async def deployment_with_byte_tokenizer(folder: Path) -> AsyncIterator[Deployment]:
    """Deployment with a tokenizer for every character, most of them of several ids."""
    async with running_deployment(folder, bytes=True) as deployment:
        yield deployment


ROWS = (
    FaultRow(
        id="F21",
        fault=f"{SESSION_COUNT} sessions share pages for three; one prompt takes nearly all",
        expectation="every turn ends, with the ids of a fresh prefill; no page leaks",
        environment=engine_with_small_pool,
        trial=crowd_small_pool,
        full_trials=200,
        quick_trials=3,
    ),
    FaultRow(
        id="F22",
        fault="a cancel at every step of a turn, once and twice; at any delta over the wire",
        expectation="no step after the one in flight, one end, other sessions undisturbed, the "
        "next turn correct",
        environment=running_deployment,
        trial=cancel_at_every_step,
        full_trials=200,
        quick_trials=3,
    ),
    FaultRow(
        id="F23",
        fault="a response truncated at any character, also of several tokens; a fork at any item",
        expectation="the next response is that of a fresh prefill; no character is split",
        environment=deployment_with_byte_tokenizer,
        trial=truncate_and_fork,
        full_trials=500,
        quick_trials=6,
    ),
)
