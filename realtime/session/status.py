"""How a session is, for who looks at it from outside."""

from typing import Literal

import msgspec

from engine import SessionInfo
from realtime.session.conversation import Conversation


class KV(msgspec.Struct, frozen=True, kw_only=True):
    """Where the KV of a conversation is, in tokens and pages of the engine."""

    place: Literal["device", "none"]
    tokens: int
    pages: int
    host_pages: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    tokens: int
    items: int
    dropped_items: int
    kv: KV

    @classmethod
    def of(cls, state: str, conversation: Conversation, info: SessionInfo | None) -> "Status":
        """`info`: what the engine says of it, if one has it."""
        return cls(
            state=state,
            tokens=conversation.length,
            items=sum(1 for _ in conversation.items()),
            dropped_items=len(conversation.dropped),
            kv=KV(
                place="none" if info is None or not info.committed else "device",
                tokens=0 if info is None else info.committed,
                pages=0 if info is None else info.held_pages,
                host_pages=0 if info is None else info.host_pages,
            ),
        )

    def fields(self) -> dict[str, object]:
        return msgspec.structs.asdict(self)
