"""SessionDriver: a session, commands to it, and a recorder of its events."""

from typing import Any
from weakref import WeakKeyDictionary

from continuo.engine import EngineClient
from continuo.realtime.event_log.replay import EmittedEvent
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
from tests.support.engines import EngineHarness
from tests.support.event_buffer import EventBuffer

SLOW_STEP_S = 0.01
"""Duration in seconds of a step if a test needs a slow device."""


class EventRecorder(EventBuffer[ConversationEvent]):
    """Subscriber that records the events of a session."""

    def __init__(self) -> None:
        super().__init__()
        self.emitted: list[EmittedEvent] = []

    def __call__(self, line: EmittedEvent) -> None:
        self.emitted.append(line)
        self.add(line.event)

    async def wait_for(self, kind: type[ConversationEvent], count: int = 1) -> ConversationEvent:
        """Wait until `count` events of a type have been emitted. Returns the last of these."""
        return await self.wait_until(lambda event: type(event) is kind, count)


async def unload(registry: Registry, session_id: str) -> None:
    """Unload a session of this process; its copy in the store stays."""
    entry = registry.open_sessions.get(session_id)
    assert entry is not None, f"{session_id} is not open here"
    await registry.open_sessions.unload(entry)


class SessionDriver:
    def __init__(self, session: Session, recorder: EventRecorder, harness: EngineHarness) -> None:
        self.session = session
        self.recorder = recorder
        self.engine_harness = harness
        self._ended_responses = 0
        self._items = 0

    @property
    def engine(self) -> EngineClient:
        return self.engine_harness.engine

    async def add_message(self, text: str, after: str | None = None, name: str = "") -> str:
        self._items += 1
        name = name or f"u{self._items}"
        await self.session.execute(AddItem(user_message(name, text), after))
        return name

    def expected_ids(self, tokens: int) -> list[int]:
        """Compute with the oracle the ids of a response of up to `tokens` ids to the current
        conversation."""
        prompt, header = self.session.conversation.render_header()
        return oracle(prompt.ids() + header, tokens, stop_ids=[0])

    async def create_response(self, tokens: int | None = 6, **more: Any) -> None:
        """Create a response of at most `tokens` output tokens.

        With None, the response is unbounded and its steps are slow, so that it is still in progress
        when the test acts.
        """
        if tokens is None:
            self.engine_harness.runner.step_s = SLOW_STEP_S
        settings = GenerationSettings(
            instructions=self.session.settings.instructions,
            tools=self.session.settings.tools,
            max_output_tokens=tokens,
        )
        await self.session.execute(CreateSessionResponse(settings=settings, **more))

    async def wait_response(self) -> Response:
        """Wait for the end of the next response not waited for yet. Returns that response."""
        self._ended_responses += 1
        event = await self.recorder.wait_for(ResponseEnded, self._ended_responses)
        assert isinstance(event, ResponseEnded)
        return event.response

    def sampled_ids(self, response: Response) -> list[int]:
        spans = [s for s in self.session.conversation.spans if s.response_id == response.id]
        return list(spans[0].sampled_ids or ()) if spans else []

    async def run_turn(self, tokens: int = 6) -> Response:
        """Run one response of up to `tokens` ids and compare these with the oracle."""
        expected = self.expected_ids(tokens)
        await self.create_response(tokens)
        response = await self.wait_response()
        assert self.sampled_ids(response) == expected
        return response


def user_message(name: str, text: str) -> MessageItem:
    return MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))


_STORES: WeakKeyDictionary[EngineHarness, Store] = WeakKeyDictionary()


async def shared_store(harness: EngineHarness) -> Store:
    """Return the in-memory store that all sessions of this engine share, opened on first use."""
    if harness not in _STORES:
        _STORES[harness] = store = await open_store("sqlite://:memory:")
        harness.exit_stack.push_async_callback(store.aclose)
    return _STORES[harness]


async def create_registry(harness: EngineHarness, limits: Limits | None = None) -> Registry:
    template = harness.engine.text.template
    assert template is not None
    store = await shared_store(harness)
    return Registry(harness.engine, template, GenerationSettings(), limits or Limits(), store)


async def open_session(
    harness: EngineHarness, registry: Registry | None = None, **options: Any
) -> SessionDriver:
    """Open a session in `registry`, or in a new one. `options`: those of `Registry.open`."""
    if registry is None:
        registry = await create_registry(harness)
    recorder = EventRecorder()
    session = await registry.open(recorder, **options)
    return SessionDriver(session, recorder, harness)


def event_type_names(recorder: EventRecorder) -> list[str]:
    return [type(event).__name__ for event in recorder.events]
