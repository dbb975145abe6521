"""Replay of what a client of a session has missed since a position. Pure.

The output of a response that has ended is replayed from its items.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, KeysView

import msgspec

from continuo.realtime.event_log.event_id import EventId, ResponseProgress
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ConversationEvent,
    ItemAdded,
    OutputItemEnded,
    OutputItemStarted,
    ReasoningDelta,
    ResponseEnded,
    ResponseStarted,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
)

DELTAS = (TextDelta, ArgumentsDelta, ReasoningDelta)


class ReplayGap(Exception):
    """The events after a position cannot be replayed exactly."""


class EmittedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to send to the client, with its id."""

    event: ConversationEvent
    event_id: EventId
    seen_parts: int = 0
    """How many of the server events that encode this event the client has already seen."""


class LoggedEvent(msgspec.Struct, frozen=True):
    event: ConversationEvent
    response_number: int | None = None
    """For a ResponseEnded: the number of the response, which is the offset of its ResponseStarted.
    None for other events."""


ITEM_ADDED_PART = 2
"""Which of the server events of an OutputItemStarted adds the item to the client's conversation;
the first one adds it to the response."""

FindPreviousItem = Callable[[str], str | None]
"""Returns the id of the item before the one with this id, or None if that is the first. Raises
KeyError if the item is not in the conversation."""


class Replay:
    """The events that a client has missed since a position. Each method raises ReplayGap if they
    cannot be replayed exactly."""

    def __init__(
        self,
        since: EventId,
        epoch: str,
        tag: str,
        streams: "dict[int, ResponseStream]",
        find_previous: FindPreviousItem,
    ) -> None:
        """Args:
        since: the client's position.
        epoch: that of the ids of the replayed events.
        tag: that of the session, in the same ids.
        streams: output, by response number, of the responses that are being generated or have ended
            since that position; not changed.
        find_previous: looks an item up in the conversation as it is now.
        """
        self.missed: list[EmittedEvent] = []
        self._since = since
        self._epoch = epoch
        self._tag = tag
        self._streams = streams
        self._find_previous = find_previous
        self._reached = {progress.response_number: progress for progress in since.open_responses}
        """Position, by response number, that the client reaches in each open response by receiving
        the events in `missed`. At first the position in `since`; advances as events are added."""
        self._seen_parts = {since.response_number: since.emitted_parts}
        self._response_of_item = {
            item_id: number for number, stream in streams.items() for item_id in stream.item_ids
        }

    def add(self, logged: LoggedEvent, offset: int) -> None:
        """Add a logged event to `missed`, after the output that precedes the event."""
        ended = logged.response_number
        if ended is None:
            self._add_item_before(logged.event, offset)
        elif ended in self._reached and self._is_covered(ended):
            self._add_output(ended, offset)
        else:
            raise ReplayGap
        event_id = EventId(
            epoch=self._epoch,
            tag=self._tag,
            offset=offset,
            open_responses=tuple(self._reached.values()),
        )
        is_begun = offset == self._since.offset and self._since.response_number is None
        seen_parts = self._since.emitted_parts if is_begun else 0
        self.missed.append(EmittedEvent(logged.event, event_id, seen_parts))
        if isinstance(logged.event, ResponseStarted):
            self._reached[offset] = ResponseProgress(offset)
        if ended is not None:
            del self._reached[ended]

    def add_output_so_far(
        self, open_responses: KeysView[int], next_offset: int
    ) -> dict[int, tuple[ResponseProgress, int]]:
        """Add the output so far of the responses being generated. Returns the responses of which
        the client has received more output than this gateway has generated. Keys: response numbers.
        Values: the position of the client, and how many server events of the next event the client
        has received."""
        if self._reached.keys() != open_responses:
            raise ReplayGap
        ahead: dict[int, tuple[ResponseProgress, int]] = {}
        for number, progress in list(self._reached.items()):
            if self._is_covered(number):
                self._add_output(number, next_offset)
            else:
                ahead[number] = progress, self._seen_parts.get(number, 0)
        return ahead

    def _add_item_before(self, event: ConversationEvent, offset: int) -> None:
        """Prepare the replay of an event. If the event adds an item after another one, the client
        must receive the other item first: if that is output of an open response, this output is
        added to `missed`. Raises ReplayGap if this gateway does not know the other item and an open
        response may generate it next."""
        previous = _previous_item_of(event)
        response = self._response_of_item.get(previous or "", -1)
        if response in self._reached and self._is_covered(response):
            self._add_output(response, offset)
        elif not _is_known(previous, self._find_previous) and any(
            map(self._expects_item, self._reached)
        ):
            raise ReplayGap  # the unknown item may be the one that the client expects

    def _is_covered(self, number: int) -> bool:
        return self._streams[number].covers(self._reached[number], self._seen_parts.get(number, 0))

    def _expects_item(self, number: int) -> bool:
        """Whether the client has received each item of the response with this number either
        completely or not at all, so that the next event of the response begins an item."""
        return self._reached[number].item_boundaries % 2 == 0

    def _add_output(self, number: int, offset: int) -> None:
        progress = self._reached[number]
        self.missed.extend(
            assign_event_ids(
                self._streams[number].replay(progress),
                progress,
                self._reached,
                self._epoch,
                self._tag,
                offset,
                self._seen_parts.pop(number, 0),
            )
        )


