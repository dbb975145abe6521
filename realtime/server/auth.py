"""Who may enter: a key, shown as a bearer token or a browser's subprotocol, and the page's origin.

Cookies are never looked at. A browser always says which page it is (Origin), and only pages of this
machine or of the allowed origins are let in, whatever key they show.
"""

import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Denied(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str


class Gate:
    def __init__(self, keys: Iterable[str], origins: frozenset[str]) -> None:
        """No keys: everyone has one."""
        self._keys = [key.encode() for key in keys]
        self._origins = origins

    def check(self, headers: Headers) -> Denied | None:
        origin = headers.get("origin")
        if origin is not None and not self._origin_allowed(origin):
            return Denied(403, "origin_not_allowed", "Pages of this origin may not connect.")
        if not self._keys:
            return None
        key = _key(headers)
        if key is None:
            return Denied(
                401,
                "missing_api_key",
                "No API key was shown. Use an Authorization header: Bearer YOUR_KEY.",
            )
        if not self._known(key):
            return Denied(401, "invalid_api_key", "This API key is not valid here.")
        return None

    def _known(self, key: str) -> bool:
        """Looks at every key, and at all of it: the time says nothing."""
        shown = key.encode()
        found = [hmac.compare_digest(shown, known) for known in self._keys]
        return any(found)

    def _origin_allowed(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and parts.hostname in _LOOPBACK_HOSTS
        except ValueError:
            return False


def offered(headers: Headers) -> list[str]:
    """The subprotocols a client offers."""
    return [
        token.strip()
        for line in headers.getlist("sec-websocket-protocol")
        for token in line.split(",")
    ]


def _key(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for token in offered(headers):
        if token.startswith(_KEY_SUBPROTOCOL):
            return token.removeprefix(_KEY_SUBPROTOCOL)
    return None
