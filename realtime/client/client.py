"""RealtimeClient: a conversation with a server, which survives lost connections.

The outbox holds every event until the server acknowledges it, server events update the local
conversation, and a lost connection is resumed after the last event received. Events sent while
disconnected are queued.
"""

import asyncio
import os
from collections.abc import Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

import msgspec

from continuo.realtime.client.connection import (
    ApiKey,
    ConnectionOptions,
    ConnectionState,
    ResumeOutcome,
)
from continuo.realtime.client.conversation import Conversation, ConversationChange
from continuo.realtime.client.draft import Draft
from continuo.realtime.client.errors import ConnectionClosedError, EventRefusedError
from continuo.realtime.client.events import (
    ErrorEvent,
    FunctionCallOutput,
    Item,
    JsonObject,
    KVResidency,
    Message,
    ReasoningDelta,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionCreated,
    SessionUpdated,
    TextDelta,
)
from continuo.realtime.client.new_id import new_id
from continuo.realtime.client.outbox import Outbox, retrieve_exception
from continuo.realtime.client.reconnecting import (
    ConnectionHandler,
    ReconnectingConnection,
    SessionLost,
)
from continuo.realtime.client.rehydration import recreate_items, settings_of
from continuo.realtime.client.response_stream import ResponseStream
from continuo.realtime.client.settings import (
    ResponseSettings,
    SessionSettings,
    encode_settings,
    list_tools,
)
from continuo.realtime.client.subscription import Broadcast, Subscription

DEFAULT_URL = "ws://127.0.0.1:8000"
_CLOSE_TIMEOUT_S = 5.0
"""Time for which `close` waits for acknowledgements."""
_PENDING_EVENTS_MAX = 4096
"""Maximum number of unacknowledged events."""

