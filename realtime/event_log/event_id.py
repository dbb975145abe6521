"""Event ids: resume cursors into the event log of a session. Pure.

    event_EPOCH_OFFSET[_RESPONSE.BOUNDARIES.CHARS.CHECKSUM]…[-RESPONSE.PARTS][~[TAG][NONCE]]

    EPOCH, OFFSET     epoch of the event log; number of logged events before the position
    _RESPONSE.etc.    for each response that was being generated: its number and ResponseProgress
    -RESPONSE.PARTS   PARTS server events of the next event, the first after the position, were
                      sent; RESPONSE is the number of the response of which the next event is
                      output, empty for a logged event
    TAG               6 digits, made of the id of the session: a position in another session's log
                      means nothing. Ids of older gateways have none
    NONCE             9 or 10 digits, which make the id of an event that is not logged unique

An event id says how much of a session's output a client has seen. It counts units that can be
replayed from the conversation, not frames: logged events (items added or changed, responses started
or ended) and, for each response that was being generated, the beginnings and ends of its items and
the characters of the item being generated. An event id therefore has the same meaning on every
gateway, even if deltas are merged before they are sent.
"""

import hashlib
import re
import secrets

import msgspec

_TAG_DIGITS = 6
_NONCE_DIGITS = 8
_INTEGER = r"\d{1,15}"
_PATTERN = re.compile(
    rf"event_(?P<epoch>[0-9a-z]{{1,32}})_(?P<offset>{_INTEGER})"
    rf"(?P<progress>(?:_{_INTEGER}\.{_INTEGER}\.{_INTEGER}\.[0-9a-f]{{1,8}}){{0,64}})"
    rf"(?:-(?P<response>(?:{_INTEGER})?)\.(?P<parts>\d{{1,3}}))?(?:~(?P<suffix>[0-9a-f]{{1,16}}))?"
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
    """A position in an event log: a point between two events. `offset` and `open_responses` measure
    what lies before the position. The first event after the position is called the next event; it
    carries this id, unless `is_inclusive` or `nonce` is set."""

    epoch: str
    offset: int = 0
    """Number of logged events before the position."""
    open_responses: tuple[ResponseProgress, ...] = ()
    """The responses that are being generated at the position, each with its output before the
    position."""
    response_number: int | None = None
    """If the next event is output of a response (the beginning or end of an item, or a delta): the
    number of that response, which is the offset of the logged event that started it. None if the
    next event is a logged event, or is not known yet. Not encoded if `is_inclusive`."""
    emitted_parts: int = 0
    """In a parsed id: how many server events of the next event the client has received. One event
    of the log may be encoded as several server events. 0 in an id that was made by the log, because
    `encode` gets this number as its argument `part`."""
    tag: str = ""
    """Tag of the session. Empty in the ids of a snapshot, and in those of older gateways."""
    nonce: str = ""
    """Random suffix of the id of an event that is not logged and not replayed, such as an error; it
    makes the id unique. Empty for all other events."""
    is_inclusive: bool = False
    """Whether the event that carries this id is the last one before the position, not the next
    event. True for deltas."""

    def encode(self, part: int = 1) -> str:
        """Encode this id for one server event. `part`: number of the server event, from 1, among
        those that encode the event that carries this id; not encoded if `is_inclusive`."""
        text = f"event_{self.epoch}_{self.offset}"
        for progress in self.open_responses:
            text += (
                f"_{progress.response_number}.{progress.item_boundaries}"
                f".{progress.chars}.{progress.checksum:x}"
            )
        if self.nonce:
            parts = self._encode_parts(self.emitted_parts) if self.emitted_parts else ""
            return f"{text}{parts}~{self.tag}{self.nonce}{part:x}"
        if not self.is_inclusive:
            text += self._encode_parts(part)
        return f"{text}~{self.tag}" if self.tag else text

    def _encode_parts(self, parts: int) -> str:
        return f"-{'' if self.response_number is None else self.response_number}.{parts}"

    def for_unlogged_event(self) -> "EventId":
        """Return a copy of this id with a new random `nonce`, for an event that is not logged and
        not replayed. The position is the same."""
        return msgspec.structs.replace(self, nonce=secrets.token_hex(_NONCE_DIGITS // 2))


def session_tag(session_id: str) -> str:
    """Return the tag of a session in its event ids."""
    return hashlib.blake2b(session_id.encode(), digest_size=_TAG_DIGITS // 2).hexdigest()


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
        tag=_tag_of(found["suffix"] or ""),
    )


def _tag_of(suffix: str) -> str:
    """Return the tag in what follows `~`, which is a tag, a nonce, or both."""
    has_tag = len(suffix) == _TAG_DIGITS or len(suffix) > _TAG_DIGITS + _NONCE_DIGITS
    return suffix[:_TAG_DIGITS] if has_tag else ""


def make_unlogged_event_id(event_id: str | None) -> str | None:
    """Make an id for an unlogged event that follows the event with the id `event_id`. Both ids have
    the same position, so that a client that resumes from the new id misses no event. Returns None
    if `event_id` is None or cannot be parsed."""
    position = parse_event_id(event_id) if event_id is not None else None
    return None if position is None else position.for_unlogged_event().encode()
