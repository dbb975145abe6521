"""Memory of idempotency keys: bounded in bytes; a key that was evicted is found in the store."""

import resource
import subprocess
import sys
from functools import partial

import pytest

from continuo.realtime.persistence.session_writer import (
    DesiredSession,
    SessionChanges,
    SessionWriter,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.session.idempotency_keys import (
    IDEMPOTENCY_MEMORY_BYTES_MAX,
    IdempotencyKeys,
)
from continuo.realtime.store import IdempotencyConflict, IdempotentRequest, open_store
from continuo.realtime.tenants.ledger import TenantLedger
from tests.support.store_records import new_session


def desired_session() -> DesiredSession:
    return DesiredSession(
        settings=GenerationSettings(),
        entries=(),
        epoch=0,
        first_offset=0,
        next_offset=0,
        started_responses=(),
        encode_events_since=lambda _: [],
    )


def held_bytes(recorded: dict[str, IdempotentRequest]) -> int:
    return sys.getsizeof(recorded) + sum(
        sys.getsizeof(request)
        + sys.getsizeof(request.key)
        + sys.getsizeof(request.content_digest)
        + sys.getsizeof(request.result)
        for request in recorded.values()
    )


@pytest.mark.parametrize(
    ("key_chars", "content_bytes"), [(0, 100_000), (500, 10)], ids=["large content", "long keys"]
)
async def test_memory_of_keys_is_bounded_and_the_store_knows_evicted_ones(
    key_chars: int, content_bytes: int
) -> None:
    store = await open_store("sqlite://:memory:")
    recorded: dict[str, IdempotentRequest] = {}
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new, completed_requests=recorded)
    ledger = TenantLedger("acme")
    hold = partial(ledger.hold, "idempotency_keys")
    keys = IdempotencyKeys(writer, recorded, is_complete=True, hold=hold)
    padding, content = "\U0001f600" * key_chars, b"x" * content_bytes
    for n in range(1_000):
        request = IdempotentRequest.of(f"{n}{padding}", content)
        assert await keys.find_result(request) is None
        request = IdempotentRequest(request.key, request.content_digest, b"item_%d" % n)
        await writer.write(desired_session(), SessionChanges(request=request))
        keys.record(request)

    assert held_bytes(recorded) <= IDEMPOTENCY_MEMORY_BYTES_MAX
    charged = ledger.held_bytes["idempotency_keys"]
    assert IDEMPOTENCY_MEMORY_BYTES_MAX * 0.9 < charged <= IDEMPOTENCY_MEMORY_BYTES_MAX
    first, last = f"0{padding}", f"999{padding}"
    assert first not in recorded
    assert await keys.find_result(IdempotentRequest.of(first, content)) == b"item_0"
    assert await keys.find_result(IdempotentRequest.of(last, content)) == b"item_999"
    with pytest.raises(IdempotencyConflict, match="0"):
        await keys.find_result(IdempotentRequest.of(first, content + b"y"))
    keys.release()
    keys.record(IdempotentRequest.of("late", content))
    keys.release()
    assert ledger.held_bytes["idempotency_keys"] == 0
    await store.aclose()


async def test_outcomes_that_were_not_written_are_bounded_too() -> None:
    """A client can cancel without end while nothing is written."""
    store = await open_store("sqlite://:memory:")
    new = new_session()
    writer = SessionWriter(store, await store.create(new), new)
    keys = IdempotencyKeys(writer, {}, is_complete=True)
    for n in range(2_000):
        keys.record_unwritten(IdempotentRequest.of(f"event_{n}", b"cancel"))
    written: list[str] = []

    async def write(request: IdempotentRequest) -> None:
        written.append(request.key)

    await keys.write_pending(write)
    assert written[-1] == "event_1999"
    assert len(written) < 1_000
    await store.aclose()


SESSIONS = 150
FILL = f"""
import gc
import sys
from functools import partial
from continuo.engine import give_memory_back
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.store import IdempotentRequest
from continuo.realtime.tenants.ledger import TenantLedger

chars, letter, record = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def resident_bytes():
    gc.collect()
    give_memory_back()
    return int(open("/proc/self/statm").read().split()[1]) * {resource.getpagesize()}

def fill(ledger):
    hold = partial(ledger.hold, "idempotency_keys")
    sessions = [IdempotencyKeys(None, {{}}, is_complete=True, hold=hold) for _ in range({SESSIONS})]
    for number, keys in enumerate(sessions):
        for n in range(600):
            request = IdempotentRequest.of(f"{{number}}_{{n}}".ljust(chars, letter), b"content")
            request = IdempotentRequest(request.key, request.content_digest, b"item_%d" % n)
            getattr(keys, record)(request)
    return sessions

fill(TenantLedger("before"))
before, ledger = resident_bytes(), TenantLedger("acme")
sessions = fill(ledger)
held = resident_bytes() - before
del sessions
print(held, resident_bytes() - before, ledger.held_bytes["idempotency_keys"])
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("chars", "letter", "record"),
    [
        (1, "x", "record"),
        (1, "x", "record_unwritten"),
        (36, "x", "record_unwritten"),
        (512, "\u6f22", "record_unwritten"),
        (512, "\U0001f600", "record"),
    ],
)
def test_resident_memory_of_keys_is_as_charged(chars: int, letter: str, record: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(chars), letter, record],
        capture_output=True,
        text=True,
        check=True,
    )
    held, left, charged = map(int, done.stdout.split())
    bound = SESSIONS * IDEMPOTENCY_MEMORY_BYTES_MAX
    assert 0.9 * bound < charged <= bound
    assert held <= 1.2 * charged
    assert left <= 0.2 * charged
