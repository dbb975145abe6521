"""Backlog: the events that wait to be sent, with their size. Pure.

Consecutive text deltas of the same item are merged: a reader that lags needs only their
concatenation.
"""

from collections.abc import Callable

import msgspec

from continuo.realtime.protocol.realtime_api import ServerEvent, encode_frame
from continuo.realtime.protocol.realtime_api.server_events import (
    ArgumentsDelta,
    ReasoningTextDelta,
    TextDelta,
)

_Delta = TextDelta | ArgumentsDelta | ReasoningTextDelta

_ENVELOPE_BYTES = 256
"""Estimated size of an encoded delta event without its text."""


class Backlog:
    """A FIFO of events. `size_bytes` is exact for encoded frames, an estimate for deltas."""

    def __init__(self, encode: Callable[[ServerEvent], bytes | None] = encode_frame) -> None:
        """`encode`: returns the frame of an event, or None if the client does not get it."""
        self._encode = encode
        self._waiting: list[bytes | _Delta] = []  # a list: small while empty
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: ServerEvent) -> None:
        match event:
            case TextDelta() | ArgumentsDelta() | ReasoningTextDelta():
                merged = _merge(self._waiting[-1], event) if self._waiting else None
                if merged is None:
                    self._waiting.append(event)
                    self.size_bytes += _ENVELOPE_BYTES
                else:
                    self._waiting[-1] = merged
                self.size_bytes += len(event.delta)
            case _:
                frame = self._encode(event)
                if frame is not None:
                    self._waiting.append(frame)
                    self.size_bytes += len(frame)

    def pop(self) -> bytes | None:
        """Remove and encode the oldest event. Returns None if the backlog is empty."""
        if not self._waiting:
            return None
        oldest = self._waiting.pop(0)
        if isinstance(oldest, bytes):
            self.size_bytes -= len(oldest)
            return oldest
        self.size_bytes -= _ENVELOPE_BYTES + len(oldest.delta)
        return self._encode(oldest)


def _merge(last: bytes | _Delta, event: _Delta) -> _Delta | None:
    """Return both deltas as one, under the later event id. Returns None if they cannot be
    merged."""
    match last, event:
        case TextDelta(), TextDelta() if (last.item_id, last.content_index) == (
            event.item_id,
            event.content_index,
        ):
            return msgspec.structs.replace(event, delta=last.delta + event.delta)
        case ArgumentsDelta(), ArgumentsDelta() if last.item_id == event.item_id:
            return msgspec.structs.replace(event, delta=last.delta + event.delta)
        case ReasoningTextDelta(), ReasoningTextDelta() if last.item_id == event.item_id:
            return msgspec.structs.replace(event, delta=last.delta + event.delta)
        case _:
            return None
