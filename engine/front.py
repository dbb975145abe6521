"""Engine: the async face of the loop, for one gateway. Turns ids into text; knows no torch."""

import asyncio
import math
import secrets
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from typing import assert_never

import msgspec

from engine.config import EngineConfig
from engine.errors import BY_CODE, BadRequest, EngineError, EngineLost, ModelError, TurnFailed
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
    TokenLogprobs,
    Tokens,
    TurnEnded,
)
from engine.text import Detokenizer, Holdback, Text

STOP_GRACE_S = 5.0
"""How long a stopping engine process may take before it is killed."""

OnLoading = Callable[[str, float], None]


class Piece(msgspec.Struct, frozen=True):
    """A stretch of a turn's output. `text` may be empty (half a character, a possible stop string)
    and never takes anything back; a matched stop string and stop ids are not part of it."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class Turn:
    """One turn in flight: iterate over its pieces; `ended` is set when the iteration stops.

    The iteration raises EngineLost if the engine goes away under it, TurnFailed if the turn broke.
    """

    def __init__(self, id: str, session: str, detokenizer: Detokenizer, sampling: Sampling) -> None:
        self.id = id
        self.session = session
        self.ended: TurnEnded | None = None
        self._over = False
        self._at_end: Callable[[], None] = lambda: None
        self._detokenizer = detokenizer
        self._holdback = Holdback(() if sampling.ignore_eos else sampling.stop)
        self._unspoken = frozenset(() if sampling.ignore_eos else sampling.stop_ids)
        self._events: asyncio.Queue[Tokens | TurnEnded | EngineLost] = asyncio.Queue()

    def put(self, event: Tokens | TurnEnded | EngineLost) -> None:
        """For Engine."""
        self._events.put_nowait(event)
        if not isinstance(event, Tokens):
            self._over = True
            self._at_end()

    def when_over(self, act: Callable[[], None]) -> None:
        """`act` is called once when the turn has ended, read or not; at once if it has already."""
        self._at_end = act
        if self._over:
            act()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        said = 0
        while self.ended is None:
            event = await self._events.get()
            match event:
                case Tokens():
                    said = event.first + len(event.ids)
                    yield Piece(event.first, event.ids, self._text(event.ids), event.logprobs)
                case TurnEnded():
                    self.ended = event
                    rest = self._rest(event)
                    if rest:
                        yield Piece(said, [], rest)
                    if event.reason == "failed":
                        raise TurnFailed(event.error or "the turn failed")
                case EngineLost():
                    raise event
                case _:
                    assert_never(event)

    def _text(self, ids: list[int]) -> str:
        if ids and ids[-1] in self._unspoken:
            ids = ids[:-1]
        return self._holdback.push(self._detokenizer.push(ids))

    def _rest(self, ended: TurnEnded) -> str:
        """What was held back and turned out to be neither half a character nor a stop string."""
        rest = self._holdback.push(self._detokenizer.flush())
        return rest if ended.stop is not None else rest + self._holdback.flush()


class Engine:
    """Sessions are named by the caller (or get a fresh id). Every method raises from engine.errors;
    EngineLost when the engine process is gone.

    All positions count tokens of the session's log.
    """

    ready: Ready
    text: Text

    def __init__(self, on_loading: OnLoading = lambda what, fraction: None) -> None:
        """An engine that is not connected yet; `start` makes one that is."""
        self._on_loading = on_loading
        self.on_expired: Callable[[str], None] = lambda session: None
        """Told the id of each session that its timeout has ended."""
        self._replies: dict[int, asyncio.Future[Done]] = {}
        self._turns: dict[tuple[str, str], Turn] = {}
        self._n = 0
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._process: Process | None = None
        self._lost = asyncio.Event()
        decoder = msgspec.msgpack.Decoder(list[AnyEvent])
        self.link: Link[AnyCommand, AnyEvent] = Link(decoder, self._hear, self._lose)

    # ---- its process ----------------------------------------------------------------------

    @classmethod
    async def start(
        cls, config: EngineConfig, on_loading: OnLoading = lambda what, fraction: None
    ) -> "Engine":
        """Starts the engine process and waits until the model is loaded. Raises ModelError."""
        engine = cls(on_loading)
        ours, theirs = socket.socketpair()
        with theirs:
            engine._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "engine.boot", str(theirs.fileno())),
                msgspec.json.encode(config).decode(),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        await engine.connect(ours)
        return engine

    async def connect(self, sock: socket.socket) -> None:
        """Speaks to the loop at the other end of a connected socket; returns when it is ready."""
        await asyncio.get_running_loop().create_connection(lambda: self.link, sock=sock)
        try:
            self.ready = await self._ready
            self.text = await asyncio.to_thread(Text, self.ready.folder)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Hangs up; the engine process ends by itself, or is killed after a grace."""
        self.link.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def lost(self) -> None:
        """Returns when the engine is gone."""
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
        session = await self.open(streaming=False, cache_scope=cache_scope)
        try:
            await self.append(session, ids)
            turn = await self.generate(session, sampling)
        except BaseException:
            await self.close(session)
            raise
        turn.when_over(lambda: self.link.send(Close(self._next(), session)))
        return turn

    async def generate(self, session: str, sampling: Sampling, turn: str | None = None) -> Turn:
        """Starts a turn on all that was appended; returns once it is accepted. The drawn ids,
        including a final stop id, become part of the log."""
        check(sampling, self.ready.vocab_size)
        made = Turn(turn or _fresh("turn"), session, self.text.detokenizer(), sampling)
        key = (session, made.id)
        if key in self._turns:
            raise BadRequest(f"turn {made.id} is in flight already", field="turn")
        self._turns[key] = made
        try:
            await self._ask(Generate(self._next(), session, made.id, sampling))
        except BaseException:
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

    # ---- inside ---------------------------------------------------------------------------

    def _next(self) -> int:
        self._n += 1
        return self._n

    async def _ask(self, command: AnyCommand) -> Done:
        if self._lost.is_set():
            raise EngineLost("the engine is gone")
        reply: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._replies[command.n] = reply
        self.link.send(command)
        try:
            return await reply
        finally:
            self._replies.pop(command.n, None)

    def _hear(self, events: "list[AnyEvent]") -> None:
        for event in events:
            self._hear_one(event)

    def _hear_one(self, event: AnyEvent) -> None:
        match event:
            case Tokens():
                if turn := self._turns.get((event.session, event.turn)):
                    turn.put(event)
            case TurnEnded():
                if turn := self._turns.pop((event.session, event.turn), None):
                    turn.put(event)
            case Done():
                self._answer(event.n, event)
            case Refused():
                kind = BY_CODE.get(event.code, EngineError)
                self._answer(event.n, kind(event.message, field=event.field))
            case Loading():
                self._on_loading(event.what, event.fraction)
            case Ready():
                self._ready.set_result(event)
            case LoadFailed():
                self._ready.set_exception(ModelError(event.message))
            case Expired():
                self.on_expired(event.session)
            case _:
                assert_never(event)

    def _answer(self, n: int, answer: Done | EngineError) -> None:
        reply = self._replies.pop(n, None)
        if reply is None or reply.done():
            return
        if isinstance(answer, EngineError):
            reply.set_exception(answer)
        else:
            reply.set_result(answer)

    def _lose(self) -> None:
        self._lost.set()
        lost = EngineLost("the engine went away")
        if not self._ready.done():
            self._ready.set_exception(ModelError("the engine ended while it loaded the model"))
        for n in list(self._replies):
            self._answer(n, lost)
        for turn in self._turns.values():
            turn.put(lost)
        self._turns.clear()


