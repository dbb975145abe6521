"""Transcript: what a session has said, in an order that can be said again from any position. Pure.

    records   Opened │ ItemAdded │ AnswerStarted │ … │ AnswerEnded      numbered; the last few kept
    answers   items as they begin, grow and end, between those two

Records are told when the store has them; the end of an answer also if the store is away: who has
seen one that is not known where they come back must see everything again. What an answer says is
told at once: it can be made again from its ids. An answer that has ended is told again from its
items.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from continuo.realtime.event_log.event_id import EventId, ResponseProgress
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ConversationEvent,
    ItemAdded,
    OutputItemEnded,
    OutputItemStarted,
    ResponseEnded,
    ResponseInterrupted,
    ResponseStarted,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import FunctionCallItem, Item, MessageItem

LOGGED_EVENTS_MAX = 256
"""Kept to be told again; older positions are answered with a snapshot."""

UNRESUMABLE = EventId(epoch="0")
"""Of what is no part of the order: who saw only that must see everything again."""


class ReplayGap(Exception):
    """What followed a position cannot be told exactly."""


class EmittedEvent(msgspec.Struct, frozen=True, gc=False):
    """Something said, and where."""

    event: ConversationEvent
    event_id: EventId
    seen_parts: int = 0
    """Events of it that the other side has seen."""


class LoggedEvent(msgspec.Struct, frozen=True):
    event: ConversationEvent
    response_number: int | None = None
    """For an answer's end: the number of its beginning."""


EventListener = Callable[[EmittedEvent], None]
FindPreviousItem = Callable[[str], str | None]
"""The item before an item. Raises KeyError for one that is not in the conversation."""


