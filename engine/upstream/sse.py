"""Decoder of server-sent events. Pure."""

EVENT_BYTES_MAX = 64 << 20
"""Longest event. The first event of vLLM repeats the ids of the prompt."""


class EventStreamDecoder:
    """Splits the bytes of an event stream into the data of its events.

    Lines end with LF or CRLF. Fields other than `data`, and comments, are discarded, and so is an
    event whose empty line is missing when the stream ends.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        """Bytes of the last line, which has no end yet."""
        self._data: list[bytes] = []
        """Data lines of the event that has no end yet."""
        self._data_bytes = 0

    def push(self, received: bytes) -> list[bytes]:
        """Add bytes. Returns the data of each event that they complete. Raises ValueError for an
        event of more than EVENT_BYTES_MAX."""
        events: list[bytes] = []
        self._rest += received
        if b"\n" in received:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._push_line(bytes(line.removesuffix(b"\r")), events)
        if self._data_bytes + len(self._rest) > EVENT_BYTES_MAX:
            raise ValueError(f"an event has more than {EVENT_BYTES_MAX:,} bytes")
        return events

    def _push_line(self, line: bytes, events: list[bytes]) -> None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._data_bytes += len(value)
        elif self._data:
            events.append(b"\n".join(self._data))
            self._data, self._data_bytes = [], 0
