"""Resident memory of continuation points: what is counted, what is evicted, and what a process
really holds."""

import asyncio
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo import engine
from continuo.engine import EngineClient, SessionGroup
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from continuo.realtime.responses.continuations import ContinuationPoint, Continuations
from continuo.realtime.responses.conversation_memory import ConversationMemory
from tests.support.checkpoints import family_template
from tests.support.sessions import user_message

MIB = 1 << 20


class NoEngine:
    """An engine whose sessions are closed without a link."""

    async def close(self, session_id: str) -> None:
        pass


def continuations(**limits: Any) -> Continuations:
    return Continuations(cast("EngineClient", NoEngine()), Limits(**limits))


def conversation(text: str = "hello", **more: Any) -> Conversation:
    start = Conversation.start(family_template("qwen3"), GenerationSettings(**more))
    return start.with_items([user_message("u", text)])


def add_point(
    points: Continuations,
    response_id: str,
    conversation: Conversation,
    parent: ContinuationPoint | None = None,
    **more: Any,
) -> ContinuationPoint:
    branch = points.branch(parent, response_id, SessionGroup())
    point = ContinuationPoint(response_id, conversation, branch, **{"tenant": "acme", **more})
    points.add(point)
    return point


# ---------------------------------------------------------------- what is counted


def test_shared_spans_count_once() -> None:
    memory = ConversationMemory()
    tools = (Tool(name="f", description="x" * 5_000),)
    before = conversation("a long text " * 1_000, instructions="be kind " * 500, tools=tools)
    first_bytes, all_bytes = memory.hold(before)
    assert all_bytes == first_bytes
    assert first_bytes > 12_000 + 4_000 + 5_000 + 32 * before.length
    after = before.with_items([user_message("v", "on")])
    second_bytes, all_bytes = memory.hold(after)
    assert second_bytes < 5_000
    assert all_bytes > first_bytes
    assert memory.release(before) < 2_000, "the other one has its spans"
    assert memory.hold(after) == (0, all_bytes), "it is held already"
    assert memory.release(after) == 0
    assert memory.release(after) > first_bytes - 2_000
    assert len(memory) == 0


def test_items_out_of_window_are_counted() -> None:
    memory = ConversationMemory()
    items = [user_message(f"u{n}", "x" * 1_000) for n in range(50)]
    first = conversation().with_items_out_of_window(items[:40])
    assert memory.hold(first)[0] > 40_000
    second = first.with_items_out_of_window(items[40:])
    assert 10_000 < memory.hold(second)[0] < 20_000
    memory.release(second)
    memory.release(first)
    assert len(memory) == 0


def test_text_counts_with_its_copy_in_utf_8() -> None:
    assert ConversationMemory().hold(conversation("漢" * 10_000))[0] >= 10_000 * (2 + 3)


# ---------------------------------------------------------------- what is evicted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(20_000, 400_000), st.integers(2, 20))
@pytest.mark.long
def test_books_balance_whatever_is_added_and_removed(
    seed: int, bytes_max: int, points_max: int
) -> None:
    asyncio.run(add_and_remove(random.Random(seed), bytes_max, points_max))


async def add_and_remove(rng: random.Random, bytes_max: int, points_max: int) -> None:
    points = continuations(
        continuation_bytes_max=bytes_max,
        continuation_points_max=points_max,
        connection_continuation_points_max=3,
    )
    known: list[ContinuationPoint] = []
    running: list[tuple[ContinuationPoint, Conversation]] = []
    for step in range(60):
        tenant = rng.choice("ab")
        own = [point for point in known if point.tenant == tenant]
        parent = rng.choice([None, *own])
        before = parent.conversation if parent else conversation()
        grown = before.with_items([user_message(f"m{step}", "x" * rng.choice([1, 100, 3_000]))])
        match rng.randrange(8):
            case 0 if known:
                points.remove(rng.choice(known).response_id)
            case 1:
                points.close_connection("c")
            case 2 if rng.random() < 0.2:
                points.close_tenant(tenant)
            case 3 | 4:
                # A response that ends later; the point that it continues may be gone by then.
                branch = points.branch(parent, f"r{step}", SessionGroup())
                running.append((ContinuationPoint(f"r{step}", grown, branch, tenant=tenant), grown))
            case 5 if running:
                point, grown = running.pop(rng.randrange(len(running)))
                if rng.random() < 0.5:
                    points.add(point)
                    known.append(point)
                else:
                    points.abandon(point.branch, grown, point.tenant)
            case _:
                connection = rng.choice([None, "c"])
                point = add_point(
                    points, f"r{step}", grown, parent, tenant=tenant, connection=connection
                )
                known.append(point)
        assert points.held_bytes <= bytes_max
        assert len(points) <= points_max
        found = [point for point in known if points.find(point.response_id, point.tenant, "c")]
        assert len(found) == len(points)
        assert points.held_bytes == expected_bytes(found)
    for point, grown in running:
        points.abandon(point.branch, grown, point.tenant)
    await points.close()
    assert (len(points), points.held_bytes, len(points._memory)) == (0, 0, 0)


def expected_bytes(points: list[ContinuationPoint]) -> int:
    """Count the bytes of points anew."""
    memory = ConversationMemory()
    branches = {point.branch for point in points}
    newest = [branch.newest for branch in branches if branch.newest is not None]
    assert len(newest) == len(branches)
    return (
        sum(memory.hold(point.conversation)[0] + 1024 for point in points)
        + sum(memory.hold(each)[0] for each in newest)
        + sum(4096 + 8 * each.length for each in newest)
    )