class EventLog:
    def __init__(
        self, epoch: str, first_offset: int = 0, events: Iterable[LoggedEvent] = ()
    ) -> None:
        self.epoch = epoch
        self._events = list(events)
        self._first_offset = first_offset
        """Number of the oldest record kept."""
        self._responses: dict[int, _ResponseStream] = {}
        self._response_numbers: dict[str, int] = {}
        """Of the answers being made, by id."""
        self._ahead: dict[int, tuple[ResponseProgress, int]] = {}
        """Answers of which the listener has seen more than is known here, and how many events of
        what follows: they were drawn elsewhere, and are being drawn again."""
        self._listener: EventListener | None = None
        self.on_gap: Callable[[], None] = lambda: None
        """Called when what is drawn again turns out to be different."""

    @property
    def next_offset(self) -> int:
        """Number of the next record."""
        return self._first_offset + len(self._events)

    @property
    def first_offset(self) -> int:
        return self._first_offset

    @property
    def has_listener(self) -> bool:
        return self._listener is not None

    @property
    def emitted_id(self) -> EventId:
        """What the listener has been told."""
        return self._make_event_id()

    def _make_event_id(
        self, response_number: int | None = None, *, is_inclusive: bool = False
    ) -> EventId:
        reached = [stream.progress for stream in self._responses.values()]
        if self._ahead:
            reached = [self._ahead.get(at.response_number, (at,))[0] for at in reached]
        return EventId(
            epoch=self.epoch,
            offset=self.next_offset,
            open_responses=tuple(reached),
            response_number=response_number,
            is_inclusive=is_inclusive,
        )

    def events_since(self, offset: int) -> list[LoggedEvent]:
        """Records from this number on."""
        assert self._first_offset <= offset <= self.next_offset, "these are kept"
        return self._events[offset - self._first_offset :]

    def to_logged_events(self, events: Sequence[ConversationEvent]) -> list[LoggedEvent]:
        """What these would be as records."""
        ends = (tell.answer.id if isinstance(tell, ResponseEnded) else "" for tell in events)
        return [
            LoggedEvent(tell, self._response_numbers.get(answer))
            for tell, answer in zip(events, ends, strict=True)
        ]

    def events_of_response(self, response_id: str) -> list[ConversationEvent]:
        """Its beginning and its end, as far as they are kept."""
        tells = [record.event for record in self._events]
        return [
            tell
            for tell in tells
            if isinstance(tell, ResponseStarted | ResponseEnded) and tell.answer.id == response_id
        ]

    # ------------------------------------------------------------ saying

    def append(self, event: ConversationEvent, *, is_emitted: bool = True) -> None:
        """`told`: whether the listener hears of it."""
        at = self.emitted_id
        answer = None
        if isinstance(event, ResponseStarted):
            self.start_response(event.answer.id, self.next_offset)
        elif isinstance(event, ResponseEnded):
            answer = self._response_numbers.pop(event.answer.id)
            del self._responses[answer]
            if self._ahead.pop(answer, None) is not None:
                self._report_gap()
        self._events.append(LoggedEvent(event, answer))
        if len(self._events) > LOGGED_EVENTS_MAX:
            del self._events[0]
            self._first_offset += 1
        if is_emitted:
            self._emit(EmittedEvent(event, at))

    def start_response(self, response_id: str, offset: int) -> None:
        """An answer that began with record `number` is being made."""
        self._response_numbers[response_id] = offset
        self._responses[offset] = _ResponseStream(offset)

    def append_output(self, response_id: str, event: ConversationEvent) -> None:
        """Something of an answer that is being made."""
        number = self._response_numbers[response_id]
        stream = self._responses[number]
        whole = isinstance(event, TextDelta | ArgumentsDelta)
        before = None if whole else self._make_event_id(response_number=number)
        stream.append(event)
        ahead = self._ahead.get(number)
        if ahead is not None:
            self._catch_up(stream, *ahead)
        else:
            self._emit(EmittedEvent(event, before or self._make_event_id(is_inclusive=True)))

    def interrupt_response(self, response_id: str) -> None:
        """It is not being made at the moment. Who has seen more than is known here waits already:
        nothing is said."""
        number = self._response_numbers[response_id]
        if number not in self._ahead:
            item, chars = self._responses[number].find_open_item()
            self.emit_unlogged(ResponseInterrupted(response_id, item, chars))

    def emit_opening(self, event: ConversationEvent) -> None:
        """Said before everything."""
        self._emit(EmittedEvent(event, self._make_event_id(is_inclusive=True)))

    def emit_unlogged(self, event: ConversationEvent) -> None:
        """Said here, not told again."""
        self._emit(EmittedEvent(event, self.emitted_id.for_unlogged_event()))

    def _emit(self, emitted: EmittedEvent) -> None:
        if self._listener is not None:
            self._listener(emitted)

    def _catch_up(self, stream: "_ResponseStream", ahead: ResponseProgress, parts: int) -> None:
        if not stream.covers(ahead, parts):
            return
        del self._ahead[stream.number]
        try:
            lines = list(self._replay_ahead(stream, ahead, parts))
        except ReplayGap:
            self._report_gap()
            return
        for line in lines:
            self._emit(line)

    def _report_gap(self) -> None:
        self.detach()
        self.on_gap()

    def _replay_ahead(
        self, stream: "_ResponseStream", since: ResponseProgress, seen_parts: int
    ) -> Iterator[EmittedEvent]:
        others = {number: other.progress for number, other in self._responses.items()}
        yield from _assign_event_ids(
            stream.replay(since), since, others, self.epoch, self.next_offset, seen_parts
        )

    # ------------------------------------------------------------ saying again

    def detach(self) -> None:
        self._listener = None
        self._ahead.clear()

    def attach(self, listener: EventListener) -> None:
        """All that comes is said to it."""
        self._listener = listener
        self._ahead = {}

    def resume(
        self,
        listener: EventListener,
        since: EventId,
        first_event: ConversationEvent,
        find_previous: FindPreviousItem,
    ) -> None:
        """Says to a new listener `first`, and all it has not heard since a position; then what
        comes. Raises Gap; then nothing has changed."""
        lines, ahead = self._replay_since(since, find_previous)
        self._listener = listener
        self._ahead = ahead
        listener(EmittedEvent(first_event, since.for_unlogged_event()))
        for line in lines:
            listener(line)

    def _replay_since(
        self, since: EventId, find_previous: FindPreviousItem
    ) -> tuple[list[EmittedEvent], dict[int, tuple[ResponseProgress, int]]]:
        if since.epoch != self.epoch or not self._first_offset <= since.offset <= self.next_offset:
            raise ReplayGap
        if (
            since.offset == self.next_offset
            and since.emitted_parts
            and since.response_number is None
        ):
            raise ReplayGap  # of a record that is not known here
        reached = {at.response_number: at for at in since.open_responses}
        parts = {since.response_number: since.emitted_parts}
        records = self.events_since(since.offset)
        streams = dict(self._responses)
        for record in records:
            if record.response_number is not None:
                streams[record.response_number] = _rebuild_stream(record, find_previous)
        said_in = {item: number for number, one in streams.items() for item in one.item_ids}
        lines: list[EmittedEvent] = []

        def covered(number: int) -> bool:
            return streams[number].covers(reached[number], parts.get(number, 0))

        def between(number: int) -> bool:
            """They wait for an item of an answer, which may not be known here yet."""
            return reached[number].item_boundaries % 2 == 0

        def catch_up(number: int, told: int) -> None:
            at = reached[number]
            said = streams[number].replay(at)
            lines.extend(
                _assign_event_ids(said, at, reached, self.epoch, told, parts.pop(number, 0))
            )

        for number, record in enumerate(records, since.offset):
            skip = (
                since.emitted_parts
                if number == since.offset and since.response_number is None
                else 0
            )
            if record.response_number is not None:
                if record.response_number not in reached or not covered(record.response_number):
                    raise ReplayGap
                catch_up(record.response_number, number)
            else:  # what stands behind something that an answer said is told behind it
                before = _previous_item_of(record.event)
                behind = said_in.get(before or "", -1)
                if behind in reached and covered(behind):
                    catch_up(behind, number)
                elif not _is_known(before, find_previous) and any(map(between, reached)):
                    raise ReplayGap  # perhaps it is that item
            here = EventId(epoch=self.epoch, offset=number, open_responses=tuple(reached.values()))
            lines.append(EmittedEvent(record.event, here, skip))
            if isinstance(record.event, ResponseStarted):
                reached[number] = ResponseProgress(number)
            if record.response_number is not None:
                del reached[record.response_number]
        if reached.keys() != self._responses.keys():
            raise ReplayGap
        ahead: dict[int, tuple[ResponseProgress, int]] = {}
        for number, at in list(reached.items()):
            if covered(number):
                catch_up(number, self.next_offset)
            else:
                ahead[number] = at, parts.get(number, 0)
        return lines, ahead

    def attach_with_snapshot(
        self, listener: EventListener, events: Iterable[ConversationEvent]
    ) -> None:
        """Says everything to a new listener: `tells`, then what the answers that are being made
        have said; then what comes."""
        for tell in events:
            listener(EmittedEvent(tell, UNRESUMABLE.for_unlogged_event()))
        for stream in self._responses.values():
            for tell, _ in stream.replay(ResponseProgress(stream.number)):
                listener(EmittedEvent(tell, UNRESUMABLE.for_unlogged_event()))
        self._listener = listener
        self._ahead = {}


