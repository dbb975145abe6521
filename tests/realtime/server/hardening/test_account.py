"""Loop account: the time that a connection uses, and connections that use too much."""

import asyncio
import gc
import json
import logging
import weakref
from typing import cast

import pytest

from continuo.realtime.server.hardening import account
from continuo.realtime.server.hardening.account import LoopAccount
from continuo.realtime.server.hardening.guarded_websocket import GuardedWebSocket
from continuo.realtime.tenants.ledger import TenantLedger
from tests.support.frames import CLOSE, PING, RawWebSocket, encode_frame
from tests.support.web_servers import API_KEY, RunningServer

BEARER = f"Bearer {API_KEY}"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("share", "is_exceeded"), [(0.15, False), (0.3, True)], ids=["below", "above"]
)
def test_share_of_a_fifth_is_exceeded(clock: Clock, share: float, is_exceeded: bool) -> None:
    loop_account = LoopAccount("websocket", clock)
    for _ in range(200):
        clock.now_s += 0.1
        loop_account.spend(0.1 * share)
    assert loop_account.is_exceeded is is_exceeded


def test_effects_begin_the_window_anew(clock: Clock) -> None:
    loop_account = LoopAccount("websocket", clock)
    for _ in range(200):
        clock.now_s += 0.1
        loop_account.spend(0.09)
        loop_account.credit()
    assert not loop_account.is_exceeded


def test_pause_of_the_process_is_not_charged_to_a_connection(clock: Clock) -> None:
    loop_account = LoopAccount("websocket", clock)
    for seconds in (0.01, 30.0, 0.01):
        clock.now_s += seconds
        loop_account.spend(seconds)
    assert not loop_account.is_exceeded
    assert loop_account._used_s == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("share", "is_light"), [(0.04, True), (0.06, False)], ids=["below", "above"]
)
def test_connection_with_less_than_a_twentieth_is_light(
    clock: Clock, share: float, is_light: bool
) -> None:
    loop_account = LoopAccount("websocket", clock)
    for _ in range(200):
        clock.now_s += 0.1
        loop_account.spend(0.1 * share)
        loop_account.credit()
    assert loop_account.is_light is is_light


def test_connection_is_light_again_after_a_while(clock: Clock) -> None:
    loop_account = LoopAccount("websocket", clock)
    assert loop_account.is_light
    loop_account.spend(0.05)
    assert not loop_account.is_light
    clock.now_s += 0.7
    assert loop_account.is_light


def test_light_connections_of_a_tenant_are_light_up_to_a_half_together(clock: Clock) -> None:
    """A heavy one does not count: a tenant's own flood does not delay its other connections."""
    ledger = TenantLedger("tenant", clock)
    accounts = [LoopAccount("websocket", clock) for _ in range(40)]
    for each in accounts:
        each.tenant = ledger
    for _ in range(200):
        clock.now_s += 0.1
        accounts[0].spend(0.09)
        for each in accounts[1:11]:
            each.spend(0.004)
    assert not accounts[0].is_light
    assert all(each.is_light for each in accounts[1:])
    for _ in range(20):
        clock.now_s += 0.1
        for each in accounts[1:]:
            each.spend(0.0025)
    assert not any(each.is_light for each in accounts)
    clock.now_s += 1.0
    assert all(each.is_light for each in accounts[1:])


async def test_only_the_steps_of_a_timed_coroutine_are_charged(clock: Clock) -> None:
    loop_account, resumed = LoopAccount("websocket", clock), asyncio.Event()

    async def work(result: str) -> str:
        clock.now_s += 0.025
        await resumed.wait()
        clock.now_s += 0.05
        return result

    task = asyncio.create_task(loop_account.timed(work, "done"))
    await asyncio.sleep(0)
    clock.now_s += 10
    resumed.set()
    assert await task == "done"
    assert loop_account._used_s == pytest.approx(0.075)


def test_short_times_are_charged_with_what_follows(clock: Clock) -> None:
    loop_account = LoopAccount("websocket", clock)
    for _ in range(1500):
        loop_account.spend(0.0001)
    assert loop_account._used_s == pytest.approx(0.15, abs=0.0003)


