"""A session, and somebody who talks with it."""

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
"""A step of a device that takes its time."""


class Ears:
    """Hears what a session says."""

    def __init__(self) -> None:
        self.heard: list[ConversationEvent] = []
        self.lines: list[EmittedEvent] = []
        self._new = asyncio.Event()

    def __call__(self, line: EmittedEvent) -> None:
        self.lines.append(line)
        self.heard.append(line.event)
        self._new.set()

    async def until(self, kind: type[ConversationEvent], count: int = 1) -> ConversationEvent:
        """The `count`th of its kind."""
        while True:
            found = [tell for tell in self.heard if type(tell) is kind]
            if len(found) >= count:
                return found[count - 1]
            self._new.clear()
            await asyncio.wait_for(self._new.wait(), 20)


class Talk:
    def __init__(self, session: Session, ears: Ears, bench: Bench) -> None:
        self.session = session
        self.ears = ears
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
        """What a fresh prefill of the conversation would answer."""
        asked, header = self.session.conversation.render_header()
        return oracle(asked.ids() + header, tokens, stop_ids=[0])

    async def respond(self, tokens: int | None = 6, **more: Any) -> None:
        """None: one that goes on while something is done to it, on a machine however loaded."""
        if tokens is None:
            self.bench.runner.step_s = SLOW_S
        wish = GenerationSettings(
            instructions=self.session.settings.instructions,
            tools=self.session.settings.tools,
            max_output_tokens=tokens,
        )
        await self.session.execute(CreateSessionResponse(settings=wish, **more))

    async def ended(self) -> Response:
        self._answers += 1
        tell = await self.ears.until(ResponseEnded, self._answers)
        assert isinstance(tell, ResponseEnded)
        return tell.answer

    def sampled(self, answer: Response) -> list[int]:
        spans = [s for s in self.session.conversation.spans if s.response_id == answer.id]
        return list(spans[0].sampled_ids or ()) if spans else []

    async def turn(self, tokens: int = 6) -> Response:
        """One answer, which must be what a fresh prefill gives."""
        expected = self.expected(tokens)
        await self.respond(tokens)
        answer = await self.ended()
        assert self.sampled(answer) == expected
        return answer


def message(name: str, text: str) -> MessageItem:
    return MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))


_STORES: WeakKeyDictionary[Bench, Store] = WeakKeyDictionary()


async def store_of(bench: Bench) -> Store:
    """One in memory, for all that is tried with this engine."""
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
    ears = Ears()
    session = await (await registry_of(bench, limits)).open(ears)
    return Talk(session, ears, bench)


def kinds(ears: Ears) -> list[str]:
    return [type(tell).__name__ for tell in ears.heard]
