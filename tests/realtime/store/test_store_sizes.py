"""Memory of a parked session in Redis: at most 2 KiB, 8 bytes a token, and 64 bytes each for
messages and idempotent requests."""

import json
import random
from pathlib import Path

import pytest

from continuo.engine import Sampling
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import StoredState, encode_entry, encode_state
from continuo.realtime.protocol.items import ContentPart, ItemRole, MessageItem
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import (
    IdempotentRequest,
    ResponseCheckpoint,
    StoredEvents,
    WriteBatch,
    keys,
    open_store,
)
from continuo.realtime.store.codec import digest
from tests.support.redis_process import RedisProcess
from tests.support.store_records import new_session

PROSE = (Path(__file__).parents[3] / "LICENSE").read_text().split()
CHARS_PER_TOKEN = 4.2
FRAME_TOKENS = 5
"""Tokens of the chat template around each message."""
LARGEST_ID = 151_000
"""Ids are log-uniform up to this one, because a vocabulary numbers frequent tokens first."""
SETTINGS = GenerationSettings(
    instructions="You are a friendly guide to the city museum. Answer in one or two short "
    "sentences, and never invent opening hours.",
    sampling=Sampling(max_tokens=256, temperature=0.8),
    extras=json.dumps({"modalities": ["text"], "voice": None, "turn_detection": None}),
)


def message(rng: random.Random, role: ItemRole, words: int) -> Span:
    start = rng.randrange(len(PROSE) - words)
    text = " ".join(PROSE[start : start + words])
    part = ContentPart("output_text" if role == "assistant" else "input_text", text)
    item = MessageItem(id=f"item_{rng.randbytes(10).hex()}", role=role, parts=(part,))
    count = FRAME_TOKENS + round(len(text) / CHARS_PER_TOKEN)
    ids = tuple(int(LARGEST_ID ** rng.random()) for _ in range(count))
    return Span((item,), ids)


@pytest.mark.parametrize(
    ("turns", "words"), [(0, 1), (1, 8), (20, 12), (200, 25), (500, 12), (20, 400)]
)
async def test_memory_of_a_parked_session_is_bounded(
    redis: RedisProcess, turns: int, words: int
) -> None:
    store = await open_store(redis.url)
    rng = random.Random(turns)
    new = new_session(
        state=encode_state(StoredState(settings=SETTINGS)),
        owner="gate-3f2a9c11d2b3a495",
        tenant="t" * 24,
        secret=rng.randbytes(32),
    )
    lease = await store.create(new)
    tokens = 0
    for turn in range(turns):
        user, assistant = message(rng, "user", words), message(rng, "assistant", words)
        response_id = f"resp_{rng.randbytes(10).hex()}"
        entry_count = 2 * turn
        checkpoint = ResponseCheckpoint(
            id=response_id, seed=rng.getrandbits(63), prompt=tokens, entry=entry_count + 1
        )
        request = IdempotentRequest(f"event_{turn}a", digest(b"item"), str(entry_count).encode())
        await store.write(
            lease,
            WriteBatch(kept_entries=entry_count, entries=(encode_entry(user),), request=request),
        )
        request = IdempotentRequest(
            f"event_{turn}b", digest(b"respond"), bytes.fromhex(response_id[5:])
        )
        await store.write(lease, WriteBatch(started_responses=(checkpoint,), request=request))
        await store.journal(lease, response_id, 0, assistant.ids)
        await store.write(
            lease,
            WriteBatch(
                kept_entries=entry_count + 1,
                entries=(encode_entry(assistant),),
                ended_responses=(response_id,),
            ),
        )
        tokens += len(user.ids) + len(assistant.ids)
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
    messages = requests = 2 * turns
    assert used <= 2048 + 8 * tokens + 64 * (messages + requests)
