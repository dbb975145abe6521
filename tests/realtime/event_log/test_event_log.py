"""Tests of the event log: missed events are replayed from an event id, or a gap is reported.

Two logs stand for two gateways; the client has received events of one and resumes on the other.
"""

import sys

import msgspec
import pytest

from continuo.realtime.event_log.event_id import EventId, parse_event_id, session_tag
from continuo.realtime.event_log.event_log import LOGGED_BYTES_MAX, EventLog
from continuo.realtime.event_log.replay import EmittedEvent, ReplayGap
from continuo.realtime.protocol.events import (
    ItemAdded,
    ItemDeleted,
    OutputItemEnded,
    OutputItemStarted,
    ResponseEnded,
    ResponseStarted,
    TextCleared,
    TextDelta,
)
from continuo.realtime.protocol.items import ContentPart, ItemStatus, MessageItem
from continuo.realtime.protocol.response import Response, ResponseStatus, TokenLogprob
from continuo.realtime.protocol.settings import GenerationSettings
from tests.support.sessions import user_message

SETTINGS = GenerationSettings()
RESPONSE = Response(id="resp_1", conversation="conv_1", settings=SETTINGS)
USER_ITEM = user_message("u1", "hello")


def output_message(text: str, status: ItemStatus) -> MessageItem:
    parts = (ContentPart("output_text", text),) if text else ()
    return MessageItem(id="a1", role="assistant", parts=parts, status=status)


ITEM_STARTED = OutputItemStarted("resp_1", 0, output_message("", "in_progress"), "u1", False)


class GatewayLog:
    """An event log as one gateway has it, and the events that the log has sent to the client."""

    def __init__(self) -> None:
        self.received: list[EmittedEvent] = []
        self.gaps = 0
        self.log = EventLog("epoch0", on_gap=self._count_gap)
        self.log.attach(self.received.append)
        self.log.append(ItemAdded(USER_ITEM, None))
        self.log.append(ResponseStarted(RESPONSE))

    def _count_gap(self) -> None:
        self.gaps += 1

    def append_text(self, text: str) -> None:
        self.log.append_output("resp_1", TextDelta("resp_1", 0, "a1", text))

    def start_item(self) -> None:
        self.log.append_output("resp_1", ITEM_STARTED)

    def end_item(self, text: str, status: ItemStatus) -> None:
        self.log.append_output(
            "resp_1", OutputItemEnded("resp_1", 0, output_message(text, status), "u1", False)
        )

    def end_response(self, text: str, status: ResponseStatus) -> None:
        item: ItemStatus = "completed" if status == "completed" else "incomplete"
        self.end_item(text, item)
        ended = Response(
            id="resp_1",
            conversation="conv_1",
            settings=SETTINGS,
            status=status,
            items=(output_message(text, item),),
        )
        self.log.append(ResponseEnded(ended))

    def event_id(self, part: int = 1, line: int = -1) -> EventId:
        """The event id of a client that has received `part` wire events of an event."""
        since = parse_event_id(self.received[line].event_id.encode(part))
        assert since is not None
        return since

    def resume(self, since: EventId, places: dict[str, str] | None = None) -> list[EmittedEvent]:
        self.received = []
        first = TextCleared()
        previous_ids = {"u1": None} | (places or {"a1": "u1", "u2": "a1"})
        self.log.resume(self._receive, since, first, previous_ids.__getitem__)
        return self.received[1:]

    def _receive(self, line: EmittedEvent) -> None:
        self.received.append(line)


def two_logs() -> tuple[GatewayLog, GatewayLog]:
    one, other = GatewayLog(), GatewayLog()
    for log in (one, other):
        log.start_item()
        log.append_text("ab")
    return one, other


@pytest.mark.parametrize("part", [1, 2])
def test_event_id_of_an_end_unknown_to_this_gateway_is_a_gap(part: int) -> None:
    one, other = two_logs()
    one.end_response("ab", "completed")
    with pytest.raises(ReplayGap):
        other.resume(one.event_id(part))
    other.end_response("ab", "completed")
    (replayed,) = other.resume(one.event_id(part))
    assert (replayed.event, replayed.seen_parts) == (one.received[-1].event, part)


def test_end_unknown_to_the_client_is_sent_when_it_occurs() -> None:
    one, other = two_logs()
    assert other.resume(one.event_id()) == []
    other.end_response("ab", "completed")
    assert [type(line.event) for line in other.received[1:]] == [OutputItemEnded, ResponseEnded]


