"""`continuo chat`: a conversation in the terminal, over the Realtime API.

A thread reads input lines, so that the event loop is free to receive events. In a terminal, Ctrl-C
cancels the response and Ctrl-D quits; with piped input only the responses are printed. A lost
connection is resumed, even in the middle of a word.
"""

import asyncio
import contextlib
import importlib
import os
import secrets
import signal
import sys
import termios
import threading
from collections.abc import AsyncIterator, Generator
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from continuo.realtime.errors import SetupError

_INPUT_PROMPT = "you> "
_RECONNECT_TIMEOUT_S = 10.0
"""Time after which the client stops trying to reconnect to a restarted or replaced server."""
_RECONNECT_INTERVAL_S = 0.2
_RESUMABLE_CLOSE_CODES = (None, 1001, 1006, 1011, 1012, 1013)
"""Close codes after which a session can be resumed. None: the connection closed without one."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `continuo chat`."""

    url: str
    api_key: str | None = None
    model: str | None = None
    instructions: str | None = None
    temperature: float | None = None


class ReceivedError(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None


class ReceivedErrorDetails(msgspec.Struct, frozen=True):
    error: ReceivedError | None = None


class ReceivedResponse(msgspec.Struct, frozen=True):
    status: str
    status_details: ReceivedErrorDetails | None = None


class ReceivedResume(msgspec.Struct, frozen=True):
    session_id: str
    resumed: str | None = None
    token: str | None = None


class ReceivedSession(msgspec.Struct, frozen=True):
    model: str = ""
    resume: ReceivedResume | None = None


class ReceivedPart(msgspec.Struct, frozen=True):
    text: str | None = None


class ReceivedItem(msgspec.Struct, frozen=True):
    role: str = ""
    content: list[ReceivedPart] | None = None


class ReceivedEvent(msgspec.Struct, frozen=True):
    """A server event, with only the fields that the chat uses."""

    type: str
    event_id: str = ""
    delta: str = ""
    item: ReceivedItem | None = None
    response: ReceivedResponse | None = None
    error: ReceivedError | None = None
    session: ReceivedSession | None = None


class InputLines:
    """Reads the user's lines from the terminal or a pipe, each on demand, in a thread of its own.

    The thread is a daemon, so that the process can exit while a read is blocked.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self) -> str | None:
        """Read a line. Returns None at the end of the input."""
        self._wanted.release()
        return await self._lines.get()

    def _read(self) -> None:
        if self._is_terminal:
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")  # gives input() line editing
        while True:
            self._wanted.acquire()
            line = self._read_line()
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if line is None:
                return

    def _read_line(self) -> str | None:
        try:
            line = input(_INPUT_PROMPT) if self._is_terminal else sys.stdin.readline()
        except (EOFError, UnicodeDecodeError):
            return None
        if not line and not self._is_terminal:
            return None
        return line.rstrip("\n").encode(errors="replace").decode()


class ChatClient:
    """A session with a server, which is resumed when its connection is lost."""

    def __init__(self, options: ChatOptions, *, is_terminal: bool) -> None:
        self._options = options
        self._socket: ClientConnection
        self._is_terminal = is_terminal
        self._is_responding = False
        self._session_id = ""
        """Id of the session; empty until the server has sent it."""
        self._resume_token: str | None = None
        self._last_event_id = ""
        self._pending_event: dict[str, Any] | None = None
        """The last request, until its outcome arrives; sent again after a resume. Its `event_id` is
        its idempotency key."""
        self._is_response_announced = False
        """Whether `response.created` of the pending request has arrived."""
        self._received, self._shown = "", ""
        """Text of the current response as received, and as printed. After a snapshot, the text is
        received again from its beginning."""
        self._last_item_text = ""
        """Text of the last assistant item received."""

    async def connect(self) -> None:
        """Connect. Raises the exceptions of `websockets.connect`."""
        self._socket = await _connect(self._options)

    async def run(self) -> int:
        """Chat until the end of the input. Returns the exit status."""
        await self._start_session(self._options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        lines = InputLines(is_terminal=self._is_terminal)
        status = 0
        while True:
            line = await self._wait_unless_closed(lines.next())
            if line is None:
                break
            if line.strip():
                status |= await self._turn(line)
        if self._is_terminal:
            print()
        return status

    async def _start_session(self, options: ChatOptions) -> None:
        async for event in self._events():
            if event.error is not None:
                raise SetupError(event.error.message)
            if event.session is not None and self._is_terminal:
                print(f"Talking to {event.session.model}. Ctrl-C cancels a response, Ctrl-D quits.")
            break
        session: dict[str, object] = {"type": "realtime"}
        if options.instructions is not None:
            session["instructions"] = options.instructions
        if options.temperature is not None:
            session["temperature"] = options.temperature
        if len(session) > 1:
            await self._send({"type": "session.update", "session": session})
            async for event in self._events():
                if event.error is not None:
                    raise SetupError(event.error.message)
                if event.type == "session.updated":
                    break

    async def _turn(self, line: str) -> int:
        content = [{"type": "input_text", "text": line}]
        item = {"type": "message", "role": "user", "content": content}
        await self._send_pending(
            {"type": "conversation.item.create", "item": item | {"id": _new_id("item")}}
        )
        if await self._wait_for_outcome() != 0:
            return 1
        self._is_responding, self._is_response_announced = True, False
        self._received = self._shown = ""
        await self._send_pending({"type": "response.create"})
        try:
            return await self._wait_for_outcome()
        finally:
            self._is_responding = False

    async def _send_pending(self, event: dict[str, Any]) -> None:
        """Send a request and keep it in `_pending_event`, to be sent again after a reconnect."""
        self._pending_event = event | {"event_id": _new_id("event")}
        with contextlib.suppress(ConnectionClosed):
            await self._send(self._pending_event)

    async def _wait_for_outcome(self) -> int:
        """Wait for the outcome of the pending request: the item added, or the response ended.

        Prints the response as it arrives. Returns the exit status: 1 after an error, else 0.
        """
        async for event in self._events():
            match event:
                case ReceivedEvent(type="conversation.item.done") if not self._is_responding:
                    self._pending_event = None
                    return 0
                case ReceivedEvent(type="response.created"):
                    self._is_response_announced, self._received = True, ""
                case ReceivedEvent(type="response.output_text.delta", delta=delta):
                    self._show(self._received + delta)
                case ReceivedEvent(type="response.done", response=ReceivedResponse() as response):
                    self._pending_event = None
                    print(_describe_end(response), flush=True)
                    return 1 if response.status == "failed" else 0
                case ReceivedEvent(
                    type="error", error=ReceivedError(code="response_cancel_not_active")
                ):
                    pass
                case ReceivedEvent(
                    type="error", error=ReceivedError(code="response_already_created")
                ):
                    # The response ended while the client was disconnected.
                    if self._is_responding and self._received != self._shown:
                        self._show(self._last_item_text)
                        print(flush=True)
                        return 0
                case ReceivedEvent(type="error", error=ReceivedError(message=message)):
                    self._pending_event = None
                    print(f"[{message}]", file=sys.stderr, flush=True)
                    return 1
                case _:
                    pass
        return 1

    def _show(self, text: str) -> None:
        """Print what `text`, the response so far, adds to the printed text; if it does not begin
        with the printed text, print all of it on a new line."""
        self._received = text
        if self._shown.startswith(text):
            return
        rest = text[len(self._shown) :] if text.startswith(self._shown) else f"\n{text}"
        self._shown = text
        print(rest, end="", flush=True)

    async def _events(self) -> AsyncIterator[ReceivedEvent]:
        while True:
            try:
                frame = await self._socket.recv()
            except ConnectionClosed as error:
                await self._reconnect(error)
                continue
            event = msgspec.json.decode(frame, type=ReceivedEvent)
            self._last_event_id = event.event_id or self._last_event_id
            if event.item is not None and event.item.role == "assistant":
                self._last_item_text = "".join(part.text or "" for part in event.item.content or ())
            if event.session is not None and event.session.resume is not None:
                await self._on_resumed(event.session.resume)
            yield event

    async def _reconnect(self, cause: ConnectionClosed) -> None:
        """Resume the session through the same URL, possibly on another server. Raises `cause` if
        its close code rules that out, or after _RECONNECT_TIMEOUT_S."""
        code = cause.rcvd.code if cause.rcvd else None
        if not self._session_id or code not in _RESUMABLE_CLOSE_CODES:
            raise cause
        query = {"session_id": self._session_id, "last_event_id": self._last_event_id}
        if self._resume_token is not None:
            query["resume_token"] = self._resume_token
        try:
            async with asyncio.timeout(_RECONNECT_TIMEOUT_S):
                while True:
                    try:
                        self._socket = await _connect(self._options, **query)
                        return
                    except (OSError, InvalidHandshake):
                        await asyncio.sleep(_RECONNECT_INTERVAL_S)
        except TimeoutError:
            raise cause from None

    async def _on_resumed(self, resume: ReceivedResume) -> None:
        """Note the session's id and resume token. If the session was resumed, send the pending
        request again, unless the server replays the events of its response."""
        self._session_id = resume.session_id
        self._resume_token = resume.token or self._resume_token
        if resume.resumed is None or self._pending_event is None:
            return
        if resume.resumed == "snapshot":
            self._received = ""
        elif self._is_responding and self._is_response_announced:
            return
        with contextlib.suppress(ConnectionClosed):
            await self._send(self._pending_event)

    async def _send(self, event: dict[str, Any]) -> None:
        await self._socket.send(msgspec.json.encode(event).decode())

    async def _wait_unless_closed(self, line: "asyncio.Future[str | None] | Any") -> str | None:
        """Return the result of `line`, the next line of input; meanwhile, resume the session if its
        connection is lost. Raises ConnectionClosed if that fails."""
        waiting = asyncio.ensure_future(line)
        try:
            while not waiting.done():
                closed = asyncio.ensure_future(self._socket.wait_closed())
                await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    await self._reconnect(self._socket.protocol.close_exc)
                closed.cancel()
            return waiting.result()
        finally:
            waiting.cancel()

    def _interrupt(self) -> None:
        if self._is_responding:
            self._cancelling = asyncio.ensure_future(self._cancel())
        elif self._is_terminal:
            print("\n(Ctrl-D quits)", flush=True)
        else:
            os._exit(130)

    async def _cancel(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._send({"type": "response.cancel"})


async def run_chat(options: ChatOptions) -> int:
    """Chat with a server. Returns the exit status. Raises SetupError."""
    client = ChatClient(options, is_terminal=sys.stdin.isatty() and sys.stdout.isatty())
    try:
        await client.connect()
        with _restored_terminal():
            return await client.run()
    except InvalidStatus as error:
        raise SetupError(_refusal_message(error)) from None
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd else None
        raise SetupError(_close_message(code, error.rcvd.reason if error.rcvd else None)) from None
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise SetupError(
            f"cannot connect to {options.url} ({error}); start a server with: continuo serve"
        ) from None


async def _connect(options: ChatOptions, **query: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    return await connect(
        _websocket_url(options, **query), additional_headers=headers, max_size=None
    )


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(8)}"


@contextlib.contextmanager
def _restored_terminal() -> Generator[None]:
    """Restore the terminal settings on exit, because `readline` changes them while it waits for a
    line."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _websocket_url(options: ChatOptions, **query: str) -> str:
    url = options.url.rstrip("/")
    for http, ws in (("http://", "ws://"), ("https://", "wss://")):
        if url.startswith(http):
            url = ws + url.removeprefix(http)
    if "://" not in url:
        url = f"ws://{url}"
    if urlsplit(url).path in ("", "/v1"):
        url = url.removesuffix("/v1") + "/v1/realtime"
    if options.model:
        query["model"] = options.model
    return f"{url}?{urlencode(query)}" if query else url


def _describe_end(response: ReceivedResponse) -> str:
    match response:
        case ReceivedResponse(status="completed"):
            return ""
        case ReceivedResponse(status="cancelled"):
            return " [stopped]"
        case ReceivedResponse(status="incomplete"):
            return " [incomplete: no room for more tokens]"
        case ReceivedResponse(
            status_details=ReceivedErrorDetails(error=ReceivedError(message=message))
        ):
            return f" [failed: {message}]"
        case _:
            return f" [{response.status}]"


def _refusal_message(error: InvalidStatus) -> str:
    try:
        refusal = msgspec.json.decode(error.response.body or b"", type=ReceivedErrorDetails).error
    except msgspec.DecodeError:
        refusal = None
    if refusal is not None:
        return refusal.message
    return f"the server refused the connection (HTTP {error.response.status_code})"


def _close_message(code: int | None, reason: str | None) -> str:
    return f"the server closed the connection ({code}{': ' + reason if reason else ''})"
