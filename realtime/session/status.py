"""Status of a session, as `GET /v1/realtime/sessions` shows it."""

from typing import Literal

import msgspec

from continuo.engine import SessionInfo
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.protocol.response import KVResidency


class KVStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that holds the KV of a conversation, in tokens and pages of the engine."""

    place: Literal["device", "host", "none", "unknown"]
    """`host`: at least some of the KV is in host memory and must be recalled to the device.
    `unknown`: another server computes, which may have evicted any of it."""
    tokens: int
    pages: int
    """Pages on the device; `tokens` are the tokens there."""
    host_tokens: int
    host_pages: int
    lost_tokens: int
    """Tokens whose KV was evicted and must be recomputed."""

    @classmethod
    def of(cls, conversation: Conversation, info: SessionInfo | None) -> "KVStatus":
        """Make the status. `info`: the engine's report of the engine session; None if no engine
        holds it."""
        if info is None:
            lost = conversation.length if conversation.spans else 0
            return cls(
                place="none", tokens=0, pages=0, host_tokens=0, host_pages=0, lost_tokens=lost
            )
        place = "host" if info.host_tokens else "device" if info.committed else "none"
        return cls(
            place=place if info.is_kv_known else "unknown",
            tokens=info.committed,
            pages=info.held_pages,
            host_tokens=info.host_tokens,
            host_pages=info.host_pages,
            lost_tokens=info.lost_tokens,
        )

    @property
    def residency(self) -> KVResidency:
        """Residency that a response would report if it started now."""
        if self.lost_tokens:
            return "recomputed"
        return "hot" if self.place == "device" else self.place


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    tokens: int
    items: int
    dropped_items: int
    """Number of items out of window."""
    kv: KVStatus

    @classmethod
    def of(
        cls, state: str, conversation: Conversation, info: SessionInfo | None
    ) -> "SessionStatus":
        """Make the status. `info`: the engine's report of the engine session; None if no engine
        holds it."""
        return cls(
            state=state,
            tokens=conversation.length,
            items=sum(1 for _ in conversation.items()),
            dropped_items=len(conversation.out_of_window),
            kv=KVStatus.of(conversation, info),
        )

    def fields(self) -> dict[str, object]:
        return msgspec.structs.asdict(self)
