"""What waits to be sent, with its size. Pure: merges consecutive text of the same item, since
their concatenation is all that a reader who is behind can still want."""

import msgspec

from continuo.realtime.protocol.realtime_api import JSON, Codec, ServerEvent
from continuo.realtime.protocol.realtime_api.server_events import ArgumentsDelta, TextDelta

_ENVELOPE_BYTES = 256
"""Of a delta, besides its text."""


class Backlog:
    """First in, first out. `bytes` is what it holds: exact for frames, close for deltas."""

    def __init__(self, codec: Codec = JSON) -> None:
        self._codec = codec
        self._waiting: list[bytes | TextDelta | ArgumentsDelta] = []  # small while empty
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: ServerEvent) -> None:
        match event:
            case TextDelta() | ArgumentsDelta():
                merged = _merge(self._waiting[-1], event) if self._waiting else None
                if merged is None:
                    self._waiting.append(event)
                    self.size_bytes += _ENVELOPE_BYTES
                else:
                    self._waiting[-1] = merged
                self.size_bytes += len(event.delta)
            case _:
                frame = self._codec.encode(event)
                self._waiting.append(frame)
                self.size_bytes += len(frame)

    def pop(self) -> bytes | None:
        """The oldest frame; None if there is none."""
        if not self._waiting:
            return None
        oldest = self._waiting.pop(0)
        if isinstance(oldest, bytes):
            self.size_bytes -= len(oldest)
            return oldest
        self.size_bytes -= _ENVELOPE_BYTES + len(oldest.delta)
        return self._codec.encode(oldest)


def _merge(
    last: bytes | TextDelta | ArgumentsDelta, event: TextDelta | ArgumentsDelta
) -> TextDelta | ArgumentsDelta | None:
    """Both as one, under the later id; None if they do not belong together."""
    match last, event:
        case TextDelta(), TextDelta() if (last.item_id, last.content_index) == (
            event.item_id,
            event.content_index,
        ):
            return msgspec.structs.replace(event, delta=last.delta + event.delta)
        case ArgumentsDelta(), ArgumentsDelta() if last.item_id == event.item_id:
            return msgspec.structs.replace(event, delta=last.delta + event.delta)
        case _:
            return None
