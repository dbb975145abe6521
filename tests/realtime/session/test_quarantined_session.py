"""Quarantine: a session that kills engine processes is refused, and the others continue.

The engine is a process of its own, on a null device that kills the process at a deadly id."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine import EngineClient, EngineConfig
from continuo.engine.client import engine_process
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import AddItem, CreateSessionResponse
from continuo.realtime.protocol.events import ResponseEnded
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import open_store
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY
from tests.support.sessions import EventRecorder, user_message

pytestmark = pytest.mark.process

TIMEOUT_S = 60


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineClient]:
    monkeypatch.setattr(engine_process, "ENGINE_MODULE", "tests.support.deadly_boot")
    monkeypatch.setenv("DEADLY_IDS", str(VOCABULARY))
    engine = await EngineClient.start(EngineConfig(model=str(chat_folder(tmp_path, bytes=True))))
    yield engine
    await engine.stop()


async def test_session_that_kills_engine_processes_is_refused(engine: EngineClient) -> None:
    template = engine.text.template
    assert template is not None
    deadly = engine.text.create_detokenizer().push([VOCABULARY])
    assert engine.text.encode(deadly) == [VOCABULARY]
    store = await open_store("sqlite://:memory:")
    registry = Registry(engine, template, GenerationSettings(), Limits(), store)
    recorder = EventRecorder()
    good, bad = await registry.open(recorder), await registry.open(EventRecorder())
    create_response = CreateSessionResponse(settings=GenerationSettings(max_output_tokens=100))
    await good.execute(AddItem(user_message("u1", "hello"), None))
    await good.execute(create_response)

    async def add_deadly_messages() -> None:
        """Each is prefilled when the device is idle, or when the engine is available again."""
        for n in range(100):
            await bad.execute(AddItem(user_message(f"u{n}", f"hello {deadly}"), None))
            await asyncio.sleep(0.1)

    with pytest.raises(Refusal, match="Begin another one"):
        await asyncio.wait_for(add_deadly_messages(), TIMEOUT_S)
    kept = bad.conversation
    with pytest.raises(Refusal) as caught:
        await bad.execute(AddItem(user_message("more", "more"), None))
    assert (caught.value.code, caught.value.http_status) == ("session_quarantined", 400)
    assert bad.conversation == kept, "the refused item changed the conversation"
    ended = await asyncio.wait_for(recorder.wait_for(ResponseEnded), TIMEOUT_S)
    assert isinstance(ended, ResponseEnded)
    assert ended.response.status in ("completed", "incomplete")
    await bad.close()
    fresh = await registry.open(EventRecorder())
    await fresh.execute(AddItem(user_message("u1", "hello"), None))
    await fresh.close()
    await good.close()
    assert await engine.fleet.list_sessions() == []
    await registry.aclose()
    await store.aclose()
