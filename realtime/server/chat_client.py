"""`continuo chat`: a conversation in the terminal, over the same WebSocket as everyone's.

A thread of its own waits for lines, so that the event loop is free to hear the server. In a
terminal, Ctrl-C stops the answer and Ctrl-D leaves; with piped input only the answers are printed.
A connection that is lost is made again, and the conversation goes on in the middle of a word.
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

_PROMPT = "you> "
_RETURN_S = 10.0
"""How long a server that has gone may take to be back, or another one to be there in its place."""
_RETRY_S = 0.2
_LOST = (None, 1001, 1006, 1011, 1012, 1013)
"""Close codes after which a session waits for its client; None: there was none."""


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


class Resume(msgspec.Struct, frozen=True):
    session_id: str
    resumed: str | None = None
    token: str | None = None


class ServerSession(msgspec.Struct, frozen=True):
    model: str = ""
    resume: Resume | None = None


class Part(msgspec.Struct, frozen=True):
    text: str | None = None


class Item(msgspec.Struct, frozen=True):
    role: str = ""
    content: list[Part] | None = None


class Event(msgspec.Struct, frozen=True):
    """Of the server's events, what a chat needs."""

    type: str
    event_id: str = ""
    delta: str = ""
    item: Item | None = None
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
    def __init__(self, wishes: Wishes, *, terminal: bool) -> None:
        self._wishes = wishes
        self._socket: ClientConnection
        self._terminal = terminal
        self._answering = False
        self._session = ""
        """Empty: nothing to come back to."""
        self._token: str | None = None
        """The resume token of that session."""
        self._seen = ""
        """The id of the last event."""
        self._asked: dict[str, Any] | None = None
        """What is not answered yet. Sent again with its id it is not done again."""
        self._begun = False
        """Whether the answer that was asked for has been announced."""
        self._said, self._shown = "", ""
        """Of an answer, as it is told now, and as it stands there: it may be told anew."""
        self._last = ""
        """The last item of the server's that was told whole."""

    async def connect(self) -> None:
        """Raises what `connect` raises."""
        self._socket = await _dial(self._wishes)

    async def run(self) -> int:
        await self._greet(self._wishes)
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
        await self._ask({"type": "conversation.item.create", "item": item | {"id": _fresh("item")}})
        if await self._listen() != 0:
            return 1
        self._answering, self._begun = True, False
        self._said = self._shown = ""
        await self._ask({"type": "response.create"})
        try:
            return await self._listen()
        finally:
            self._answering = False

    async def _ask(self, event: dict[str, Any]) -> None:
        """Something that is answered: by who is connected, or who will be."""
        self._asked = event | {"event_id": _fresh("event")}
        with contextlib.suppress(ConnectionClosed):
            await self._send(self._asked)

    async def _listen(self) -> int:
        """Until the item is taken, or the answer has ended, which it prints as it comes; returns
        the exit status that means."""
        async for event in self._events():
            match event:
                case Event(type="conversation.item.done") if not self._answering:
                    self._asked = None
                    return 0
                case Event(type="response.created"):
                    self._begun, self._said = True, ""
                case Event(type="response.output_text.delta", delta=delta):
                    self._show(self._said + delta)
                case Event(type="response.done", response=Response() as response):
                    self._asked = None
                    print(_ending(response), flush=True)
                    return 1 if response.status == "failed" else 0
                case Event(type="error", error=Problem(code="response_cancel_not_active")):
                    pass
                case Event(type="error", error=Problem(code="response_already_created")):
                    if self._answering and self._said != self._shown:  # it ended meanwhile
                        self._show(self._last)
                        print(flush=True)
                        return 0
                case Event(type="error", error=Problem(message=message)):
                    self._asked = None
                    print(f"[{message}]", file=sys.stderr, flush=True)
                    return 1
                case _:
                    pass
        return 1

    def _show(self, said: str) -> None:
        """What of it does not stand there yet; all of it, if it is told otherwise."""
        self._said = said
        if self._shown.startswith(said):
            return
        rest = said[len(self._shown) :] if said.startswith(self._shown) else f"\n{said}"
        self._shown = said
        print(rest, end="", flush=True)

    async def _events(self) -> AsyncIterator[Event]:
        while True:
            try:
                frame = await self._socket.recv()
            except ConnectionClosed as error:
                await self._come_back(error)
                continue
            event = msgspec.json.decode(frame, type=Event)
            self._seen = event.event_id or self._seen
            if event.item is not None and event.item.role == "assistant":
                self._last = "".join(part.text or "" for part in event.item.content or ())
            if event.session is not None and event.session.resume is not None:
                await self._resumed(event.session.resume)
            yield event

    async def _come_back(self, lost: ConnectionClosed) -> None:
        """To the session, wherever it is now. Raises what was lost if it cannot be done soon."""
        code = lost.rcvd.code if lost.rcvd else None
        if not self._session or code not in _LOST:
            raise lost
        query = {"session_id": self._session, "last_event_id": self._seen}
        if self._token is not None:
            query["resume_token"] = self._token
        try:
            async with asyncio.timeout(_RETURN_S):
                while True:
                    try:
                        self._socket = await _dial(self._wishes, **query)
                        return
                    except (OSError, InvalidHandshake):
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise lost from None

    async def _resumed(self, resume: Resume) -> None:
        """Where the answer may be told anew, or was not heard of, it is asked for again."""
        self._session = resume.session_id
        self._token = resume.token or self._token
        if resume.resumed is None or self._asked is None:
            return
        if resume.resumed == "snapshot":
            self._said = ""
        elif self._answering and self._begun:
            return
        with contextlib.suppress(ConnectionClosed):
            await self._send(self._asked)

    async def _send(self, event: dict[str, Any]) -> None:
        await self._socket.send(msgspec.json.encode(event).decode())

    async def _or_closed(self, line: "asyncio.Future[str | None] | Any") -> str | None:
        """The next line, unless the server goes away first, and does not come back."""
        waiting = asyncio.ensure_future(line)
        try:
            while not waiting.done():
                closed = asyncio.ensure_future(self._socket.wait_closed())
                await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    await self._come_back(self._socket.protocol.close_exc)
                closed.cancel()
            return waiting.result()
        finally:
            waiting.cancel()

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
    talk = Chat(wishes, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    try:
        await talk.connect()
        with _kept_terminal():
            return await talk.run()
    except InvalidStatus as error:
        raise SetupError(_refused(error)) from None
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd else None
        raise SetupError(_goodbye(code, error.rcvd.reason if error.rcvd else None)) from None
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise SetupError(
            f"no server answers at {wishes.url} ({error}); start one with: continuo serve"
        ) from None


async def _dial(wishes: Wishes, **query: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {wishes.api_key}"} if wishes.api_key else {}
    return await connect(_address(wishes, **query), additional_headers=headers, max_size=None)


def _fresh(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(8)}"


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


def _address(wishes: Wishes, **query: str) -> str:
    url = wishes.url.rstrip("/")
    for http, ws in (("http://", "ws://"), ("https://", "wss://")):
        if url.startswith(http):
            url = ws + url.removeprefix(http)
    if "://" not in url:
        url = f"ws://{url}"
    if urlsplit(url).path in ("", "/v1"):
        url = url.removesuffix("/v1") + "/v1/realtime"
    if wishes.model:
        query["model"] = wishes.model
    return f"{url}?{urlencode(query)}" if query else url


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