@pytest.mark.parametrize("more_text", ["cd", ""])
def test_item_that_ended_differently_on_another_gateway_is_a_gap(more_text: str) -> None:
    """The response was cancelled on the first gateway only."""
    one, other = two_logs()
    one.end_item("ab", "incomplete")
    assert other.resume(one.log.emitted_id) == []
    if more_text:
        other.append_text(more_text)
    assert other.gaps == 0
    other.end_item("ab" + more_text, "completed")
    assert other.gaps == 1
    assert other.received[1:] == [], "no event of the end is sent"


def test_item_that_ended_equally_on_another_gateway_is_continued() -> None:
    one, other = two_logs()
    one.end_item("ab", "completed")
    assert other.resume(one.event_id(4)) == []
    other.end_response("ab", "completed")
    assert other.gaps == 0
    assert [type(line.event) for line in other.received[1:]] == [OutputItemEnded, ResponseEnded]
    assert other.received[1].seen_parts == 4, "the wire events that the client has received"


def test_continued_item_has_the_event_id_of_the_first_gateway() -> None:
    """A client that resumes from the continued event must not be taken for one that has received
    the next event."""
    one, other = two_logs()
    one.end_item("ab", "completed")
    assert other.resume(one.event_id(1)) == []
    other.end_response("ab", "completed")
    assert other.received[1].event_id == one.received[-1].event_id
    (replayed,) = one.resume(other.event_id(2, line=1))
    assert (replayed.event, replayed.seen_parts) == (other.received[1].event, 2)


def test_items_that_another_gateway_sent_count_as_received() -> None:
    one, other = GatewayLog(), GatewayLog()
    one.start_item()
    in_response, in_conversation = one.event_id(1), one.event_id(2)
    one.append_text("ab")
    in_text = one.event_id()
    one.end_item("ab", "completed")
    at_the_end = one.event_id(4)
    assert one.log.received_item_count("resp_1") == 1
    counts: list[int] = []
    for since in (in_response, in_conversation, in_text, at_the_end):
        assert other.resume(since) == []
        counts.append(other.log.received_item_count("resp_1"))
    assert counts == [0, 1, 1, 1]


def test_item_after_a_response_is_replayed_after_the_response() -> None:
    one = GatewayLog()
    since = one.event_id()
    one.start_item()
    one.append_text("ab")
    one.log.append(ItemAdded(user_message("u2", "and?"), "a1"))
    started, *following = one.resume(since)
    assert (type(started.event), started.seen_parts) == (ResponseStarted, 1)
    kinds = [type(line.event) for line in following]
    assert kinds == [OutputItemStarted, TextDelta, ItemAdded]


def test_partly_seen_item_is_replayed_to_its_end_first() -> None:
    one = GatewayLog()
    one.start_item()
    since = one.event_id(part=1)
    one.append_text("ab")
    one.log.append(ItemAdded(user_message("u2", "and?"), "a1"))
    replayed = one.resume(since)
    kinds = [(type(line.event), line.seen_parts) for line in replayed]
    assert kinds == [(OutputItemStarted, 1), (TextDelta, 0), (ItemAdded, 0)]


def test_item_after_an_item_unknown_to_this_gateway_is_a_gap() -> None:
    """Both gateways have the added item; only the first one has the item before it."""
    one, other = GatewayLog(), GatewayLog()
    before_item = one.event_id()
    one.start_item()
    within_item = one.event_id(part=1)
    other.log.append(ItemAdded(user_message("u2", "and?"), "a1"))
    for since in (before_item, within_item):
        with pytest.raises(ReplayGap):
            other.resume(since, {"u2": "u1"})
        assert other.received == [], "no event was sent"


def test_output_item_placed_before_an_added_item_is_sent_after_it() -> None:
    """The item is added before the open response starts its output item, which precedes it."""
    one, other = GatewayLog(), GatewayLog()
    since = one.event_id()
    other.log.append(ItemAdded(user_message("u2", "and?"), "u1"))
    other.start_item()
    kinds = [type(line.event) for line in other.resume(since, {"a1": "u1", "u2": "a1"})]
    assert kinds == [ResponseStarted, ItemAdded, OutputItemStarted]


def test_added_item_that_follows_no_open_item_is_sent_at_once() -> None:
    one, other = GatewayLog(), GatewayLog()
    one.start_item()
    since = one.event_id(part=1)
    other.log.append(ItemAdded(user_message("u2", "and?"), "u1"))
    (added,) = other.resume(since, {"u2": "u1"})
    assert isinstance(added.event, ItemAdded)