async def test_turn_within_a_step_is_charged_once(clock: Clock) -> None:
    """Input that is parsed within a step is a part of the step."""
    loop_account = LoopAccount("websocket", clock)

    async def work() -> None:
        clock.now_s += 0.025
        loop_account.spend(0.025)
        clock.now_s += 0.05

    await loop_account.timed(work)
    assert loop_account._used_s == pytest.approx(0.075)
    for _ in range(9):
        loop_account.spend(0.1)
    assert not loop_account.is_exceeded, "0.975 s"
    loop_account.spend(0.03)
    assert loop_account.is_exceeded, "1.005 s within 5 s"


async def test_timed_coroutine_passes_exceptions_both_ways() -> None:
    loop_account, caught = LoopAccount("websocket"), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            caught.append("cancelled")
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a fault")

    task = asyncio.create_task(loop_account.timed(work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caught == ["cancelled"]
    with pytest.raises(ValueError, match="a fault"):
        await loop_account.timed(fail)


async def test_exception_of_a_thread_is_freed_without_garbage_collection() -> None:
    """A frozen cycle of it and the frames that it passed would stay for ever."""

    class Failed(Exception):
        pass

    def fail() -> None:
        raise Failed

    async def work() -> None:
        await asyncio.to_thread(fail)

    gc.disable()
    try:
        freed = asyncio.Event()
        try:
            await LoopAccount("websocket").timed(work)
        except Failed as error:
            weakref.finalize(error, freed.set)
        await asyncio.wait_for(freed.wait(), 5)
    finally:
        gc.enable()


@pytest.fixture
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are closed after 50 ms without an effect."""
    monkeypatch.setattr(account, "_USED_S_MAX", 0.05)
    monkeypatch.setattr(account, "WINDOW_S", 1000.0)


@pytest.mark.usefixtures("small_share")
async def test_pinging_connection_is_closed_with_1008_and_one_line(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    flood = asyncio.create_task(peer.send(*[encode_frame(b"", PING) * 1000] * 200))
    with caplog.at_level(logging.WARNING):
        while (received := await peer.receive()) is not None and received.opcode != CLOSE:
            pass
    flood.cancel()
    assert received is not None
    assert int.from_bytes(received.payload[:2], "big") == 1008
    assert b"without an event executed" in received.payload
    fields = [vars(record).get("fields", {}) for record in caplog.records]
    assert [each["event"] for each in fields if "event" in each] == ["costly_connection"]
    peer.close()


@pytest.mark.usefixtures("small_share")
async def test_client_whose_events_are_all_refused_is_closed(server: RunningServer) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    flood = asyncio.create_task(peer.send(*[encode_frame(b"{}") * 10] * 1000))
    assert await peer.wait_close_code() == 1008
    flood.cancel()
    peer.close()


async def test_client_that_executes_events_is_not_closed(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client uses more than its share altogether, and less between two events."""
    monkeypatch.setattr(account, "_USED_S_MAX", 0.3)
    monkeypatch.setattr(account, "WINDOW_S", 1000.0)
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    (socket,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
    used, charge = list[float](), LoopAccount._charge

    def record(charged: LoopAccount, seconds: float) -> None:
        if charged is socket.account:
            used.append(seconds)
        charge(charged, seconds)

    monkeypatch.setattr(LoopAccount, "_charge", record)
    while sum(used) < 0.6:
        await peer.send(encode_frame(b"", PING) * 200)
        await peer.send_event(type="session.update", session={"type": "realtime"})
        await peer.wait_for("session.updated")
    peer.close()


@pytest.mark.usefixtures("small_share")
async def test_endless_chunks_get_408(server: RunningServer) -> None:
    peer = RawWebSocket(*await asyncio.open_connection("127.0.0.1", server.port))
    await peer.send(
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: %b\r\n\r\n" % BEARER.encode()
    )
    flood = asyncio.create_task(peer.send(*[b"1\r\n \r\n" * 1000] * 300))
    head = await asyncio.wait_for(peer.reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 408 ")
    flood.cancel()
    body = await asyncio.wait_for(peer.reader.read(), 30)
    assert json.loads(body)["error"]["code"] == "costly_connection"
    peer.close()


@pytest.mark.usefixtures("small_share")
async def test_requests_that_all_fail_get_429(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    statuses: list[bytes] = []
    while not statuses or statuses[-1] == b"404":
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        statuses.append(head.split()[1])
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    assert len(statuses) > 1
    assert statuses[-1] == b"429"
    assert b"retry-after: " in head.lower()
    writer.close()
