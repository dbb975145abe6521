"""Layout 1 of stored data, and its upgrade to layout 2. Pure.

    entry:  one byte: 16 S + W │ length of the ids in S bytes │ ids │ JSON body, as a blob
            W = 2, 3, 4: bytes per id      W = 1: UTF-16, surrogates left out
            W = 0: one byte with the bits per id, then the bits of the ids, highest bit first,
            padded with zeros at the end
            all integers but those of W = 0 are little-endian
    blob:   0 │ raw bytes      1 │ bytes deflated with the dictionary in `layout_v1.dictionary`

Layout 1 stored structs as maps with every field, in order, so that their values are the arrays of
layout 2. This module knows neither: it must not change when the structs that are stored do.
"""

import zlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from continuo.realtime.store.codec import encode

_DICTIONARY = (files("continuo.realtime.store") / "layout_v1.dictionary").read_bytes()
_SURROGATES, _SURROGATES_COUNT = 0xD800, 0x800
_ID_PREFIXES = ("item_", "resp_", "call_")
_STATUSES = ("in_progress", "completed", "cancelled", "incomplete", "failed")
_ARCHIVED_TAGS = {
    "AnswerStarted": "response_started",
    "OutputStarted": "output_item_started",
    "TextDelta": "text_delta",
    "ArgumentsDelta": "arguments_delta",
    "OutputEnded": "output_item_ended",
    "AnswerEnded": "response_ended",
    "Steered": "response_steered",
}
_LOST_EVENT = ["item_added", "", None, None]
"""Stands for an event that layout 1 could not read either: no item has an empty id, so that events
up to this one are not replayed."""


# ---------------------------------------------------------------- reading


def _unpack(blob: bytes) -> bytes:
    kind, data = blob[0], blob[1:]
    return zlib.decompressobj(wbits=-15, zdict=_DICTIONARY).decompress(data) if kind else data


def _unpack_json(blob: bytes) -> Any:
    return msgspec.json.decode(_unpack(blob))


def _unpack_entry(data: bytes) -> tuple[list[int], Any]:
    """Return the ids and the body."""
    size, width = divmod(data[0], 16)
    start = 1 + size
    end = start + int.from_bytes(data[1:start], "little")
    return _unpack_ids(data[start:end], width), _unpack_json(data[end:])


