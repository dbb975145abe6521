"""Authentication of requests by API key, token and Origin.

The key is a bearer token, in the header `x-api-key`, or in a WebSocket subprotocol; cookies are
ignored. A request with an Origin, which browsers always send, is accepted only from the server's
own page, from pages of loopback hosts and from the allowed origins, whatever its key. If no key is
required, the Host must be an address, a name without a dot, or the host of an allowed origin: any
other name could be the result of DNS rebinding, by which a foreign page poses as the server's own.
"""

import hashlib
import ipaddress
import math
import re
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

from continuo.engine import address_of
from continuo.realtime.registry.access import Credentials, Scope
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.auth.client_secrets import SECRET_PREFIX, ClientSecrets
from continuo.realtime.server.auth.wrong_keys import WrongKeys

MISSING_KEY = "missing_api_key"
"""Code of the refusal of a request without a key."""
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_INCORRECT_KEY = "Incorrect API key provided"
"""Beginning of OpenAI's message, by which LiteLLM recognises an authentication error."""
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(
    r"(?P<host>\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::(?P<port>\d{1,5}))?", re.IGNORECASE
)
_ORIGIN = re.compile(rf"https?://{_HOST.pattern}", re.IGNORECASE)
NO_KEY_ID = b""
"""Key id of credentials of a server that requires no key."""


TOKEN_KEY_ID = b"jwt\0\0\0\0\0"
"""Key id of credentials of a JSON Web Token. It is the id of no API key."""


class TokenRefused(Exception):
    """Raised for a token that is not valid here; the message says why, without its content."""


class TokenVerifier(Protocol):
    """Verifies JSON Web Tokens."""

    def verify(self, token: str) -> Credentials:
        """Return the credentials of a token. Raises TokenRefused."""
        ...

    async def prepare(self, token: str) -> None:
        """Fetch the public keys if that of `token` is unknown. Never raises."""
        ...

    async def keep_fresh(self) -> None:
        """Fetch the public keys again and again, until cancelled."""
        ...


class Denied(msgspec.Struct, frozen=True):
    """HTTP error with which a request is refused if its authentication fails."""

    status: int
    code: str
    message: str
    accepts_resume_token: bool = False
    """Whether a resume token may replace the key: True if the request has no key, or an invalid or
    expired client secret."""
    retry_after_s: int | None = None
    """Seconds after which the address may show another key, if it has shown too many wrong ones."""
    event: str = ""
    """Name of the security event; "": none is reported."""


ORIGIN_DENIED = Denied(
    403,
    "origin_not_allowed",
    "Pages of this origin may not connect.",
    event="origin_not_allowed",
)