async def test_tenant_over_its_share_makes_room_for_others() -> None:
    points = continuations(continuation_bytes_max=8 * MIB)
    theirs = add_point(points, "theirs", conversation(), tenant="small")
    for n in range(100):
        add_point(points, f"mine {n}", conversation("x" * 20_000), tenant="large")
    assert len(points) < 100
    assert points.find(theirs.response_id, "small", None), "the other tenant is over its share"
    assert points.find("mine 99", "large", None)
    await points.close()


async def test_point_over_the_share_of_a_tenant_is_not_kept() -> None:
    points = continuations(continuation_bytes_max=16 * MIB)
    kept = add_point(points, "kept", conversation())
    long = conversation("x y " * 50_000)
    add_point(points, "long", long)
    assert points.find("long", "acme", None) is None
    held_bytes = points.held_bytes
    continued = add_point(points, "continued", long, kept)
    assert points.find("continued", "acme", None) is None
    assert kept.branch.newest is continued.conversation, "the engine session has it"
    assert points.held_bytes > held_bytes
    assert points.find("kept", "acme", None)
    await points.close()
    assert points.held_bytes == 0


async def test_shared_history_is_kept_while_a_point_has_it() -> None:
    """The oldest points go first, but what they share with newer ones stays, and stays counted."""
    points = continuations(continuation_bytes_max=8 * MIB, continuation_points_max=2)
    parent = add_point(points, "r0", conversation("x y " * 5_000))
    shared_bytes = points.held_bytes // 2
    for n in range(1, 10):
        grown = parent.conversation.with_items([user_message(f"u{n}", "on")])
        parent = add_point(points, f"r{n}", grown, parent)
    assert len(points) == 2
    assert points.held_bytes > shared_bytes
    await points.close()


# ---------------------------------------------------------------- what a process holds

BYTES_MAX = 48 * MIB

FILL = f"""
import asyncio, gc, random, sys
from continuo.engine import SessionGroup
from continuo.engine.text import ModelText
from continuo.engine.allocator import give_memory_back
from continuo.realtime.limits import Limits
from continuo.realtime.responses.continuations import ContinuationPoint, Continuations
from tests.realtime.responses.test_continuation_memory import NoEngine, worst_conversations

text = ModelText(sys.argv[1])

def resident_bytes():
    text._tokenizer._encodings.clear()
    gc.collect()
    give_memory_back()
    return int(open("/proc/self/statm").read().split()[1]) * {resource.getpagesize()}

async def fill(bytes_max):
    limits = Limits(continuation_bytes_max=bytes_max, continuation_points_max=1 << 30)
    points, parent, added = Continuations(NoEngine(), limits), None, 0
    for conversation, is_continued in worst_conversations(sys.argv[2], text.template):
        branch = points.branch(parent if is_continued else None, str(added), SessionGroup())
        branch.engine_session._spans = conversation.all_spans
        parent = ContinuationPoint(str(added), conversation, branch, tenant="acme")
        points.add(parent)
        added += 1
        if len(points) < added:
            return points

async def main():
    await (await fill({BYTES_MAX >> 3})).close()
    before = resident_bytes()
    points = await fill({BYTES_MAX})
    counted, held = points.held_bytes, resident_bytes() - before
    await points.close()
    print(held, resident_bytes() - before, counted, points.held_bytes)

asyncio.run(main())
"""


def worst_conversations(kind: str, template: Any) -> Iterator[tuple[Conversation, bool]]:
    """Yield conversations without end, of a kind that takes much memory for its length. With each
    comes whether it continues the one before."""
    rng = random.Random(1)
    start = Conversation.start(template, GenerationSettings())
    current, n = start, 0
    while True:
        n += 1
        is_continued = False
        match kind:
            case "short":
                current = start.with_items([user_message(f"u{n}", "hi")])
            case "long text":
                letters = "".join(rng.choices("ab é漢😀", k=9_999))
                current = start.with_items([user_message("u", letters)])
            case "ids":
                ids = tuple(rng.randrange(300, 1 << 20) for _ in range(50_000))
                span = Span(ids=ids, response_id="r", sampled_ids=ids)
                current = msgspec.structs.replace(start, spans=(span,))
            case "items":
                items = [user_message(f"message {m} of {n}", "hi there") for m in range(4_096)]
                current = start.with_items_out_of_window(items)
            case _:
                is_continued = n % 2_000 != 0
                span = Span((user_message(f"u{n}", "hi"),), (300 + n, 301 + n))
                spans = (*current.spans, span) if is_continued else (span,)
                current = msgspec.structs.replace(start, spans=spans)
        yield current, is_continued


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["short", "long text", "ids", "items", "chain"])
def test_worst_points_stay_within_their_memory_and_give_it_back(kind: str) -> None:
    folder = Path(engine.__file__).parent / "bundled" / "demo"
    done = subprocess.run(
        [sys.executable, "-c", FILL, folder, kind], capture_output=True, text=True, check=True
    )
    held, left, counted, counted_left = map(int, done.stdout.split())
    assert BYTES_MAX * 0.9 < counted <= BYTES_MAX
    assert held <= BYTES_MAX * 1.2
    assert left <= 20_000_000
    assert counted_left == 0
