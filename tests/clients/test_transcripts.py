"""Transcripts of responses beside each other: any mixture of the same streams is the same."""

import json
import random

from tests.clients.transcripts import Entry, by_stream, level

ASK: Entry = (1, "C", json.dumps({"type": "response.create"}))


def stream(lane: str) -> list[list[Entry]]:
    """What stands together is not torn apart: limits are told right behind their response."""
    id = f"resp_{random.Random(lane).randbytes(10).hex()}"
    created = {"type": "response.created", "response": {"id": id, "metadata": {"lane": lane}}}
    text = {"type": "response.output_text.done", "response_id": id, "text": "x"}
    done = {"type": "response.done", "response": {"id": id}}
    limits = {"type": "rate_limits.updated"}
    return [
        [(1, "S", json.dumps(event)) for event in events]
        for events in ([created], [text], [done, limits])
    ]


def mixed(source: random.Random, *lanes: str) -> list[Entry]:
    told, left = [ASK], [stream(lane) for lane in lanes]
    while left := [entries for entries in left if entries]:
        told += source.choice(left).pop(0)
    return [*told, ASK]


def test_any_mixture_is_the_same() -> None:
    mixtures = [mixed(random.Random(n), "a", "b", "c") for n in range(50)]
    assert len(set(map(level, mixtures))) > 1
    assert len({level(by_stream(mixture)) for mixture in mixtures}) == 1


def test_another_order_within_a_stream_is_not() -> None:
    created, text, done = stream("a")
    straight, bent = (
        [ASK, *first, *second, *done, ASK] for first, second in ((created, text), (text, created))
    )
    assert level(by_stream(straight)) != level(by_stream(bent))