# ---------------------------------------------------------------- memory


NO_ITEMS: dict[str, str | None] = {}


def held_text_bytes(log: EventLog) -> int:
    events = [logged.event for logged in log.events_since(log.first_offset)]
    return sum(
        sys.getsizeof(part.text)
        for event in events
        if isinstance(event, ItemAdded) and isinstance(event.item, MessageItem)
        for part in event.item.parts
    )


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_log_is_bounded_in_bytes(character: str) -> None:
    """The items were deleted, so that nothing else bounds their texts."""
    log = EventLog("epoch0")
    ids: list[EventId] = []
    for n in range(100):
        ids.append(log.emitted_id)
        log.append(ItemAdded(user_message(f"u{n}", f"{n}" + character * 16_384), None))
        log.append(ItemDeleted(f"u{n}"))
    assert held_text_bytes(log) <= LOGGED_BYTES_MAX
    assert log.next_offset == 200

    with pytest.raises(ReplayGap):
        log.resume(lambda _: None, ids[0], TextCleared(), NO_ITEMS.__getitem__)
    received: list[EmittedEvent] = []
    log.resume(received.append, ids[-1], TextCleared(), NO_ITEMS.__getitem__)
    assert [type(line.event) for line in received[1:]] == [ItemAdded, ItemDeleted]


def test_largest_event_is_replayed_while_it_is_the_last() -> None:
    log = EventLog("epoch0")
    since = log.emitted_id
    log.append(ItemAdded(user_message("u1", "x" * 2 * LOGGED_BYTES_MAX), None))
    received: list[EmittedEvent] = []
    log.resume(received.append, since, TextCleared(), NO_ITEMS.__getitem__)
    assert [type(line.event) for line in received[1:]] == [ItemAdded]


def test_settings_that_responses_share_are_counted_once() -> None:
    shared, log = GenerationSettings(instructions="x" * 50_000), EventLog("epoch0")
    for n in range(60):
        response = Response(id=f"resp_{n}", conversation=None, settings=shared)
        log.append(ResponseStarted(response))
        log.append(ResponseEnded(response))
    assert log.first_offset == 0

    for n in range(60):
        own = GenerationSettings(instructions=f"{n}" + "x" * 50_000)
        response = Response(id=f"resp_own_{n}", conversation=None, settings=own)
        log.append(ResponseStarted(response))
        log.append(ResponseEnded(response))
    kept = (log.next_offset - log.first_offset) // 2
    assert kept * 50_000 <= LOGGED_BYTES_MAX


def test_log_probabilities_are_counted() -> None:
    tokens = tuple(TokenLogprob(b"a", -0.5, ((b"a", -0.5),) * 5) for _ in range(1_000))
    log = EventLog("epoch0")
    for n in range(10):
        response = Response(
            id=f"resp_{n}", conversation=None, settings=SETTINGS, logprobs={"a1": tokens}
        )
        log.append(ResponseStarted(response))
        log.append(ResponseEnded(response))
    assert log.next_offset - log.first_offset == 1


# ---------------------------------------------------------------- tags


@pytest.mark.parametrize("nonce", ["", "16e9d523"])
@pytest.mark.parametrize("tag", ["", session_tag("sess_1")])
def test_event_id_keeps_its_tag(tag: str, nonce: str) -> None:
    event_id = EventId(epoch="dc0e769e00", offset=2, tag=tag, nonce=nonce)
    for part in (1, 17):
        parsed = parse_event_id(event_id.encode(part))
        assert parsed is not None
        assert parsed.tag == tag


def test_position_in_the_log_of_another_session_is_a_gap() -> None:
    ids: list[EventId] = []
    for session in ("sess_1", "sess_2"):
        log = EventLog("epoch0", tag=session_tag(session))
        log.attach(lambda _: None)
        ids.append(log.emitted_id)
        log.append(ItemAdded(USER_ITEM, None))
    foreign, own = ids
    untagged = msgspec.structs.replace(own, tag="")
    with pytest.raises(ReplayGap):
        log.resume(lambda _: None, foreign, TextCleared(), NO_ITEMS.__getitem__)
    for since in (own, untagged):
        received: list[EmittedEvent] = []
        log.resume(received.append, since, TextCleared(), NO_ITEMS.__getitem__)
        assert received[-1].event_id.tag == session_tag("sess_2")
