"""SessionDriver: a session, commands to it, and a recorder of its events."""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from continuo.engine import EngineClient
from continuo.realtime.event_log.event_log import EmittedEvent
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import AddItem, CreateSessionResponse
from continuo.realtime.protocol.events import ConversationEvent, ResponseEnded
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from continuo.realtime.store import Store, open_store
from tests.support.digest_runner import oracle
from tests.support.engines import Bench

SLOW_S = 0.01
"""Duration of a step of a slow device."""


class Ears:
    """Subscriber that records the events of a session."""

    def __init__(self) -> None:
        self.heard: list[ConversationEvent] = []
        self.lines: list[EmittedEvent] = []
        self._new = asyncio.Event()

    def __call__(self, line: EmittedEvent) -> None:
        self.lines.append(line)
        self.heard.append(line.event)
        self._new.set()

    async def until(self, kind: type[ConversationEvent], count: int = 1) -> ConversationEvent:
        """Wait for the `count`th event of a type."""
        while True:
            found = [event for event in self.heard if type(event) is kind]
            if len(found) >= count:
                return found[count - 1]
            self._new.clear()
            await asyncio.wait_for(self._new.wait(), 20)


class Talk:
    def __init__(self, session: Session, recorder: Ears, bench: Bench) -> None:
        self.session = session
        self.ears = recorder
        self.bench = bench
        self._answers = 0
        self._items = 0

    @property
    def engine(self) -> EngineClient:
        return self.bench.engine

    async def say(self, text: str, after: str | None = None, name: str = "") -> str:
        self._items += 1
        name = name or f"u{self._items}"
        await self.session.execute(AddItem(message(name, text), after))
        return name

    def expected(self, tokens: int) -> list[int]:
        """Compute the response that a fresh prefill of the conversation gives."""
        prompt, header = self.session.conversation.render_header()
        return oracle(prompt.ids() + header, tokens, stop_ids=[0])

    async def respond(self, tokens: int | None = 6, **more: Any) -> None:
        """Create a response; None: one with slow steps, which is still open when a test acts."""
        if tokens is None:
            self.bench.runner.step_s = SLOW_S
        settings = GenerationSettings(
            instructions=self.session.settings.instructions,
            tools=self.session.settings.tools,
            max_output_tokens=tokens,
        )
        await self.session.execute(CreateSessionResponse(settings=settings, **more))

    async def ended(self) -> Response:
        """Wait for the end of the next response."""
        self._answers += 1
        event = await self.ears.until(ResponseEnded, self._answers)
        assert isinstance(event, ResponseEnded)
        return event.answer

    def sampled(self, response: Response) -> list[int]:
        spans = [s for s in self.session.conversation.spans if s.response_id == response.id]
        return list(spans[0].sampled_ids or ()) if spans else []

    async def turn(self, tokens: int = 6) -> Response:
        """Run one response, which must be that of a fresh prefill."""
        expected = self.expected(tokens)
        await self.respond(tokens)
        response = await self.ended()
        assert self.sampled(response) == expected
        return response


def message(name: str, text: str) -> MessageItem:
    return MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))


_STORES: WeakKeyDictionary[Bench, Store] = WeakKeyDictionary()


async def store_of(bench: Bench) -> Store:
    """Open the in-memory store that all sessions of this engine share."""
    if bench not in _STORES:
        _STORES[bench] = store = await open_store("sqlite://:memory:")
        bench.besides.push_async_callback(store.aclose)
    return _STORES[bench]


async def registry_of(bench: Bench, limits: Limits | None = None) -> Registry:
    template = bench.engine.text.template
    assert template is not None
    store = await store_of(bench)
    return Registry(bench.engine, template, GenerationSettings(), limits or Limits(), store)


async def open_talk(bench: Bench, limits: Limits | None = None) -> Talk:
    recorder = Ears()
    session = await (await registry_of(bench, limits)).open(recorder)
    return Talk(session, recorder, bench)


def kinds(recorder: Ears) -> list[str]:
    return [type(event).__name__ for event in recorder.heard]
