"""Sessions and responses whose ids are of another model: the gateway renders them again from their
text, sends the client a snapshot, and never continues from the ids of the other model."""

import asyncio
import contextlib
import json
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.bench import random_checkpoints
from continuo.engine import EngineClient, EngineConfig, ModelText, Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.persistence.session_codec import (
    decode_state,
)
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ForkRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.session.unit_of_work import UnitOfWork
from continuo.realtime.store import (
    Store,
    StoreUnavailable,
    open_store,
)
from tests.realtime.conftest import TEMPLATE, chat_folder
from tests.realtime.registry.test_takeover import deltas, done, make_registry
from tests.support import transformers_oracle as parity
from tests.support.clients import ResponsesClient, connect_responses, output_text
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness, digest_engine
from tests.support.in_process_client import InProcessClient, connect_client, resume_result
from tests.support.redis_process import RedisProcess
from tests.support.sessions import EventRecorder
from tests.support.waiting import wait_until
from tests.support.web_servers import serve_harness

pytestmark = pytest.mark.torch

WARNING = "was begun on another model"


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model: the same letters have other ids, and its template frames them differently."""
    folder = chat_folder(tmp_path_factory.mktemp("other"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    size = len(vocabulary)
    for name, id in vocabulary.items():
        if not name.startswith("<|"):
            vocabulary[name] = size + 1 - id
    file.write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE.replace("{{ message.role }}\n", "{{ message.role }}: ")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        redis: RedisProcess = request.getfixturevalue("redis")
        return redis.url
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    yield store
    await store.aclose()


@contextlib.asynccontextmanager
async def gateway_on(
    folder: Path, store: Store, length: int = 400, step_s: float = 0.002
) -> AsyncIterator[Registry]:
    """Run a gateway with this model on this store."""
    async with digest_engine(
        folder, pages=256, max_model_len=length, batched_tokens=64, step_s=step_s
    ) as harness:
        registry = make_registry(harness.engine, store)
        yield registry
        await registry.aclose()


async def session_with_turns(registry: Registry, turns: int = 2) -> InProcessClient:
    client = await connect_client(registry)
    for turn in range(turns):
        client.send_message(f"hello {turn}", f"u{turn}")
        client.start_response(12)
        await client.socket.wait_for("rate_limits.updated", turn + 1)
    await client.disconnect()
    client.receive()
    return client


async def resume_on(client: InProcessClient, registry: Registry, last: str | None = None) -> str:
    """Resume the session on `registry`. Returns "exact" or "snapshot"."""
    client.registry = registry
    client.resume(last)
    await client.socket.wait_for("session.updated")
    return resume_result(client.socket)["resumed"]


def conversation(client: InProcessClient) -> Conversation:
    session = client.registry.find(client.session_id)
    assert session is not None
    return session.conversation


def rendered_again(client: InProcessClient) -> Conversation:
    """The items within the context window, rendered as in a new conversation."""
    current = conversation(client)
    settings = GenerationSettings(instructions=current.instructions, tools=current.tools)
    items = [item for item in current.items() if item not in current.out_of_window]
    return Conversation.start(current.template, settings).with_items(items)


def texts_of(items: Any) -> list[str]:
    return ["".join(part.text for part in item.parts) for item in items]


def expected_ids(prompt: Conversation, tokens: int) -> list[int]:
    """The ids of a response after one fresh prefill of `prompt`."""
    prompt, header = prompt.render_header()
    return oracle(prompt.ids() + header, tokens, stop_ids=[0])


async def add_message(client: InProcessClient, text: str) -> None:
    """Add an item of the user; returns when the gateway has acknowledged it."""
    sent = [event["type"] for event in client.socket.sent].count("conversation.item.done")
    client.send_message(text, f"item_{len(list(conversation(client).items()))}")
    await client.socket.wait_for("conversation.item.done", sent + 1)


def find_long_prompt(*folders: Path) -> str:
    """A prompt that every one of these models answers with at least 60 ids.

    The response is then still open while a test resumes the session elsewhere.
    """
    templates = [ModelText(str(folder)).template for folder in folders]
    for letter in string.ascii_letters:
        item = MessageItem(id="u", role="user", parts=(ContentPart("input_text", 9 * letter),))
        starts = [Conversation.start(each, GenerationSettings()) for each in templates if each]
        if all(len(expected_ids(start.with_items([item]), 60)) == 60 for start in starts):
            return 9 * letter
    raise AssertionError("no prompt has a long response from every model")


async def check_turn(
    client: InProcessClient, tokens: int = 9, *, render_again: bool = True
) -> None:
    """Check that one more turn samples the ids that a fresh prefill gives.

    The prefill is of the same items rendered again, or else of the ids of the session as they are.
    """
    await add_message(client, "and more")
    prompt = rendered_again(client) if render_again else conversation(client)
    client.start_response(tokens)
    await client.socket.wait_for("rate_limits.updated")
    response = conversation(client).spans[-1]
    assert list(response.sampled_ids or ()) == expected_ids(prompt, tokens)


async def test_session_of_another_model_is_rendered_again_and_sent_whole(
    store: Store, chat_model: Path, other_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_on(chat_model, store) as registry:
        client = await session_with_turns(registry)
        old_epoch = client.received[0]["session"]["resume"]["epoch"]
        last_event_id = client.received[-1]["event_id"]
        found = registry.find(client.session_id)
        assert found is not None
        old_texts, old_ids = texts_of(found.conversation.items()), found.conversation.ids()
    async with gateway_on(other_model, store) as registry:
        assert await resume_on(client, registry) == "snapshot"
        assert resume_result(client.socket)["epoch"] != old_epoch
        assert caplog.text.count(WARNING) == 1
        current = conversation(client)
        assert texts_of(current.items()) == old_texts
        assert current.ids() == rendered_again(client).ids() != old_ids
        assert not any(span.sampled_ids for span in current.spans)
        sent = [e["item"] for e in client.socket.sent if e["type"] == "conversation.item.done"]
        assert ["".join(p["text"] for p in item["content"]) for item in sent] == old_texts
        await check_turn(client)
        await client.disconnect()
        client.receive()
        assert await resume_on(client, registry) == "exact", "the session is of this model now"
        await client.disconnect()
        assert await resume_on(client, registry, last_event_id) == "snapshot", "old id"
        await check_turn(client, render_again=False)
        await client.disconnect()
        client.receive()
    async with gateway_on(other_model, store) as registry:
        assert await resume_on(client, registry) == "exact", "after a restart"
        await client.disconnect()
    assert caplog.text.count(WARNING) == 1
    async with gateway_on(chat_model, store) as registry:
        assert await resume_on(client, registry) == "snapshot", "back on the first model"
        await check_turn(client)
        await client.disconnect()


async def test_takeover_without_a_write_still_invalidates_old_event_ids(
    store: Store, chat_model: Path, other_model: Path
) -> None:
    """A gateway of the other model claims the session and dies before its first write."""
    async with gateway_on(chat_model, store) as registry:
        client = await session_with_turns(registry)
    async with gateway_on(other_model, store) as registry:
        found = await store.load(client.session_id)
        assert found is not None
        lease = await store.claim(
            client.session_id, "dead-gateway", ttl_s=60, expected_fence=found.metadata.fence
        )
        await store.extend_deadline(lease, 60, is_parked=True)
        assert await resume_on(client, registry) == "snapshot"
        await client.disconnect()


@pytest.mark.parametrize("restart_is_stored", [True, False])
async def test_open_response_is_generated_again_by_the_other_model(
    store: Store,
    chat_model: Path,
    other_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    restart_is_stored: bool,
) -> None:
    """Three gateways on one store: the first with one model, the others with another.

    Without `restart_is_stored`, the store is unavailable when the response is restarted and holds
    none of its new ids.
    """
    if not restart_is_stored:

        async def unavailable(*_: object) -> None:
            raise StoreUnavailable("unavailable")

        monkeypatch.setattr(UnitOfWork, "restart_response", unavailable)
    async with (
        gateway_on(chat_model, store, step_s=0.02) as one,
        gateway_on(other_model, store, step_s=0.02) as two,
        gateway_on(other_model, store, step_s=0.02) as three,
    ):
        client = await connect_client(one)
        client.send_message(find_long_prompt(chat_model, other_model), "u1")
        client.start_response(60)
        await client.socket.wait_for("response.output_text.delta", 5)
        await asyncio.sleep(0.3)
        client.receive()
        [response_id] = [
            e["response"]["id"] for e in client.received if e["type"] == "response.created"
        ]
        last_event_id, client.received = client.received[-1]["event_id"], client.received[:1]
        assert await resume_on(client, two, last_event_id) == "snapshot"
        await client.socket.wait_for("response.output_text.delta", 5)
        await asyncio.sleep(0.3)
        client.receive()
        assert [
            e["response"]["id"] for e in client.received if e["type"] == "response.created"
        ] == [response_id]
        assert await resume_on(client, three) == "exact", (
            "the third has the same model as the second"
        )
        await client.socket.wait_for("response.done")
        client.receive()
        assert deltas(client) == done(client)
        [request, response] = conversation(client).spans
        assert response.response_id == response_id
        prompt = Conversation.start(conversation(client).template, GenerationSettings()).with_items(
            request.items
        )
        assert list(response.sampled_ids or ()) == expected_ids(prompt, 60)
        await client.disconnect()


async def test_open_response_that_no_longer_fits_ends(
    store: Store, chat_model: Path, other_model: Path
) -> None:
    async with (
        gateway_on(chat_model, store, step_s=0.02) as one,
        gateway_on(other_model, store, length=25, step_s=0.02) as two,
    ):
        client = await connect_client(one)
        client.send_message(find_long_prompt(chat_model), "u1")
        client.start_response(200)
        await client.socket.wait_for("response.output_text.delta", 2)
        client.receive()
        assert await resume_on(client, two) == "snapshot"
        session = two.find(client.session_id)
        assert session is not None
        await wait_until(lambda: not session.conversation.has_open_response)
        assert [item.id for item in session.conversation.items()] == ["u1"]
        await client.disconnect()


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_session_too_long_for_the_other_model_is_truncated_or_refused(
    store: Store, chat_model: Path, other_model: Path, truncation: str
) -> None:
    """`auto` moves the oldest items out of the window; `disabled` refuses and changes nothing."""
    async with gateway_on(chat_model, store) as registry:
        client = await connect_client(registry)
        client.socket.push_event(
            type="session.update", session={"type": "realtime", "truncation": truncation}
        )
        for turn in range(4):
            client.send_message(f"hello {turn}", f"u{turn}")
            client.start_response(12)
            await client.socket.wait_for("rate_limits.updated", turn + 1)
        await client.disconnect()
        client.receive()
        stored = await store.load(client.session_id)
        assert stored is not None
        unchanged = (stored.entries, stored.state, stored.events)
    async with gateway_on(other_model, store, length=100) as registry:
        client.registry = registry
        client.resume()
        if truncation == "auto":
            await client.socket.wait_for("session.updated")
            assert resume_result(client.socket)["resumed"] == "snapshot"
            current = conversation(client)
            assert current.length <= 100
            assert current.out_of_window
            assert len(list(current.items())) == 8, "items out of the window are sent, too"
            await check_turn(client)
            await client.disconnect()
            return
        await client.wait_closed()
        error = client.socket.sent[-1]["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is" in error["message"]
        assert client.socket.closed is not None
        assert client.socket.closed[0] == 1008
        found = await store.load(client.session_id)
        assert found is not None
        assert (found.entries, found.state, found.events) == unchanged
        assert found.metadata.is_parked
    async with gateway_on(chat_model, store) as registry:
        assert await resume_on(client, registry) == "exact"
        await client.disconnect()


async def test_fork_of_a_session_of_another_model_is_rendered_again(
    store: Store, chat_model: Path, other_model: Path
) -> None:
    async with gateway_on(chat_model, store) as registry:
        client = await session_with_turns(registry)
        stored = await store.load(client.session_id)
    async with gateway_on(other_model, store) as registry:
        child = await registry.open(EventRecorder(), fork=ForkRequest(client.session_id, "u1"))
        assert [item.id for item in child.conversation.items()][::2] == ["u0", "u1"]
        prompt = Conversation.start(child.conversation.template, GenerationSettings())
        prompt = prompt.with_items(list(child.conversation.items()))
        assert child.conversation.ids() == prompt.ids()
        state = await store.load(child.id)
        assert state is not None
        assert decode_state(state.state).model
        await registry.close(child)
    assert await store.load(client.session_id) == stored


@contextlib.asynccontextmanager
async def responses_server(
    folder: Path, store: Store
) -> AsyncIterator[tuple[ResponsesClient, EngineHarness]]:
    """Run a server of the Responses API with this model on this store."""
    settings = GatewaySettings(served_model_name=("demo",))
    async with (
        digest_engine(folder, pages=256, max_model_len=400) as harness,
        serve_harness(harness, settings, store) as server,
        connect_responses(server) as caller,
    ):
        yield caller, harness


async def test_response_continues_from_a_response_of_another_model(
    store: Store, chat_model: Path, other_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with responses_server(chat_model, store) as (caller, _):
        first = await caller.create_response("hi", store=True)
        second = await caller.create_response("you", store=True, previous_response_id=first["id"])
    texts = ["hi", output_text(first), "you", output_text(second), "more"]
    async with responses_server(other_model, store) as (caller, harness):
        third = await caller.create_response("more", store=True, previous_response_id=second["id"])
        assert output_text(third) == expected_text(harness, *texts)
    assert caplog.text.count("from another model") == 1
    async with responses_server(chat_model, store) as (caller, harness):
        fourth = await caller.create_response("and", previous_response_id=third["id"])
        assert output_text(fourth) == expected_text(harness, *texts, output_text(third), "and")


def expected_text(harness: EngineHarness, *texts: str) -> str:
    """The text of 4 tokens after these messages, alternately of the user and the assistant."""
    template = harness.engine.text.template
    assert template is not None
    roles = ("user", "assistant")
    items = [
        MessageItem(id=f"m{n}", role=roles[n % 2], parts=(ContentPart("input_text", text),))  # pyright: ignore
        for n, text in enumerate(texts)
    ]
    prompt = Conversation.start(template, GenerationSettings()).with_items(items)
    ids = expected_ids(prompt, 4)
    return harness.engine.text.decode([id for id in ids if id])


# ---- real models


def save_checkpoint(folder: Path, *, large: bool) -> Path:
    """Save a small random model with its tokenizer: of 4,096 ids, or of 112."""
    size = 4096 if large else 112
    network = parity.FAMILIES["qwen3"](
        **parity.NATIVE_SIZES | {"vocab_size": size, "eos_token_id": 0}
    )
    network.save_pretrained(folder)
    if large:
        random_checkpoints.save_tokenizer(folder)
    else:
        config = (folder / "config.json").read_text()
        chat_folder(folder)
        (folder / "config.json").write_text(config)
    return folder


@contextlib.asynccontextmanager
async def gateway_on_real_engine(
    folder: Path, store: Store
) -> AsyncIterator[tuple[Registry, EngineClient]]:
    config = EngineConfig(model=str(folder), device="cpu", dtype="float32", threads=1)
    engine = await EngineClient.start(config)
    registry = make_registry(engine, store)
    yield registry, engine
    await registry.aclose()
    await engine.stop()


async def test_real_model_with_a_smaller_vocabulary_resumes_a_session(tmp_path: Path) -> None:
    """The session has ids far beyond the vocabulary of the model that resumes the session."""
    store = await open_store(f"sqlite:///{tmp_path / 'store.db'}")
    folders: list[Path] = []
    for large in (True, False):
        (tmp_path / str(large)).mkdir()
        folders.append(save_checkpoint(tmp_path / str(large), large=large))
    async with gateway_on_real_engine(folders[0], store) as (registry, engine):
        client = await session_with_turns(registry, turns=1)
        found = registry.find(client.session_id)
        assert found is not None
        assert max(found.conversation.ids()) >= 112
    async with gateway_on_real_engine(folders[1], store) as (registry, engine):
        pid = engine.pid
        assert await resume_on(client, registry) == "snapshot"
        await add_message(client, "and more")
        prompt, header = rendered_again(client).render_header()
        sampling = Sampling(max_tokens=9, stop_ids=engine.text.stop_ids)
        turn = await engine.complete(prompt.ids() + header, sampling)
        fresh_ids = [id async for piece in turn for id in piece.ids]
        client.start_response(9)
        await client.socket.wait_for("rate_limits.updated")
        assert list(conversation(client).spans[-1].sampled_ids or ()) == fresh_ids
        assert engine.pid == pid, "the engine process did not restart"
        await client.disconnect()
    await store.aclose()
