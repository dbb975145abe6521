"""Transcripts of concurrent responses: every interleaving of the same streams is equal."""

import json
import random

from tests.clients.transcripts import Entry, by_stream, normalize

CREATE: Entry = (1, "C", json.dumps({"type": "response.create"}))


def stream(name: str) -> list[list[Entry]]:
    """Return the events of a stream in groups that stay together, such as response and limits."""
    id = f"resp_{random.Random(name).randbytes(10).hex()}"
    created = {"type": "response.created", "response": {"id": id, "metadata": {"lane": name}}}
    text = {"type": "response.output_text.done", "response_id": id, "text": "x"}
    done = {"type": "response.done", "response": {"id": id}}
    limits = {"type": "rate_limits.updated"}
    return [
        [(1, "S", json.dumps(event)) for event in events]
        for events in ([created], [text], [done, limits])
    ]


def interleaved(source: random.Random, *names: str) -> list[Entry]:
    entries, left = [CREATE], [stream(name) for name in names]
    while left := [groups for groups in left if groups]:
        entries += source.choice(left).pop(0)
    return [*entries, CREATE]


def test_interleaving_of_streams_does_not_matter() -> None:
    interleavings = [interleaved(random.Random(n), "a", "b", "c") for n in range(50)]
    assert len(set(map(normalize, interleavings))) > 1
    assert len({normalize(by_stream(each)) for each in interleavings}) == 1


def test_order_within_a_stream_matters() -> None:
    created, text, done = stream("a")
    in_order, out_of_order = (
        [CREATE, *first, *second, *done, CREATE]
        for first, second in ((created, text), (text, created))
    )
    assert normalize(by_stream(in_order)) != normalize(by_stream(out_of_order))
