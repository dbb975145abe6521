"""`continuo chat`: a conversation in the terminal, over the Realtime API.

A thread reads input lines, so that the event loop is free to receive events. In a terminal, Ctrl-C
cancels the response and Ctrl-D quits; with piped input only the responses are printed. The client
library resumes a lost connection, even in the middle of a word.
"""

import asyncio
import contextlib
import importlib
import os
import shlex
import shutil
import signal
import sys
import termios
import threading
from collections.abc import Generator

import msgspec

from continuo.engine import BUNDLED_MODEL, escape_commands, print_line
from continuo.realtime.client import (
    ConnectionClosedError,
    ConnectionOptions,
    EventRefusedError,
    RealtimeClient,
    ResponseFailedError,
    ResponseStream,
    ResponseUpdated,
    ResumePoint,
    SessionSettings,
    TextAppended,
    connect,
)
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.settings import DEFAULT_CHAT_URL
from continuo.realtime.server.own_command import find_own_command
from continuo.realtime.server.word_wrapper import WordWrapper

_INPUT_PROMPT = "you> "
_COMMANDS = {
    "/help": "list these commands",
    "/model": "name the model",
    "/new": "begin a new conversation",
    "/quit": "quit, as Ctrl-D does",
    "//...": "send a message that begins with a slash",
}
"""Lines that the chat answers itself, in a terminal."""
_TOY = ", a toy of 2.3 million parameters that chats, remembers and counts"
"""Description of the bundled model. Its first users expect an assistant."""
_RECONNECT_TIMEOUT_S = 10.0
_RECONNECT_TIMEOUT_IN_TERMINAL_S = 60.0
"""Times after which the client stops trying to reconnect to a restarted or replaced server. In a
terminal, Ctrl-C ends the attempts."""
_RECONNECT_INTERVAL_S = 0.4
"""Upper bound of the delay between attempts. A person waits."""
_LOSS_NOTICE_DELAY_S = 1.0
"""Time without a connection after which a terminal shows that it was lost."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `continuo chat`."""

    url: str
    api_key: str | None = None
    model: str | None = None
    instructions: str | None = None
    temperature: float | None = None
    session: str | None = None
    """Id of a session to resume. None: a new session."""


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


class Chat:
    """A conversation of the terminal with a connected client."""

    def __init__(
        self,
        client: RealtimeClient,
        options: ChatOptions,
        lines: InputLines,
        *,
        is_terminal: bool,
    ) -> None:
        self._client = client
        self._options = options
        self._lines = lines
        self._is_terminal = is_terminal
        self._wrapper = WordWrapper(None)
        self._stream: ResponseStream | None = None
        """The response in progress."""
        self._task = asyncio.current_task()
        self.quit_reason: str | None = None
        """Why the connection was lost, if the user has ended the attempts to reconnect."""
        self.is_new_requested = False
        """Whether the user has requested a new conversation."""

    async def run(self) -> int:
        """Chat until the end of the input, or until a new conversation is requested. Returns the
        exit status."""
        if self._is_terminal:
            print_line(f"Talking to {self._describe_model()}.")
            print_line("Ctrl-C cancels a response, Ctrl-D quits, /help lists the commands.")
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        if self._is_terminal:
            self._noticing = asyncio.create_task(self._notice_losses())
        if self._options.session is not None:
            await self._show_resumed()
        status = 0
        while (line := await self._next_line()) is not None:
            if self._is_terminal and line.startswith("/"):
                if line.strip() in ("/quit", "/new"):
                    self.is_new_requested = line.strip() == "/new"
                    break
                if not line.startswith("//"):
                    print_line(self._answer_command(line.strip()))
                    continue
                line = line[1:]
            if line.strip():
                status |= await self._turn(line)
        if self._is_terminal:
            print_line(f"\nTo come back to this conversation: {self._resume_command()}")
        return status

    def _describe_model(self) -> str:
        model = self._client.session["model"]
        return f"{model}{_TOY}" if model == BUNDLED_MODEL else model

    def _answer_command(self, command: str) -> str:
        """Return what the chat prints for a command that does not end the conversation."""
        match command:
            case "/help":
                return "\n".join(f"  {name:<8} {text}" for name, text in _COMMANDS.items())
            case "/model":
                return self._describe_model()
            case _:
                return f"{command} is no command of the chat; /help lists them, /{command} sends it"

    def _resume_command(self) -> str:
        """Return the command that resumes the session, without the key."""
        url, key = self._options.url, self._options.api_key
        command = f"{find_own_command()} chat --session {shlex.quote(self._client.session_id)}"
        if url != os.environ.get("CONTINUO_URL", DEFAULT_CHAT_URL):
            command += f" --url {shlex.quote(url)}"
        if key != os.environ.get("CONTINUO_API_KEY"):
            command += " --api-key YOUR_KEY"
        return command

    async def _show_resumed(self) -> None:
        """Print the conversation of a resumed session, and the rest of a response in progress."""
        changes = self._client.changes()
        self._wrapper = self._start_text()
        is_responding = self._client.conversation.is_responding
        for number, message in enumerate(messages := self._client.conversation.messages):
            is_partial = is_responding and number == len(messages) - 1
            prompt = _INPUT_PROMPT if message.role == "user" else ""
            if message.text and (self._is_terminal or is_partial):
                self._print_text(f"{prompt}{message.text}" + ("" if is_partial else "\n"))
        while is_responding:
            match await anext(changes):
                case TextAppended(delta=delta):
                    self._print_text(delta)
                case ResponseUpdated(response=response) if response.status != "in_progress":
                    self._print_text(_ENDINGS.get(response.status, f" [{response.status}]") + "\n")
                    is_responding = False
                case _:
                    pass

    def _start_text(self) -> WordWrapper:
        """Return a wrapper for text that begins at the start of a line. A pipe is sent the text as
        it is."""
        return WordWrapper(shutil.get_terminal_size().columns if self._is_terminal else None)

    def _print_text(self, text: str) -> None:
        """Print a piece of the conversation, escaped unless stdout is a file or another program."""
        shown = escape_commands(text) if sys.stdout.isatty() else text
        sys.stdout.write(self._wrapper.feed(shown))  # noqa: TID251 - escaped
        sys.stdout.flush()

    @property
    def _is_reconnecting(self) -> bool:
        return self._client.state.phase in ("connecting", "waiting")

    async def _notice_losses(self) -> None:
        """Print a notice when the connection has been lost for a while."""
        async for state in self._client.states():
            if state.phase == "waiting" and state.attempt == 1:
                asyncio.get_running_loop().call_later(_LOSS_NOTICE_DELAY_S, self._print_loss)

    def _print_loss(self) -> None:
        if self._is_reconnecting:
            print_line("\n[connection lost; reconnecting for a minute, Ctrl-C quits]")
            self._wrapper.start_line()

    async def _next_line(self) -> str | None:
        """Return the next line of input. Raises ConnectionClosedError if the client is closed
        meanwhile."""
        reading = asyncio.ensure_future(self._lines.next())
        closing = asyncio.ensure_future(self._client.wait_closed())
        await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if reading.done():
            return reading.result()
        reading.cancel()
        raise closing.result()

    async def _turn(self, line: str) -> int:
        """Send a message and print the response. Returns the exit status: 1 after an error."""
        self._stream = stream = self._client.ask(line)
        self._wrapper = self._start_text()
        shown = ""
        try:
            async for delta in stream:
                # A response that was generated again and came out differently begins a new line.
                is_new = bool(shown) and not stream.text.startswith(shown + delta)
                self._print_text(f"\n{delta}" if is_new else delta)
                shown = delta if is_new else shown + delta
            self._print_text(_ENDINGS.get(stream.status, f" [{stream.status}]") + "\n")
        except EventRefusedError as error:
            print_line(f"[{error}]", sys.stderr)
            return 1
        except ResponseFailedError as error:
            self._print_text(f" [failed: {error}]\n")
            return 1
        finally:
            self._stream = None
        return 0

    def _interrupt(self) -> None:
        if self._is_reconnecting and self._is_terminal and self._task is not None:
            self.quit_reason = self._client.state.reason
            self._task.cancel()
        elif self._stream is not None:
            self._cancelling = asyncio.ensure_future(self._cancel(self._stream))
        elif self._is_terminal:
            print_line("\n(Ctrl-D quits)")
        else:
            os._exit(130)

    async def _cancel(self, stream: ResponseStream) -> None:
        with contextlib.suppress(EventRefusedError, ResponseFailedError, ConnectionClosedError):
            await stream.cancel()