class Authenticator:
    """Authenticates requests by their headers."""

    def __init__(
        self,
        policy: AccessPolicy,
        secrets: ClientSecrets,
        tokens: TokenVerifier | None = None,
        clock: Callable[[], float] = time.time,
        wrong_keys: WrongKeys | None = None,
    ) -> None:
        """Args:
        policy: the keys and origins to accept; without keys and tokens, no key is required, and all
            clients are one tenant.
        secrets: issues and verifies client secrets.
        tokens: verifies JSON Web Tokens; None: they are not accepted.
        clock: Unix time in seconds, for what expires.
        wrong_keys: throttles addresses that send wrong keys; default: for this process alone.
        """
        self.replace_policy(policy)
        self._secrets = secrets
        self._tokens = tokens
        self._clock = clock
        self.wrong_keys = wrong_keys or WrongKeys()

    def authenticate(
        self, headers: Headers, scope: Scope | None = None, client_host: str | None = None
    ) -> Denied | Credentials:
        """Return the credentials of a request, or Denied if its Origin, Host or key is not
        accepted, if the key lacks `scope`, or if `client_host` has shown too many wrong keys. Wrong
        keys are not counted without `client_host`."""
        if not self.is_origin_allowed(headers):
            return ORIGIN_DENIED
        host = headers.get("host", "")
        key = _api_key(headers)
        credentials = self._find_secret(key) if key is not None else None
        if credentials is not None:
            return _check_scope(credentials, scope)
        if not self.policy.requires_key:
            return Credentials() if self._is_host_allowed(host) else _host_not_allowed(host)
        if key is None:
            return Denied(
                401,
                MISSING_KEY,
                f"{_INCORRECT_KEY}: none was sent. Send it as 'Authorization: Bearer YOUR_KEY', or "
                f"from a browser as the WebSocket subprotocol '{_KEY_SUBPROTOCOL}YOUR_KEY'.",
                accepts_resume_token=True,
            )
        found = (
            self._find_key(key)
            if client_host is None
            else self._find_key_of(key, address_of(client_host))
        )
        return found if isinstance(found, Denied) else _check_scope(found, scope)

    def is_origin_allowed(self, headers: Headers) -> bool:
        """Whether a request has no Origin, or one whose pages may use this server."""
        return is_origin_allowed(headers, self.policy)

    async def prepare(self, headers: Headers) -> None:
        """Fetch the public keys of tokens if that of the request's token is unknown."""
        key = _api_key(headers)
        if self._tokens is not None and key is not None and _is_token(key):
            await self._tokens.prepare(key)

    async def keep_public_keys_fresh(self) -> None:
        """Fetch the public keys of tokens again and again, until cancelled. Returns at once if no
        tokens are accepted."""
        if self._tokens is not None:
            await self._tokens.keep_fresh()

    def replace_policy(self, policy: AccessPolicy) -> None:
        """Use other keys, limits and origins from now on."""
        self.policy = policy
        self._expires_s_by_key_id = {key.id: key.expires_s for key in policy.keys.values()}

    def is_valid(self, credentials: Credentials) -> bool:
        """Whether credentials that were accepted earlier still are."""
        return credentials.expires_s > self._clock() and self._is_valid_key(credentials.key_id)

    def may_resume_by_token(self, credentials: Credentials) -> bool:
        """Whether a resume token alone is enough for a session that began under these credentials:
        the API key must still be valid. A JSON Web Token cannot be verified again."""
        return self._is_valid_key(credentials.key_id) and credentials.key_id != TOKEN_KEY_ID

    def _is_valid_key(self, key_id: bytes) -> bool:
        if key_id == NO_KEY_ID:
            return True
        if key_id == TOKEN_KEY_ID:
            return self._tokens is not None
        return self._expires_s_by_key_id.get(key_id, 0.0) > self._clock()

    def _find_secret(self, value: str) -> Credentials | None:
        """Find a client secret. Returns None also if the key that minted it was revoked."""
        credentials = self._secrets.find(value)
        if credentials is None:
            return None
        return credentials if self._is_valid_key(credentials.key_id) else None

    def _find_key_of(self, key: str, address: str) -> Denied | Credentials:
        """Find a key, unless its address is throttled. A token is verified even then, because its
        signature cannot be guessed."""
        digest = hashlib.sha256(key.encode(errors="replace")).digest()
        wait_s = self.wrong_keys.wait_s(address)
        if wait_s and not _is_token(key) and not self.wrong_keys.was_right(address, digest):
            return _too_many_wrong_keys(key, wait_s)
        found = self._find_key(key)
        if isinstance(found, Credentials):
            if found.key_id != TOKEN_KEY_ID:
                self.wrong_keys.remember(address, digest)
        elif wait_s:
            return _too_many_wrong_keys(key, wait_s)
        elif self.wrong_keys.count(address):
            return msgspec.structs.replace(found, event="wrong_keys_throttled")
        return found

    def _find_key(self, key: str) -> Denied | Credentials:
        found = self.policy.find(key, self._clock())
        if found is not None:
            return Credentials(
                found.tenant, scopes=found.scopes, key_id=found.id, expires_s=found.expires_s
            )
        if self._tokens is not None and _is_token(key):
            try:
                return self._tokens.verify(key)
            except TokenRefused as refused:
                return Denied(
                    401,
                    "invalid_api_key",
                    f"{_INCORRECT_KEY}: this token is not valid here: {refused}.",
                    event="invalid_api_key",
                )
        return Denied(
            401,
            "invalid_api_key",
            f"{_INCORRECT_KEY}: it is not a key of this server, or has expired.",
            accepts_resume_token=key.startswith(SECRET_PREFIX),
            event="invalid_api_key",
        )

    def _is_host_allowed(self, host: str) -> bool:
        found = _parse(_HOST, host)
        if found is None:
            return host == ""  # HTTP/1.0; browsers send a Host
        name = found.host.removesuffix(".")
        if "." not in name or name.endswith(".localhost") or _is_address(name):
            return True
        return any(name == urlsplit(origin).hostname for origin in self.policy.allowed_origins)


