"""The client library with a real gateway on a null device, over sockets that a proxy cuts."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Unpack

import pytest
import pytest_asyncio

from continuo.client import (
    ConnectionClosedError,
    ConnectionOptions,
    EventRefusedError,
    ItemInserted,
    ItemRemoved,
    ItemsReplaced,
    ItemUpdated,
    RealtimeClient,
    ResumePoint,
    TextAppended,
    connect,
)
from continuo.engine import EngineClient
from continuo.realtime.client.conversation import ConversationChange
from continuo.realtime.client.events import Item
from continuo.realtime.client.settings import ResponseSettings, SessionSettings
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.clients.cutting import CuttingProxy
from tests.engine.server.test_several_gateways import front
from tests.support.certificates import create_certificate
from tests.support.engines import EngineHarness, digest_engine
from tests.support.sessions import shared_store
from tests.support.web_servers import API_KEY, TENANTS, RunningServer, serve_engine, serve_harness

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.server]

FAST = ConnectionOptions(
    api_key=API_KEY, backoff_base_s=0.01, backoff_max_s=0.05, reconnect_timeout_s=20
)
LONG: ResponseSettings = {"max_output_tokens": 60, "ignore_eos": True}
SLOW_STEP_S = 0.02


SETTINGS = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(chat_model: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(
        chat_model, pages=1024, page_size=4, max_model_len=400, batched_tokens=64
    ) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(harness: EngineHarness) -> AsyncIterator[RunningServer]:
    async with serve_harness(harness, SETTINGS) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other_engine(harness: EngineHarness) -> AsyncIterator[EngineClient]:
    """Client of another gateway of the same engine."""
    async with front(await harness.listen()) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _fast_steps(harness: EngineHarness) -> None:
    harness.runner.step_s = 0


def open_client(port: int, **settings: Unpack[SessionSettings]) -> RealtimeClient:
    return connect(f"127.0.0.1:{port}", options=FAST, **settings)


class GateProxy:
    """A TCP proxy to `port` that can be cut, closed and pointed at another port, and can discard
    what the server sends."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_open = True
        self.discards_answers = False
        self._ends: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        self.cut()
        server.close()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
        self._ends |= {writer, to_server}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pipe(reader, to_server), self._pipe_answers(from_server, writer))

    async def _pipe_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await _pipe(reader, writer, lambda: not self.discards_answers)


async def _pipe(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    while data := await reader.read(65536):
        if is_wanted():
            writer.write(data)
    writer.transport.abort()


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def wait_until_idle(server: RunningServer) -> None:
    """Wait until no session of the server has a response in progress."""
    for entry in [*server.registry.open_sessions]:
        await entry.session.wait_until_idle()


async def expected_text(server: RunningServer, *messages: str) -> str:
    """The text of a response to `messages` over an undisturbed connection."""
    async with open_client(server.port) as client:
        for message in messages:
            await client.add_message(message)
        return await client.respond(**LONG)


def texts(client: RealtimeClient) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in client.conversation.messages]


# ---------------------------------------------------------------- conversations


async def test_ask_returns_the_text_and_iterates_over_it(
    harness: EngineHarness, server: RunningServer
) -> None:
    async with open_client(server.port, instructions="Be brief.") as client:
        harness.runner.step_s = SLOW_STEP_S
        stream = client.ask("hello", **LONG)
        deltas = [delta async for delta in stream]
        harness.runner.step_s = 0
        assert len(deltas) > 1
        assert "".join(deltas) == await stream == stream.text
        assert stream.status == "incomplete", "cut short by max_output_tokens"
        assert stream.usage is not None
        assert stream.usage.output_tokens == 60
        assert [delta async for delta in stream] == [stream.text], "late readers get all at once"
        assert texts(client) == [("user", "hello"), ("assistant", stream.text)]
        again = await client.ask("again", max_output_tokens=4)
        assert texts(client)[2:] == [("user", "again"), ("assistant", again)]
    assert client.state.phase == "closed"


