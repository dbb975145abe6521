"""Who may enter: a key, shown as a bearer token or a browser's subprotocol, and the page's origin.

Cookies are never looked at. A browser always says which page it is (Origin), and only pages of this
machine or of the allowed origins are let in, whatever key they show.
"""

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

from realtime.server.client_secrets import ClientSecrets
from realtime.session import Guest

SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Denied(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str


class Gate:
    def __init__(
        self, keys: Mapping[str, str], origins: frozenset[str], secrets: ClientSecrets
    ) -> None:
        """`keys`: tenants by key. None: everyone has one, and is the same tenant."""
        self._keys = [(key.encode(), tenant) for key, tenant in keys.items()]
        self._origins = origins
        self._secrets = secrets

    def check(self, headers: Headers) -> Denied | Guest:
        origin = headers.get("origin")
        if origin is not None and not self._origin_allowed(origin):
            return Denied(403, "origin_not_allowed", "Pages of this origin may not connect.")
        key = _key(headers)
        guest = self._secrets.find(key) if key is not None else None
        if guest is not None:
            return guest
        if not self._keys:
            return Guest()
        if key is None:
            return Denied(
                401,
                "missing_api_key",
                "No API key was shown. Use an Authorization header: Bearer YOUR_KEY.",
            )
        tenant = self._tenant(key)
        if tenant is None:
            return Denied(401, "invalid_api_key", "This API key is not valid here.")
        return Guest(tenant)

    def _tenant(self, key: str) -> str | None:
        """Looks at every key, and at all of it: the time says nothing."""
        shown = key.encode()
        found = [tenant for known, tenant in self._keys if hmac.compare_digest(shown, known)]
        return found[0] if found else None

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
