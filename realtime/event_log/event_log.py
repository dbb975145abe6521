"""Event log: the events of a session in an order that can be replayed from any position. Pure.

    logged    ItemAdded │ … │ ResponseStarted │ … │ ResponseEnded     numbered; the last few kept
    output    items as they begin, grow and end, between start and end of their response

Logged events are emitted once they are in the store. The one exception is the end of a response,
which is emitted even while the store is unavailable; a client that later resumes on a gateway
without this event gets a snapshot. The output of a response is emitted at once, because it can be
regenerated from its token ids. What a client has missed is found by `replay`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from continuo.realtime.event_log.event_id import EventId, ResponseProgress
from continuo.realtime.event_log.event_size import count_event_bytes, count_settings_bytes
from continuo.realtime.event_log.replay import (
    DELTAS,
    ITEM_ADDED_PART,
    EmittedEvent,
    FindPreviousItem,
    LoggedEvent,
    Replay,
    ReplayGap,
    ResponseStream,
    assign_event_ids,
    rebuild_stream,
)
from continuo.realtime.protocol.events import (
    ConversationEvent,
    ResponseEnded,
    ResponseInterrupted,
    ResponseStarted,
)
from continuo.realtime.protocol.settings import GenerationSettings

LOGGED_EVENTS_MAX = 256
"""Number of logged events kept for replay; a client whose position is older gets a snapshot."""
LOGGED_BYTES_MAX = 256 * 1024
"""Maximum memory of the logged events kept for replay; the last one is always kept."""

UNRESUMABLE = EventId(epoch="0")
"""Position in the ids of the events of a snapshot. The log cannot replay from this position: a
client that resumes with such an id gets another snapshot."""

EventListener = Callable[[EmittedEvent], None]


class EventLog:
    """The numbered events of one session, and its one listener.

    Owns the last LOGGED_EVENTS_MAX logged events, or fewer with together LOGGED_BYTES_MAX bytes,
    and the output of the responses being generated.
    Called by that session alone: its UnitOfWork and ActiveResponses append, and Session attaches
    the listener. Always: an event is emitted once, with an id from which it can be computed what
    follows; offsets only grow; and after a resume the listener gets exactly what it has not seen,
    or ReplayGap is raised.
    """

    def __init__(
        self,
        epoch: str,
        first_offset: int = 0,
        events: Iterable[LoggedEvent] = (),
        on_gap: Callable[[], None] = lambda: None,
        tag: str = "",
    ) -> None:
        """Args:
        epoch: epoch of the event ids: an id of another epoch cannot be resumed from.
        first_offset: offset of the first of `events`, or of the next event if there are none.
        events: the logged events so far, oldest first; empty for a new session.
        on_gap: called if a response that is generated again differs from what the client has seen.
        tag: that of the session, in its event ids; ids of other sessions are detected by it.
        """
        self.epoch = epoch
        self._tag = tag
        self._events = list(events)
        self._first_offset = first_offset
        """Offset of the first event in `_events`."""
        self._settings: GenerationSettings | None = None
        """Settings of the response that was started last: the next one probably shares them."""
        self._sizes = [self._count_bytes(logged.event) for logged in self._events]
        """Memory of each of `_events`, in bytes."""
        self._bytes = sum(self._sizes)
        self._evict_oldest()
        self._responses: dict[int, ResponseStream] = {}
        """Output of the responses being generated, by response number (the offset of their
        start)."""
        self._response_numbers: dict[str, int] = {}
        """The number of each response being generated, which is the offset of the event that
        started it, by response id."""
        self._ahead: dict[int, tuple[ResponseProgress, int]] = {}
        """Responses, by number, of which the client has received more output than this gateway has
        generated, because another gateway generated them before. Values: the position of the
        client, and how many server events of the next event the client has received. No output of
        such a response is emitted until generation has passed that position."""
        self._listener: EventListener | None = None
        self._on_gap = on_gap

    @property
    def next_offset(self) -> int:
        """Offset of the next logged event."""
        return self._first_offset + len(self._events)

    @property
    def first_offset(self) -> int:
        return self._first_offset

    @property
    def emitted_id(self) -> EventId:
        """Position up to which events were emitted to the listener."""
        return self._make_event_id()

    def _make_event_id(
        self, response_number: int | None = None, *, is_inclusive: bool = False
    ) -> EventId:
        open_responses = tuple([stream.progress for stream in self._responses.values()])
        if self._ahead:
            open_responses = tuple(
                self._ahead.get(progress.response_number, (progress,))[0]
                for progress in open_responses
            )
        return EventId(
            epoch=self.epoch,
            tag=self._tag,
            offset=self._first_offset + len(self._events),
            open_responses=open_responses,
            response_number=response_number,
            is_inclusive=is_inclusive,
        )

    def events_since(self, offset: int) -> list[LoggedEvent]:
        """Return the logged events from an offset on."""
        assert self._first_offset <= offset <= self.next_offset, "the events are kept"
        return self._events[offset - self._first_offset :]

    def to_logged_events(self, events: Sequence[ConversationEvent]) -> list[LoggedEvent]:
        """Return the LoggedEvent that `append` will make of each of these events."""
        ended_ids = (
            event.response.id if isinstance(event, ResponseEnded) else "" for event in events
        )
        return [
            LoggedEvent(event, self._response_numbers.get(response_id))
            for event, response_id in zip(events, ended_ids, strict=True)
        ]

    def events_of_response(self, response_id: str) -> list[ConversationEvent]:
        """Return the start and the end event of a response, as far as they are still in the log."""
        events = [logged.event for logged in self._events]
        return [
            event
            for event in events
            if isinstance(event, ResponseStarted | ResponseEnded)
            and event.response.id == response_id
        ]

    def received_item_count(self, response_id: str) -> int:
        """Return how many items of a response that is being generated the client has in its
        conversation, from this gateway or from the one that generated the response before."""
        number = self._response_numbers[response_id]
        progress, parts = self._ahead.get(number, (self._responses[number].progress, 0))
        is_next_added = parts >= ITEM_ADDED_PART
        return (progress.item_boundaries + is_next_added + 1) // 2

    # ------------------------------------------------------------ emitting

    def append(self, event: ConversationEvent, *, is_emitted: bool = True) -> None:
        """Log an event. `is_emitted`: whether it is also emitted to the listener."""
        event_id = self.emitted_id
        response_number = None
        if isinstance(event, ResponseStarted):
            self.start_response(event.response.id, self.next_offset)
        elif isinstance(event, ResponseEnded):
            response_number = self._response_numbers.pop(event.response.id)
            del self._responses[response_number]
            if self._ahead.pop(response_number, None) is not None:
                self._report_gap()
        self._events.append(LoggedEvent(event, response_number))
        self._sizes.append(self._count_bytes(event))
        self._bytes += self._sizes[-1]
        self._evict_oldest()
        if is_emitted:
            self._emit(EmittedEvent(event, event_id))

    def _count_bytes(self, event: ConversationEvent) -> int:
        size = count_event_bytes(event)
        if isinstance(event, ResponseStarted) and event.response.settings != self._settings:
            self._settings = event.response.settings
            size += count_settings_bytes(self._settings)
        return size

    def _evict_oldest(self) -> None:
        while len(self._events) > LOGGED_EVENTS_MAX or (
            self._bytes > LOGGED_BYTES_MAX and len(self._events) > 1
        ):
            del self._events[0]
            self._bytes -= self._sizes.pop(0)
            self._first_offset += 1

    def start_response(self, response_id: str, offset: int) -> None:
        """Begin to record the output of a response. `offset`: offset of the event that started
        it."""
        self._response_numbers[response_id] = offset
        self._responses[offset] = ResponseStream(offset)

    def append_output(self, response_id: str, event: ConversationEvent) -> None:
        """Record output of a response that is being generated, and emit it unless the client has
        already seen it."""
        number = self._response_numbers[response_id]
        stream = self._responses[number]
        is_delta = isinstance(event, DELTAS)
        id_before = None if is_delta else self._make_event_id(response_number=number)
        stream.append(event)
        ahead = self._ahead.get(number)
        if ahead is not None:
            self._catch_up(stream, *ahead)
        else:
            self._emit(EmittedEvent(event, id_before or self._make_event_id(is_inclusive=True)))

    def interrupt_response(self, response_id: str) -> None:
        """Emit a ResponseInterrupted for a response. Emits nothing if the client has received more
        of the output than this gateway has generated, because the client is already waiting."""
        number = self._response_numbers[response_id]
        if number not in self._ahead:
            item_id, chars = self._responses[number].find_open_item()
            self.emit_unlogged(ResponseInterrupted(response_id, item_id, chars))

    def emit_opening(self, event: ConversationEvent) -> None:
        """Emit the first event of a session, which is not logged."""
        self._emit(EmittedEvent(event, self._make_event_id(is_inclusive=True)))

    def emit_unlogged(self, event: ConversationEvent) -> None:
        """Emit an event that is not logged and not replayed."""
        self._emit(EmittedEvent(event, self.emitted_id.for_unlogged_event()))

    def _emit(self, emitted: EmittedEvent) -> None:
        if self._listener is not None:
            self._listener(emitted)

    def _catch_up(self, stream: ResponseStream, ahead: ResponseProgress, parts: int) -> None:
        if not stream.covers(ahead, parts):
            return
        del self._ahead[stream.number]
        try:
            replayed = list(self._replay_ahead(stream, ahead, parts))
        except ReplayGap:
            self._report_gap()
            return
        for emitted in replayed:
            self._emit(emitted)

    def _report_gap(self) -> None:
        self.detach()
        self._on_gap()

    def _replay_ahead(
        self, stream: ResponseStream, since: ResponseProgress, seen_parts: int
    ) -> Iterator[EmittedEvent]:
        reached = {number: other.progress for number, other in self._responses.items()}
        reached[stream.number] = since
        yield from assign_event_ids(
            stream.replay(since),
            since,
            reached,
            self.epoch,
            self._tag,
            self.next_offset,
            seen_parts,
        )

    # ------------------------------------------------------------ replaying

    def detach(self) -> None:
        self._listener = None
        self._ahead.clear()

    def attach(self, listener: EventListener) -> None:
        """Attach a listener. All events from now on are emitted to it."""
        self._listener = listener
        self._ahead = {}

    def resume(
        self,
        listener: EventListener,
        since: EventId,
        first_event: ConversationEvent,
        find_previous: FindPreviousItem,
    ) -> None:
        """Attach a listener. Emits to it `first_event`, then the events after the position `since`,
        then all new events. Raises ReplayGap, without any change, if the events after `since`
        cannot be replayed exactly."""
        missed, ahead = self._replay_since(since, find_previous)
        self._listener = listener
        self._ahead = ahead
        listener(EmittedEvent(first_event, since.for_unlogged_event()))
        for emitted in missed:
            listener(emitted)

    def _replay_since(
        self, since: EventId, find_previous: FindPreviousItem
    ) -> tuple[list[EmittedEvent], dict[int, tuple[ResponseProgress, int]]]:
        self._check_position(since)
        logged_events = self.events_since(since.offset)
        streams = dict(self._responses)
        for logged in logged_events:
            if logged.response_number is not None:
                streams[logged.response_number] = rebuild_stream(logged, find_previous)
        replay = Replay(since, self.epoch, self._tag, streams, find_previous)
        for offset, logged in enumerate(logged_events, since.offset):
            replay.add(logged, offset)
        ahead = replay.add_output_so_far(self._responses.keys(), self.next_offset)
        return replay.missed, ahead

    def _check_position(self, since: EventId) -> None:
        if since.tag not in ("", self._tag):
            raise ReplayGap  # a position in the log of another session
        if since.epoch != self.epoch or not self._first_offset <= since.offset <= self.next_offset:
            raise ReplayGap
        if (
            since.offset == self.next_offset
            and since.emitted_parts
            and since.response_number is None
        ):
            raise ReplayGap  # the client has seen a part of a logged event that is unknown here

    def attach_with_snapshot(
        self, listener: EventListener, events: Iterable[ConversationEvent]
    ) -> None:
        """Attach a listener: emit a snapshot (`events`, then the output so far of responses that
        are being generated), then all events from now on."""
        for event in events:
            listener(EmittedEvent(event, UNRESUMABLE.for_unlogged_event()))
        for stream in self._responses.values():
            for event, _ in stream.replay(ResponseProgress(stream.number)):
                listener(EmittedEvent(event, UNRESUMABLE.for_unlogged_event()))
        self._listener = listener
        self._ahead = {}
