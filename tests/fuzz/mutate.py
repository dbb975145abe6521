"""Good events spoilt, by a seed."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tests.fuzz.corpus import EVENTS
from tests.fuzz.large import text
from tests.support import frames

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, -(2**63), 1e308, -1.5, 0.0),
    *("", "a", "\x00", "item_a", "root", "none", "inf", "é" * 40, "x" * 5_000, "\u2028"),
    *([], {}, [None], [[]], {"type": None}, {"type": "message"}, ["text"] * 70, {"": ""}),
)


LARGE_SHARE = 0.05
"""Of odd values, those that are a large text."""

Corpus = Sequence[dict[str, Any]]


def event(source: random.Random, corpus: Corpus) -> str:
    """One text frame: as good as it was, spoilt in its values, in its letters, or both."""
    chosen = _chosen(source, corpus)
    text = json.dumps(chosen, ensure_ascii=source.random() < 0.5)
    for _ in range(source.choice((0, 0, 0, 1, 3))):
        text = _scramble(text, source)
    return text


def packed(source: random.Random, corpus: Corpus) -> bytes:
    """The same as a MessagePack frame."""
    data = msgspec.msgpack.encode(_chosen(source, corpus))
    for _ in range(source.choice((0, 0, 0, 1, 3))):
        start = source.randrange(len(data) + 1)
        end = min(start + source.choice((0, 1, 1, 4, 40)), len(data))
        data = data[:start] + source.choice(_BYTES) + data[end:]
    return data


_BYTES = (b"", b"\x80", b"\x90", b"\xc0", b"\xc1", b"\xc4\x01x", b"\xd4\x05x", b"\xa1\xff", b"\xdf")
_BYTES += (b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x81\xc0\xc0", b"\x91" * 3_000)


def _chosen(source: random.Random, corpus: Corpus) -> dict[str, Any]:
    chosen = copy.deepcopy(source.choice(corpus))
    for _ in range(source.choice((0, 1, 1, 2, 5))):
        _spoil(chosen, source, corpus)
    return chosen


def _spoil(value: Any, source: random.Random, corpus: Corpus) -> None:
    """Somewhere in it."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = source.choice(keys)
    if isinstance(value[key], dict | list) and source.random() < 0.8:
        _spoil(value[key], source, corpus)
        return
    match source.randrange(4):
        case 0:
            del value[key]
        case 1:
            large = source.random() < LARGE_SHARE
            value[key] = text(source) if large else copy.deepcopy(source.choice(ODD))
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
    middle = source.choice(("", '"', "{", "}", "[", ",", "\\", "\x7f", "\ufffd", "1e9", text[:20]))
    return text[:start] + middle + text[end:]


def wire(source: random.Random) -> bytes:
    """Bytes on the socket that are a frame, nearly."""
    payload = event(source, EVENTS).encode()[: source.choice((0, 10, 125, 126, 4_000))]
    made = source.choice(_WIRE)(payload, source)
    return made[: source.randrange(1, len(made) + 1)] if source.random() < 0.2 else made


_Wire = Callable[[bytes, random.Random], bytes]
_WIRE: tuple[_Wire, ...] = (
    lambda payload, source: frames.frame(payload, source.randrange(16)),
    lambda payload, source: frames.frame(payload, rsv=source.randrange(1, 8)),
    lambda payload, source: frames.frame(payload, masked=False),
    lambda payload, source: frames.frame(payload, length=source.choice((0, 5, 2**20, 2**31))),
    lambda payload, source: frames.frame(payload, length=source.choice((2**62, 2**63, 2**64 - 1))),
    lambda payload, source: frames.frame(payload, wide=source.choice((2, 8))),
    lambda payload, source: frames.frame(payload, fin=False) + frames.frame(payload),
    lambda payload, source: frames.frame(payload, frames.CONT),
    lambda payload, source: frames.frame(payload, frames.PING, fin=False),
    lambda payload, source: frames.frame(payload + b"\xff\xc0\x80"),
    lambda payload, source: frames.frame(source.randbytes(2) + payload[:200], frames.CLOSE),
    lambda payload, source: source.randbytes(len(payload) + 1),
)