_ENDINGS = {
    "completed": "",
    "cancelled": " [stopped]",
    "incomplete": " [incomplete: no room for more tokens]",
}
"""Text printed at the end of a response, by its status."""


async def run_chat(options: ChatOptions) -> int:
    """Chat with a server. Returns the exit status. Raises SetupError."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    lines = InputLines(is_terminal=is_terminal)
    status = 0
    while True:
        client = _create_client(options, is_terminal=is_terminal)
        chat = Chat(client, options, lines, is_terminal=is_terminal)
        status |= await _run_until_closed(client, chat, options.url)
        if not chat.is_new_requested:
            return status
        options = msgspec.structs.replace(options, session=None)


def _create_client(options: ChatOptions, *, is_terminal: bool) -> RealtimeClient:
    settings: SessionSettings = {}
    if options.instructions is not None:
        settings["instructions"] = options.instructions
    if options.temperature is not None:
        settings["temperature"] = options.temperature
    return connect(
        options.url,
        model=options.model,
        api_key=options.api_key,
        resume=ResumePoint(session_id=options.session) if options.session else None,
        options=ConnectionOptions(
            reconnect_timeout_s=(
                _RECONNECT_TIMEOUT_IN_TERMINAL_S if is_terminal else _RECONNECT_TIMEOUT_S
            ),
            backoff_base_s=_RECONNECT_INTERVAL_S,
            backoff_max_s=_RECONNECT_INTERVAL_S,
            rehydrate=False,
        ),
        **settings,
    )


async def _run_until_closed(client: RealtimeClient, chat: Chat, url: str) -> int:
    """Run a chat, and close its client. Returns the exit status. Raises SetupError."""
    try:
        async with client:
            with _restored_terminal():
                return await chat.run()
    except asyncio.CancelledError:
        if chat.quit_reason is None:
            raise
        raise SetupError(f"the server closed the connection ({chat.quit_reason})") from None
    except EventRefusedError as error:
        raise SetupError(str(error)) from None
    except ConnectionClosedError as error:
        raise SetupError(_explain(error, url)) from None


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


def _explain(error: ConnectionClosedError, url: str) -> str:
    if error.code == "unreachable":
        start = f"{find_own_command()} serve"
        return f"cannot connect to {url} ({error}); start a server with: {start}"
    if error.code.startswith("close_"):
        close_code = error.code.removeprefix("close_")
        return f"the server closed the connection ({close_code}: {error})"
    return str(error)