def check(sampling: Sampling, vocab_size: int) -> None:
    """Raises BadRequest that names the field and its limits."""
    s = sampling
    _within("temperature", s.temperature, 0, 100)
    _within("top_k", s.top_k, 0, vocab_size)
    _within("top_p", s.top_p, 0, 1, open_low=True)
    _within("min_p", s.min_p, 0, 1)
    _within("repetition_penalty", s.repetition_penalty, 0, 10, open_low=True)
    _within("presence_penalty", s.presence_penalty, -2, 2)
    _within("frequency_penalty", s.frequency_penalty, -2, 2)
    if s.max_tokens is not None:
        _within("max_tokens", s.max_tokens, 1, 1 << 31)
    if s.logprobs is not None:
        _within("logprobs", s.logprobs, 0, 20)
    if s.seed is not None:
        _within("seed", s.seed, -(1 << 63), (1 << 63) - 1)
    _within("number of stop strings", len(s.stop), 0, 16)
    _within("number of logit_bias entries", len(s.logit_bias), 0, 1024)
    for stop in s.stop:
        _within("length of a stop string", len(stop), 1, 256)
    for id, bias in s.logit_bias.items():
        _within("logit_bias id", id, 0, vocab_size - 1)
        _within("logit_bias value", bias, -100, 100)


def _within(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    fits = (low < value if open_low else low <= value) and value <= high
    if math.isnan(value) or not fits:
        above = "above" if open_low else "from"
        raise BadRequest(
            f"{field} is {value}; it must be {above} {low} and at most {high}", field=field
        )


def _fresh(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
