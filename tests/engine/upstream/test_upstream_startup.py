"""Tests of the start of an engine on another server."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine import EngineClient
from continuo.engine.config import EngineConfig
from continuo.engine.errors import ModelError
from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.sampling import Sampling
from continuo.engine.text import ModelText
from continuo.engine.upstream import model_check, startup
from continuo.engine.upstream.startup import start_server
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import collect_ids, open_with, recover_ids
from tests.support.gguf_files import write_foreign_gguf
from tests.support.ports import free_port
from tests.support.upstream_engines import demo_fake
from tests.support.upstream_servers import FakeLlama, FakeServer, FakeVllm, serve_fake
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL_S", 0.01)


@pytest.fixture
def same_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes make an id of each byte; the tokenizer of `letters` has none for most of them."""
    monkeypatch.setattr(model_check, "PROBES", ())


def ignore_progress(what: str, fraction: float) -> None:
    pass


@pytest.mark.usefixtures("same_tokenizer")
async def test_engine_is_described_by_the_server(letters: Path) -> None:
    async with serve_fake(FakeLlama(slots=3)) as url:
        config = EngineConfig(model=str(letters), engine_url=url)
        server, _, text, ready = await start_server(config, ignore_progress)
    assert (server.kind, server.max_rows, text.folder) == ("llama-server", 3, str(letters))
    assert (ready.device, ready.max_model_len, ready.vocab_size) == (
        "llama-server b11434-fake",
        1000,
        97,
    )
    assert (ready.pages, ready.page_size, ready.model) == (3000, 1, str(letters))
    assert not ready.enforces_lark


@pytest.mark.usefixtures("same_tokenizer")
async def test_start_waits_for_the_server_and_says_so(letters: Path) -> None:
    port, stages = free_port(), list[str]()
    url = f"http://127.0.0.1:{port}"
    starting = asyncio.create_task(
        start_server(
            EngineConfig(model=str(letters), engine_url=url), lambda what, _: stages.append(what)
        )
    )
    await wait_until(lambda: stages)
    assert stages[0].startswith(f"waiting for the server at {url}: no connection")
    async with serve_fake(FakeVllm(), port):
        assert (await starting).server.kind == "vLLM"


async def test_another_tokenizer_is_refused(letters: Path) -> None:
    async with serve_fake(FakeVllm()) as url:
        with pytest.raises(ModelError, match=f"{url} serves a model with another tokenizer"):
            await start_server(EngineConfig(model=str(letters), engine_url=url), ignore_progress)


async def test_gguf_that_our_engine_cannot_read_serves_for_the_text(tmp_path: Path) -> None:
    folder, path = find_local_checkpoint("demo"), tmp_path / "model.gguf"
    assert folder is not None
    write_foreign_gguf(folder, path, pre="gpt-2")
    with pytest.raises(ModelError, match="supported"):
        find_local_checkpoint(str(path))
    async with serve_fake(demo_fake(FakeLlama())) as url:
        config = EngineConfig(model=str(path), engine_url=url)
        _, _, text, ready = await start_server(config, ignore_progress)
    own = ModelText(str(folder))
    conversation = "<|user|>Wer bist du? 日本語<|end|><|assistant|>"
    assert text.encode(conversation) == own.encode(conversation)
    assert text.stop_ids == own.stop_ids
    assert text.template is not None
    assert (ready.architecture, ready.vocab_size) == ("unheard-of", 1920)


@pytest.mark.usefixtures("same_tokenizer")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 2000}, "max_model_len is 2000; the server has 1000"),
        ({"model": "/no/such/folder"}, "no such folder"),
        ({"engine_url": "http://host:port"}, "engine_url"),
        ({"engine_api_key_file": "/no/such/file"}, "No such file"),
    ],
)
async def test_unusable_option_is_refused(
    letters: Path, options: dict[str, object], words: str
) -> None:
    async with serve_fake(FakeVllm()) as url:
        fields: dict = {"model": str(letters), "engine_url": url} | options
        with pytest.raises(ModelError, match=words):
            await start_server(EngineConfig(**fields), ignore_progress)


@pytest.mark.usefixtures("same_tokenizer")
async def test_key_is_read_from_its_file(letters: Path, tmp_path: Path) -> None:
    fake, file = FakeVllm(), tmp_path / "key"
    fake.api_key = "right"
    async with serve_fake(fake) as url:
        config = EngineConfig(model=str(letters), engine_url=url, engine_api_key_file=str(file))
        for key in ("wrong", ""):
            file.write_text(key)
            with pytest.raises(ModelError, match=r"invalid API key|has no key"):
                await start_server(config, ignore_progress)
        file.write_text("right\n")
        assert (await start_server(config, ignore_progress)).server.kind == "vLLM"


@pytest.mark.parametrize("kind", [FakeVllm, FakeLlama])
async def test_turn_of_a_killed_engine_process_continues(kind: type[FakeServer]) -> None:
    """The server lives on, and the next process finds it."""
    fake, prompt = demo_fake(kind()), [5, 6, 7]
    fake.step_s = 0.01
    async with serve_fake(fake) as url:
        engine = await EngineClient.start(EngineConfig(engine_url=url), ignore_progress)
        try:
            session = await open_with(engine, prompt)
            turn = await engine.generate(session, Sampling(max_tokens=8, ignore_eos=True))
            assert await collect_ids(turn) == oracle(prompt, 8)
            turn = await engine.generate(session, Sampling(max_tokens=30, ignore_eos=True))
            await anext(aiter(turn))
            engine.kill_process()
            log = prompt + oracle(prompt, 8)
            await recover_ids(engine, turn, log)
            assert turn.ids == oracle(log, 30)
        finally:
            await engine.stop()