async def test_out_of_band_response_leaves_the_conversation_unchanged(
    server: RunningServer,
) -> None:
    async with open_client(server.port) as client:
        await client.add_message("hello")
        asked = client.respond(max_output_tokens=20)
        aside = client.respond(max_output_tokens=20, conversation="none")
        assert await asked == await aside
        assert len(client.conversation.items) == 2


async def test_changes_suffice_to_rebuild_the_list(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        changes = client.changes()
        await client.ask("hello", **LONG)
        first = client.conversation.items[0].id
        await client.add_item(
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
            after=first,
        )
        await client.truncate(client.conversation.items[-1].id, 5)
        await client.delete(first)
        expected = list(client.conversation.items)
    rebuilt: list[Item] = []
    lengths: dict[str, int] = {}
    async for change in changes:
        apply(change, rebuilt, lengths)
    assert rebuilt == expected
    assert len(texts(client)) == 2


def apply(change: ConversationChange, items: list[Item], lengths: dict[str, int]) -> None:
    match change:
        case ItemInserted(item=item, index=index):
            items.insert(index, item)
        case ItemRemoved(item=item, index=index):
            assert items.pop(index).id == item.id
        case ItemUpdated(item=item):
            (index,) = (n for n, one in enumerate(items) if one.id == item.id)
            items[index] = item
        case TextAppended(item=item, delta=delta):
            lengths[item.id] = lengths.get(item.id, 0) + len(delta)
            assert item.text
        case ItemsReplaced():
            items.clear()
        case _:
            pass


async def test_fork_shares_the_conversation_up_to_an_item(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        await client.ask("hello", max_output_tokens=8, ignore_eos=True)
        await client.ask("more", max_output_tokens=8, ignore_eos=True)
        at = client.conversation.items[1].id
        async with client.fork(at) as branch, client.fork(seed=3) as whole:
            assert texts(branch) == texts(client)[:2]
            assert texts(whole) == texts(client)
            assert whole.session["seed"] == 3
            stream = branch.ask("more", max_output_tokens=8, ignore_eos=True)
            assert await stream == client.conversation.messages[3].text, "the same conversation"
            assert stream.usage is not None
            assert stream.usage.cached_tokens > 0
        assert len(client.conversation.items) == 4


async def test_rewind_deletes_what_follows_an_item(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        first = await client.ask("hello", **LONG)
        await client.ask("more", max_output_tokens=4)
        await client.rewind(client.conversation.items[0].id)
        assert texts(client) == [("user", "hello")]
        assert await client.respond(**LONG) == first
        await client.rewind(None)
        assert texts(client) == []
        with pytest.raises(KeyError):
            await client.rewind("item_unknown")


async def test_interruption_keeps_what_was_read(
    server: RunningServer, harness: EngineHarness
) -> None:
    harness.runner.step_s = SLOW_STEP_S
    async with open_client(server.port) as client:
        stream = client.ask("hello", **LONG)
        async for _ in stream:
            if len(stream.text) >= 6:
                break
        kept = await stream.interrupt(keep=4)
        assert len(kept) == 4
        assert stream.status == "cancelled"
        assert texts(client) == [("user", "hello"), ("assistant", kept)]
        nothing = client.ask("more", **LONG)
        async for _ in nothing:
            break
        assert await nothing.interrupt(keep=0) == ""
        assert texts(client)[2:] == [("user", "more")]
        ended = client.respond(max_output_tokens=2, ignore_eos=True)
        text = await ended
        assert await ended.cancel() == text, "cancelling an ended response has no effect"


# ---------------------------------------------------------------- drafts


async def test_draft_is_committed_as_it_was_typed(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        for word in ("tell ", "me ", "a ", "tale"):
            client.draft.append(word)
        client.draft.set("tell me a story")
        item_id = await client.draft.commit()
        assert client.draft.text == ""
        assert texts(client) == [("user", "tell me a story")]
        assert client.conversation.items[0].id == item_id


async def test_empty_commit_sends_nothing(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        events = client.events()
        assert await client.draft.commit() is None
        client.draft.append("a")
        client.draft.set("")
        assert await client.draft.commit() is None
        await client.add_message("hello")
        assert texts(client) == [("user", "hello")]
    names = [type(event).__name__ for event in [event async for event in events]]
    assert "BufferCommitted" not in names
    assert "ErrorEvent" not in names


async def test_refused_draft_adds_no_message_and_leaves_nothing_behind(
    server: RunningServer,
) -> None:
    async with open_client(server.port) as client:
        client.draft.append("word " * 400)
        refused = client.draft.commit()
        client.draft.append("short")
        committed = client.draft.commit()
        with pytest.raises(EventRefusedError, match="maximum context length"):
            await refused
        assert await committed is not None
        assert texts(client) == [("user", "short")]


async def test_draft_with_a_refused_write_is_not_committed_in_part(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        for is_refusal_known in (False, True):
            client.draft.append("hello")
            await wait_until(lambda: not client.pending_events)
            client.draft.append("x" * 524_288)
            if is_refusal_known:
                await wait_until(lambda: client.draft.refusal is not None)
            with pytest.raises(EventRefusedError) as refused:
                await client.draft.commit()
            assert refused.value.code == "string_above_max_length"
            await wait_until(lambda: not client.pending_events)
            assert texts(client) == []
        client.draft.append("short")
        await client.draft.commit()
        assert texts(client) == [("user", "short")]


# ---------------------------------------------------------------- refusals


async def test_refused_settings_close_the_client(server: RunningServer) -> None:
    with pytest.raises(EventRefusedError) as refused:
        await open_client(server.port, temperature=5)
    assert refused.value.param == "session.temperature"


async def test_refused_message_gets_no_response(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        for text, code in (
            ("word " * 400, "context_length_exceeded"),
            ("x" * (1 << 20), "frame_too_large"),
        ):
            with pytest.raises(EventRefusedError) as refused:
                await client.ask(text)
            assert refused.value.code == code
        with pytest.raises(EventRefusedError) as unknown:
            await client.truncate("item_unknown", 3)
        assert unknown.value.code == "item_truncate_invalid_item_id"
        assert client.conversation.items == []
        assert await client.ask("hello", **LONG) == await expected_text(server, "hello")


async def test_refused_connections_name_the_cause(server: RunningServer) -> None:
    address = f"127.0.0.1:{server.port}"
    for code, client in (
        ("invalid_api_key", connect(address, api_key="wrong")),
        ("model_not_found", connect(address, options=FAST, model="gpt-9")),
        ("unreachable", connect("127.0.0.1:9")),
        (
            "session_not_found",
            connect(address, options=FAST, resume=ResumePoint(session_id="sess_unknown")),
        ),
        ("not_found", connect(f"{address}/nothing/v1", options=FAST)),
    ):
        with pytest.raises(ConnectionClosedError) as closed:
            await client
        assert closed.value.code == code, closed.value


@pytest.mark.parametrize(
    ("is_known", "problem"),
    [(False, "self-signed certificate"), (True, "certificate is not valid for '127.0.0.1'")],
)
async def test_certificate_that_is_not_trusted_is_explained(
    is_known: bool, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, key = create_certificate(tmp_path / "tls")
    if is_known:
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem, key)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionClosedError, match=problem) as closed:
            await connect(f"wss://127.0.0.1:{port}")
    assert closed.value.code == "certificate_not_trusted"
    assert ("SSL_CERT_FILE" in str(closed.value)) is not is_known


async def test_key_is_requested_before_each_attempt(server: RunningServer) -> None:
    asked = 0

    async def next_key() -> str:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise RuntimeError("not yet")
        return API_KEY

    proxy = GateProxy(server.port)
    async with proxy.listen() as port:
        async with connect(f"127.0.0.1:{port}", api_key=next_key, options=FAST) as client:
            proxy.cut()
            await client.add_message("hello")
        assert asked >= 3


# ---------------------------------------------------------------- lost connections


async def test_response_survives_repeated_cuts(server: RunningServer) -> None:
    expected = await expected_text(server, "hello", "again")
    chance = random.Random(5)
    proxy = CuttingProxy(server.port, [chance.randrange(1500, 6000) for _ in range(8)])
    async with proxy.open() as port, open_client(port) as client:
        events, changes = client.events(), client.changes()
        await client.add_message("hello")
        client.draft.append("aga")
        client.draft.append("in")
        await client.draft.commit()
        stream = client.respond(**LONG)
        assert "".join([delta async for delta in stream]) == expected == await stream
        assert texts(client) == [("user", "hello"), ("user", "again"), ("assistant", expected)]
    assert proxy.cut_count >= 4, "the connection was cut"
    ids = [event.event_id for event in [event async for event in events] if event.event_id]
    assert len({*ids}) == len(ids), "no event is delivered twice"
    inserted = [c.item.id for c in [c async for c in changes] if isinstance(c, ItemInserted)]
    assert len({*inserted}) == len(inserted) == 3


@pytest.mark.parametrize("is_finished", [False, True])
async def test_response_survives_a_snapshot(
    server: RunningServer, harness: EngineHarness, *, is_finished: bool
) -> None:
    """A response that is in progress, or over, when the conversation is sent again."""
    expected = await expected_text(server, "hello")
    harness.runner.step_s = SLOW_STEP_S / 4
    proxy = GateProxy(server.port)
    async with proxy.listen() as port, open_client(port) as client:
        states = client.states()
        stream = client.ask("hello", **LONG)
        received = ""
        async for delta in stream:
            received += delta
            if len(received) >= 5 and client.state.outcome == "new":
                proxy.is_open = False
                proxy.cut()
                await wait_until(lambda: client.state.phase == "waiting")
                client._last_event_id = None
                if is_finished:
                    await wait_until_idle(server)
                proxy.is_open = True
        assert received == stream.text == expected
        assert texts(client) == [("user", "hello"), ("assistant", expected)]
    outcomes = [state.outcome for state in [state async for state in states] if state.outcome]
    assert outcomes == ["snapshot"]


async def test_interruption_whose_answer_is_lost_keeps_what_was_read(
    server: RunningServer, harness: EngineHarness
) -> None:
    """The server answers the repeated cancellation and the repeated request, each with the end of
    the response."""
    harness.runner.step_s = SLOW_STEP_S
    proxy = GateProxy(server.port)
    async with proxy.listen() as port, open_client(port) as client:
        stream = client.ask("hello", **LONG)
        async for _ in stream:
            if len(stream.text) >= 6:
                break
        proxy.discards_answers = True
        interruption = asyncio.create_task(stream.interrupt(keep=1000))
        await wait_until_idle(server)
        proxy.is_open = False
        proxy.cut()
        await wait_until(lambda: client.state.phase == "waiting")
        client._last_event_id = None
        proxy.discards_answers = False
        proxy.is_open = True
        kept = await interruption
        assert texts(client) == [("user", "hello"), ("assistant", kept)]
        assert client.state.outcome == "snapshot"


async def test_requests_of_an_outage_are_sent_after_it(server: RunningServer) -> None:
    proxy = GateProxy(server.port)
    async with proxy.listen() as port, open_client(port) as client:
        proxy.is_open = False
        proxy.cut()
        await wait_until(lambda: client.state.phase == "waiting")
        added, stream = client.add_message("hello"), client.ask("again", **LONG)
        await wait_until(lambda: client.state.attempt >= 3)
        assert not added.done()
        proxy.is_open = True
        client.retry_now()
        await added
        assert await stream == await expected_text(server, "hello", "again")


async def test_lost_session_is_recreated_in_a_new_one(
    server: RunningServer, harness: EngineHarness, other_engine: EngineClient
) -> None:
    expected = await expected_text(server, "one", "two")
    store = await open_store("sqlite://:memory:")
    async with serve_engine(other_engine, SETTINGS, store) as other:
        proxy = GateProxy(server.port)
        async with proxy.listen() as port, open_client(port, seed=5) as client:
            await client.add_message("one")
            harness.runner.step_s = SLOW_STEP_S / 4
            client.draft.append("a draft")
            stream = client.ask("two", **LONG)
            async for _ in stream:
                if len(stream.text) >= 5 and proxy.port != other.port:
                    before = client.session_id
                    proxy.port = other.port
                    proxy.cut()
            assert await stream == expected
            assert client.session_id != before
            assert client.session["seed"] == 5
            assert texts(client) == [("user", "one"), ("user", "two"), ("assistant", expected)]
            await client.draft.commit()
            assert texts(client)[-1] == ("user", "a draft")
    await store.aclose()


async def test_session_moves_to_another_gateway(
    server: RunningServer, harness: EngineHarness, other_engine: EngineClient
) -> None:
    """Gateways with one store: the second continues the response of the first."""
    expected = await expected_text(server, "one")
    store = await shared_store(harness)
    async with serve_engine(other_engine, SETTINGS, store) as other:
        proxy = GateProxy(server.port)
        async with proxy.listen() as port, open_client(port) as client:
            harness.runner.step_s = SLOW_STEP_S / 4
            stream, received = client.ask("one", **LONG), ""
            session_id = client.session_id
            async for delta in stream:
                received += delta
                if len(received) >= 5 and proxy.port != other.port:
                    proxy.port = other.port
                    proxy.cut()
            assert received == expected
            assert client.session_id == session_id


async def test_client_closes_after_the_time_to_reconnect(server: RunningServer) -> None:
    options = ConnectionOptions(
        api_key=API_KEY, backoff_base_s=0.01, backoff_max_s=0.02, reconnect_timeout_s=0.1
    )
    proxy = GateProxy(server.port)
    async with proxy.listen() as port:
        client = await connect(f"127.0.0.1:{port}", options=options)
        proxy.is_open = False
        proxy.cut()
        stream = client.ask("hello")
        with pytest.raises(ConnectionClosedError, match="connection was lost"):
            await stream
        assert (await client.wait_closed()).code == "close_1006"
        assert [event["type"] for event in client.pending_events] == ["conversation.item.create"]
        with pytest.raises(ConnectionClosedError):
            client.add_message("more")
        await client.close()


# ---------------------------------------------------------------- sessions


async def test_another_client_resumes_the_session(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        await client.ask("hello", max_output_tokens=8, ignore_eos=True)
        point = client.resume_point
    assert point is not None
    async with connect(f"127.0.0.1:{server.port}", options=FAST, resume=point) as second:
        assert texts(second) == texts(client)
        assert second.session_id == client.session_id
        async with connect(f"127.0.0.1:{server.port}", options=FAST, resume=point, seed=4) as third:
            assert third.session["seed"] == 4
            assert (await second.wait_closed()).code == "close_4001"
            await third.delete_session()
    with pytest.raises(ConnectionClosedError) as gone:
        await connect(f"127.0.0.1:{server.port}", options=FAST, resume=point)
    assert gone.value.code == "session_not_found"


async def test_close_waits_for_what_was_sent(server: RunningServer) -> None:
    async with open_client(server.port) as client:
        for number in range(50):
            client.add_message(f"message {number}")
        point = client.resume_point
    async with connect(f"127.0.0.1:{server.port}", options=FAST, resume=point) as second:
        assert texts(second) == [("user", f"message {number}") for number in range(50)]


async def test_failing_program_leaves_at_once(server: RunningServer) -> None:
    client = open_client(server.port)

    async def fail() -> None:
        async with client:
            client.ask("hello", **LONG)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert client.state.phase == "closed"