def _unpack_ids(packed: bytes, width: int) -> list[int]:
    if width == 0:
        bits, size = packed[0], 8 * (len(packed) - 1)
        digits = f"{int.from_bytes(packed[1:], 'big'):0{size}b}"
        return [int(digits[n * bits : (n + 1) * bits], 2) for n in range(size // bits)]
    if width == 1:
        codes = map(ord, packed.decode("utf-16-le"))
        return [code if code < _SURROGATES else code - _SURROGATES_COUNT for code in codes]
    chunks = (packed[n : n + width] for n in range(0, len(packed), width))
    return [int.from_bytes(chunk, "little") for chunk in chunks]


def _unpack_id(packed: bytes | None) -> str | None:
    if packed is None:
        return None
    kind, rest = packed[0], packed[1:]
    return _ID_PREFIXES[kind] + rest.hex() if kind < len(_ID_PREFIXES) else rest.decode()


# ---------------------------------------------------------------- sessions


def upgrade_entry(packed: bytes) -> bytes:
    ids, body = _unpack_entry(packed)
    items, response_id = _items(body.get("items", ())), body.get("answer")
    if "words" in body:
        return encode(["draft", body["words"]])
    if body.get("dropped"):
        return encode(["out_of_window", items])
    if body.get("open"):
        return encode(["placeholder", response_id])
    return encode(["span", items, ids, response_id, body.get("sampled")])


def upgrade_state(packed: bytes) -> bytes:
    """Also upgrades the state of a tombstone, which is empty."""
    if not packed:
        return b""
    state = _unpack_json(packed)
    return encode({**state, "settings": _settings(state["settings"])})


def upgrade_event(packed: bytes) -> bytes:
    try:
        return encode(_event(msgspec.msgpack.decode(_unpack(packed))))
    except (LookupError, TypeError, ValueError, zlib.error, msgspec.DecodeError):
        return encode(_LOST_EVENT)


def _event(fields: list[Any]) -> list[Any]:
    match fields:
        case ["c", rewind]:
            return ["configured", rewind]
        case ["a", item, previous, rewind]:
            return ["item_added", _unpack_id(item), _unpack_id(previous), rewind]
        case ["d", item, rewind]:
            return ["item_deleted", _unpack_id(item), rewind]
        case ["t", item, *rest]:
            return ["item_truncated", _unpack_id(item), *rest]
        case ["h", length]:
            return ["text_appended", length]
        case ["x"]:
            return ["text_cleared"]
        case ["k", item, previous]:
            return ["text_committed", _unpack_id(item), _unpack_id(previous)]
        case ["S", response]:
            return ["started", _logged_response(*response)]
        case ["E", response, number]:
            return ["ended", _logged_response(*response), number]
        case _:
            return _LOST_EVENT


def _logged_response(*packed: Any) -> list[Any]:
    id, is_out_of_band, status, *fields, usage, items, item_ids = packed
    response_id = _unpack_id(id)
    if usage is not None:
        usage[3:6] = (microseconds / 1e6 for microseconds in usage[3:6])
    ids = [_unpack_id(item_id) if item_id else "" for item_id in item_ids]
    return [response_id, is_out_of_band, _STATUSES[status], *fields, usage, _items(items), ids]


def upgrade_checkpoint(packed: bytes) -> bytes:
    """Upgrade the checkpoint of a response that is being generated."""
    checkpoint = msgspec.msgpack.decode(packed)
    request = msgspec.json.decode(checkpoint["body"])
    if request.get("settings"):
        request["settings"] = _settings(request["settings"])
    if request.get("context") is not None:
        request["context"] = _items(request["context"])
    return msgspec.msgpack.encode({**checkpoint, "body": encode(request)})


class UpgradedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the script `migrate` stores it; see `keys.SessionKeys`."""

    state: bytes
    entries: list[bytes]
    checkpoints: list[tuple[bytes, bytes]]
    """Responses that are being generated: id and checkpoint."""
    requests: list[tuple[bytes, bytes, bytes]]
    """Idempotency records, oldest first: digest of the key, digest of the content, result."""
    request_bytes: int
    events: list[bytes]
    event_bytes: int


def upgrade_session(
    state: bytes,
    log: Sequence[bytes],
    running: Sequence[bytes],
    window: bytes,
    events: Sequence[bytes],
) -> UpgradedSession:
    """`running`: alternating fields and values of its hash. `window`: the idempotency records,
    joined."""
    upgraded_events = [upgrade_event(event) for event in events]
    return UpgradedSession(
        state=upgrade_state(state),
        entries=[upgrade_entry(entry) for entry in log],
        checkpoints=[
            (field, upgrade_checkpoint(value))
            for field, value in zip(running[::2], running[1::2], strict=True)
            if b"#" not in field and b":" not in field
        ],
        requests=list(_split_window(window)),
        request_bytes=len(window),
        events=upgraded_events,
        event_bytes=sum(map(len, upgraded_events)),
    )


def _split_window(window: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    start = 0
    while start < len(window):
        end = start + 17 + window[start + 16]
        yield window[start : start + 8], window[start + 8 : start + 16], window[start + 17 : end]
        start = end


# ---------------------------------------------------------------- stored responses


def upgrade_response(packed: bytes, response_id: str) -> bytes:
    tenant, parent, entries, blob = msgspec.msgpack.decode(packed)
    events = _unpack_json(blob) if _unpack(blob) else None  # None: the response was deleted
    body = b"" if events is None else encode([_archived_event(*each.values()) for each in events])
    upgraded = [_upgrade_archived_entry(entry) for entry in entries]
    return msgspec.msgpack.encode([2, response_id, tenant, parent, upgraded, body])


def _upgrade_archived_entry(packed: bytes) -> bytes:
    ids, body = _unpack_entry(packed)
    return encode([_items(body["items"]), ids, body.get("answer"), body.get("model", "")])


def _archived_event(tag: str, *fields: Any) -> list[Any]:
    return [_ARCHIVED_TAGS[tag], *map(_archived_field, fields)]


def _archived_field(value: Any) -> Any:
    match value:
        case {"settings": settings, "items": items, "usage": usage}:
            usage = None if usage is None else [*usage.values()]
            return {
                **value,
                "settings": _settings(settings),
                "items": _items(items),
                "usage": usage,
            }
        case {"type": _}:
            return _item(value)
        case _:
            return value


# ---------------------------------------------------------------- parts of both


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    sampling = settings["sampling"]
    bias = {int(token): bias for token, bias in sampling.get("logit_bias", {}).items()}
    return {**settings, "sampling": {**sampling, "logit_bias": bias}}


def _items(items: Sequence[dict[str, Any]]) -> list[Any]:
    return [_item(item) for item in items]


def _item(item: dict[str, Any]) -> list[Any]:
    return [
        [[*part.values()] for part in value] if name == "parts" else value
        for name, value in item.items()
    ]