def is_origin_allowed(headers: Headers, policy: AccessPolicy) -> bool:
    """Whether a request has no Origin, or one whose pages may use a server with this policy."""
    origin = headers.get("origin")
    if origin is None or origin.lower() in policy.allowed_origins:
        return True
    found = _parse(_ORIGIN, origin)
    if found is None:
        return False
    # The server's own page has the Origin that the Host header names. If no key is required, only
    # an IP address proves that: a host name could be the result of DNS rebinding.
    is_own_page = found == _parse(_HOST, headers.get("host", "")) and (
        policy.requires_key or _is_address(found.host)
    )
    return is_own_page or found.host in _LOOPBACK_HOSTS


class _HostPort(NamedTuple):
    """Host in lower case, without brackets, and port; "" is the default port of the scheme."""

    host: str
    port: str


def _parse(pattern: re.Pattern[str], text: str) -> _HostPort | None:
    """Parse an Origin or Host header. Returns None if it is malformed."""
    found = pattern.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65_535:
        return None
    return _HostPort(found["host"].lower().strip("[]"), found["port"] or "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_token(key: str) -> bool:
    """Whether a key has the form of a JSON Web Token: three parts, the first of them a header."""
    return key.count(".") == 2 and key.startswith("eyJ")


def _check_scope(credentials: Credentials, scope: Scope | None) -> Denied | Credentials:
    if scope is None or scope in credentials.scopes:
        return credentials
    held = ", ".join(sorted(credentials.scopes)) or "none"
    return Denied(
        403,
        "insufficient_scope",
        f"This request needs the scope '{scope}'; the scopes of this key are: {held}.",
    )


def _host_not_allowed(host: str) -> Denied:
    return Denied(
        403,
        "host_not_allowed",
        f"The Host '{host[:100]}' is not one of this server's. Use its address, set an API key, or "
        "add the origin to --allowed-origins.",
        event="host_not_allowed",
    )


def _too_many_wrong_keys(key: str, wait_s: float) -> Denied:
    """Return the refusal of a key that was not looked up. It is not reported: the wrong keys before
    it were."""
    seconds = math.ceil(wait_s)
    return Denied(
        429,
        "rate_limit_exceeded",
        f"Too many wrong API keys came from this address. Try again in {seconds} s.",
        accepts_resume_token=key.startswith(SECRET_PREFIX),
        retry_after_s=seconds,
    )


def offered_subprotocols(headers: Headers) -> list[str]:
    """Return the WebSocket subprotocols that a client offers."""
    return [
        token.strip()
        for line in headers.getlist("sec-websocket-protocol")
        for token in line.split(",")
    ]


def _api_key(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if key := headers.get("x-api-key", "").strip():
        return key
    for token in offered_subprotocols(headers):
        if token.startswith(_KEY_SUBPROTOCOL):
            return token.removeprefix(_KEY_SUBPROTOCOL)
    return None
