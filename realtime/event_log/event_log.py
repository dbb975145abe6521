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

from continuo.realtime.event_log.event_id import Position, Reached
from continuo.realtime.protocol.events import (
    AnswerEnded,
    AnswerInterrupted,
    AnswerStarted,
    ArgumentsDelta,
    ItemAdded,
    OutputEnded,
    OutputStarted,
    Tell,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import CallItem, Item, MessageItem

RECORDS_MAX = 256
"""Kept to be told again; older positions are answered with a snapshot."""

NOWHERE = Position(epoch="0")
"""Of what is no part of the order: who saw only that must see everything again."""


class Gap(Exception):
    """What followed a position cannot be told exactly."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """Something said, and where."""

    tell: Tell
    at: Position
    skip: int = 0
    """Events of it that the other side has seen."""


class Record(msgspec.Struct, frozen=True):
    tell: Tell
    answer: int | None = None
    """For an answer's end: the number of its beginning."""


Listener = Callable[[Line], None]
Previous = Callable[[str], str | None]
"""The item before an item. Raises KeyError for one that is not in the conversation."""


class Transcript:
    def __init__(self, epoch: str, first: int = 0, records: Iterable[Record] = ()) -> None:
        self.epoch = epoch
        self._records = list(records)
        self._first = first
        """Number of the oldest record kept."""
        self._answers: dict[int, _Stream] = {}
        self._numbers: dict[str, int] = {}
        """Of the answers being made, by id."""
        self._ahead: dict[int, tuple[Reached, int]] = {}
        """Answers of which the listener has seen more than is known here, and how many events of
        what follows: they were drawn elsewhere, and are being drawn again."""
        self._listener: Listener | None = None
        self.on_gap: Callable[[], None] = lambda: None
        """Called when what is drawn again turns out to be different."""

    @property
    def next(self) -> int:
        """Number of the next record."""
        return self._first + len(self._records)

    @property
    def first(self) -> int:
        return self._first

    @property
    def attached(self) -> bool:
        return self._listener is not None

    @property
    def now(self) -> Position:
        """What the listener has been told."""
        return self._now()

    def _now(self, of: int | None = None, *, whole: bool = False) -> Position:
        reached = [stream.reached for stream in self._answers.values()]
        if self._ahead:
            reached = [self._ahead.get(at.answer, (at,))[0] for at in reached]
        return Position(
            epoch=self.epoch, told=self.next, answers=tuple(reached), of=of, whole=whole
        )

    def since(self, number: int) -> list[Record]:
        """Records from this number on."""
        assert self._first <= number <= self.next, "these are kept"
        return self._records[number - self._first :]

    def drafted(self, tells: Sequence[Tell]) -> list[Record]:
        """What these would be as records."""
        ends = (tell.answer.id if isinstance(tell, AnswerEnded) else "" for tell in tells)
        return [
            Record(tell, self._numbers.get(answer))
            for tell, answer in zip(tells, ends, strict=True)
        ]

    def of_answer(self, answer_id: str) -> list[Tell]:
        """Its beginning and its end, as far as they are kept."""
        tells = [record.tell for record in self._records]
        return [
            tell
            for tell in tells
            if isinstance(tell, AnswerStarted | AnswerEnded) and tell.answer.id == answer_id
        ]

    # ------------------------------------------------------------ saying

    def record(self, tell: Tell, *, told: bool = True) -> None:
        """`told`: whether the listener hears of it."""
        at = self.now
        answer = None
        if isinstance(tell, AnswerStarted):
            self.begin(tell.answer.id, self.next)
        elif isinstance(tell, AnswerEnded):
            answer = self._numbers.pop(tell.answer.id)
            del self._answers[answer]
            if self._ahead.pop(answer, None) is not None:
                self._give_up()
        self._records.append(Record(tell, answer))
        if len(self._records) > RECORDS_MAX:
            del self._records[0]
            self._first += 1
        if told:
            self._say(Line(tell, at))

    def begin(self, answer_id: str, number: int) -> None:
        """An answer that began with record `number` is being made."""
        self._numbers[answer_id] = number
        self._answers[number] = _Stream(number)

    def of(self, answer_id: str, tell: Tell) -> None:
        """Something of an answer that is being made."""
        number = self._numbers[answer_id]
        stream = self._answers[number]
        whole = isinstance(tell, TextDelta | ArgumentsDelta)
        before = None if whole else self._now(of=number)
        stream.take(tell)
        ahead = self._ahead.get(number)
        if ahead is not None:
            self._catch_up(stream, *ahead)
        else:
            self._say(Line(tell, before or self._now(whole=True)))

    def interrupted(self, answer_id: str) -> None:
        """It is not being made at the moment. Who has seen more than is known here waits already:
        nothing is said."""
        number = self._numbers[answer_id]
        if number not in self._ahead:
            item, chars = self._answers[number].under_way()
            self.aside(AnswerInterrupted(answer_id, item, chars))

    def open(self, tell: Tell) -> None:
        """Said before everything."""
        self._say(Line(tell, self._now(whole=True)))

    def aside(self, tell: Tell) -> None:
        """Said here, not told again."""
        self._say(Line(tell, self.now.aside()))

    def _say(self, line: Line) -> None:
        if self._listener is not None:
            self._listener(line)

    def _catch_up(self, stream: "_Stream", ahead: Reached, parts: int) -> None:
        if not stream.covers(ahead, parts):
            return
        del self._ahead[stream.number]
        try:
            lines = list(self._retold(stream, ahead, parts))
        except Gap:
            self._give_up()
            return
        for line in lines:
            self._say(line)

    def _give_up(self) -> None:
        self.detach()
        self.on_gap()

    def _retold(self, stream: "_Stream", since: Reached, skip: int) -> Iterator[Line]:
        others = {number: other.reached for number, other in self._answers.items()}
        yield from _placed(stream.retell(since), since, others, self.epoch, self.next, skip)

    # ------------------------------------------------------------ saying again

    def detach(self) -> None:
        self._listener = None
        self._ahead.clear()

    def attach(self, listener: Listener) -> None:
        """All that comes is said to it."""
        self._listener = listener
        self._ahead = {}

    def go_on(self, listener: Listener, since: Position, first: Tell, previous: Previous) -> None:
        """Says to a new listener `first`, and all it has not heard since a position; then what
        comes. Raises Gap; then nothing has changed."""
        lines, ahead = self._missed(since, previous)
        self._listener = listener
        self._ahead = ahead
        listener(Line(first, since.aside()))
        for line in lines:
            listener(line)

    def _missed(
        self, since: Position, previous: Previous
    ) -> tuple[list[Line], dict[int, tuple[Reached, int]]]:
        if since.epoch != self.epoch or not self._first <= since.told <= self.next:
            raise Gap
        if since.told == self.next and since.parts and since.of is None:
            raise Gap  # of a record that is not known here
        reached = {at.answer: at for at in since.answers}
        parts = {since.of: since.parts}
        records = self.since(since.told)
        streams = dict(self._answers)
        for record in records:
            if record.answer is not None:
                streams[record.answer] = _ended(record, previous)
        said_in = {item: number for number, one in streams.items() for item in one.item_ids}
        lines: list[Line] = []

        def covered(number: int) -> bool:
            return streams[number].covers(reached[number], parts.get(number, 0))

        def between(number: int) -> bool:
            """They wait for an item of an answer, which may not be known here yet."""
            return reached[number].edges % 2 == 0

        def catch_up(number: int, told: int) -> None:
            at = reached[number]
            said = streams[number].retell(at)
            lines.extend(_placed(said, at, reached, self.epoch, told, parts.pop(number, 0)))

        for number, record in enumerate(records, since.told):
            skip = since.parts if number == since.told and since.of is None else 0
            if record.answer is not None:
                if record.answer not in reached or not covered(record.answer):
                    raise Gap
                catch_up(record.answer, number)
            else:  # what stands behind something that an answer said is told behind it
                before = _before(record.tell)
                behind = said_in.get(before or "", -1)
                if behind in reached and covered(behind):
                    catch_up(behind, number)
                elif not _is_known(before, previous) and any(map(between, reached)):
                    raise Gap  # perhaps it is that item
            here = Position(epoch=self.epoch, told=number, answers=tuple(reached.values()))
            lines.append(Line(record.tell, here, skip))
            if isinstance(record.tell, AnswerStarted):
                reached[number] = Reached(number)
            if record.answer is not None:
                del reached[record.answer]
        if reached.keys() != self._answers.keys():
            raise Gap
        ahead: dict[int, tuple[Reached, int]] = {}
        for number, at in list(reached.items()):
            if covered(number):
                catch_up(number, self.next)
            else:
                ahead[number] = at, parts.get(number, 0)
        return lines, ahead

    def snapshot(self, listener: Listener, tells: Iterable[Tell]) -> None:
        """Says everything to a new listener: `tells`, then what the answers that are being made
        have said; then what comes."""
        for tell in tells:
            listener(Line(tell, NOWHERE.aside()))
        for stream in self._answers.values():
            for tell, _ in stream.retell(Reached(stream.number)):
                listener(Line(tell, NOWHERE.aside()))
        self._listener = listener
        self._ahead = {}


class _Output(msgspec.Struct):
    """An item of an answer, as far as it was said."""

    started: OutputStarted
    text: list[str]
    ended: OutputEnded | None = None


class _Stream:
    """One answer, as far as it was said."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reached = Reached(number)
        self._edges = [self.reached]
        """How far it was at each beginning and end of an item; first at its own."""
        self._outputs: list[_Output] = []

    def take(self, tell: Tell) -> None:
        match tell:
            case OutputStarted(item=item):
                self._outputs.append(_Output(tell, []))
                self._edge(item.name if isinstance(item, CallItem) else "")
            case TextDelta(text=text) | ArgumentsDelta(text=text):
                self._outputs[-1].text.append(text)
                self.reached = _further(self.reached, text)
            case OutputEnded(item=item):
                self._outputs[-1].ended = tell
                self._edge(item.status)
            case _:
                raise AssertionError(f"{type(tell).__name__} is no part of an answer")

    def _edge(self, how: str) -> None:
        at = self.reached
        self.reached = Reached(self.number, at.edges + 1, 0, _check(how, at.check))
        self._edges.append(self.reached)

    @property
    def item_ids(self) -> list[str]:
        return [output.started.item.id for output in self._outputs]

    def under_way(self) -> tuple[str | None, int]:
        """The item that has begun and not ended, and the characters of it."""
        last = self._outputs[-1] if self._outputs else None
        if last is None or last.ended is not None:
            return None, 0
        return last.started.item.id, self.reached.chars

    def covers(self, at: Reached, parts: int) -> bool:
        """Whether as much as that was said here, and `parts` events of what follows."""
        here = self.reached
        if parts:
            return at.edges < here.edges
        return at.edges < here.edges or (at.edges == here.edges and at.chars <= here.chars)

    def retell(self, since: Reached) -> Iterator[tuple[Tell, Reached]]:
        """What follows a position that is covered, and how far each reaches. Raises Gap where what
        came before it was something else."""
        if self._at(since.edges, since.chars) != since:
            raise Gap
        for n, output in enumerate(self._outputs):
            began, ended = 2 * n + 1, 2 * n + 2
            if since.edges < began:
                yield output.started, self._edges[began]
            if since.edges < ended:
                chars = since.chars if since.edges == began else 0
                if rest := "".join(output.text)[chars:]:
                    yield _delta(output.started, rest), _further(self._at(began, chars), rest)
                if output.ended is not None:
                    yield output.ended, self._edges[ended]

    def _at(self, edges: int, chars: int) -> Reached:
        """How far it was there."""
        if not chars:
            return self._edges[edges]
        return _further(self._edges[edges], "".join(self._outputs[edges // 2].text)[:chars])


def _before(tell: Tell) -> str | None:
    """The item that what is told stands behind."""
    match tell:
        case ItemAdded(previous=previous) | TextCommitted(previous=previous):
            return previous
        case _:
            return None


def _is_known(item: str | None, previous: Previous) -> bool:
    """Whether it is in the conversation here. Nothing, before the first item, always is."""
    if item is not None:
        try:
            previous(item)
        except KeyError:
            return False
    return True


def _further(at: Reached, text: str) -> Reached:
    return Reached(at.answer, at.edges, at.chars + len(text), _check(text, at.check))


def _check(text: str, before: int) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)


def _delta(started: OutputStarted, text: str) -> TextDelta | ArgumentsDelta:
    answer, index, item = started.answer_id, started.index, started.item
    if isinstance(item, CallItem):
        return ArgumentsDelta(answer, index, item.id, item.call_id, text)
    return TextDelta(answer, index, item.id, text)


def _placed(
    tells: Iterable[tuple[Tell, Reached]],
    since: Reached,
    reached: dict[int, Reached],
    epoch: str,
    told: int,
    skip: int,
) -> Iterator[Line]:
    """Each with its position; `reached` moves on with them."""
    number = since.answer
    for tell, after in tells:
        delta = isinstance(tell, TextDelta | ArgumentsDelta)
        if delta and skip:
            raise Gap  # an item had ended there which here goes on
        reached[number] = after if delta else reached[number]
        at = Position(
            epoch=epoch, told=told, answers=tuple(reached.values()), of=number, whole=delta
        )
        yield Line(tell, at, 0 if delta else skip)
        skip = 0
        reached[number] = after


def _ended(record: Record, previous: Previous) -> _Stream:
    """An answer that has ended, as it was said."""
    assert isinstance(record.tell, AnswerEnded)
    assert record.answer is not None
    answer = record.tell.answer
    stream = _Stream(record.answer)
    apart = answer.conversation is None
    for index, item in enumerate(answer.items):
        assert isinstance(item, MessageItem | CallItem), "models say these"
        there = not apart and _is_known(item.id, previous)
        before = previous(item.id) if there else None
        stream.take(OutputStarted(answer.id, index, _begun(item), before, apart))
        stream.take(_delta(OutputStarted(answer.id, index, item, before, apart), _text(item)))
        stream.take(OutputEnded(answer.id, index, item, before, apart))
    return stream


def _begun(item: MessageItem | CallItem) -> MessageItem | CallItem:
    if isinstance(item, CallItem):
        return msgspec.structs.replace(item, arguments="", status="in_progress")
    return msgspec.structs.replace(item, parts=(), status="in_progress")


def _text(item: Item) -> str:
    match item:
        case MessageItem(parts=parts):
            return "".join(part.text for part in parts)
        case CallItem(arguments=arguments):
            return arguments
        case _:
            raise AssertionError("models say messages and calls")
