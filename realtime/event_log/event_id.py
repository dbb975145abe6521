"""Event ids: resume cursors into the event log of a session. Pure.

    event_EPOCH_OFFSET[_RESPONSE.BOUNDARIES.CHARS.CHECKSUM]…[-RESPONSE.PARTS][~NONCE]

    EPOCH, OFFSET     epoch of the event log; number of logged events before this position
    _RESPONSE.etc.    for each response that was being generated: its number and ResponseProgress
    -RESPONSE.PARTS   PARTS server events of the next event were sent; RESPONSE is the number of the
                      response that emits that event, empty for a logged event
    ~NONCE            makes the id of an event that is not logged unique

An event id says how much of a session's output a client has seen. It counts units that can be
replayed from the conversation, not frames: logged events (items added or changed, responses started
or ended) and, for each response that was being generated, the beginnings and ends of its items and
the characters of the item being generated. An event id therefore has the same meaning on every
gateway, even if deltas are merged before they are sent.
"""

import re
import secrets

import msgspec

_INTEGER = r"\d{1,15}"
_PATTERN = re.compile(
    rf"event_(?P<epoch>[0-9a-z]{{1,32}})_(?P<offset>{_INTEGER})"
    rf"(?P<progress>(?:_{_INTEGER}\.{_INTEGER}\.{_INTEGER}\.[0-9a-f]{{1,8}}){{0,64}})"
    rf"(?:-(?P<response>(?:{_INTEGER})?)\.(?P<parts>\d{{1,3}}))?(?:~[0-9a-f]{{1,16}})?"
)


class ResponseProgress(msgspec.Struct, frozen=True, gc=False):
    """Position in the output of one response."""

    response_number: int
    """Offset of the logged event that started the response."""
    item_boundaries: int = 0
    """Number of items of the response that have begun, plus the number of those that have ended."""
    chars: int = 0
    """Characters so far of the item being generated; 0 if none is."""
    checksum: int = 0
    """CRC-32 of the output so far: its text, the names of called functions, and the status of ended
    items. If another gateway generates the response again, its checksum must be equal."""


class EventId(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    epoch: str
    offset: int = 0
    """Number of logged events before this position."""
    open_responses: tuple[ResponseProgress, ...] = ()
    """Progress of the responses that are being generated."""
    response_number: int | None = None
    """If the event after this position is output of a response (the beginning or end of an item, or
    a delta): the number of that response. None if that event is a logged event."""
    emitted_parts: int = 0
    """Number of server events already sent for the conversation event after this position, which
    may be encoded as several."""
    nonce: str = ""
    """Random suffix of the id of an event that is not logged and not replayed, such as an error; it
    makes the id unique. Empty for all other events."""
    is_inclusive: bool = False
    """Whether the position is after the event that carries this id: true for deltas. Otherwise the
    position is before that event, and `encode` adds how many of its server events were sent."""

    def encode(self, part: int = 1) -> str:
        """Encode the id of one server event. `part`: its number, from 1, among the server events
        that encode the event at this position."""
        text = f"event_{self.epoch}_{self.offset}"
        for progress in self.open_responses:
            text += (
                f"_{progress.response_number}.{progress.item_boundaries}"
                f".{progress.chars}.{progress.checksum:x}"
            )
        if self.nonce:
            parts = self._encode_parts(self.emitted_parts) if self.emitted_parts else ""
            return f"{text}{parts}~{self.nonce}{part:x}"
        return text if self.is_inclusive else text + self._encode_parts(part)

    def _encode_parts(self, parts: int) -> str:
        return f"-{'' if self.response_number is None else self.response_number}.{parts}"

    def for_unlogged_event(self) -> "EventId":
        """Return an id at this position for an event that is not replayed."""
        return msgspec.structs.replace(self, nonce=secrets.token_hex(4))


def parse_event_id(event_id: str) -> EventId | None:
    """Parse an event id. Returns None if its format is not that of this server's ids."""
    found = _PATTERN.fullmatch(event_id)
    if found is None:
        return None
    open_responses: list[ResponseProgress] = []
    for text in found["progress"].split("_")[1:]:
        number, boundaries, chars, checksum = text.split(".")
        open_responses.append(
            ResponseProgress(int(number), int(boundaries), int(chars), int(checksum, 16))
        )
    return EventId(
        epoch=found["epoch"],
        offset=int(found["offset"]),
        open_responses=tuple(open_responses),
        response_number=int(found["response"]) if found["response"] else None,
        emitted_parts=int(found["parts"] or 0),
    )


def make_unlogged_event_id(event_id: str | None) -> str | None:
    """Make the id of an unlogged event at the same position as `event_id`, so that a client that
    resumes from it misses no event. Returns None if `event_id` is None or cannot be parsed."""
    position = parse_event_id(event_id) if event_id is not None else None
    return None if position is None else position.for_unlogged_event().encode()
