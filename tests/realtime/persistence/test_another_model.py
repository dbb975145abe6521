"""A session or response whose ids are of another model: it is rendered anew from its text, its
client told so, and never gone on with by somebody else's ids."""

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
from continuo.realtime.persistence.session_codec import decode_state
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ForkRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.session.unit_of_work import UnitOfWork
from continuo.realtime.store import (
    Entry,
    NewSession,
    ResponseCheckpoint,
    Store,
    StoredResponse,
    StoreUnavailable,
    WriteBatch,
    open_store,
)
from tests.realtime.conftest import TEMPLATE, chat_folder
from tests.realtime.registry.test_takeover import deltas, done, gate
from tests.support import transformers_oracle as parity
from tests.support.digest_runner import oracle
from tests.support.engines import Bench, digest_engine
from tests.support.redis_process import RedisProcess
from tests.support.response_chains import Caller, calling, text_of
from tests.support.resuming import Client, resumed
from tests.support.sessions import Ears
from tests.support.web_servers import serve

WARNING = "was begun on another model"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
async def model(
    folder: Path, store: Store, length: int = 400, step_s: float = 0.002
) -> AsyncIterator[Registry]:
    """A gateway on this store with a model of its own."""
    async with digest_engine(
        folder, pages=256, max_model_len=length, batched_tokens=64, step_s=step_s
    ) as bench:
        registry = gate(bench.engine, store)
        yield registry
        await registry.aclose()


async def talk(registry: Registry, turns: int = 2) -> Client:
    client = Client(registry)
    client.connect()
    for turn in range(turns):
        client.say(f"u{turn}", f"hello {turn}")
        client.respond(12)
        await client.socket.until("rate_limits.updated", turn + 1)
    await client.drop()
    client.take()
    return client


async def come_back(client: Client, registry: Registry, last: str | None = None) -> str:
    """How the session is resumed there."""
    client.registry = registry
    client.resume(last)
    await client.socket.until("session.updated")
    return resumed(client.socket)["resumed"]


def conversation(client: Client) -> Conversation:
    session = client.registry.find(client.session_id)
    assert session is not None
    return session.conversation


def fresh(client: Client) -> Conversation:
    """The same items, but those that are dropped, as if they had just been said here."""
    now = conversation(client)
    settings = GenerationSettings(instructions=now.instructions, tools=now.tools)
    items = [item for item in now.items() if item not in now.out_of_window]
    return Conversation.start(now.template, settings).with_items(items)


def texts(items: Any) -> list[str]:
    return ["".join(part.text for part in item.parts) for item in items]


def answer_to(asked: Conversation, tokens: int) -> list[int]:
    """By one fresh prefill."""
    asked, header = asked.render_header()
    return oracle(asked.ids() + header, tokens, stop_ids=[0])


async def say(client: Client, text: str) -> None:
    """Returns when it is part of the conversation."""
    sent = [event["type"] for event in client.socket.sent].count("conversation.item.done")
    client.say(f"said_{len(list(conversation(client).items()))}", text)
    await client.socket.until("conversation.item.done", sent + 1)


def question(*folders: Path) -> str:
    """To which all of these models have much to say: what goes on meanwhile may take its time."""
    templates = [ModelText(str(folder)).template for folder in folders]
    for letter in string.ascii_letters:
        item = MessageItem(id="u", role="user", parts=(ContentPart("input_text", 9 * letter),))
        starts = [Conversation.start(one, GenerationSettings()) for one in templates if one]
        if all(len(answer_to(one.with_items([item]), 60)) == 60 for one in starts):
            return 9 * letter
    raise AssertionError("they are all short of words")


async def check_turn(client: Client, tokens: int = 9, *, anew: bool = True) -> None:
    """One more turn: what a fresh prefill of the same items gives, or of the ids as they are."""
    await say(client, "and more")
    before = fresh(client) if anew else conversation(client)
    client.respond(tokens)
    await client.socket.until("rate_limits.updated")
    answered = conversation(client).spans[-1]
    assert list(answered.sampled_ids or ()) == answer_to(before, tokens)


