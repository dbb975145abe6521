"""HTTP connections of uvicorn, with bounds on unfinished requests.

request that stays incomplete     aborted: head after HEAD_TIMEOUT_S, body after BODY_TIMEOUT_S
connection that costs too much    refused with 408 or 429 (`account`)
head or trailers over a limit     refused with 414 or 431, by bytes and by lines
unfinished requests over budget   the largest is refused with 503 (`incoming_budget`)
input after a refusal             read and discarded for LINGER_S, at most LINGER_BYTES_MAX

An upgrade to another protocol than WebSocket is ignored, as RFC 9110 (section 7.8) permits: Java's
HttpClient asks for HTTP/2 in each request, and sends its body in HTTP/1.1.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from websockets import http11

from continuo.realtime.server import replies
from continuo.realtime.server.hardening.account import SHARE_MAX, WINDOW_S, LoopAccount
from continuo.realtime.server.hardening.guards import (
    LINGER_S,
    SLICE_BYTES,
    BoundedReads,
    Lingerer,
    PausedReading,
    UnreadInput,
    encode_last_response,
)
from continuo.realtime.server.hardening.read_turns import NEW_CONNECTION_S
from continuo.realtime.server.incoming_budget import (
    SHARE_EXTENSION,
    IncomingBudget,
    IncomingShare,
    ledger_of,
    release_share,
    share_of,
)
from continuo.realtime.server.security_log import security_log
from continuo.realtime.tenants.ledger import TenantLedger

_TLS_HANDSHAKE = b"\x16\x03"
"""Beginning of a TLS record with a handshake, of any version since SSL 3."""
HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
REQUEST_LINE_BYTES_MAX = 16 * 1024
"""Maximum bytes of the request target (the URL in the request line), else 414; URLs of browsers are
shorter."""
HEADERS_BYTES_MAX = 64 * 1024
"""Maximum bytes of all header lines of a request, trailers included; else 431."""
HEADERS_MAX = http11.MAX_NUM_HEADERS
"""Maximum number of header lines of a request, trailers included, else 431; the same limit as that
of `websockets` for an upgrade."""
PIPELINED_REQUESTS_MAX = 16
"""Maximum number of requests of a connection that wait for the response to an earlier one, else
503; browsers and SDKs do not pipeline."""
RETRY_AFTER_S = 2


class _ParserStopped(Exception):
    """Raised in a parser callback to stop parsing after the request is refused."""


class _Flow(PausedReading, FlowControl):
    """uvicorn's flow control of an HTTP connection, which also pauses for unread input."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.transport = transport

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._read_on()