class _OutputItem(msgspec.Struct):
    """An item of an answer, as far as it was said."""

    started: OutputItemStarted
    text: list[str]
    ended: OutputItemEnded | None = None


class _ResponseStream:
    """One answer, as far as it was said."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.progress = ResponseProgress(number)
        self._boundaries = [self.progress]
        """How far it was at each beginning and end of an item; first at its own."""
        self._items: list[_OutputItem] = []

    def append(self, event: ConversationEvent) -> None:
        match event:
            case OutputItemStarted(item=item):
                self._items.append(_OutputItem(event, []))
                self._add_boundary(item.name if isinstance(item, FunctionCallItem) else "")
            case TextDelta(text=text) | ArgumentsDelta(text=text):
                self._items[-1].text.append(text)
                self.progress = _advance(self.progress, text)
            case OutputItemEnded(item=item):
                self._items[-1].ended = event
                self._add_boundary(item.status)
            case _:
                raise AssertionError(f"{type(event).__name__} is no part of an answer")

    def _add_boundary(self, detail: str) -> None:
        at = self.progress
        self.progress = ResponseProgress(
            self.number, at.item_boundaries + 1, 0, _checksum(detail, at.checksum)
        )
        self._boundaries.append(self.progress)

    @property
    def item_ids(self) -> list[str]:
        return [output.started.item.id for output in self._items]

    def find_open_item(self) -> tuple[str | None, int]:
        """The item that has begun and not ended, and the characters of it."""
        last = self._items[-1] if self._items else None
        if last is None or last.ended is not None:
            return None, 0
        return last.started.item.id, self.progress.chars

    def covers(self, at: ResponseProgress, parts: int) -> bool:
        """Whether as much as that was said here, and `parts` events of what follows."""
        here = self.progress
        if parts:
            return at.item_boundaries < here.item_boundaries
        return at.item_boundaries < here.item_boundaries or (
            at.item_boundaries == here.item_boundaries and at.chars <= here.chars
        )

    def replay(
        self, since: ResponseProgress
    ) -> Iterator[tuple[ConversationEvent, ResponseProgress]]:
        """What follows a position that is covered, and how far each reaches. Raises Gap where what
        came before it was something else."""
        if self._progress_at(since.item_boundaries, since.chars) != since:
            raise ReplayGap
        for n, output in enumerate(self._items):
            began, ended = 2 * n + 1, 2 * n + 2
            if since.item_boundaries < began:
                yield output.started, self._boundaries[began]
            if since.item_boundaries < ended:
                chars = since.chars if since.item_boundaries == began else 0
                if rest := "".join(output.text)[chars:]:
                    yield (
                        _make_delta(output.started, rest),
                        _advance(self._progress_at(began, chars), rest),
                    )
                if output.ended is not None:
                    yield output.ended, self._boundaries[ended]

    def _progress_at(self, item_boundaries: int, chars: int) -> ResponseProgress:
        """How far it was there."""
        if not chars:
            return self._boundaries[item_boundaries]
        return _advance(
            self._boundaries[item_boundaries],
            "".join(self._items[item_boundaries // 2].text)[:chars],
        )


def _previous_item_of(event: ConversationEvent) -> str | None:
    """The item that what is told stands behind."""
    match event:
        case ItemAdded(previous_item_id=previous) | TextCommitted(previous_item_id=previous):
            return previous
        case _:
            return None


def _is_known(item: str | None, find_previous: FindPreviousItem) -> bool:
    """Whether it is in the conversation here. Nothing, before the first item, always is."""
    if item is not None:
        try:
            find_previous(item)
        except KeyError:
            return False
    return True


def _advance(at: ResponseProgress, text: str) -> ResponseProgress:
    return ResponseProgress(
        at.response_number, at.item_boundaries, at.chars + len(text), _checksum(text, at.checksum)
    )


def _checksum(text: str, previous_checksum: int) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), previous_checksum)


def _make_delta(started: OutputItemStarted, text: str) -> TextDelta | ArgumentsDelta:
    answer, index, item = started.answer_id, started.index, started.item
    if isinstance(item, FunctionCallItem):
        return ArgumentsDelta(answer, index, item.id, item.call_id, text)
    return TextDelta(answer, index, item.id, text)


def _assign_event_ids(
    events: Iterable[tuple[ConversationEvent, ResponseProgress]],
    since: ResponseProgress,
    reached: dict[int, ResponseProgress],
    epoch: str,
    offset: int,
    seen_parts: int,
) -> Iterator[EmittedEvent]:
    """Each with its position; `reached` moves on with them."""
    number = since.response_number
    for tell, after in events:
        delta = isinstance(tell, TextDelta | ArgumentsDelta)
        if delta and seen_parts:
            raise ReplayGap  # an item had ended there which here goes on
        reached[number] = after if delta else reached[number]
        at = EventId(
            epoch=epoch,
            offset=offset,
            open_responses=tuple(reached.values()),
            response_number=number,
            is_inclusive=delta,
        )
        yield EmittedEvent(tell, at, 0 if delta else seen_parts)
        seen_parts = 0
        reached[number] = after


def _rebuild_stream(logged: LoggedEvent, find_previous: FindPreviousItem) -> _ResponseStream:
    """An answer that has ended, as it was said."""
    assert isinstance(logged.event, ResponseEnded)
    assert logged.response_number is not None
    answer = logged.event.answer
    stream = _ResponseStream(logged.response_number)
    apart = answer.conversation is None
    for index, item in enumerate(answer.items):
        assert isinstance(item, MessageItem | FunctionCallItem), "models say these"
        there = not apart and _is_known(item.id, find_previous)
        before = find_previous(item.id) if there else None
        stream.append(OutputItemStarted(answer.id, index, _empty_item(item), before, apart))
        stream.append(
            _make_delta(OutputItemStarted(answer.id, index, item, before, apart), _item_text(item))
        )
        stream.append(OutputItemEnded(answer.id, index, item, before, apart))
    return stream


def _empty_item(item: MessageItem | FunctionCallItem) -> MessageItem | FunctionCallItem:
    if isinstance(item, FunctionCallItem):
        return msgspec.structs.replace(item, arguments="", status="in_progress")
    return msgspec.structs.replace(item, parts=(), status="in_progress")


def _item_text(item: Item) -> str:
    match item:
        case MessageItem(parts=parts):
            return "".join(part.text for part in parts)
        case FunctionCallItem(arguments=arguments):
            return arguments
        case _:
            raise AssertionError("models say messages and calls")
