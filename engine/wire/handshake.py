"""Handshake: mutual HMAC proof that both ends of a link know one secret. Pure.

    client  VERSION nonce ──────────────────────────▶
            ◀────────── VERSION nonce proof            engine
            proof ──────────────────────────────────▶

A proof is an HMAC of both nonces and the role of the prover, so that it can be neither replayed nor
reflected. The secret is never sent; with an empty secret the handshake still checks the version of
the link protocol. Messages after the handshake are not encrypted: on an untrusted network the link
needs TLS.
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
"""Maximum size of a frame before the handshake is complete; receiving a longer one aborts the
link."""


class Handshake(Protocol):
    """State of one end of a handshake, without I/O."""

    def start(self) -> bytes | None:
        """Return the frame to send first; None if the other end begins."""
        ...

    def receive(self, frame: bytes) -> bytes | None:
        """Process a frame and return the frame to send in reply, if any. Raises LinkRefused."""
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
        engine_nonce, proof = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        _verify_proof(proof, _compute_proof(self._secret, "engine", self._nonce, engine_nonce))
        self.is_complete = True
        return _compute_proof(self._secret, "front", self._nonce, engine_nonce)


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
    """Read the shared secret. Raises LinkRefused if the file cannot be read or is too short."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise LinkRefused(f"{file}: cannot be read ({error.strerror})") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise LinkRefused(
            f"{file}: the secret has {len(secret)} bytes; it must have {SECRET_BYTES_MIN} or more"
        )
    return secret


def _compute_proof(
    secret: bytes, role: Literal["front", "engine"], client_nonce: bytes, engine_nonce: bytes
) -> bytes:
    """Compute the proof sent by the end with this role. The client's role is "front" in link
    version 2."""
    return hmac.digest(secret, role.encode() + client_nonce + engine_nonce, "sha256")


def _verify_proof(received: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(received, expected):
        raise LinkRefused("the other end of the link does not know the shared secret")


def _strip_version(frame: bytes, size: int) -> bytes:
    if not frame.startswith(LINK_VERSION):
        raise LinkRefused("the other end uses another version of the link protocol")
    rest = frame.removeprefix(LINK_VERSION)
    if len(rest) != size:
        raise LinkRefused("the other end of the link sent a malformed handshake")
    return rest