class _CycleTransport:
    """The part of a transport that uvicorn's RequestResponseCycle uses: its `write`, and another
    function in place of its `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.close = close


class GuardedHttp(Lingerer, UnreadInput, HttpToolsProtocol):
    """An HTTP connection with a deadline for each request (for the first one, counted from the
    start of the connection), a bound on its head, and a budget for the bytes of all unfinished
    requests of the server."""

    incoming_budget: ClassVar[IncomingBudget]
    url = b""
    _timeout: asyncio.TimerHandle | None = None
    _head_share: IncomingShare | None = None
    """Share of the incoming budget that `_head_bytes` and unread bytes are charged to; None while
    they are 0."""
    _head_bytes = 0
    """Bytes read of an unfinished head, trailer section or chunk header; 0 whenever the parser has
    completed one."""
    _header_bytes = 0
    _content_length = 0
    """Length of the body that the head states."""
    _body_left = 0
    """Bytes that are missing of the body, once its head is complete. 0 if it comes in chunks."""
    _refusal: bytes | None = None
    """The encoded error response after which the connection closes; further input is discarded.
    None: no request was refused. Empty: close without an error response."""
    _is_new = True
    """Whether nothing was received yet."""
    _current_cycle: RequestResponseCycle | None = None
    """The request that the application is responding to, or has responded to last."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_protocol(BoundedReads(self))
        self.account = LoopAccount("http")
        self.flow = self._flow = _Flow(transport)
        self._arm(HEAD_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        least_s = 0.0
        if self._is_new:
            self._is_new = False
            least_s = NEW_CONNECTION_S
            if data.startswith(_TLS_HANDSHAKE):
                self._refuse_tls()
        self._receive(data, least_s)
        if self._unread and self._refusal is None:
            self._charge_head(self._head_bytes + self.unread_bytes)

    @property
    def owner(self) -> TenantLedger | None:
        return None if self._current_cycle is None else ledger_of(self._current_cycle.scope)

    def parse_slice(self) -> bool:
        if self.account.is_exceeded and self._refusal is None:
            self._refuse_costly()
        if self._refusal is None:
            self._read(self._take(max(SLICE_BYTES, self._body_left)))
        else:
            self._discard_input(self._take(len(self._unread)))
        if not self._unread:
            self._flow.release_reading()
        return bool(self._unread)

    def hold_reading(self) -> None:
        self._flow.hold_reading()

    def release_reading(self) -> None:
        self._flow.release_reading()

    def _read(self, part: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        if self._timeout is None and self._is_answered:
            self._arm(HEAD_TIMEOUT_S)  # the parser does not report empty lines before a request
        self._head_bytes += len(part)
        self._unset_keepalive_if_required()
        self._feed(part)
        if self._refusal is None and (self._head_bytes or self._head_share is not None):
            self._check_head()

    def _feed(self, part: bytes) -> None:
        """Parse a part of the input, as uvicorn's data_received; but ignore upgrades to other
        protocols than WebSocket, after which httptools parses no more."""
        try:
            self.parser.feed_data(part)  # type: ignore[union-attr]  # uvicorn declares it Any or None
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._ignores_upgrade:
                head = self._encode_head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self._feed(head + part[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

    @property
    def _ignores_upgrade(self) -> bool:
        """Whether the head being parsed asks for another protocol than WebSocket. It is parsed once
        more without that."""
        asks = self.parser.should_upgrade() and not self._should_upgrade()  # type: ignore[union-attr]  # as above
        return asks and any(name == b"upgrade" for name, _ in self.headers)

    def _encode_head_without_upgrade(self) -> bytes:
        parser = self.parser
        assert parser is not None
        version = parser.get_http_version().encode()
        lines = [b" ".join((parser.get_method(), self.url, b"HTTP/" + version))]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def _check_head(self) -> None:
        if self._head_bytes > REQUEST_LINE_BYTES_MAX + HEADERS_BYTES_MAX:
            self._refuse(*(_headers_too_large() if self.url else _request_line_too_long()))
        else:
            self._charge_head(self._head_bytes + self.unread_bytes)

    def _charge_head(self, size: int) -> None:
        if size and self._head_share is None:
            self._head_share = IncomingShare(self.incoming_budget, self._refuse_over_budget)
        if self._head_share is not None:
            self._head_share.charge(size)
        if not size:
            self._head_share = None  # breaks a reference cycle: the share refers to this object

    def send_400_response(self, msg: str) -> None:
        if self._refusal is None:
            response = replies.error_response(400, code="invalid_http", message=msg)
            self.transport.write(encode_last_response(response))
            self.transport.close()

    def _refuse_tls(self) -> None:
        """Refuse a TLS handshake. The client cannot read the response, so the reason is logged."""
        message = (
            "This port does not use TLS, and the client began a TLS handshake: use http:// and "
            "ws:// URLs, or start the server with --ssl-certfile and --ssl-keyfile."
        )
        security_log.report("tls_on_plain_port", self.client, hint=message)
        self._refuse(400, code="tls_on_plain_port", message=message)

    # ------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        if self._timeout is None:
            self._arm(HEAD_TIMEOUT_S)
        self._header_bytes = self._content_length = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > REQUEST_LINE_BYTES_MAX:
            self._refuse_and_stop(*_request_line_too_long())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += _line_bytes(name, value)
        if self._header_bytes > HEADERS_BYTES_MAX:
            self._refuse_and_stop(*_headers_too_large())
        if len(self.headers) >= HEADERS_MAX:
            message = f"The request has more than {HEADERS_MAX} header lines."
            self._refuse_and_stop(431, "headers_too_large", message)
        if name.lower() == b"content-length":
            self._content_length = int(value)  # the parser has refused what is no number
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        if self._ignores_upgrade:
            return
        if self.parser.should_upgrade() and self._should_upgrade():  # type: ignore[union-attr]  # uvicorn declares it Any or None
            self._check_upgrade()
        if len(self.pipeline) >= PIPELINED_REQUESTS_MAX:
            message = f"{PIPELINED_REQUESTS_MAX} requests wait for an earlier response, the limit."
            self._refuse_and_stop(503, "too_many_pipelined_requests", message)
        self._arm(BODY_TIMEOUT_S)
        self._body_left = self._content_length
        super().on_headers_complete()

    def _check_upgrade(self) -> None:
        """Refuse an upgrade with a line over the limit of `websockets`, which parses the head
        again."""
        limit = http11.MAX_LINE_LENGTH
        if len(b"GET " + self.url + b" HTTP/1.1\r\n") > limit:
            message = f"The request line of a WebSocket upgrade is over {limit:,} bytes."
            self._refuse_and_stop(414, "request_line_too_long", message)
        for name, value in self.headers:
            if _line_bytes(name, value) > limit:
                field = name[:64].decode("latin-1")
                message = f"The header '{field}' of a WebSocket upgrade is over {limit:,} bytes."
                self._refuse_and_stop(431, "headers_too_large", message)

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_left = max(self._body_left - len(body), 0)
        super().on_body(body)
        if self._is_answered:
            return  # the body of an upgrade, or one that the application no longer reads
        share = self._body_share()
        share.charge(share.unfinished_bytes + len(body))
        if self._refusal is not None:
            raise _ParserStopped

    def _body_share(self) -> IncomingShare:
        scope = self.cycle.scope
        share = share_of(scope)
        if share is None:
            share = IncomingShare(self.incoming_budget, self._refuse_over_budget, ledger_of(scope))
            scope.setdefault("extensions", {})[SHARE_EXTENSION] = share  # type: ignore[assignment]  # uvicorn has dicts
        return share

    def on_message_complete(self) -> None:
        if self._ignores_upgrade:
            return
        self._head_bytes = self._body_left = 0
        self._disarm()
        share = None if self._is_answered else share_of(self.cycle.scope)
        if share is not None:
            share.charge(0, share.charged_bytes)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        self._charge_head(0)
        if self._unread:
            self._drop_unread()
            self.transport.abort()  # a client must wait for the response to its upgrade
            return
        super().handle_websocket_upgrade()
        websocket = self.transport.get_protocol()
        if isinstance(websocket, asyncio.Protocol):
            self.transport.set_protocol(BoundedReads(websocket))
        self.parser = None  # breaks a reference cycle: the parser refers to this object

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        transport = _CycleTransport(self.transport, self._close_after_response)
        cycle.transport = transport  # type: ignore[assignment]  # uvicorn uses only these two methods
        timed = partial(self.account.timed, _run_and_release, self.account, app)
        super()._start_asgi_task(cycle, cast("Any", timed))

    def _close_after_response(self) -> None:
        """Close the connection after a response. If the request's body is still arriving, use a
        lingering close: unread input would reset the connection."""
        cycle = self._current_cycle
        unread = cycle is not None and cycle.response_complete and cycle.more_body
        if unread and not self.transport.is_closing():
            self._refusal = b""  # on_response_complete starts the lingering close
        else:
            self.transport.close()

    # ------------------------------------------------------------ refusals

    @property
    def _is_answered(self) -> bool:
        """Whether the response to the request parsed last is complete. Returns True if no request
        has been parsed."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def _refuse_and_stop(self, status: int, code: str, message: str) -> NoReturn:
        """Refuse the request being parsed. Raises _ParserStopped, which stops the parser."""
        self._refuse(status, code, message)
        raise _ParserStopped

    def _refuse_over_budget(self) -> None:
        limit = self.incoming_budget.bytes_max
        message = f"The server holds {limit:,} bytes of unfinished requests, its limit. Try again."
        self._refuse(503, "server_busy", message)

    def _refuse_costly(self) -> None:
        """Refuse a connection that uses too much time without a request that succeeds."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_incomplete = cycle is None or cycle.more_body
        message = (
            f"The connection has used over {SHARE_MAX:.0%} of the server's time for {WINDOW_S:g} s "
            "without a request that succeeds."
        )
        security_log.report("costly_connection", self.client)
        self._refuse(408 if is_incomplete else 429, code="costly_connection", message=message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Refuse the request being parsed: once earlier responses of the connection are complete,
        send an error response and close the connection."""
        if self._refusal is not None or self.transport.is_closing():
            return
        response = replies.error_response(status, code, message)
        if status in (429, 503):
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        self._refusal = encode_last_response(response)
        self._disarm()
        self._charge_head(0)
        if self._can_send_refusal():
            self._send_refusal()

    def _can_send_refusal(self) -> bool:
        """Return whether the refusal can be sent now, and make way for it.

        Returns False if responses to earlier requests must be sent first, or if the application has
        begun its own response to the refused request. If the application has received the refused
        request, but not responded yet, it receives a disconnect, and True is returned.
        """
        if self._is_answered:
            return True
        cycle = self.cycle
        if not cycle.more_body:
            return False
        release_share(cycle.scope)
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return False
        if cycle.response_started:
            cycle.keep_alive = False
            return False
        _disconnect(cycle)
        return True

    def on_response_complete(self) -> None:
        owed = bool(self.pipeline)
        super().on_response_complete()
        if self._refusal is not None and not owed:
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self._refusal is None or self.transport.is_closing():
            return
        self._write_last(self._refusal)
        self.flow.resume_reading()
        self._arm(LINGER_S)

    # ------------------------------------------------------------ close

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._drop_unread()
        self._unset_keepalive_if_required()
        self._charge_head(0)
        if self._current_cycle is not None and not self._current_cycle.response_complete:
            _disconnect(self._current_cycle)  # uvicorn does it for the request parsed last alone
        super().connection_lost(exc)
        for cycle, _ in self.pipeline:
            release_share(cycle.scope)
        self.pipeline.clear()
        self.cycle = self._current_cycle = None  # type: ignore[assignment]  # uvicorn declares it never None; cycles refer to this object

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timeout = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Let the application see the disconnect of a request."""
    cycle.disconnected = True
    cycle.message_event.set()


async def _run_and_release(
    account: LoopAccount, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    succeeds = False

    async def send_and_credit(message: Message) -> None:
        nonlocal succeeds
        if message["type"] == "http.response.start":
            succeeds = message["status"] < 400
        if succeeds:
            account.credit()
        await send(message)

    try:
        await app(scope, receive, send_and_credit)
    finally:
        release_share(scope)


def _line_bytes(name: bytes, value: bytes) -> int:
    return len(name) + len(b": ") + len(value) + len(b"\r\n")


def _request_line_too_long() -> tuple[int, str, str]:
    message = f"The request line is over {REQUEST_LINE_BYTES_MAX:,} bytes."
    return 414, "request_line_too_long", message


def _headers_too_large() -> tuple[int, str, str]:
    return 431, "headers_too_large", f"The headers are over {HEADERS_BYTES_MAX:,} bytes."
