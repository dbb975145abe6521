"""`continuo chat`: a conversation in the terminal, over the same WebSocket as everyone's.

A thread of its own waits for lines, so that the event loop is free to hear the server. In a
terminal, Ctrl-C stops the answer and Ctrl-D leaves; with piped input only the answers are printed.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import termios
import threading
from collections.abc import AsyncIterator, Generator
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from realtime.errors import SetupError

_PROMPT = "you> "


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    api_key: str | None = None
    model: str | None = None
    instructions: str | None = None
    temperature: float | None = None


class Problem(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None


class Details(msgspec.Struct, frozen=True):
    error: Problem | None = None


class Response(msgspec.Struct, frozen=True):
    status: str
    status_details: Details | None = None


class ServerSession(msgspec.Struct, frozen=True):
    model: str = ""


class Event(msgspec.Struct, frozen=True):
    """Of the server's events, what a chat needs."""

    type: str
    delta: str = ""
    response: Response | None = None
    error: Problem | None = None
    session: ServerSession | None = None


class Lines:
    """What is typed, or piped in. The thread is a daemon: nothing waits for a line that never
    comes."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self) -> str | None:
        """None: there are no more."""
        self._wanted.release()
        return await self._lines.get()

    def _read(self) -> None:
        if self._terminal:
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")  # input() has line editing with it
        while True:
            self._wanted.acquire()
            line = self._line()
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            if line is None:
                return

    def _line(self) -> str | None:
        try:
            line = input(_PROMPT) if self._terminal else sys.stdin.readline()
        except (EOFError, UnicodeDecodeError):
            return None
        if not line and not self._terminal:
            return None
        return line.rstrip("\n").encode(errors="replace").decode()


class Chat:
    def __init__(self, socket: ClientConnection, *, terminal: bool) -> None:
        self._socket = socket
        self._terminal = terminal
        self._answering = False

    async def run(self, wishes: Wishes) -> int:
        await self._greet(wishes)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        lines = Lines(terminal=self._terminal)
        status = 0
        while True:
            line = await self._or_closed(lines.next())
            if line is None:
                break
            if line.strip():
                status |= await self._turn(line)
        if self._terminal:
            print()
        return status

    async def _greet(self, wishes: Wishes) -> None:
        async for event in self._events():
            if event.error is not None:
                raise SetupError(event.error.message)
            if event.session is not None and self._terminal:
                print(f"Talking to {event.session.model}. Ctrl-C stops an answer, Ctrl-D leaves.")
            break
        session: dict[str, object] = {"type": "realtime"}
        if wishes.instructions is not None:
            session["instructions"] = wishes.instructions
        if wishes.temperature is not None:
            session["temperature"] = wishes.temperature
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
        await self._send({"type": "conversation.item.create", "item": item})
        if await self._listen() != 0:
            return 1
        self._answering = True
        await self._send({"type": "response.create"})
        try:
            return await self._listen()
        finally:
            self._answering = False

    async def _listen(self) -> int:
        """Until the item is taken, or the answer has ended, which it prints as it comes; returns
        the exit status that means."""
        async for event in self._events():
            match event:
                case Event(type="conversation.item.done") if not self._answering:
                    return 0
                case Event(type="response.output_text.delta", delta=delta):
                    print(delta, end="", flush=True)
                case Event(type="response.done", response=Response() as response):
                    print(_ending(response), flush=True)
                    return 1 if response.status == "failed" else 0
                case Event(type="error", error=Problem(code="response_cancel_not_active")):
                    pass
                case Event(type="error", error=Problem(message=message)):
                    print(f"[{message}]", file=sys.stderr, flush=True)
                    return 1
                case _:
                    pass
        return 1

    async def _events(self) -> AsyncIterator[Event]:
        while True:
            yield msgspec.json.decode(await self._socket.recv(), type=Event)

    async def _send(self, event: dict[str, Any]) -> None:
        await self._socket.send(msgspec.json.encode(event).decode())

    async def _or_closed(self, line: "asyncio.Future[str | None] | Any") -> str | None:
        """The next line, unless the server goes away first."""
        waiting = asyncio.ensure_future(line)
        closed = asyncio.ensure_future(self._socket.wait_closed())
        await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        raise SetupError(_goodbye(self._socket.close_code, self._socket.close_reason))

    def _interrupt(self) -> None:
        if self._answering:
            self._cancelling = asyncio.ensure_future(self._cancel())
        elif self._terminal:
            print("\n(Ctrl-D leaves)", flush=True)
        else:
            os._exit(130)

    async def _cancel(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._send({"type": "response.cancel"})


async def chat(wishes: Wishes) -> int:
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    headers = {"Authorization": f"Bearer {wishes.api_key}"} if wishes.api_key else {}
    try:
        async with connect(_address(wishes), additional_headers=headers, max_size=None) as socket:
            with _kept_terminal():
                return await Chat(socket, terminal=terminal).run(wishes)
    except InvalidStatus as error:
        raise SetupError(_refused(error)) from None
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd else None
        raise SetupError(_goodbye(code, error.rcvd.reason if error.rcvd else None)) from None
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise SetupError(
            f"no server answers at {wishes.url} ({error}); start one with: continuo serve"
        ) from None


@contextlib.contextmanager
def _kept_terminal() -> Generator[None]:
    """The thread may still wait for a line when we leave, its terminal in a state of its own."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _address(wishes: Wishes) -> str:
    url = wishes.url.rstrip("/")
    for http, ws in (("http://", "ws://"), ("https://", "wss://")):
        if url.startswith(http):
            url = ws + url.removeprefix(http)
    if "://" not in url:
        url = f"ws://{url}"
    if urlsplit(url).path in ("", "/v1"):
        url = url.removesuffix("/v1") + "/v1/realtime"
    return f"{url}?model={quote(wishes.model)}" if wishes.model else url


def _ending(response: Response) -> str:
    match response:
        case Response(status="completed"):
            return ""
        case Response(status="cancelled"):
            return " [stopped]"
        case Response(status="incomplete"):
            return " [cut off: no room for more]"
        case Response(status_details=Details(error=Problem(message=message))):
            return f" [failed: {message}]"
        case _:
            return f" [{response.status}]"


def _refused(error: InvalidStatus) -> str:
    try:
        problem = msgspec.json.decode(error.response.body or b"", type=Details).error
    except msgspec.DecodeError:
        problem = None
    if problem is not None:
        return problem.message
    return f"the server refused the connection (HTTP {error.response.status_code})"


def _goodbye(code: int | None, reason: str | None) -> str:
    return f"the server closed the connection ({code}{': ' + reason if reason else ''})"
