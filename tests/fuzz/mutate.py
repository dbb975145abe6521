"""Valid events, mutated by a seeded generator."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.corpus import EVENTS
from tests.fuzz.large import text
from tests.support import frames

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, -(2**63), 1e308, -1.5, 0.0),
    *("", "a", "\x00", "item_a", "root", "none", "inf", "é" * 40, "x" * 5_000, "\u2028"),
    *([], {}, [None], [[]], {"type": None}, {"type": "message"}, ["text"] * 70, {"": ""}),
)


LARGE_SHARE = 0.05
"""The share of odd values that are a large text."""

Corpus = Sequence[dict[str, Any]]


def text_frame(source: random.Random, corpus: Corpus) -> str:
    """A text frame: valid, or mutated in its values, its characters, or both."""
    event = _mutated_event(source, corpus)
    text = json.dumps(event, ensure_ascii=source.random() < 0.5)
    for _ in range(source.choice((0, 0, 0, 1, 3))):
        text = _scramble(text, source)
    return text


def _mutated_event(source: random.Random, corpus: Corpus) -> dict[str, Any]:
    event = copy.deepcopy(source.choice(corpus))
    for _ in range(source.choice((0, 1, 1, 2, 5))):
        _mutate(event, source, corpus)
    return event


def _mutate(value: Any, source: random.Random, corpus: Corpus) -> None:
    """Change one value at a random place in `value`."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = source.choice(keys)
    if isinstance(value[key], dict | list) and source.random() < 0.8:
        _mutate(value[key], source, corpus)
        return
    match source.randrange(4):
        case 0:
            del value[key]
        case 1:
            large = source.random() < LARGE_SHARE
            value[key] = text(source) if large else copy.deepcopy(source.choice(ODD_VALUES))
        case 2:
            value[key] = copy.deepcopy(source.choice(corpus))
        case _:
            if isinstance(value, dict):
                value[source.choice(("type", "id", "x", "text", ""))] = copy.deepcopy(value[key])
            else:
                value += copy.deepcopy(value[:3])


def _scramble(text: str, source: random.Random) -> str:
    start = source.randrange(len(text) + 1)
    end = min(start + source.choice((0, 1, 1, 4, 40)), len(text))
    insert = source.choice(("", '"', "{", "}", "[", ",", "\\", "\x7f", "\ufffd", "1e9", text[:20]))
    return text[:start] + insert + text[end:]


def websocket_bytes(source: random.Random) -> bytes:
    """Bytes of a malformed or unusual WebSocket frame."""
    payload = text_frame(source, EVENTS).encode()[: source.choice((0, 10, 125, 126, 4_000))]
    data = source.choice(_FRAMES)(payload, source)
    return data[: source.randrange(1, len(data) + 1)] if source.random() < 0.2 else data


_MakeFrame = Callable[[bytes, random.Random], bytes]
_FRAMES: tuple[_MakeFrame, ...] = (
    lambda payload, source: frames.encode_frame(payload, source.randrange(16)),
    lambda payload, source: frames.encode_frame(payload, rsv=source.randrange(1, 8)),
    lambda payload, source: frames.encode_frame(payload, masked=False),
    lambda payload, source: frames.encode_frame(
        payload, length=source.choice((0, 5, 2**20, 2**31))
    ),
    lambda payload, source: frames.encode_frame(
        payload, length=source.choice((2**62, 2**63, 2**64 - 1))
    ),
    lambda payload, source: frames.encode_frame(payload, wide=source.choice((2, 8))),
    lambda payload, source: frames.encode_frame(payload, fin=False) + frames.encode_frame(payload),
    lambda payload, source: frames.encode_frame(payload, frames.CONTINUATION),
    lambda payload, source: frames.encode_frame(payload, frames.PING, fin=False),
    lambda payload, source: frames.encode_frame(payload + b"\xff\xc0\x80"),
    lambda payload, source: frames.encode_frame(source.randbytes(2) + payload[:200], frames.CLOSE),
    lambda payload, source: source.randbytes(len(payload) + 1),
)
