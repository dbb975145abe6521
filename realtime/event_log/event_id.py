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
_SHAPE = re.compile(
    rf"event_(?P<epoch>[0-9a-z]{{1,32}})_(?P<told>{_INTEGER})"
    rf"(?P<answers>(?:_{_INTEGER}\.{_INTEGER}\.{_INTEGER}\.[0-9a-f]{{1,8}}){{0,64}})"
    rf"(?:-(?P<of>(?:{_INTEGER})?)\.(?P<parts>\d{{1,3}}))?(?:~[0-9a-f]{{1,16}})?"
)


class Reached(msgspec.Struct, frozen=True, gc=False):
    """How far an answer was told."""

    answer: int
    """Number of the record that began it."""
    edges: int = 0
    """Beginnings and ends of its items."""
    chars: int = 0
    """Of the text of the item that has begun and not ended."""
    check: int = 0
    """CRC-32 of all that the answer has said, and how its items ended: drawn again elsewhere, it
    must be the same."""


class Position(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    epoch: str
    told: int = 0
    """Records."""
    answers: tuple[Reached, ...] = ()
    """Those being made."""
    of: int | None = None
    """What is said next: something of this answer, or a record."""
    parts: int = 0
    """How many events of that were said."""
    mark: str = ""
    """Sets apart what is no part of the conversation and not told again: errors, say."""
    whole: bool = False
    """All that one event tells is within the position (a delta)."""

    def event_id(self, part: int = 1) -> str:
        """Of the `part`th event, from 1, of what is said next."""
        text = f"event_{self.epoch}_{self.told}"
        for at in self.answers:
            text += f"_{at.answer}.{at.edges}.{at.chars}.{at.check:x}"
        if self.mark:
            return f"{text}{self._said(self.parts) if self.parts else ''}~{self.mark}{part:x}"
        return text if self.whole else text + self._said(part)

    def _said(self, parts: int) -> str:
        return f"-{'' if self.of is None else self.of}.{parts}"

    def aside(self) -> "Position":
        """For what is said here, and not told again."""
        return msgspec.structs.replace(self, mark=secrets.token_hex(4))


def parse(event_id: str) -> Position | None:
    """None: no id of ours."""
    found = _SHAPE.fullmatch(event_id)
    if found is None:
        return None
    answers: list[Reached] = []
    for text in found["answers"].split("_")[1:]:
        answer, edges, chars, check = text.split(".")
        answers.append(Reached(int(answer), int(edges), int(chars), int(check, 16)))
    return Position(
        epoch=found["epoch"],
        told=int(found["told"]),
        answers=tuple(answers),
        of=int(found["of"]) if found["of"] else None,
        parts=int(found["parts"] or 0),
    )


def aside_of(event_id: str | None) -> str | None:
    """An event id at the same position: who comes back after it misses nothing. None: no position
    is known."""
    at = parse(event_id) if event_id is not None else None
    return None if at is None else at.aside().event_id()
