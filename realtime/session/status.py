"""How a session is, for who looks at it from outside."""

from typing import Literal

import msgspec


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

    def fields(self) -> dict[str, object]:
        return msgspec.structs.asdict(self)
