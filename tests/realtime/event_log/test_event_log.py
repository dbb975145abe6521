"""What was said is said again from any position, or it is said that it cannot be. Two transcripts
are two gateways; the client has heard one and comes back to the other."""

import pytest

from continuo.realtime.event_log.event_id import EventId, parse_event_id
from continuo.realtime.event_log.event_log import EmittedEvent, EventLog, ReplayGap
from continuo.realtime.protocol.events import (
    ItemAdded,
    OutputItemEnded,
    OutputItemStarted,
    ResponseEnded,
    ResponseStarted,
    TextCleared,
    TextDelta,
)
from continuo.realtime.protocol.items import ContentPart, ItemStatus, MessageItem
from continuo.realtime.protocol.response import Response, ResponseStatus
from continuo.realtime.protocol.settings import GenerationSettings
from tests.support.sessions import message

SETTINGS = GenerationSettings()
ANSWER = Response(id="resp_1", conversation="conv_1", settings=SETTINGS)
ASKED = message("u1", "hello")


def spoken(text: str, status: ItemStatus) -> MessageItem:
    parts = (ContentPart("output_text", text),) if text else ()
    return MessageItem(id="a1", role="assistant", parts=parts, status=status)


BEGUN = OutputItemStarted("resp_1", 0, spoken("", "in_progress"), "u1", False)


class Gate:
    def __init__(self) -> None:
        self.heard: list[EmittedEvent] = []
        self.gaps = 0
        self.transcript = EventLog("epoch0")
        self.transcript.attach(self.heard.append)
        self.transcript.on_gap = self.gap
        self.transcript.append(ItemAdded(ASKED, None))
        self.transcript.append(ResponseStarted(ANSWER))

    def gap(self) -> None:
        self.gaps += 1

    def say(self, text: str) -> None:
        self.transcript.append_output("resp_1", TextDelta("resp_1", 0, "a1", text))

    def begin(self) -> None:
        self.transcript.append_output("resp_1", BEGUN)

    def end_item(self, text: str, status: ItemStatus) -> None:
        self.transcript.append_output(
            "resp_1", OutputItemEnded("resp_1", 0, spoken(text, status), "u1", False)
        )

    def end(self, text: str, status: ResponseStatus) -> None:
        item: ItemStatus = "completed" if status == "completed" else "incomplete"
        self.end_item(text, item)
        ended = Response(
            id="resp_1",
            conversation="conv_1",
            settings=SETTINGS,
            status=status,
            items=(spoken(text, item),),
        )
        self.transcript.append(ResponseEnded(ended))

    def position(self, part: int = 1, line: int = -1) -> EventId:
        """Of the client that has heard so many events of what was told last."""
        since = parse_event_id(self.heard[line].event_id.encode(part))
        assert since is not None
        return since

    def go_on(self, since: EventId, places: dict[str, str] | None = None) -> list[EmittedEvent]:
        self.heard = []
        first = TextCleared()
        there = {"u1": None} | (places or {"a1": "u1", "u2": "a1"})
        self.transcript.resume(self.hear, since, first, there.__getitem__)
        return self.heard[1:]

    def hear(self, line: EmittedEvent) -> None:
        self.heard.append(line)


def two() -> tuple[Gate, Gate]:
    one, other = Gate(), Gate()
    for gate in (one, other):
        gate.begin()
        gate.say("ab")
    return one, other


@pytest.mark.parametrize("part", [1, 2])
def test_an_end_that_was_never_kept_is_no_place_to_go_on_from(part: int) -> None:
    one, other = two()
    one.end("ab", "completed")
    with pytest.raises(ReplayGap):
        other.go_on(one.position(part))
    other.end("ab", "completed")
    (again,) = other.go_on(one.position(part))
    assert (again.event, again.seen_parts) == (one.heard[-1].event, part)


def test_an_end_that_was_not_heard_is_told_where_it_comes() -> None:
    one, other = two()
    assert other.go_on(one.position()) == []
    other.end("ab", "completed")
    assert [type(line.event) for line in other.heard[1:]] == [OutputItemEnded, ResponseEnded]


@pytest.mark.parametrize("goes_on", ["cd", ""])
def test_an_item_that_ends_otherwise_elsewhere_is_noticed(goes_on: str) -> None:
    """It was cancelled where the client was, and nobody else knows."""
    one, other = two()
    one.end_item("ab", "incomplete")
    assert other.go_on(one.transcript.emitted_id) == []
    if goes_on:
        other.say(goes_on)
    assert other.gaps == 0
    other.end_item("ab" + goes_on, "completed")
    assert other.gaps == 1
    assert other.heard[1:] == [], "nothing of it is told"


def test_an_item_that_ends_the_same_goes_on() -> None:
    one, other = two()
    one.end_item("ab", "completed")
    assert other.go_on(one.position(4)) == []
    other.end("ab", "completed")
    assert other.gaps == 0
    assert [type(line.event) for line in other.heard[1:]] == [OutputItemEnded, ResponseEnded]
    assert other.heard[1].seen_parts == 4, "the events of it that were heard"


def test_what_stands_behind_an_answer_is_told_behind_it() -> None:
    one = Gate()
    since = one.position()
    one.begin()
    one.say("ab")
    one.transcript.append(ItemAdded(message("u2", "and?"), "a1"))
    begun, *again = one.go_on(since)
    assert (type(begun.event), begun.seen_parts) == (ResponseStarted, 1)
    kinds = [type(line.event) for line in again]
    assert kinds == [OutputItemStarted, TextDelta, ItemAdded]


def test_what_was_told_in_part_is_told_to_its_end_first() -> None:
    one = Gate()
    one.begin()
    since = one.position(part=1)
    one.say("ab")
    one.transcript.append(ItemAdded(message("u2", "and?"), "a1"))
    again = one.go_on(since)
    kinds = [(type(line.event), line.seen_parts) for line in again]
    assert kinds == [(OutputItemStarted, 1), (TextDelta, 0), (ItemAdded, 0)]


def test_what_stands_behind_an_item_that_is_not_known_here_is_not_told() -> None:
    """Both gateways know that it was added; what it stands behind went with the first one."""
    one, other = Gate(), Gate()
    not_at_all = one.position()
    one.begin()
    in_part = one.position(part=1)
    other.transcript.append(ItemAdded(message("u2", "and?"), "a1"))
    for since in (not_at_all, in_part):
        with pytest.raises(ReplayGap):
            other.go_on(since, {"u2": "u1"})
        assert other.heard == [], "nothing was said"


def test_what_an_item_came_to_stand_before_is_told_behind_it() -> None:
    """Added while an answer was made that had not begun its item: that stands between now."""
    one, other = Gate(), Gate()
    since = one.position()
    other.transcript.append(ItemAdded(message("u2", "and?"), "u1"))
    other.begin()
    told = [type(line.event) for line in other.go_on(since, {"a1": "u1", "u2": "a1"})]
    assert told == [ResponseStarted, ItemAdded, OutputItemStarted]


def test_what_stands_elsewhere_is_told_at_once() -> None:
    one, other = Gate(), Gate()
    one.begin()
    since = one.position(part=1)
    other.transcript.append(ItemAdded(message("u2", "and?"), "u1"))
    (added,) = other.go_on(since, {"u2": "u1"})
    assert isinstance(added.event, ItemAdded)
