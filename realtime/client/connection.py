"""Opening of WebSocket connections: the address, the key, the backoff, and what failures mean."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from continuo.realtime.client.close_codes import describe_close_code
from continuo.realtime.client.errors import ConnectionClosedError
from continuo.realtime.client.events import ErrorBody, KVResidency

ApiKey = str | Callable[[], Awaitable[str]]
"""A key, or a function that returns the key for the next attempt to connect. The client tries
again after an exception of that function, unless it is ConnectionClosedError."""

ResumeOutcome = Literal["new", "exact", "snapshot", "rehydrated"]
"""How a session was resumed: not at all; after the last event received; with a snapshot of the
conversation; from this client's copy in a new session, because the server had lost it."""

_HTTP_STATUS_RECOVERABLE = (429, 500, 502, 503, 504)
_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's codes for a self-signed certificate, and for one of an unknown authority."""
_PING_INTERVAL_S = 10.0
_CLOSE_TIMEOUT_S = 2.0


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    api_key: ApiKey | None = None
    connect_timeout_s: float = 10.0
    """Limit of one attempt, up to the first event of the server."""
    reconnect_timeout_s: float = 300.0
    """Time after a lost connection for which the client tries to reconnect."""
    backoff_base_s: float = 0.25
    """Upper bound of the first delay between attempts; it doubles with every attempt."""
    backoff_max_s: float = 10.0
    rehydrate: bool = True
    """Recreate a session that the server has lost from the client's copy, instead of closing."""
    frame_bytes_max: int = 1 << 20
    """Largest frame to send; servers refuse larger ones."""


class ConnectionState(msgspec.Struct, frozen=True, kw_only=True):
    phase: Literal["connecting", "open", "waiting", "closed"]
    reason: str = ""
    """Why the connection was lost, or is closed."""
    attempt: int = 0
    retry_after_s: float = 0.0
    outcome: ResumeOutcome | None = None
    kv: KVResidency | None = None
    """Place of the KV of a resumed session."""


class ConnectionLost(Exception):
    """The connection was lost, or could not be opened, and another attempt may succeed. `code`: as
    in ConnectionClosedError."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Refusal(msgspec.Struct):
    error: ErrorBody


def realtime_url(address: str, query: dict[str, str]) -> str:
    """Make the URL of the Realtime API from an address: `HOST:PORT`, or a `ws`, `wss`, `http` or
    `https` URL, with or without `/v1/realtime`."""
    parts = urlsplit(address if "://" in address else f"ws://{address}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/") or "/v1"
    if path.endswith("/v1"):
        path += "/realtime"
    joined = "&".join(part for part in (parts.query, urlencode(query)) if part)
    return urlunsplit((scheme, parts.netloc, path, joined, ""))


def compute_backoff_s(attempt: int, options: ConnectionOptions) -> float:
    """Draw the delay before attempt `attempt` (from 1): exponential with full jitter, so that a
    thousand clients of a restarting server do not reconnect at the same moment."""
    bound_s = min(options.backoff_max_s, options.backoff_base_s * 2 ** min(attempt - 1, 30))
    return random.uniform(0, bound_s)


@contextlib.asynccontextmanager
async def open_connection(
    url: str, options: ConnectionOptions
) -> AsyncGenerator[ClientConnection, None]:
    """Open a connection. Raises ConnectionLost, or ConnectionClosedError if no later attempt can
    succeed."""
    key = options.api_key
    if key is not None and not isinstance(key, str):
        try:
            key = await key()
        except ConnectionClosedError:
            raise
        except Exception as error:
            raise ConnectionLost("no_api_key", str(error)) from error
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        socket = await connect(
            url,
            additional_headers=headers,
            max_size=None,
            open_timeout=options.connect_timeout_s,
            ping_interval=_PING_INTERVAL_S,
            ping_timeout=_PING_INTERVAL_S,
            close_timeout=_CLOSE_TIMEOUT_S,
        )
    except InvalidStatus as error:
        raise _explain_status(error) from None
    except InvalidURI as error:
        raise ConnectionClosedError("invalid_url", str(error)) from None
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost("certificate_not_trusted", _explain_certificate(error)) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        raise ConnectionLost("unreachable", reason) from None
    async with socket:
        yield socket


def explain_close(
    closed: ConnectionClosed, error: ErrorBody | None
) -> ConnectionLost | ConnectionClosedError:
    """Explain the end of a connection by its close code, and by the error that preceded it."""
    frame = closed.rcvd
    info = describe_close_code(frame.code if frame else 1006, frame.reason if frame else "")
    code = error.code if error and error.code else f"close_{info.code}"
    reason = error.message if error else info.reason
    if info.is_recoverable:
        return ConnectionLost(code, reason)
    return ConnectionClosedError(code, reason)


def _explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    problem = f"the certificate of the server is not trusted ({error.verify_message})"
    if error.verify_code not in _UNKNOWN_ISSUER:
        return problem
    return f"{problem}; if it is yours, set SSL_CERT_FILE to the file of the certificate"


def _explain_status(error: InvalidStatus) -> ConnectionLost | ConnectionClosedError:
    status = error.response.status_code
    try:
        refusal = msgspec.json.decode(error.response.body or b"", type=_Refusal).error
    except msgspec.DecodeError:
        refusal = ErrorBody(message=f"the server refused the connection (HTTP {status})")
    code = refusal.code or f"http_{status}"
    if status in _HTTP_STATUS_RECOVERABLE:
        return ConnectionLost(code, refusal.message)
    return ConnectionClosedError(code, refusal.message)


async def sleep_until_retry(delay_s: float, wake: asyncio.Event) -> None:
    """Sleep for a delay, or until `wake` is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wake.wait(), delay_s)
