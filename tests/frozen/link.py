"""Bytes on the link between gateway and engine: messages, handshake, START, the flight recorder.

link.json has, for each tag, the MessagePack of one message with every field and of one with only
its required fields, and the other formats by name. All are in hex, except START, which is JSON.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from continuo.engine.config import StartOptions
from continuo.engine.wire.flight_recorder import (
    FlightRecorder,
    compute_recorder_bytes,
    hash_session_id,
)
from continuo.engine.wire.handshake import ClientHandshake, EngineHandshake
from continuo.engine.wire.messages import EngineCommand, EngineEvent
from tests.frozen.shapes import example_of, members

FILE = Path(__file__).parent / "data" / "link.json"
SECRET = b"sixteen bytes or more"


def current() -> dict[str, dict[str, str]]:
    return {
        "commands": _messages(EngineCommand),
        "events": _messages(EngineEvent),
        "greeting": _handshake(),
        "flight recorder": _recorder(),
        "start": {
            "full": msgspec.json.encode(example_of(StartOptions, full=True)).decode(),
            "least": msgspec.json.encode(example_of(StartOptions, full=False)).decode(),
        },
    }


def _messages(union: object) -> dict[str, str]:
    encodings: dict[str, str] = {}
    for kind in members(union):
        for name, full in (("full", True), ("least", False)):
            encoded = msgspec.msgpack.encode(example_of(kind, full=full))
            tag = msgspec.msgpack.decode(encoded)["type"]
            encodings[f"{tag}, {name}"] = encoded.hex()
    return encodings


def _handshake() -> dict[str, str]:
    """The messages of both sides, in order."""
    with _predictable_nonces():
        client, engine = ClientHandshake(SECRET), EngineHandshake(SECRET)
    hello = client.start()
    assert hello is not None
    answer = engine.receive(hello)
    assert answer is not None
    proof = client.receive(answer)
    assert proof is not None
    engine.receive(proof)
    assert client.is_complete
    assert engine.is_complete
    return {"hello": hello.hex(), "answer": answer.hex(), "proof": proof.hex()}


@contextmanager
def _predictable_nonces() -> Iterator[None]:
    """Replace random nonces: each byte of the n-th nonce is n."""
    counter, token_bytes = iter(range(1, 256)), secrets.token_bytes
    secrets.token_bytes = lambda nbytes=None: bytes([next(counter)]) * (nbytes or 32)
    try:
        yield
    finally:
        secrets.token_bytes = token_bytes


def _recorder() -> dict[str, str]:
    """The memory while two steps are in flight, as the next engine process reads it."""
    memory = bytearray(compute_recorder_bytes(4))
    recorder = FlightRecorder(memory)
    recorder.begin_incarnation("an incarnation")
    recorder.begin_step(0, [hash_session_id("sess_a")])
    recorder.begin_step(1, [hash_session_id("sess_b"), hash_session_id("sess_c")])
    return {"in flight": memory.hex()}


def frozen() -> dict[str, dict[str, str]]:
    return json.loads(FILE.read_text())


def write() -> None:
    FILE.write_text(json.dumps(current(), indent=1) + "\n")
