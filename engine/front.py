"""Engine: the async face of the loop, for one gateway. Turns ids into text; knows no torch."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, assert_never

import msgspec

from engine.config import EngineConfig
from engine.errors import BY_CODE, BadRequest, EngineError, EngineLost, ModelError
from engine.limits import check
from engine.link import Link
from engine.messages import (
    AnyCommand,
    AnyEvent,
    Append,
    AppendAs,
    Cancel,
    Close,
    Done,
    EngineStats,
    Expired,
    Fork,
    Generate,
    Info,
    ListSessions,
    LoadFailed,
    Loading,
    Open,
    Ready,
    Refused,
    Rewind,
    Sampling,
    SessionInfo,
    Stats,
    Tokens,
    TurnEnded,
)
from engine.mirror import Mirror
from engine.process import EngineProcess
from engine.text import Text
from engine.turn import Turn

log = logging.getLogger(__name__)

RESTART_WAITS_S = (0.0, 0.5, 2.0, 5.0, 10.0)
"""Before each attempt to start the engine again; after the last one it is gone for good."""

Launch = Callable[[], Awaitable[socket.socket]]
OnLoading = Callable[[str, float], None]
_Link = Link[AnyCommand, AnyEvent]


class Engine:
    """Sessions are named by the caller (or get a fresh id). Every method raises from engine.errors.

    When the engine process dies it is started again; commands wait for it meanwhile, sessions are
    opened again from their logs when they are next used, and turns go on where they were.
    EngineLost is raised when it does not come back. Positions count tokens of a session's log.
    """

    ready: Ready
    text: Text

    def __init__(self, launch: Launch, on_loading: OnLoading = lambda what, fraction: None) -> None:
        """`launch` returns a socket to a fresh engine; `connect` makes use of it."""
        self._launch = launch
        self._on_loading = on_loading
        self.on_expired: Callable[[str], None] = lambda session: None
        """Told the id of each session that its timeout has ended."""
        self.up = False
        """Whether the engine is there and answers."""
        self.incarnation = 0
        """Counts the engines that were ready."""
        self._pending: dict[int, _Pending] = {}
        self._turns: dict[tuple[str, str], Turn] = {}
        self._mirror = Mirror()
        self._n = 0
        self._link: _Link | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._process: EngineProcess | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._gone: EngineLost | None = None
        self._lost = asyncio.Event()

    # ---- its engine -----------------------------------------------------------------------

    @classmethod
    async def start(
        cls, config: EngineConfig, on_loading: OnLoading = lambda what, fraction: None
    ) -> "Engine":
        """Starts the engine process and waits until the model is loaded. Raises ModelError."""
        process = EngineProcess(config)
        engine = cls(process.launch, on_loading)
        engine._process = process
        await engine.connect()
        return engine

    @property
    def pid(self) -> int | None:
        """Of the engine process."""
        return None if self._process is None else self._process.pid

    async def connect(self) -> None:
        """Launches the engine for the first time; returns when it is ready. Raises ModelError."""
        try:
            await self._connect()
            self.text = await asyncio.to_thread(Text, self.ready.folder)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Hangs up; the engine process ends by itself, or is killed after a grace."""
        self._fail(EngineLost("the engine was stopped"))
        if self._restarting is not None:
            self._restarting.cancel()
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            await self._process.stop()

    async def lost(self) -> None:
        """Returns when the engine is gone for good."""
        await self._lost.wait()

    # ---- sessions -------------------------------------------------------------------------

    async def open(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
    ) -> str:
        """Opens a session on an empty log. KV is shared only within `cache_scope`."""
        session = session_id or _fresh("sess")
        await self._ask(
            Open(self._next(), session, streaming, timeout_s, capacity_tokens, cache_scope)
        )
        return session

    async def append(
        self,
        session: str,
        ids: Sequence[int],
        span: AppendAs = "firm",
        *,
        after: str | None = None,
        replace: bool = False,
        drop_previous_output: bool = False,
        offset: int = 0,
    ) -> int:
        """Adds to the log, prefills when there is time. Returns the new length of the log, without
        a provisional span. While a turn runs it waits for the turn's end.

        `span`: `firm` ids are history; `provisional` ones are a replaceable last span (words before
        their speaker has finished), each call in place of the one before; `commit` puts ids in
        place of that span for good. The other options are for regular sessions: messages.Append.
        Raises TooLong, BadRequest, UnknownSession, Busy."""
        n = self._next()
        command = Append(n, session, list(ids), span, after, replace, drop_previous_output, offset)
        return (await self._ask(command)).length

    async def complete(
        self, ids: Sequence[int], sampling: Sampling, *, cache_scope: str = ""
    ) -> Turn:
        """One turn without a session: its prompt's KV is found if it is there, and left to be found
        again."""
        session = _fresh("once")
        try:
            *_, turn = await asyncio.gather(
                self.open(session, streaming=False, cache_scope=cache_scope),
                self.append(session, ids),
                self.generate(session, sampling),
            )
        except BaseException:
            self._abandon(session)
            raise
        turn.when_over(lambda: self._abandon(session))
        return turn

    def _abandon(self, session: str) -> None:
        """Closes a session without waiting for it."""
        command = Close(self._next(), session)
        self._pending[command.n] = _Pending(command, asyncio.get_running_loop().create_future())
        if self.up:
            self._send(command)

    async def generate(self, session: str, sampling: Sampling, turn: str | None = None) -> Turn:
        """Starts a turn on all that was appended; returns once it is accepted. The drawn ids,
        including a final stop id, become part of the log."""
        check(sampling, self.ready.vocab_size)
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(63))
        made = Turn(turn or _fresh("turn"), session, self.text.detokenizer(), sampling)
        key = (session, made.id)
        if key in self._turns:
            raise BadRequest(f"turn {made.id} is in flight already", field="turn")
        self._turns[key] = made
        try:
            await self._ask(Generate(self._next(), session, made.id, sampling))
        except EngineError:
            self._turns.pop(key, None)
            raise
        return made

    async def cancel(self, session: str, turn: str | None = None, *, drop: bool = False) -> int:
        """Stops the turn within a step; what it said stays in the log unless `drop`. Harmless if
        the turn has ended. Returns the length of the log."""
        return (await self._ask(Cancel(self._next(), session, turn, drop))).length

    async def rewind(self, session: str, to: int) -> int:
        """Forgets the log after `to`. Nothing that stays is computed again."""
        return (await self._ask(Rewind(self._next(), session, to))).length

    async def fork(self, session: str, at: int | None = None, *, child: str | None = None) -> str:
        """A new session on the first `at` tokens (None: all) of another, sharing its KV."""
        name = child or _fresh("sess")
        await self._ask(Fork(self._next(), session, name, at))
        return name

    async def close(self, session: str, *, keep_prefix: bool = True) -> None:
        """Ends the session and its turn, if any. `keep_prefix` leaves its KV to be found again."""
        await self._ask(Close(self._next(), session, keep_prefix))

    async def info(self, session: str) -> SessionInfo:
        info = (await self._ask(Info(self._next(), session))).info
        assert info is not None
        return info

    async def list(self) -> list[SessionInfo]:
        return (await self._ask(ListSessions(self._next()))).sessions or []

    async def stats(self) -> EngineStats:
        stats = (await self._ask(Stats(self._next()))).stats
        assert stats is not None
        return stats

    # ---- commands and answers -------------------------------------------------------------

    def _next(self) -> int:
        self._n += 1
        return self._n

    async def _ask(self, command: AnyCommand) -> Done:
        if self._gone is not None:
            raise self._gone
        pending = _Pending(command, asyncio.get_running_loop().create_future())
        self._pending[command.n] = pending
        if self.up:
            self._send(command)
        return await pending.reply

    def _send(self, command: AnyCommand) -> None:
        """Sends a command, before it what the engine must know of its session."""
        assert self._link is not None
        if not isinstance(command, Open | ListSessions | Stats):
            self._reopen(command.session)
        try:
            self._link.send(self._mirror.translated(command))
        except EngineError as error:
            self._answer(command.n, error)

    def _reopen(self, session: str) -> None:
        assert self._link is not None
        self._link.send_all(self._mirror.reopening(session, self.incarnation, self._turns))

    def _hear(self, events: "list[AnyEvent]") -> None:
        for event in events:
            self._hear_one(event)

    def _hear_one(self, event: AnyEvent) -> None:
        match event:
            case Tokens():
                self._mirror.tokens(event)
                if turn := self._turns.get((event.session, event.turn)):
                    turn.put(event)
            case TurnEnded():
                self._mirror.ended(event)
                if turn := self._turns.pop((event.session, event.turn), None):
                    turn.put(event)
            case Done():
                self._done(event)
            case Refused():
                kind = BY_CODE.get(event.code, EngineError)
                self._answer(event.n, kind(event.message, field=event.field))
            case Loading():
                self._on_loading(event.what, event.fraction)
            case Ready():
                self._set_ready(event)
            case LoadFailed():
                self._set_ready(ModelError(event.message))
            case Expired():
                self._mirror.expired(event.session)
                self.on_expired(event.session)
            case _:
                assert_never(event)

    def _done(self, done: Done) -> None:
        """Also of a command nobody waits for any more: it has taken effect."""
        if pending := self._pending.get(done.n):
            capacity = self.ready.max_model_len
            self._mirror.done(pending.command, done, self.incarnation, capacity)
            self._answer(done.n, done)

    def _answer(self, n: int, answer: Done | EngineError) -> None:
        pending = self._pending.pop(n, None)
        if pending is None or pending.reply.done():
            return
        if isinstance(answer, EngineError):
            pending.reply.set_exception(answer)
        else:
            pending.reply.set_result(answer)

    # ---- when the engine goes and comes ---------------------------------------------------

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        sock = await self._launch()
        link: _Link = Link(msgspec.msgpack.Decoder(list[AnyEvent]), self._hear, self._lose)
        self._link = link
        await loop.create_connection(lambda: link, sock=sock)
        self.ready = await self._ready
        self.up = True
        self.incarnation += 1

    def _set_ready(self, ready: Ready | ModelError) -> None:
        if self._ready is None or self._ready.done():
            return
        if isinstance(ready, ModelError):
            self._ready.set_exception(ready)
        else:
            self._ready.set_result(ready)

    def _lose(self) -> None:
        """The link is gone. What was under way waits for the next engine."""
        self._set_ready(ModelError("the engine ended while it loaded the model"))
        was_up, self.up = self.up, False
        for turn in self._turns.values():
            turn.interrupted = True
        if was_up and self._gone is None:
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        for wait_s in RESTART_WAITS_S:
            await asyncio.sleep(wait_s)
            try:
                await self._connect()
            except (ModelError, OSError) as error:
                log.warning("the engine did not come back: %s", error)
            else:
                self._resume()
                return
        self._fail(EngineLost("the engine went away and did not come back"))

    def _resume(self) -> None:
        """A new engine is there: turns go on, commands that were not answered are sent again."""
        for session in self._mirror.with_turn():
            self._reopen(session)
        for pending in list(self._pending.values()):
            self._send(pending.command)

    def _fail(self, error: EngineLost) -> None:
        """There will be no engine any more."""
        self._gone = error
        self._lost.set()
        self.up = False
        for n in list(self._pending):
            self._answer(n, error)
        for turn in list(self._turns.values()):
            turn.put(error)
        self._turns.clear()


class _Pending(NamedTuple):
    command: AnyCommand
    reply: "asyncio.Future[Done]"


def _fresh(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
