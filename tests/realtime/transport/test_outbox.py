"""The outbox of a slow reader: deltas are merged, bytes are bounded, and the connection is closed
if the backlog lasts."""

import asyncio
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo import realtime
from continuo.realtime.errors import ConnectionCloseError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import EXPLANATIONS, CloseCode
from continuo.realtime.protocol.realtime_api import ServerEvent
from continuo.realtime.protocol.realtime_api.server_events import (
    ArgumentsDelta,
    AudioCleared,
    ItemDeleted,
    TextDelta,
)
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.transport.backlog import Backlog
from continuo.realtime.transport.outbox import Outbox
from tests.simulation.virtual import VirtualLoop
from tests.support.sockets import FakeSocket


def delta(number: int, text: str, item: str = "item_a") -> TextDelta:
    return TextDelta(
        event_id=f"event_{number}",
        response_id="resp",
        item_id=item,
        output_index=0,
        content_index=0,
        delta=text,
    )


def argument(number: int, text: str, item: str = "item_c") -> ArgumentsDelta:
    return ArgumentsDelta(
        event_id=f"event_{number}",
        response_id="resp",
        item_id=item,
        output_index=0,
        call_id="call",
        delta=text,
    )


def drain(backlog: Backlog) -> list[dict[str, str]]:
    return [json.loads(frame) for frame in iter(backlog.pop, None)]


def test_consecutive_deltas_of_one_item_are_merged() -> None:
    backlog = Backlog()
    for event in (delta(1, "a"), delta(2, "b"), delta(3, "c", "item_b"), argument(4, "{")):
        backlog.put(event)
    backlog.put(argument(5, "}"))
    assert [(event["event_id"], event["delta"]) for event in drain(backlog)] == [
        ("event_2", "ab"),
        ("event_3", "c"),
        ("event_5", "{}"),
    ]


def test_deltas_are_not_merged_across_other_events() -> None:
    backlog = Backlog()
    for event in (delta(1, "a"), AudioCleared(event_id="event_2"), delta(3, "b")):
        backlog.put(event)
    assert [event["event_id"] for event in drain(backlog)] == ["event_1", "event_2", "event_3"]


EVENTS = st.lists(
    st.builds(delta, st.integers(), st.text(max_size=5), st.sampled_from(["item_a", "item_b"]))
    | st.builds(argument, st.integers(), st.text(max_size=5))
    | st.builds(lambda n: ItemDeleted(event_id=f"event_{n}", item_id="x"), st.integers())
    | st.none()
)


@given(EVENTS)
def test_backlog_loses_reorders_and_miscounts_nothing(events: list[ServerEvent | None]) -> None:
    """Events are put into the backlog; for None, one frame is taken from it."""
    backlog, sent, put = Backlog(), list[tuple[str, str]](), list[tuple[str, str]]()

    def record(into: list[tuple[str, str]], key: str, text: str) -> None:
        """Append a text, or extend the last one if it is of the same item."""
        if into and into[-1][0] == key and text:
            into[-1] = (key, into[-1][1] + text)
        elif text or key == "deleted":
            into.append((key, text))

    def take() -> None:
        frame = backlog.pop()
        if frame is not None:
            event = json.loads(frame)
            record(
                sent, event["item_id"] if "delta" in event else "deleted", event.get("delta", "")
            )

    for event in events:
        match event:
            case None:
                take()
            case TextDelta() | ArgumentsDelta():
                backlog.put(event)
                record(put, event.item_id, event.delta)
            case _:
                backlog.put(event)
                put.append(("deleted", ""))
        assert (backlog.size_bytes == 0) == (len(backlog) == 0)
    while len(backlog):
        take()
    assert sent == put
    assert backlog.size_bytes == 0


# ---------------------------------------------------------------- the outbox

SMALL = Limits(outbox_bytes_max=1000, outbox_over_limit_s_max=0.05)


async def test_outbox_sends_events_in_order() -> None:
    socket = FakeSocket()
    outbox = Outbox(socket, Limits())
    running = asyncio.create_task(outbox.run())
    for n in range(5):
        outbox.put(ItemDeleted(event_id=f"event_{n}", item_id="x"))
    await outbox.wait_until_sent()
    assert [event["event_id"] for event in socket.sent] == [f"event_{n}" for n in range(5)]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_bytes_that_wait_are_charged_until_they_are_sent_or_the_connection_ends() -> None:
    socket, ledger = FakeSocket(), TenantLedger("acme")
    socket.peer_reads.clear()
    outbox = Outbox(socket, Limits(), hold=partial(ledger.hold, "output"))
    running = asyncio.create_task(outbox.run())
    outbox.put(delta(1, "x" * 100))
    outbox.put(delta(2, "y" * 1000, "item_b"))
    assert 1100 < ledger.held_bytes["output"] < 2000
    socket.peer_reads.set()
    await outbox.wait_until_sent()
    assert ledger.held_bytes["output"] == 0
    socket.peer_reads.clear()
    outbox.put(delta(3, "z" * 100))
    running.cancel()
    outbox.close()
    outbox.put(delta(4, "late"))
    assert ledger.held_bytes["output"] == 0