T = TypeVar("T")


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Id and token of a session: another program, or this one after a restart, can resume or fork
    it with them. Store it as you would store a key."""

    session_id: str
    token: str | None = None


class RealtimeClient:
    """A conversation. Created by `connect`.

    Methods that send return a future, which can be awaited for the outcome, and need not be: events
    are sent in the order of the calls. The future raises EventRefusedError or
    ConnectionClosedError; one that is not awaited has its error logged by asyncio.
    """

    def __init__(
        self,
        url: str,
        query: dict[str, str],
        options: ConnectionOptions,
        settings: SessionSettings,
        resume: "ResumePoint | None" = None,
    ) -> None:
        """Args:
        url: as in `connect`, never empty.
        query: parameters of the connection that opens a new session; later connections have others.
        options: including the API key; used again at each reconnection.
        settings: those of a new session; a session that replaces a lost one gets those of the lost
            one.
        resume: the session to resume. None: a new session is opened.
        """
        self._url = url
        self._options = options
        self._outbox = Outbox()
        handler = ConnectionHandler(
            has_opened=lambda: self._has_opened,
            query=self._query,
            take_unsent=lambda: self._outbox.take_unsent(self._barrier_id),
            refuse=self._outbox.reject,
            on_event=self._on_event,
            on_session_lost=self._begin_rehydration,
            on_disconnect=self._on_disconnect,
        )
        self._connection = ReconnectingConnection(url, options, handler)
        self._opening_query = query
        self._settings = settings
        self._tools = {tool.name: tool for tool in list_tools(settings.get("tools"))}
        self.conversation = Conversation()
        """The items so far, kept up to date."""
        self.draft = Draft(self.send)
        """The message being typed."""
        self._events = Broadcast[ServerEvent]()
        self._changes = Broadcast[ConversationChange]()
        self._session: JsonObject = {}
        self._resume_point = resume
        self._last_event_id: str | None = None
        self._barrier_id: str | None = None
        """Id of the event whose reply follows every missed event; None if none is pending."""
        self._setup: asyncio.Future[ServerEvent] | None = None
        """The settings of a new session, sent before all else."""
        self._is_rehydrating = False
        self._streams: set[ResponseStream] = set()
        """Streams that have not ended."""
        self._requests: dict[str, ResponseStream] = {}
        """Streams that wait for `response.created`, by the id of their request."""
        self._streams_by_response: dict[str, ResponseStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: ConnectionClosedError | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run())

    # ---------------------------------------------------------------- opening and leaving

    def __await__(self) -> "Generator[Any, None, RealtimeClient]":
        return self.__aenter__().__await__()

    async def __aenter__(self) -> "RealtimeClient":
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._leave()

    async def close(self) -> None:
        """Leave: wait for the acknowledgement of what was sent, then disconnect. The session stays
        on the server for a while, and can be resumed from `resume_point`."""
        pending = self._outbox.futures
        if self._closed is None and pending:
            await asyncio.wait(pending, timeout=_CLOSE_TIMEOUT_S)
        await self._leave()

    async def delete_session(self) -> None:
        """Delete the session on the server, and leave."""
        await self.send({"type": "session.close"})
        await self._leave()

    async def _leave(self) -> None:
        await self._connection.close()
        self._runner.cancel()
        await asyncio.wait([self._runner])

    async def wait_closed(self) -> ConnectionClosedError:
        """Wait until the connection is closed for good. Returns why."""
        await asyncio.wait([self._runner])
        assert self._closed is not None
        return self._closed

    # ---------------------------------------------------------------- the conversation

    def ask(self, text: str, **settings: Unpack[ResponseSettings]) -> ResponseStream:
        """Add a message of the user and request a response to it. Await the response for its text,
        or iterate over its deltas."""
        return self._stream(settings, self.add_message(text))

    def respond(self, **settings: Unpack[ResponseSettings]) -> ResponseStream:
        """Request a response to the conversation as it is."""
        return self._stream(settings, None)

    def add_message(
        self, text: str, *, role: Literal["user", "system", "assistant"] = "user"
    ) -> "asyncio.Future[str]":
        """Add a message. Returns a future of its item id."""
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": text}]
        return self.add_item({"type": "message", "role": role, "content": content})

    def add_tool_output(self, call_id: str, output: str) -> "asyncio.Future[str]":
        """Add the result of a call, of a tool without a function. Returns a future of its item
        id."""
        item = {"type": "function_call_output", "call_id": call_id, "output": output}
        return self.add_item(item)

    def add_item(self, item: JsonObject, *, after: str | None = None) -> "asyncio.Future[str]":
        """Add an item, as the wire has it, at the end or after the item `after` (`root`: at the
        front). Returns a future of its item id."""
        item = {"id": new_id("item"), **item}
        event: JsonObject = {"type": "conversation.item.create", "item": item}
        if after is not None:
            event["previous_item_id"] = after
        return _then(self.send(event), item["id"])

    def truncate(self, item_id: str, chars: int) -> "asyncio.Future[ServerEvent]":
        """Keep only the first `chars` characters of a message of the assistant."""
        event = {"type": "conversation.item.truncate", "item_id": item_id}
        return self.send(event | {"content_index": 0, "text_end": chars})

    def delete(self, item_id: str) -> "asyncio.Future[ServerEvent]":
        """Delete an item."""
        return self.send({"type": "conversation.item.delete", "item_id": item_id})

    async def rewind(self, item_id: str | None) -> None:
        """Delete all items after an item; after None, all items. Raises KeyError if there is no
        such item."""
        if item_id is not None and self.conversation.find(item_id) is None:
            raise KeyError(item_id)
        later = self.conversation.items_after(item_id)
        await asyncio.gather(*[self.delete(item.id) for item in reversed(later)])

    def fork(self, at: str | None = None, **settings: Unpack[SessionSettings]) -> "RealtimeClient":
        """Begin another conversation with the settings, the items and the KV of this one, up to and
        including the item `at`, or with all items: `async with client.fork() as other`."""
        assert self._resume_point is not None, "the client is not connected"
        query = _fork_query(self._resume_point, at) | self._model_query
        other = RealtimeClient(self._url, query, self._options, settings)
        other._tools = self._tools | other._tools
        return other

    def update(self, **settings: Unpack[SessionSettings]) -> "asyncio.Future[ServerEvent]":
        """Change settings of the session."""
        if "tools" in settings:
            self._tools = {tool.name: tool for tool in list_tools(settings["tools"])}
        return self.send(_session_update(encode_settings(settings)))

    def send(
        self, event: JsonObject, resend_as: Sequence[JsonObject] = ()
    ) -> "asyncio.Future[ServerEvent]":
        """Send any event of the Realtime API, now or once connected. Returns a future of the
        acknowledging event. After a lost connection `resend_as` is sent instead; its last event
        gets the same id. Raises ConnectionClosedError if the client is closed, EventRefusedError if
        _PENDING_EVENTS_MAX events are unacknowledged."""
        if self._closed is not None:
            raise self._closed
        if len(self._outbox) >= _PENDING_EVENTS_MAX:
            message = f"{_PENDING_EVENTS_MAX:,} events are unacknowledged."
            raise EventRefusedError("too_many_pending_events", message, is_temporary=True)
        event = {"event_id": new_id("event"), **event}
        again = [{"event_id": new_id("event"), **one} for one in resend_as]
        if again:
            again[-1]["event_id"] = event["event_id"]
        self._connection.wake_writer()
        return self._outbox.add(event, again)

    # ---------------------------------------------------------------- what happens

    def changes(self) -> Subscription[ConversationChange]:
        """Iterate over what changes in the conversation from now on; `conversation` has the whole
        list."""
        return self._changes.subscribe()

    def events(self) -> Subscription[ServerEvent]:
        """Iterate over the events of the server from now on."""
        return self._events.subscribe()

    def states(self) -> Subscription[ConnectionState]:
        """Iterate over the states of the connection from now on."""
        return self._connection.states.subscribe()

    @property
    def state(self) -> ConnectionState:
        return self._connection.state

    @property
    def session(self) -> JsonObject:
        """The session as last described by the server."""
        return self._session

    @property
    def session_id(self) -> str:
        return self._session["id"]

    @property
    def resume_point(self) -> ResumePoint | None:
        return self._resume_point

    @property
    def pending_events(self) -> list[JsonObject]:
        """Unacknowledged events, in order; readable also after the connection is closed."""
        return self._outbox.events

    def retry_now(self) -> None:
        """Skip the remaining delay before the next attempt to connect."""
        self._connection.retry_now()

    # ---------------------------------------------------------------- responses

    def _stream(
        self, settings: ResponseSettings, after: "asyncio.Future[str] | None"
    ) -> ResponseStream:
        own = {tool.name: tool for tool in list_tools(settings.get("tools"))}
        stream = ResponseStream(
            self, encode_settings(settings), lambda: {**self._tools, **own}, after
        )
        self._streams.add(stream)
        stream.on_end(lambda: self._streams.discard(stream))
        return stream

    def request_response(
        self, stream: ResponseStream, event: JsonObject
    ) -> "asyncio.Future[ServerEvent]":
        """Send `response.create`, and route the events of that response to `stream`."""
        self._outbox.expect_again(stream.response_id)
        acknowledged = self.send(event)
        self._requests[event["event_id"]] = stream
        return acknowledged

    def cancel_response(self, response_id: str) -> "asyncio.Future[ServerEvent]":
        """Cancel a response; see `ResponseStream.cancel`."""
        return self.send({"type": "response.cancel", "response_id": response_id})

    def output_after(self, item_id: str | None) -> list[Item]:
        """List the items after an item up to the next that is not a model's output."""
        output: list[Item] = []
        for item in self.conversation.items_after(item_id):
            is_input = isinstance(item, FunctionCallOutput) or (
                isinstance(item, Message) and item.role != "assistant"
            )
            if is_input:
                break
            output.append(item)
        return output

    @property
    def last_item_id(self) -> str | None:
        items = self.conversation.items
        return items[-1].id if items else None

    # ---------------------------------------------------------------- the connection

    async def _run(self) -> None:
        closed = ConnectionClosedError("disconnected", "This client has disconnected.")
        try:
            await self._connection.run()
        except ConnectionClosedError as error:
            closed = error
        finally:
            self._end(closed)

    def _end(self, closed: ConnectionClosedError) -> None:
        self._closed = closed
        for task in self._tasks:
            task.cancel()
        if not self._opened.done():
            self._opened.set_exception(closed)
        self._opened.add_done_callback(retrieve_exception)
        self._outbox.reject_all(closed)
        for stream in [*self._streams]:
            stream.fail(closed, is_expected=self._connection.is_closing)
        self._connection.end(str(closed))
        self._events.end()
        self._changes.end()

    @property
    def _has_opened(self) -> bool:
        return self._opened.done()

    def _query(self) -> dict[str, str]:
        point = self._resume_point
        if point is None:
            return self._model_query if self._is_rehydrating else self._opening_query
        query = self._model_query | {"session_id": point.session_id}
        if self._last_event_id is not None:
            query["last_event_id"] = self._last_event_id
        return query | ({"resume_token": point.token} if point.token else {})

    @property
    def _model_query(self) -> dict[str, str]:
        return {
            name: self._opening_query[name] for name in ("model",) if name in self._opening_query
        }

    def _on_disconnect(self) -> None:
        if self._barrier_id is not None:
            self._outbox.remove(self._barrier_id)
        self._barrier_id = None
        self._outbox.mark_unsent()

    # ---------------------------------------------------------------- receiving

    def _on_event(self, event: ServerEvent) -> None:
        if isinstance(event, SessionCreated) and self._resume_point is not None:
            raise SessionLost("session_not_found", "The server created another session.")
        acknowledged_id = self._outbox.receive(event)
        if isinstance(event, ErrorEvent) and event.error.event_id is not None:
            self._requests.pop(event.error.event_id, None)
            if event.error.event_id == self._barrier_id:
                self._on_barrier_passed()
                return
        change = self.conversation.apply(event)
        self._handle(event, acknowledged_id)
        self._events.publish(event)
        if change is not None:
            self._changes.publish(change)
        if not isinstance(event, ErrorEvent) and event.event_id:
            self._last_event_id = event.event_id

    def _handle(self, event: ServerEvent, acknowledged_id: str | None) -> None:
        match event:
            case SessionCreated(session=session):
                self._on_session_created(session)
            case SessionUpdated(session=session):
                self._on_session_updated(session)
            case ResponseCreated(response=response):
                by_id = self._streams_by_response.pop(response.id, None)
                stream = self._requests.pop(acknowledged_id or "", None) or by_id
                if stream is not None:
                    self._streams_by_response[response.id] = stream
                    stream.on_created(response)
            case TextDelta(response_id=response_id, delta=delta):
                if stream := self._streams_by_response.get(response_id):
                    stream.on_delta(delta)
            case ReasoningDelta(response_id=response_id, delta=delta):
                if stream := self._streams_by_response.get(response_id):
                    stream.on_reasoning(delta)
            case ResponseDone(response=response):
                if stream := self._streams_by_response.pop(response.id, None):
                    stream.on_done(response)
            case _:
                pass

    def _on_session_created(self, session: JsonObject) -> None:
        """Configure a new session, and rehydrate the conversation in it, before queued events are
        sent."""
        settings = encode_settings(self._settings)
        if self._is_rehydrating and self._session:
            settings = settings_of(self._session)
        resume: JsonObject = session.get("resume") or {}
        self._session = session
        self._resume_point = ResumePoint(session_id=session["id"], token=resume.get("token"))
        first = [_session_update(settings)] if settings else []
        if self._is_rehydrating:
            self.conversation.remove_unfinished_output()
            first += recreate_items(self.conversation, self._outbox.events)
        self._open(first, "rehydrated" if self._is_rehydrating else "new", None)

    def _on_session_updated(self, session: JsonObject) -> None:
        self._session = session
        resume: JsonObject = session.get("resume") or {}
        if not resume.get("resumed"):
            return
        token = resume.get("token") or (self._resume_point and self._resume_point.token)
        self._resume_point = ResumePoint(session_id=session["id"], token=token)
        if resume["resumed"] == "snapshot":
            self._expect_announcements()
        settings = {} if self._has_opened else encode_settings(self._settings)
        first = [_session_update(settings)] if settings else []
        self._open(first, resume["resumed"], resume.get("kv"))

    def _expect_announcements(self) -> None:
        """Expect the responses in progress to be announced again: a stream that is not will find
        out what became of its response."""
        for stream in self._streams:
            stream.expect_announcement()

    def _open(
        self, first: Sequence[JsonObject], outcome: ResumeOutcome, kv: KVResidency | None
    ) -> None:
        """Send `first` and a barrier, ahead of all queued events: nothing else is sent until every
        missed event has been received, because missed events may acknowledge it. The barrier
        retrieves an item that cannot exist; its error reply follows the missed events, is
        distinguishable from them, and changes nothing."""
        if outcome != "exact":
            self.draft.mark_buffer_unknown()
        self._barrier_id = barrier_id = new_id("event")
        barrier = {"type": "conversation.item.retrieve", "item_id": barrier_id}
        for position, event in enumerate([*first, barrier | {"event_id": barrier_id}]):
            sent = self._outbox.add(event, position=position)
            sent.add_done_callback(retrieve_exception)
            if event["type"] == "session.update":
                self._setup = sent
        self._connection.mark_open(outcome, kv)
        self.draft.sync()
        self._connection.wake_writer()

    def _on_barrier_passed(self) -> None:
        self._barrier_id = None
        self._connection.wake_writer()
        for stream in [*self._streams]:
            task = stream.on_synchronized(is_new_session=self._is_rehydrating)
            self._spawn(task)
        self._is_rehydrating = False
        if not self._opened.done():
            refused = self._setup.exception() if self._setup and self._setup.done() else None
            if refused is not None:
                self._opened.set_exception(refused)
            else:
                self._opened.set_result(None)

    def _begin_rehydration(self, lost: SessionLost) -> None:
        """Prepare for a new session in place of the lost one. Raises ConnectionClosedError if it
        cannot be recreated, or is not to be."""
        if not (self._has_opened and self._options.rehydrate):
            raise ConnectionClosedError(lost.code, str(lost))
        self._resume_point = self._last_event_id = None
        self._is_rehydrating = True
        self._expect_announcements()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def connect(
    url: str | None = None,
    *,
    model: str | None = None,
    api_key: ApiKey | None = None,
    resume: ResumePoint | None = None,
    fork: ResumePoint | None = None,
    options: ConnectionOptions | None = None,
    **settings: Unpack[SessionSettings],
) -> RealtimeClient:
    """Connect to a server: `async with connect() as client`, or `client = await connect()`.

    `url`: `HOST:PORT`, or a `ws`, `wss`, `http` or `https` URL; default: the environment variable
    CONTINUO_URL, or DEFAULT_URL. `api_key`: the key, or a coroutine function that returns it before
    each attempt; default: the environment variable CONTINUO_API_KEY. `resume`: the session to
    resume. `fork`: the session with whose settings and items to begin. `settings`: those of the
    session, such as `instructions` and `tools`.

    Raises ConnectionClosedError if the server cannot be reached or refuses the connection,
    EventRefusedError if it refuses the settings.
    """
    url = url or os.environ.get("CONTINUO_URL", DEFAULT_URL)
    options = options or ConnectionOptions()
    key = api_key or options.api_key or os.environ.get("CONTINUO_API_KEY")
    query = {"model": model} if model else {}
    query |= _fork_query(fork, None) if fork else {}
    options = msgspec.structs.replace(options, api_key=key)
    return RealtimeClient(url, query, options, settings, resume)


def _fork_query(point: ResumePoint, at: str | None) -> dict[str, str]:
    query = {"fork": point.session_id}
    query |= {"resume_token": point.token} if point.token else {}
    return query | ({"at": at} if at else {})


def _session_update(settings: JsonObject) -> JsonObject:
    session = {"type": "realtime", **settings}
    return {"type": "session.update", "event_id": new_id("event"), "session": session}


def _then(future: "asyncio.Future[ServerEvent]", value: T) -> "asyncio.Future[T]":
    """Return a future of `value` that is done when `future` is, or raises its exception."""
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(done: "asyncio.Future[ServerEvent]") -> None:
        error = done.exception()
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    future.add_done_callback(settle)
    return result
