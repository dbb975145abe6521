"""Takeover: a session resumes on another gateway, or after its gateway was killed."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from continuo.engine import EngineClient
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.items import MessageItem
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import Store, WriteBatch, open_store
from tests.engine.server.test_several_gateways import front
from tests.faults.proxy import Proxy
from tests.support.checkpoints import family_folder, family_text
from tests.support.clients import JsonEvent
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engines import EngineHarness, digest_engine
from tests.support.garbage import garbage_of_block
from tests.support.in_process_client import (
    InProcessClient,
    connect_client,
    normalized_events,
    resume_result,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMITS = Limits(sweep_interval_s=0.05)


@pytest.fixture
async def registries(harness: EngineHarness) -> AsyncIterator[tuple[Registry, Registry]]:
    async with registries_on("sqlite://:memory:", harness) as registries:
        yield registries


@contextlib.asynccontextmanager
async def registries_on(
    url: str, harness: EngineHarness
) -> AsyncIterator[tuple[Registry, Registry]]:
    """Two gateways on one store and one engine process."""
    port, store = await harness.listen(), await open_store(url)
    async with front(port) as one, front(port) as two:
        registries = make_registry(one, store), make_registry(two, store)
        async with registries[0].running(), registries[1].running():
            yield registries
        assert await one.fleet.list_sessions() == [], "no session is left open in the engine"
    await store.aclose()


def make_registry(engine: EngineClient, store: Store, limits: Limits = LIMITS) -> Registry:
    template = engine.text.template
    assert template is not None
    return Registry(engine, template, GenerationSettings(), limits, store)


def deltas(client: InProcessClient) -> str:
    return "".join(e["delta"] for e in client.received if e["type"] == "response.output_text.delta")


def deltas_of(client: InProcessClient, response: str) -> str:
    return "".join(
        event["delta"]
        for event in client.received
        if event["type"] == "response.output_text.delta" and event["response_id"] == response
    )


def done(client: InProcessClient) -> str:
    (text,) = (e["text"] for e in client.received if e["type"] == "response.output_text.done")
    return text


async def test_kv_is_found_on_whichever_engine_has_it(chat_model: Path) -> None:
    store = await open_store("sqlite://:memory:")
    async with digest_engine(chat_model) as empty, digest_engine(chat_model) as holding:
        port = await holding.listen()
        async with front(port) as one, front(await empty.listen()) as two:
            two.fleet.add("127.0.0.1", port)
            await wait_until(lambda: len(two.fleet.loads()) == 2)
            registries = make_registry(one, store), make_registry(two, store)
            async with registries[0].running(), registries[1].running():
                client = await connect_client(registries[0])
                client.send_message("hello", "u1")
                client.start_response(20)
                await client.socket.wait_for("rate_limits.updated")
                client.receive()
                client.registry = registries[1]
                client.resume()
                await client.socket.wait_for("session.updated")
                assert resume_result(client.socket)["kv"] == "hot"
                status = await registries[1].status(client.session_id, "")
                assert status is not None
                assert status.kv.place == "device"
                await client.disconnect()
    await store.aclose()


async def test_session_of_a_resume_that_was_cancelled_is_parked(harness: EngineHarness) -> None:
    store, port = await open_store("sqlite://:memory:"), await harness.listen()
    async with Proxy(port).running() as proxy, front(port) as one, front(proxy.port) as two:
        limits = Limits(resume_window_s=0.05)
        registries = make_registry(one, store), make_registry(two, store, limits)
        async with registries[0].running(), registries[1].running():
            client = await connect_client(registries[0])
            client.receive()
            proxy.stall()
            client.registry = registries[1]
            client.resume()
            await wait_until(lambda: client.session_id in registries[1].open_sessions.ids)
            assert client.run_task is not None
            client.run_task.cancel()
            await wait_until(lambda: client.session_id not in registries[1].open_sessions.ids)
            proxy.resume()
    await store.aclose()


async def test_session_moves_between_gateways_without_a_missed_event(
    registries: tuple[Registry, Registry],
) -> None:
    client = await connect_client(registries[0])
    for turn in (1, 2, 3):
        client.send_message("hello", f"u{turn}")
        client.start_response(20)
        await client.socket.wait_for("rate_limits.updated")
        await client.disconnect()
        client.receive()
        client.registry = registries[turn % 2]
        client.resume()
        await client.socket.wait_for("session.updated")
        assert resume_result(client.socket)["resumed"] == "exact"
        assert len(client.socket.sent) == 1, "nothing was missed"
    session = client.registry.find(client.session_id)
    assert session is not None
    assert [item.id for item in session.conversation.items()][::2] == ["u1", "u2", "u3"]
    await client.disconnect()


async def test_open_response_moves_between_gateways_with_its_whole_text(
    registries: tuple[Registry, Registry],
) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        client = await connect_client(registries[0])
        client.send_message("hello", "u1")
        client.start_response(60)
        await client.socket.wait_for("response.created")
        while not any(event["type"] == "response.done" for event in client.received):
            for _ in range(rng.randrange(60)):
                await asyncio.sleep(0)
            old_socket = client.socket
            client.receive(rng.randrange(1, 12))
            if not client.received:
                client.receive(1)
            client.registry = rng.choice(registries)
            client.resume()
            await client.socket.wait_for("session.updated")
            assert resume_result(client.socket)["resumed"] == "exact", f"seed {seed}"
            while old_socket.closed is None:
                await asyncio.sleep(0.001)
            assert old_socket.closed[0] is CloseCode.SUPERSEDED
        await client.disconnect()
        assert deltas(client) == done(client), f"seed {seed}"
        ids = [event["event_id"] for event in client.received]
        assert len({*ids}) == len(ids)


async def test_session_that_moved_in_a_response_leaves_nothing_to_the_garbage_collector(
    registries: tuple[Registry, Registry],
) -> None:
    async def move(**response: object) -> None:
        client = await connect_client(registries[0])
        client.send_message("hello", "u1")
        client.socket.push_event(
            type="response.create", response={"max_output_tokens": 60, **response}
        )
        await client.socket.wait_for("response.output_text.delta")
        client.receive()
        client.registry = registries[1]
        client.resume()
        await client.socket.wait_for("response.done")
        client.socket.push_event(type="session.close")
        await client.wait_closed()
        await wait_until(lambda: not any(each.open_sessions.of_tenant("") for each in registries))

    for response in ({}, {"conversation": "none"}):
        await move(**response)
        with garbage_of_block() as garbage:
            await move(**response)
        assert not garbage, response


async def test_out_of_band_response_moves_with_the_conversation_that_it_began_with(
    registries: tuple[Registry, Registry],
) -> None:
    """The conversation has grown since by a message and the beginning of an answer."""
    for seed in range(8):
        rng = random.Random(seed)
        client = await connect_client(registries[0])
        client.send_message("hello", "u1")
        client.start_response(8)
        await client.socket.wait_for("rate_limits.updated")
        out_of_band = {"conversation": "none", "max_output_tokens": 60}
        client.socket.push_event(type="response.create", response=out_of_band)
        await client.socket.wait_for("response.created", 2)
        client.send_message("and then", "u2")
        client.start_response(60)
        await client.socket.wait_for("response.created", 3)
        await client.socket.wait_for("response.output_text.delta", rng.randrange(1, 60))
        client.receive()
        client.registry = registries[1]
        client.resume()
        await client.socket.wait_for("session.updated")
        assert resume_result(client.socket)["resumed"] == "exact", f"seed {seed}"
        ended = sum(event["type"] == "response.done" for event in client.received)
        if ended < 3:
            await client.socket.wait_for("response.done", 3 - ended)
        await client.disconnect()
        client.receive()
        for event in client.received:
            if event["type"] == "response.done":
                response = event["response"]
                assert response["status"] in ("completed", "incomplete"), response
                (message,) = response["output"]
                text = deltas_of(client, response["id"])
                assert message["content"] == [{"type": "output_text", "text": text}]


class RestartableGateway:
    """A gateway with an engine of its own and a store in a file, which alone survives `kill`."""

    def __init__(self, file: Path, chat_model: Path, vocabulary: int = VOCABULARY) -> None:
        self._url = f"sqlite:///{file}"
        self._chatty = chat_model
        self._vocabulary = vocabulary
        self.max_model_len = 400
        self.store: Store
        self.registry: Registry
        self.harness: EngineHarness

    async def start(self) -> None:
        self._engine = digest_engine(
            self._chatty,
            pages=256,
            max_model_len=self.max_model_len,
            batched_tokens=64,
            step_s=0.002,
            vocabulary=self._vocabulary,
        )
        self.harness = await self._engine.__aenter__()
        self.store = await open_store(self._url)
        self.registry = make_registry(self.harness.engine, self.store)

    async def kill(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_name().split()[0] in ("journal", "read", "send") or "resp_" in str(task):
                task.cancel()
        await self.store.aclose()
        await self._engine.__aexit__(None, None, None)


@pytest.fixture
async def gateway(tmp_path: Path, chat_model: Path) -> AsyncIterator[RestartableGateway]:
    gateway = RestartableGateway(tmp_path / "store.db", chat_model)
    await gateway.start()
    yield gateway
    await gateway.registry.aclose()
    await gateway.kill()


async def test_open_response_continues_after_gateway_and_engine_are_killed(
    gateway: RestartableGateway,
) -> None:
    """Ids that the client has seen and the journal lacks are sampled again, and not sent again."""
    for seed in range(6):
        rng = random.Random(seed)
        client = await connect_client(gateway.registry)
        client.send_message("hello", "u1")
        client.start_response(100)
        await client.socket.wait_for("response.output_text.delta", rng.randrange(1, 40))
        client.receive()
        await gateway.kill()
        await gateway.start()
        client.registry = gateway.registry
        client.resume()
        await client.socket.wait_for("rate_limits.updated")
        assert resume_result(client.socket)["resumed"] == "exact"
        await client.disconnect()
        client.receive()
        assert deltas(client) == done(client), f"seed {seed}"
        session = gateway.registry.find(client.session_id)
        assert session is not None
        (response,) = (span for span in session.conversation.spans if span.sampled_ids is not None)
        prompt, header = session.conversation.up_to_item("u1").render_header()
        expected = oracle([*prompt.ids(), *header], 100, stop_ids=[0])
        assert response.sampled_ids == tuple(expected), f"seed {seed}"


async def test_open_response_whose_prompt_cannot_be_built_again_ends_as_lost(
    gateway: RestartableGateway,
) -> None:
    """The prompt has another length than when the response began."""
    client = await connect_client(gateway.registry)
    client.send_message("hello", "u1")
    client.start_response(100)
    await client.socket.wait_for("response.output_text.delta", 10)
    response = await resume_lost(client, gateway, "sunny")
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "response_lost"
    await client.disconnect()


async def resume_lost(
    client: InProcessClient, gateway: RestartableGateway, output: str
) -> JsonEvent:
    """Kill the gateway during a response, journal `output` as its output so far and another length
    of its prompt, and resume the session. Returns the response as it ends."""
    # No output: what a client has seen and the journal lacks could not be sent alike again.
    client.receive([event["type"] for event in client.socket.sent].index("response.created") + 1)
    await gateway.kill()
    await gateway.start()
    lease = await gateway.store.claim(client.session_id, "gate-other", ttl_s=60)
    snapshot = await gateway.store.load(client.session_id)
    assert snapshot is not None
    [running] = snapshot.running_responses
    checkpoint = msgspec.structs.replace(running.checkpoint, prompt=running.checkpoint.prompt + 1)
    await gateway.store.write(lease, WriteBatch(started_responses=(checkpoint,)))
    ids = gateway.harness.engine.text.encode(output)
    await gateway.store.journal(lease, checkpoint.id, 0, tuple(ids))
    client.registry = gateway.registry
    client.resume()
    return (await client.socket.wait_for("response.done"))["response"]


@pytest.mark.parametrize("prompt_fits", [True, False])
async def test_output_of_a_lost_response_after_a_tool_result_is_not_reasoning(
    tmp_path: Path, prompt_fits: bool
) -> None:
    """The header of DeepSeek V3 opens the reasoning after a message of the user alone."""
    text = family_text("deepseek_v3")
    folder = family_folder("deepseek_v3")
    gateway = RestartableGateway(tmp_path / "store.db", folder, text.vocab_size)
    await gateway.start()
    client = await connect_client(gateway.registry)
    client.send_message("hello", "u1")
    call = {"type": "function_call", "id": "c1", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "id": "o1", "call_id": "c1", "output": "1"}
    for item in (call, result):
        client.socket.push_event(type="conversation.item.create", item=item)
    client.start_response(100)
    await client.socket.wait_for("response.output_text.delta", 10)
    if not prompt_fits:
        gateway.max_model_len = 16
    response = await resume_lost(client, gateway, "It is sunny.")
    assert response["status_details"]["error"]["code"] == "response_lost"
    (message,) = response["output"]
    assert message["content"] == [{"type": "output_text", "text": "It is sunny."}]
    await client.disconnect()
    await gateway.registry.aclose()
    await gateway.kill()


async def test_settings_items_and_text_buffer_survive_a_kill(gateway: RestartableGateway) -> None:
    client = await connect_client(gateway.registry)
    client.socket.push_event(
        type="session.update", session={"type": "realtime", "instructions": "be kind"}
    )
    client.send_message("hello", "u1")
    client.start_response(100)
    await client.socket.wait_for("response.output_text.delta")
    client.send_message("and more", "u2")
    for text in ("words ", "as they ", "come"):
        client.socket.push_event(type="input_text_buffer.append", text=text)
    await client.socket.wait_for("input_text_buffer.appended", 3)
    await client.disconnect()
    client.receive()
    await gateway.kill()
    await gateway.start()
    client.registry = gateway.registry
    client.resume()
    ended = sum(event["type"] == "rate_limits.updated" for event in client.received)
    await client.socket.wait_for("session.updated")
    if not ended:  # killed within the response
        await client.socket.wait_for("rate_limits.updated")
    client.socket.push_event(type="input_text_buffer.commit")
    await client.socket.wait_for("input_text_buffer.committed")
    client.start_response(5)
    await client.socket.wait_for("rate_limits.updated", 2 - ended)
    await client.disconnect()
    client.receive()
    session = gateway.registry.find(client.session_id)
    assert session is not None
    assert session.settings.instructions == "be kind"
    messages = [item for item in session.conversation.items() if isinstance(item, MessageItem)]
    user_texts = [item.parts[0].text for item in messages if item.role == "user"]
    assert user_texts == ["hello", "and more", "words as they come"]
    assert [item.role for item in messages] == ["user", "assistant", "user", "user", "assistant"]


async def test_resume_from_an_unknown_event_id_after_a_kill_sends_a_snapshot(
    gateway: RestartableGateway,
) -> None:
    client = await connect_client(gateway.registry)
    client.send_message("hello", "u1")
    client.start_response(5)
    await client.socket.wait_for("rate_limits.updated")
    client.receive()
    await gateway.kill()
    await gateway.start()
    client.registry = gateway.registry
    client.connect(
        ResumeRequest(client.session_id, client.received[0]["event_id"].replace("_0", "_77"))
    )
    await client.socket.wait_for("conversation.item.done", 2)
    assert resume_result(client.socket)["resumed"] == "snapshot"
    assert [line for line in normalized_events(client.socket.sent) if '"role": "assistant"' in line]
    await client.disconnect()