class _OutputItem(msgspec.Struct):
    """An output item of a response, with its text so far."""

    started: OutputItemStarted
    text: list[str]
    ended: OutputItemEnded | None = None


class ResponseStream:
    """The output of one response so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.progress = ResponseProgress(number)
        self._boundaries = [self.progress]
        """Progress at the start of the response, and at each beginning and end of an item."""
        self._items: list[_OutputItem] = []

    def append(self, event: ConversationEvent) -> None:
        if isinstance(event, DELTAS):  # nearly all events are deltas
            self._items[-1].text.append(event.text)
            self.progress = _advance(self.progress, event.text)
            return
        match event:
            case OutputItemStarted(item=item):
                self._items.append(_OutputItem(event, []))
                self._add_boundary(item.name if isinstance(item, FunctionCallItem) else "")
            case OutputItemEnded(item=item):
                self._items[-1].ended = event
                self._add_boundary(item.status)
            case _:
                raise AssertionError(f"{type(event).__name__} is not output of a response")

    def _add_boundary(self, detail: str) -> None:
        before = self.progress
        self.progress = ResponseProgress(
            self.number, before.item_boundaries + 1, 0, _checksum(detail, before.checksum)
        )
        self._boundaries.append(self.progress)

    @property
    def item_ids(self) -> list[str]:
        return [output.started.item.id for output in self._items]

    def find_open_item(self) -> tuple[str | None, int]:
        """Return the id of the item that has begun and not ended, and its number of characters so
        far. Returns None and 0 if there is no such item, or if it is reasoning."""
        last = self._items[-1] if self._items else None
        if last is None or last.ended is not None or isinstance(last.started.item, ReasoningItem):
            return None, 0
        return last.started.item.id, self.progress.chars

    def covers(self, position: ResponseProgress, parts: int) -> bool:
        """Whether this stream has all output up to `position`. `parts`: how many server events of
        the next event the client has seen; if any, the stream must have that event too."""
        known = self.progress
        if parts:
            return position.item_boundaries < known.item_boundaries
        return position.item_boundaries < known.item_boundaries or (
            position.item_boundaries == known.item_boundaries and position.chars <= known.chars
        )

    def replay(
        self, since: ResponseProgress
    ) -> Iterator[tuple[ConversationEvent, ResponseProgress]]:
        """Yield the output after `since`, each event with the position after it. The stream must
        cover `since`. Raises ReplayGap if the checksum shows that the client received different
        output up to `since`."""
        if self._progress_at(since.item_boundaries, since.chars) != since:
            raise ReplayGap
        for n, output in enumerate(self._items):
            start, end = 2 * n + 1, 2 * n + 2
            if since.item_boundaries < start:
                yield output.started, self._boundaries[start]
            if since.item_boundaries < end:
                chars = since.chars if since.item_boundaries == start else 0
                if rest := "".join(output.text)[chars:]:
                    yield (
                        _make_delta(output.started, rest),
                        _advance(self._progress_at(start, chars), rest),
                    )
                if output.ended is not None:
                    yield output.ended, self._boundaries[end]

    def _progress_at(self, item_boundaries: int, chars: int) -> ResponseProgress:
        """Return the progress (a position with its checksum) after the first `item_boundaries`
        beginnings and ends of items, and after `chars` characters of the item that is open
        there."""
        if not chars:
            return self._boundaries[item_boundaries]
        return _advance(
            self._boundaries[item_boundaries],
            "".join(self._items[item_boundaries // 2].text)[:chars],
        )


def _previous_item_of(event: ConversationEvent) -> str | None:
    """Return the id of the item after which `event` adds an item. Returns None if it adds the first
    item, or no item."""
    match event:
        case ItemAdded(previous_item_id=previous) | TextCommitted(previous_item_id=previous):
            return previous
        case _:
            return None


def _is_known(item_id: str | None, find_previous: FindPreviousItem) -> bool:
    """Whether the conversation has the item; True for None, which means the beginning."""
    if item_id is not None:
        try:
            find_previous(item_id)
        except KeyError:
            return False
    return True


def _advance(progress: ResponseProgress, text: str) -> ResponseProgress:
    return ResponseProgress(
        progress.response_number,
        progress.item_boundaries,
        progress.chars + len(text),
        _checksum(text, progress.checksum),
    )


def _checksum(text: str, previous_checksum: int) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), previous_checksum)


def _make_delta(
    started: OutputItemStarted, text: str
) -> TextDelta | ArgumentsDelta | ReasoningDelta:
    response_id, index, item = started.response_id, started.index, started.item
    if isinstance(item, FunctionCallItem):
        return ArgumentsDelta(response_id, index, item.id, item.call_id, text)
    if isinstance(item, ReasoningItem):
        return ReasoningDelta(response_id, index, item.id, text)
    return TextDelta(response_id, index, item.id, text)


def assign_event_ids(
    events: Iterable[tuple[ConversationEvent, ResponseProgress]],
    since: ResponseProgress,
    reached: dict[int, ResponseProgress],
    epoch: str,
    tag: str,
    offset: int,
    seen_parts: int,
) -> Iterator[EmittedEvent]:
    """Assign event ids to output of one response. Yields the events with their ids and, with each,
    advances the position of the response in `reached`.

    `events`: the output after position `since`; each event with the position after that event.
    `reached`: positions of all open responses, by response number. `epoch`, `tag`, `offset`: those
    of the ids. `seen_parts`: how many server events of the first of `events` the client has
    received; one event may be encoded as several server events. Raises ReplayGap if `seen_parts` is
    not 0 and the first event is a delta: the client has then received the end of an item that
    continues here.
    """
    number = since.response_number
    for event, after in events:
        is_delta = isinstance(event, DELTAS)
        if is_delta and seen_parts:
            raise ReplayGap  # the client has seen the end of an item that continues here
        reached[number] = after if is_delta else reached[number]
        event_id = EventId(
            epoch=epoch,
            tag=tag,
            offset=offset,
            open_responses=tuple(reached.values()),
            response_number=number,
            is_inclusive=is_delta,
        )
        yield EmittedEvent(event, event_id, 0 if is_delta else seen_parts)
        seen_parts = 0
        reached[number] = after


def rebuild_stream(logged: LoggedEvent, find_previous: FindPreviousItem) -> ResponseStream:
    """Rebuild the output of a response that has ended, from its items."""
    assert isinstance(logged.event, ResponseEnded)
    assert logged.response_number is not None
    response = logged.event.response
    stream = ResponseStream(logged.response_number)
    out_of_band = response.conversation is None
    index = 0
    for item in response.items:
        assert isinstance(item, OutputItem), "output has these kinds of items"
        is_present = not out_of_band and _is_known(item.id, find_previous)
        previous = find_previous(item.id) if is_present else None
        empty = _empty_item(item)
        started = OutputItemStarted(response.id, index, empty, previous, out_of_band)
        stream.append(started)
        stream.append(_make_delta(started, _item_text(item)))
        stream.append(OutputItemEnded(response.id, index, item, previous, out_of_band))
        index += not isinstance(item, ReasoningItem)
    return stream


def _empty_item(item: OutputItem) -> OutputItem:
    if isinstance(item, FunctionCallItem):
        return msgspec.structs.replace(item, arguments="", status="in_progress")
    if isinstance(item, ReasoningItem):
        return msgspec.structs.replace(item, text="", status="in_progress")
    return msgspec.structs.replace(item, parts=(), status="in_progress")


def _item_text(item: Item) -> str:
    match item:
        case MessageItem(parts=parts):
            return "".join(part.text for part in parts)
        case FunctionCallItem(arguments=arguments):
            return arguments
        case ReasoningItem(text=text):
            return text
        case _:
            raise AssertionError("output has only messages, calls and reasoning")
