"""Tests of the decoder of server-sent events."""

import pytest

from continuo.engine.upstream import sse
from continuo.engine.upstream.sse import EventStreamDecoder

STREAM = (
    b': a comment\ndata: {"a": 1}\n\nevent: x\r\ndata:two\r\ndata:  lines\r\n\r\n\n\ndata: 3\n\n'
)


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_events_are_the_same_however_their_bytes_arrive(size: int) -> None:
    decoder = EventStreamDecoder()
    pieces = (STREAM[start : start + size] for start in range(0, len(STREAM), size))
    events = [event for piece in pieces for event in decoder.push(piece)]
    assert events == [b'{"a": 1}', b"two\n lines", b"3"]


def test_event_without_its_empty_line_is_not_returned() -> None:
    decoder = EventStreamDecoder()
    assert decoder.push(b"data: 1\n") == []
    assert decoder.push(b"\n") == [b"1"]


@pytest.mark.parametrize("piece", [b"data: 12345678", b"data: 1234\n", b"x" * 8])
def test_event_has_a_bound(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 20)
    decoder = EventStreamDecoder()
    assert decoder.push(piece) == []
    with pytest.raises(ValueError, match="more than 20 bytes"):
        decoder.push(20 * piece)