async def test_it_is_rendered_anew_and_told_whole(
    store: Store, chatty: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with model(chatty, store) as registry:
        client = await talk(registry)
        before, last = client.seen[0]["session"]["resume"]["epoch"], client.seen[-1]["event_id"]
        found = registry.find(client.session_id)
        assert found is not None
        said, ids = texts(found.conversation.items()), found.conversation.ids()
    async with model(other, store) as registry:
        assert await come_back(client, registry) == "snapshot"
        assert resumed(client.socket)["epoch"] != before
        assert caplog.text.count(WARNING) == 1
        now = conversation(client)
        assert texts(now.items()) == said
        assert now.ids() == fresh(client).ids() != ids
        assert not any(span.sampled_ids for span in now.spans)
        told = [e["item"] for e in client.socket.sent if e["type"] == "conversation.item.done"]
        assert ["".join(p["text"] for p in item["content"]) for item in told] == said
        await check_turn(client)
        await client.drop()
        client.take()
        assert await come_back(client, registry) == "exact", "now it is of this model"
        await client.drop()
        assert await come_back(client, registry, last) == "snapshot", "what was told before is not"
        await check_turn(client, anew=False)
        await client.drop()
        client.take()
    async with model(other, store) as registry:
        assert await come_back(client, registry) == "exact", "also after a restart"
        await client.drop()
    assert caplog.text.count(WARNING) == 1
    async with model(chatty, store) as registry:
        assert await come_back(client, registry) == "snapshot", "and back"
        await check_turn(client)
        await client.drop()


async def test_nothing_that_was_told_before_is_gone_on_from_where_nothing_was_written(
    store: Store, chatty: Path, other: Path
) -> None:
    """The other gateway dies before its first write: the next one starts where it did."""
    async with model(chatty, store) as registry:
        client = await talk(registry)
    async with model(other, store) as registry:
        found = await store.load(client.session_id)
        assert found is not None
        lease = await store.claim(
            client.session_id, "gone", ttl_s=60, expected_fence=found.metadata.fence
        )
        await store.extend_deadline(lease, 60, is_parked=True)
        assert await come_back(client, registry) == "snapshot"
        await client.drop()


@pytest.mark.parametrize("written", [True, False])
async def test_an_answer_under_way_is_made_again(
    store: Store, chatty: Path, other: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Two gateways, each with a model of its own, on one store; then a second life of the other.
    Not `written`: the store was away when it was begun again, and has none of its ids then."""
    if not written:

        async def away(*_: object) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(UnitOfWork, "restart_response", away)
    async with (
        model(chatty, store, step_s=0.02) as one,
        model(other, store, step_s=0.02) as two,
        model(other, store, step_s=0.02) as three,
    ):
        client = Client(one)
        client.connect()
        client.say("u1", question(chatty, other))
        client.respond(60)
        await client.socket.until("response.output_text.delta", 5)
        await asyncio.sleep(0.3)
        client.take()
        [made] = [e["response"]["id"] for e in client.seen if e["type"] == "response.created"]
        before, client.seen = client.seen, client.seen[:1]
        assert await come_back(client, two, before[-1]["event_id"]) == "snapshot"
        await client.socket.until("response.output_text.delta", 5)
        await asyncio.sleep(0.3)
        client.take()
        assert [e["response"]["id"] for e in client.seen if e["type"] == "response.created"] == [
            made
        ]
        assert await come_back(client, three) == "exact", "it says the same again"
        await client.socket.until("response.done")
        client.take()
        assert deltas(client) == done(client)
        [asked, answered] = conversation(client).spans
        assert answered.response_id == made
        start = Conversation.start(conversation(client).template, GenerationSettings()).with_items(
            asked.items
        )
        assert list(answered.sampled_ids or ()) == answer_to(start, 60)
        await client.drop()


async def test_an_answer_under_way_that_finds_no_room_ends(
    store: Store, chatty: Path, other: Path
) -> None:
    async with (
        model(chatty, store, step_s=0.02) as one,
        model(other, store, length=25, step_s=0.02) as two,
    ):
        client = Client(one)
        client.connect()
        client.say("u1", question(chatty))
        client.respond(200)
        await client.socket.until("response.output_text.delta", 2)
        client.take()
        assert await come_back(client, two) == "snapshot"
        session = two.find(client.session_id)
        assert session is not None
        async with asyncio.timeout(20):
            while session.conversation.has_open_response:
                await asyncio.sleep(0.01)
        assert [item.id for item in session.conversation.items()] == ["u1"]
        await client.drop()


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_one_that_does_not_fit_any_more(
    store: Store, chatty: Path, other: Path, truncation: str
) -> None:
    """The oldest items are dropped; or it is refused, and stays in the store as it is."""
    async with model(chatty, store) as registry:
        client = Client(registry)
        client.connect()
        client.socket.put(
            type="session.update", session={"type": "realtime", "truncation": truncation}
        )
        for turn in range(4):
            client.say(f"u{turn}", f"hello {turn}")
            client.respond(12)
            await client.socket.until("rate_limits.updated", turn + 1)
        await client.drop()
        client.take()
        kept = await store.load(client.session_id)
        assert kept is not None
    async with model(other, store, length=100) as registry:
        client.registry = registry
        client.resume()
        if truncation == "auto":
            await client.socket.until("session.updated")
            assert resumed(client.socket)["resumed"] == "snapshot"
            now = conversation(client)
            assert now.length <= 100
            assert now.out_of_window
            assert len(list(now.items())) == 8, "they are still told"
            await check_turn(client)
            await client.drop()
            return
        await client.gone()
        error = client.socket.sent[-1]["error"]
        assert error["code"] == "context_length_exceeded"
        assert "max_model_len" in error["message"]
        assert client.socket.closed is not None
        assert client.socket.closed[0] == 1008
        found = await store.load(client.session_id)
        assert found is not None
        assert (found.entries, found.state, found.events) == (kept.entries, kept.state, kept.events)
        assert found.metadata.is_parked
    async with model(chatty, store) as registry:
        assert await come_back(client, registry) == "exact"
        await client.drop()


async def test_a_fork_of_one_is_rendered_anew(store: Store, chatty: Path, other: Path) -> None:

    async with model(chatty, store) as registry:
        client = await talk(registry)
        kept = await store.load(client.session_id)
    async with model(other, store) as registry:
        child = await registry.open(Ears(), fork=ForkRequest(client.session_id, "u1"))
        assert [item.id for item in child.conversation.items()][::2] == ["u0", "u1"]
        again = Conversation.start(child.conversation.template, GenerationSettings())
        again = again.with_items(list(child.conversation.items()))
        assert child.conversation.ids() == again.ids()
        state = await store.load(child.id)
        assert state is not None
        assert decode_state(state.state).model
        await registry.close(child)
    assert await store.load(client.session_id) == kept


@contextlib.asynccontextmanager
async def answering(folder: Path, store: Store) -> AsyncIterator[tuple[Caller, Bench]]:
    """A server of the Responses API on this store, with a model of its own."""
    settings = GatewaySettings(served_model_name=("demo",))
    async with (
        digest_engine(folder, pages=256, max_model_len=400) as bench,
        serve(bench, settings, store) as running,
        calling(running) as caller,
    ):
        yield caller, bench


async def test_a_response_goes_on_from_one_of_another_model(
    store: Store, chatty: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(chatty, store) as (caller, _):
        first = await caller.turn("hi", store=True)
        second = await caller.turn("you", store=True, previous_response_id=first["id"])
    said = ["hi", text_of(first), "you", text_of(second), "more"]
    async with answering(other, store) as (caller, bench):
        third = await caller.turn("more", store=True, previous_response_id=second["id"])
        assert text_of(third) == expected(bench, *said)
    assert caplog.text.count("from another model") == 1
    async with answering(chatty, store) as (caller, bench):
        fourth = await caller.turn("and", previous_response_id=third["id"])
        assert text_of(fourth) == expected(bench, *said, text_of(third), "and")


def expected(bench: Bench, *said: str) -> str:
    """The text of 4 tokens after these messages of user and assistant in turn."""
    template = bench.engine.text.template
    assert template is not None
    roles = ("user", "assistant")
    items = [
        MessageItem(id=f"m{n}", role=roles[n % 2], parts=(ContentPart("input_text", text),))  # pyright: ignore
        for n, text in enumerate(said)
    ]
    asked = Conversation.start(template, GenerationSettings()).with_items(items)
    ids = answer_to(asked, 4)
    return bench.engine.text.decode([id for id in ids if id])


# ---- written before there was a digest

STATE = (
    b'{"settings":{"instructions":"","tools":[],"tool_choice":{"mode":"auto","name":null},'
    b'"parallel_tool_calls":true,"max_output_tokens":null,"sampling":{"max_tokens":null,'
    b'"temperature":0.0,"top_k":0,"top_p":1.0,"min_p":0.0,"repetition_penalty":1.0,'
    b'"presence_penalty":0.0,"frequency_penalty":0.0,"logit_bias":{},"logprobs":null,"seed":null,'
    b'"stop_ids":[],"stop":[],"ignore_eos":false,"grammar":null},"truncation":{"mode":"auto",'
    b'"ratio":0.8,"after_instructions":null},"extras":"{}"},"first":0}'
)
LOG = (
    Entry(b"{}"),
    Entry(
        b'{"items":[{"type":"message","id":"u1","role":"user","parts":[{"kind":"input_text",'
        b'"text":"hello"}],"status":"completed"}]}',
        (1, 24, 22, 8, 21, 2, 11, 8, 15, 15, 18, 0, 2),
    ),
    Entry(
        b'{"items":[{"type":"message","id":"","role":"assistant","parts":[{"kind":"output_text",'
        b'"text":"s!Q}?@"}],"status":"incomplete"}],"answer":"resp_497b1bf8986b640c7da5",'
        b'"sampled":[11,17]}',
        (1, 4, 22, 22, 12, 22, 23, 4, 17, 23, 2, 22, 70, 46, 85, 71, 1 << 30, 0, 2),
    ),
)
KEPT = (
    Entry(
        b'{"items":[{"type":"message","id":"msg_321351408ff38c8af052","role":"user","parts":'
        b'[{"kind":"input_text","text":"hi"}],"status":"completed"}],"answer":null}'
    ),
    Entry(
        b'{"items":[{"type":"message","id":"item_e1d0305dab0cfe2e0f14","role":"assistant",'
        b'"parts":[{"kind":"output_text","text":"=]dD"}],"status":"incomplete"}],'
        b'"answer":"resp_d872b766d60d4414afd0"}',
        (79, 83, 7, 1 << 30),
    ),
)
"""As the version before wrote them, but for an id that no model has."""


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_session_of_the_version_before_is_rendered_anew(
    store: Store, chatty: Path, caplog: pytest.LogCaptureFixture, under_way: bool
) -> None:
    name = f"sess_{'ab'[under_way]}{'0' * 19}"
    new = NewSession(id=name, owner="gate-0", tenant="", state=STATE, ttl_s=3600)
    lease = await store.create(new)
    answer, log = "resp_497b1bf8986b640c7da5", LOG
    begins: tuple[ResponseCheckpoint, ...] = ()
    if under_way:
        log = (*LOG[:2], Entry(b'{"answer":"resp_497b1bf8986b640c7da5","open":true}'))
        begins = (ResponseCheckpoint(id=answer, seed=1, prompt=24, entry=2, body=b'{"number":0}'),)
    await store.write(lease, WriteBatch(kept_entries=0, entries=log, started_responses=begins))
    if under_way:
        await store.journal(lease, answer, 0, (22, 70, 1 << 30))
    await store.extend_deadline(lease, 60, is_parked=True)
    async with model(chatty, store) as registry:
        client = Client(registry)
        client.seen = [{"session": {"id": name}}]
        assert await come_back(client, registry, "event_00_0") == "snapshot"
        assert "(unknown, this one is" in caplog.text
        if under_way:
            await client.socket.until("response.done")
            asked, answered = conversation(client).spans
            before = Conversation.start(
                conversation(client).template, GenerationSettings()
            ).with_items(asked.items)
            assert (
                list(answered.sampled_ids or ()) == answer_to(before, 400)[:-1]
                or answered.sampled_ids
            )
        else:
            assert texts(conversation(client).items()) == ["hello", "s!Q}?@"]
            await check_turn(client)
        await client.drop()


async def test_a_response_of_the_version_before_is_rendered_anew(
    store: Store, chatty: Path
) -> None:
    name = "resp_d872b766d60d4414afd0"
    await store.put_response(StoredResponse(id=name, tenant="", entries=KEPT, body=b"[]"), 3600)
    async with answering(chatty, store) as (caller, bench):
        response = await caller.turn("more", previous_response_id=name)
        assert text_of(response) == expected(bench, "hi", "=]dD", "more")


# ---- real models


def checkpoint(folder: Path, *, large: bool) -> Path:
    """A small random model with its tokenizer: of 4,096 ids, or of 112."""
    size = 4096 if large else 112
    made = parity.FAMILIES["qwen3"](**parity.SIXTEENS | {"vocab_size": size, "eos_token_id": 0})
    made.save_pretrained(folder)
    if large:
        random_checkpoints.save_tokenizer(folder)
    else:
        config = (folder / "config.json").read_text()
        chat_folder(folder)
        (folder / "config.json").write_text(config)
    return folder


@contextlib.asynccontextmanager
async def real(folder: Path, store: Store) -> AsyncIterator[tuple[Registry, EngineClient]]:
    config = EngineConfig(model=str(folder), device="cpu", dtype="float32", threads=1)
    engine = await EngineClient.start(config)
    registry = gate(engine, store)
    yield registry, engine
    await registry.aclose()
    await engine.stop()


async def test_real_models_of_other_vocabularies(tmp_path: Path) -> None:
    """A log with ids far beyond the vocabulary of the model that goes on with it."""
    store = await open_store(f"sqlite:///{tmp_path / 'store.db'}")
    folders: list[Path] = []
    for large in (True, False):
        (tmp_path / str(large)).mkdir()
        folders.append(checkpoint(tmp_path / str(large), large=large))
    async with real(folders[0], store) as (registry, engine):
        client = await talk(registry, turns=1)
        found = registry.find(client.session_id)
        assert found is not None
        assert max(found.conversation.ids()) >= 112
    async with real(folders[1], store) as (registry, engine):
        pid = engine.pid
        assert await come_back(client, registry) == "snapshot"
        await say(client, "and more")
        asked, header = fresh(client).render_header()
        sampling = Sampling(max_tokens=9, stop_ids=engine.text.stop_ids)
        turn = await engine.complete(asked.ids() + header, sampling)
        wanted = [id async for piece in turn for id in piece.ids]
        client.respond(9)
        await client.socket.until("rate_limits.updated")
        assert list(conversation(client).spans[-1].sampled_ids or ()) == wanted
        assert engine.pid == pid, "it has not been started again"
        await client.drop()
    await store.aclose()