async def test_slow_reader_gets_merged_deltas() -> None:
    socket = FakeSocket()
    socket.peer_reads.clear()
    outbox = Outbox(socket, Limits())
    running = asyncio.create_task(outbox.run())
    for n in range(100):
        outbox.put(delta(n, "x"))
        await asyncio.sleep(0)
    socket.peer_reads.set()
    await outbox.wait_until_sent()
    assert "".join(event["delta"] for event in socket.sent) == "x" * 100
    assert len(socket.sent) == 2
    running.cancel()


async def test_reading_pauses_while_the_outbox_is_over_its_limit() -> None:
    socket = FakeSocket()
    socket.peer_reads.clear()
    outbox = Outbox(socket, Limits(outbox_bytes_max=1000))
    running = asyncio.create_task(outbox.run())
    outbox.put(delta(1, "x"))
    await outbox.wait_for_room()
    await asyncio.sleep(0)
    outbox.put(delta(2, "x" * 1200))
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    socket.peer_reads.set()
    await waiting
    running.cancel()


async def test_outbox_over_its_limit_for_too_long_closes_the_connection() -> None:
    socket = FakeSocket()
    socket.peer_reads.clear()
    outbox = Outbox(socket, SMALL)
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    outbox.put(delta(1, "x" * 1200))
    with pytest.raises(ConnectionCloseError) as caught:
        await running
    assert caught.value.code == CloseCode.TRY_AGAIN_LATER


async def test_outbox_far_over_its_limit_closes_at_once() -> None:
    socket = FakeSocket()
    socket.peer_reads.clear()
    limits = Limits(outbox_bytes_max=1000, outbox_over_limit_s_max=1e6)
    outbox = Outbox(socket, msgspec.structs.replace(limits, outbox_snapshot_bytes_max=4000))
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    outbox.put(delta(1, "x" * 1200))
    outbox.put(delta(2, "y" * 4000, "item_b"))
    with pytest.raises(ConnectionCloseError):
        await running


async def test_client_that_reads_nothing_is_closed_whatever_the_backlog() -> None:
    socket = FakeSocket()
    socket.peer_reads.clear()
    outbox = Outbox(socket, Limits(send_timeout_s=0.05))
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    outbox.put(delta(1, "x"))
    with pytest.raises(ConnectionCloseError, match="does not read") as caught:
        await running
    assert caught.value.code == CloseCode.TRY_AGAIN_LATER


def test_client_that_reads_nothing_is_closed_within_five_seconds() -> None:
    """By the limits as they are, on virtual time."""
    socket = FakeSocket()
    socket.peer_reads.clear()

    async def serve() -> None:
        outbox = Outbox(socket, Limits())
        running = asyncio.create_task(outbox.run())
        await asyncio.sleep(0)
        outbox.put(delta(1, "x"))
        await running

    loop = VirtualLoop()
    with pytest.raises(ConnectionCloseError) as caught:
        loop.run_until_complete(serve())
    loop.close()
    assert caught.value.code == CloseCode.TRY_AGAIN_LATER
    assert 0 < loop.now <= 5


async def test_reader_that_catches_up_stays_connected() -> None:
    socket = FakeSocket()
    outbox = Outbox(socket, SMALL)
    running = asyncio.create_task(outbox.run())
    for n in range(3):
        socket.peer_reads.clear()
        outbox.put(delta(n, "x" * 1200))
        await asyncio.sleep(0.02)
        socket.peer_reads.set()
        await outbox.wait_until_sent()
    await asyncio.sleep(2 * SMALL.outbox_over_limit_s_max)
    assert not running.done()
    running.cancel()


def test_every_close_code_has_an_explanation() -> None:
    assert set(EXPLANATIONS) == set(CloseCode)
    retried = {code for code, (_, retry) in EXPLANATIONS.items() if retry}
    assert retried == {1011, 1012, 1013}, "other than the codes on which the SDKs reconnect"


def test_every_close_code_is_used() -> None:
    root = Path(realtime.__file__).parent
    files = [file for file in root.rglob("*.py") if file.name != "close_codes.py"]
    source = "".join(file.read_text("utf-8") for file in files)
    assert [code.name for code in CloseCode if f"CloseCode.{code.name}" not in source] == []
