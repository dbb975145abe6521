"""Position: how much of what a session has said a client has seen. Pure.

    event_EPOCH_TOLD[_ANSWER.EDGES.CHARS.CHECK]…[-OF.PARTS][~MARK]

An event id is one. It counts what the conversation itself can tell again, not frames: records (what
was added, changed, begun, ended), and for each answer that was being made the beginnings and ends
of its items and the characters of the last. So it means the same on any gateway, and however
deltas were merged on the way.
"""

import re
import secrets

import msgspec

_INTEGER = r"\d{1,15}"
_PATTERN = re.compile(
    rf"event_(?P<epoch>[0-9a-z]{{1,32}})_(?P<told>{_INTEGER})"
    rf"(?P<answers>(?:_{_INTEGER}\.{_INTEGER}\.{_INTEGER}\.[0-9a-f]{{1,8}}){{0,64}})"
    rf"(?:-(?P<of>(?:{_INTEGER})?)\.(?P<parts>\d{{1,3}}))?(?:~[0-9a-f]{{1,16}})?"
)


class ResponseProgress(msgspec.Struct, frozen=True, gc=False):
    """How far an answer was told."""

    response_number: int
    """Number of the record that began it."""
    item_boundaries: int = 0
    """Beginnings and ends of its items."""
    chars: int = 0
    """Of the text of the item that has begun and not ended."""
    checksum: int = 0
    """CRC-32 of all that the answer has said, and how its items ended: drawn again elsewhere, it
    must be the same."""


class EventId(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    epoch: str
    offset: int = 0
    """Records."""
    open_responses: tuple[ResponseProgress, ...] = ()
    """Those being made."""
    response_number: int | None = None
    """What is said next: something of this answer, or a record."""
    emitted_parts: int = 0
    """How many events of that were said."""
    nonce: str = ""
    """Sets apart what is no part of the conversation and not told again: errors, say."""
    is_inclusive: bool = False
    """All that one event tells is within the position (a delta)."""

    def encode(self, part: int = 1) -> str:
        """Of the `part`th event, from 1, of what is said next."""
        text = f"event_{self.epoch}_{self.offset}"
        for at in self.open_responses:
            text += f"_{at.response_number}.{at.item_boundaries}.{at.chars}.{at.checksum:x}"
        if self.nonce:
            parts = self._encode_parts(self.emitted_parts) if self.emitted_parts else ""
            return f"{text}{parts}~{self.nonce}{part:x}"
        return text if self.is_inclusive else text + self._encode_parts(part)

    def _encode_parts(self, parts: int) -> str:
        return f"-{'' if self.response_number is None else self.response_number}.{parts}"

    def for_unlogged_event(self) -> "EventId":
        """For what is said here, and not told again."""
        return msgspec.structs.replace(self, nonce=secrets.token_hex(4))


def parse_event_id(event_id: str) -> EventId | None:
    """None: no id of ours."""
    found = _PATTERN.fullmatch(event_id)
    if found is None:
        return None
    answers: list[ResponseProgress] = []
    for text in found["answers"].split("_")[1:]:
        answer, edges, chars, check = text.split(".")
        answers.append(ResponseProgress(int(answer), int(edges), int(chars), int(check, 16)))
    return EventId(
        epoch=found["epoch"],
        offset=int(found["told"]),
        open_responses=tuple(answers),
        response_number=int(found["of"]) if found["of"] else None,
        emitted_parts=int(found["parts"] or 0),
    )


def make_unlogged_event_id(event_id: str | None) -> str | None:
    """An event id at the same position: who comes back after it misses nothing. None: no position
    is known."""
    at = parse_event_id(event_id) if event_id is not None else None
    return None if at is None else at.for_unlogged_event().encode()
