"""Greeting: how two ends of a link prove to each other that they know one secret. Pure.

    front   VERSION nonce ──────────────────────────▶
            ◀────────── VERSION nonce proof            engine
            proof ──────────────────────────────────▶

A proof is an HMAC of both nonces and of who proves, so that none can be used twice or sent back.
The secret never travels; without one (empty) the greeting still tells who speaks what. What is
said after it is not hidden: where others can listen or write, the link needs TLS.
"""

import hmac
import secrets
from pathlib import Path
from typing import Literal, Protocol

from continuo.engine.errors import LinkRefused

LINK_VERSION = b"continuo link 2\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_BYTES_MIN = 16
HANDSHAKE_FRAME_BYTES_MAX = 1024
"""Of a frame before the greeting is over."""


class Handshake(Protocol):
    def start(self) -> bytes | None:
        """What this end says unasked."""
        ...

    def receive(self, frame: bytes) -> bytes | None:
        """What it answers to. Raises LinkRefused."""
        ...

    @property
    def is_complete(self) -> bool: ...


class ClientHandshake:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.is_complete = False

    def start(self) -> bytes | None:
        return LINK_VERSION + self._nonce

    def receive(self, frame: bytes) -> bytes | None:
        rest = _strip_version(frame, NONCE_BYTES + PROOF_BYTES)
        theirs, proof = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        _verify_proof(proof, _compute_proof(self._secret, "engine", self._nonce, theirs))
        self.is_complete = True
        return _compute_proof(self._secret, "front", self._nonce, theirs)


class EngineHandshake:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._client_nonce: bytes | None = None
        self.is_complete = False

    def start(self) -> bytes | None:
        return None

    def receive(self, frame: bytes) -> bytes | None:
        if self._client_nonce is None:
            self._client_nonce = _strip_version(frame, NONCE_BYTES)
            return (
                LINK_VERSION
                + self._nonce
                + _compute_proof(self._secret, "engine", self._client_nonce, self._nonce)
            )
        _verify_proof(frame, _compute_proof(self._secret, "front", self._client_nonce, self._nonce))
        self.is_complete = True
        return None


def read_secret(file: str) -> bytes:
    """Raises LinkRefused: no file, or too little in it."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise LinkRefused(f"{file}: cannot be read ({error.strerror})") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise LinkRefused(
            f"{file}: a secret of {len(secret)} bytes; it must have {SECRET_BYTES_MIN} or more"
        )
    return secret


def _compute_proof(
    secret: bytes, role: Literal["front", "engine"], client_nonce: bytes, engine_nonce: bytes
) -> bytes:
    return hmac.digest(secret, role.encode() + client_nonce + engine_nonce, "sha256")


def _verify_proof(received: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(received, expected):
        raise LinkRefused("the other end of the link does not know our secret")


def _strip_version(frame: bytes, size: int) -> bytes:
    if not frame.startswith(LINK_VERSION):
        raise LinkRefused("the other end of the link speaks another version of it")
    rest = frame.removeprefix(LINK_VERSION)
    if len(rest) != size:
        raise LinkRefused("the other end of the link greets in another way")
    return rest
