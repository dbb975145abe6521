"""Handshake: mutual HMAC proof that both ends of a link know one secret. Pure.

    client  VERSION nonce ──────────────────────────▶
            ◀────────── VERSION nonce proof            engine
            proof ──────────────────────────────────▶

The client offers one version of the link protocol; an engine that accepts it answers with the same
version, else it closes the link. Both ends accept the present version and the one before, so that
gateways and engines can be replaced one by one, in any order.

A proof is an HMAC of both nonces and the role of the prover, so that it can be neither replayed nor
reflected. The secret is never sent; with an empty secret the handshake still checks the version of
the link protocol. Messages after the handshake are not encrypted: on an untrusted network the link
needs TLS.
"""

import hmac
import re
import secrets
from pathlib import Path
from typing import Literal, Protocol

from continuo.engine.errors import LinkRefused

LINK_VERSION = 3
"""Version of the link protocol. Versions differ in their commands and events:

3   has ResumeTurn; a client of link 2 attaches the session again in its place
2   the first with the fingerprint of the model
"""
LINK_VERSION_MIN = 2
"""Oldest version that both ends accept."""
NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_BYTES_MIN = 16
_VERSION = re.compile(rb"continuo link (\d{1,4})\n")
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
    def __init__(self, secret: bytes, version: int = LINK_VERSION) -> None:
        """`version`: the version to offer."""
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.version = version
        self.is_answered = False
        """Whether the engine has sent a frame: one that does not accept the version sends none."""
        self.is_complete = False

    def start(self) -> bytes | None:
        return _encode_version(self.version) + self._nonce

    def receive(self, frame: bytes) -> bytes | None:
        self.is_answered = True
        version, rest = _split_version(frame, NONCE_BYTES + PROOF_BYTES)
        if version != self.version:
            raise LinkRefused(f"the engine speaks link {version}, not link {self.version}")
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
            version, self._client_nonce = _split_version(frame, NONCE_BYTES)
            if not LINK_VERSION_MIN <= version <= LINK_VERSION:
                raise LinkRefused(
                    f"the gateway offers link {version}; this engine accepts links "
                    f"{LINK_VERSION_MIN} to {LINK_VERSION}"
                )
            return (
                _encode_version(version)
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
    """Compute the proof sent by the end with this role. The client's role is "front" in the
    protocol."""
    return hmac.digest(secret, role.encode() + client_nonce + engine_nonce, "sha256")


def _verify_proof(received: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(received, expected):
        raise LinkRefused("the other end of the link does not know the shared secret")


def _encode_version(version: int) -> bytes:
    return b"continuo link %d\n" % version


def _split_version(frame: bytes, size: int) -> tuple[int, bytes]:
    """Return the version at the beginning of a frame, and the `size` bytes that follow it."""
    found = _VERSION.match(frame)
    if found is None:
        raise LinkRefused("the other end uses another version of the link protocol")
    rest = frame[found.end() :]
    if len(rest) != size:
        raise LinkRefused("the other end of the link sent a malformed handshake")
    return int(found[1]), rest
