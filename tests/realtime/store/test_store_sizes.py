"""Memory of a parked session in Redis: at most 2 KiB and 8 bytes a token."""

import json
import random
from pathlib import Path

import pytest

from continuo.realtime.store import (
    Entry,
    IdempotentRequest,
    ResponseCheckpoint,
    StoredEvents,
    WriteBatch,
    keys,
    open_store,
)
from tests.support.redis_process import RedisProcess
from tests.support.store_records import new_session

PROSE = (Path(__file__).parents[3] / "LICENSE").read_text().split()
CHARS_PER_TOKEN = 4.2
FRAME_TOKENS = 5
"""Tokens of the chat template around each message."""
LARGEST_ID = 151_000
"""Ids are log-uniform up to this one, because a vocabulary numbers frequent tokens first."""
SETTINGS = json.dumps(
    {
        "instructions": "You are a friendly guide to the city museum. Answer in one or two short "
        "sentences, and never invent opening hours.",
        "tools": [],
        "tool_choice": {"mode": "auto", "name": None},
        "max_output_tokens": None,
        "sampling": {"max_tokens": 256, "temperature": 0.8, "top_k": 0, "top_p": 1.0},
        "extras": json.dumps({"modalities": ["text"], "voice": None, "turn_detection": None}),
    }
).encode()


def message(rng: random.Random, role: str, words: int) -> Entry:
    start = rng.randrange(len(PROSE) - words)
    text = " ".join(PROSE[start : start + words])
    kind = "output_text" if role == "assistant" else "input_text"
    body = {
        "type": "message",
        "id": f"item_{rng.randbytes(10).hex()}",
        "role": role,
        "parts": [{"kind": kind, "text": text}],
        "status": "completed",
    }
    count = FRAME_TOKENS + round(len(text) / CHARS_PER_TOKEN)
    ids = tuple(int(LARGEST_ID ** rng.random()) for _ in range(count))
    return Entry(json.dumps([body], separators=(",", ":")).encode(), ids)


@pytest.mark.parametrize(
    ("turns", "words"), [(0, 1), (1, 8), (20, 12), (200, 25), (500, 12), (20, 400)]
)
async def test_parked_session_takes_at_most_2_kib_and_8_bytes_a_token(
    redis: RedisProcess, turns: int, words: int
) -> None:
    store = await open_store(redis.url)
    rng = random.Random(turns)
    new = new_session(
        state=SETTINGS, owner="gate-3f2a9c11d2b3a495", tenant="t" * 24, secret=rng.randbytes(32)
    )
    lease = await store.create(new)
    tokens = 0
    for turn in range(turns):
        user_entry, assistant_entry = (message(rng, role, words) for role in ("user", "assistant"))
        response_id = f"resp_{rng.randbytes(10).hex()}"
        entry_count = 2 * turn
        checkpoint = ResponseCheckpoint(
            id=response_id, seed=rng.getrandbits(63), prompt=tokens, entry=entry_count + 1
        )
        request = IdempotentRequest(f"event_{turn}a", b"item", str(entry_count).encode())
        await store.write(
            lease, WriteBatch(kept_entries=entry_count, entries=(user_entry,), request=request)
        )
        request = IdempotentRequest(f"event_{turn}b", b"respond", bytes.fromhex(response_id[5:]))
        await store.write(lease, WriteBatch(started_responses=(checkpoint,), request=request))
        await store.journal(lease, response_id, 0, assistant_entry.ids)
        await store.write(
            lease,
            WriteBatch(
                kept_entries=entry_count + 1,
                entries=(assistant_entry,),
                ended_responses=(response_id,),
            ),
        )
        tokens += len(user_entry.ids) + len(assistant_entry.ids)
    await store.write(lease, WriteBatch(events=StoredEvents(0, (b'{"type":"session.updated"}',))))
    await store.extend_deadline(lease, 60, is_parked=True)
    async with redis.client() as client:
        parts = [
            await client.memory_usage(key, samples=0) or 0 for key in keys.session_keys(new.id)
        ]
        index = await client.memory_usage(keys.DEADLINES_KEY, samples=0) or 0
        used = sum(parts) + index // await client.zcard(keys.DEADLINES_KEY)
    await store.delete(lease)
    await store.aclose()
    print(f"{turns} turns of {words} words, {tokens} tokens: {used} bytes {parts}")
    assert used <= 2048 + 8 * tokens
