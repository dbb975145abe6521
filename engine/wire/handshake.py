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

VERSION = b"continuo link 2\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_BYTES_MIN = 16
FRAME_BYTES_MAX = 1024
"""Of a frame before the greeting is over."""


class Greeting(Protocol):
    def first(self) -> bytes | None:
        """What this end says unasked."""
        ...

    def heard(self, frame: bytes) -> bytes | None:
        """What it answers to. Raises LinkRefused."""
        ...

    @property
    def over(self) -> bool: ...


class FrontGreeting:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.over = False

    def first(self) -> bytes | None:
        return VERSION + self._nonce

    def heard(self, frame: bytes) -> bytes | None:
        rest = _same_version(frame, NONCE_BYTES + PROOF_BYTES)
        theirs, proof = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        _check(proof, _proof(self._secret, "engine", self._nonce, theirs))
        self.over = True
        return _proof(self._secret, "front", self._nonce, theirs)


class EngineGreeting:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._theirs: bytes | None = None
        self.over = False

    def first(self) -> bytes | None:
        return None

    def heard(self, frame: bytes) -> bytes | None:
        if self._theirs is None:
            self._theirs = _same_version(frame, NONCE_BYTES)
            return VERSION + self._nonce + _proof(self._secret, "engine", self._theirs, self._nonce)
        _check(frame, _proof(self._secret, "front", self._theirs, self._nonce))
        self.over = True
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


def _proof(secret: bytes, who: Literal["front", "engine"], front: bytes, engine: bytes) -> bytes:
    return hmac.digest(secret, who.encode() + front + engine, "sha256")


def _check(shown: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(shown, wanted):
        raise LinkRefused("the other end of the link does not know our secret")


def _same_version(frame: bytes, size: int) -> bytes:
    if not frame.startswith(VERSION):
        raise LinkRefused("the other end of the link speaks another version of it")
    rest = frame.removeprefix(VERSION)
    if len(rest) != size:
        raise LinkRefused("the other end of the link greets in another way")
    return rest
