"""What was said is said again from any position, or it is said that it cannot be. Two transcripts
are two gateways; the client has heard one and comes back to the other."""

import pytest

from continuo.realtime.event_log.event_id import Position, parse
from continuo.realtime.event_log.event_log import Gap, Line, Transcript
from continuo.realtime.protocol.events import (
    AnswerEnded,
    AnswerStarted,
    ItemAdded,
    OutputEnded,
    OutputStarted,
    TextCleared,
    TextDelta,
)
from continuo.realtime.protocol.items import ItemStatus, MessageItem, Part
from continuo.realtime.protocol.response import Answer, AnswerStatus
from continuo.realtime.protocol.settings import Settings
from tests.realtime.talks import message

SETTINGS = Settings()
ANSWER = Answer(id="resp_1", conversation="conv_1", settings=SETTINGS)
ASKED = message("u1", "hello")


def spoken(text: str, status: ItemStatus) -> MessageItem:
    parts = (Part("output_text", text),) if text else ()
    return MessageItem(id="a1", role="assistant", parts=parts, status=status)


BEGUN = OutputStarted("resp_1", 0, spoken("", "in_progress"), "u1", False)


class Gate:
    def __init__(self) -> None:
        self.heard: list[Line] = []
        self.gaps = 0
        self.transcript = Transcript("epoch0")
        self.transcript.attach(self.heard.append)
        self.transcript.on_gap = self.gap
        self.transcript.record(ItemAdded(ASKED, None))
        self.transcript.record(AnswerStarted(ANSWER))

    def gap(self) -> None:
        self.gaps += 1

    def say(self, text: str) -> None:
        self.transcript.of("resp_1", TextDelta("resp_1", 0, "a1", text))

    def begin(self) -> None:
        self.transcript.of("resp_1", BEGUN)

    def end_item(self, text: str, status: ItemStatus) -> None:
        self.transcript.of("resp_1", OutputEnded("resp_1", 0, spoken(text, status), "u1", False))

    def end(self, text: str, status: AnswerStatus) -> None:
        item: ItemStatus = "completed" if status == "completed" else "incomplete"
        self.end_item(text, item)
        ended = Answer(
            id="resp_1",
            conversation="conv_1",
            settings=SETTINGS,
            status=status,
            items=(spoken(text, item),),
        )
        self.transcript.record(AnswerEnded(ended))

    def position(self, part: int = 1, line: int = -1) -> Position:
        """Of the client that has heard so many events of what was told last."""
        since = parse(self.heard[line].at.event_id(part))
        assert since is not None
        return since

    def go_on(self, since: Position, places: dict[str, str] | None = None) -> list[Line]:
        self.heard = []
        first = TextCleared()
        there = {"u1": None} | (places or {"a1": "u1", "u2": "a1"})
        self.transcript.go_on(self.hear, since, first, there.__getitem__)
        return self.heard[1:]

    def hear(self, line: Line) -> None:
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
    with pytest.raises(Gap):
        other.go_on(one.position(part))
    other.end("ab", "completed")
    (again,) = other.go_on(one.position(part))
    assert (again.tell, again.skip) == (one.heard[-1].tell, part)


def test_an_end_that_was_not_heard_is_told_where_it_comes() -> None:
    one, other = two()
    assert other.go_on(one.position()) == []
    other.end("ab", "completed")
    assert [type(line.tell) for line in other.heard[1:]] == [OutputEnded, AnswerEnded]


@pytest.mark.parametrize("goes_on", ["cd", ""])
def test_an_item_that_ends_otherwise_elsewhere_is_noticed(goes_on: str) -> None:
    """It was cancelled where the client was, and nobody else knows."""
    one, other = two()
    one.end_item("ab", "incomplete")
    assert other.go_on(one.transcript.now) == []
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
    assert [type(line.tell) for line in other.heard[1:]] == [OutputEnded, AnswerEnded]
    assert other.heard[1].skip == 4, "the events of it that were heard"


def test_what_stands_behind_an_answer_is_told_behind_it() -> None:
    one = Gate()
    since = one.position()
    one.begin()
    one.say("ab")
    one.transcript.record(ItemAdded(message("u2", "and?"), "a1"))
    begun, *again = one.go_on(since)
    assert (type(begun.tell), begun.skip) == (AnswerStarted, 1)
    kinds = [type(line.tell) for line in again]
    assert kinds == [OutputStarted, TextDelta, ItemAdded]


def test_what_was_told_in_part_is_told_to_its_end_first() -> None:
    one = Gate()
    one.begin()
    since = one.position(part=1)
    one.say("ab")
    one.transcript.record(ItemAdded(message("u2", "and?"), "a1"))
    again = one.go_on(since)
    kinds = [(type(line.tell), line.skip) for line in again]
    assert kinds == [(OutputStarted, 1), (TextDelta, 0), (ItemAdded, 0)]


def test_what_stands_behind_an_item_that_is_not_known_here_is_not_told() -> None:
    """Both gateways know that it was added; what it stands behind went with the first one."""
    one, other = Gate(), Gate()
    not_at_all = one.position()
    one.begin()
    in_part = one.position(part=1)
    other.transcript.record(ItemAdded(message("u2", "and?"), "a1"))
    for since in (not_at_all, in_part):
        with pytest.raises(Gap):
            other.go_on(since, {"u2": "u1"})
        assert other.heard == [], "nothing was said"


def test_what_an_item_came_to_stand_before_is_told_behind_it() -> None:
    """Added while an answer was made that had not begun its item: that stands between now."""
    one, other = Gate(), Gate()
    since = one.position()
    other.transcript.record(ItemAdded(message("u2", "and?"), "u1"))
    other.begin()
    told = [type(line.tell) for line in other.go_on(since, {"a1": "u1", "u2": "a1"})]
    assert told == [AnswerStarted, ItemAdded, OutputStarted]


def test_what_stands_elsewhere_is_told_at_once() -> None:
    one, other = Gate(), Gate()
    one.begin()
    since = one.position(part=1)
    other.transcript.record(ItemAdded(message("u2", "and?"), "u1"))
    (added,) = other.go_on(since, {"u2": "u1"})
    assert isinstance(added.tell, ItemAdded)
