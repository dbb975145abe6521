"""Engine: the async face of one or more engines, for one gateway. Turns ids into text; knows no
torch."""

import asyncio
import functools
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from continuo.engine.client.arguments import list_token_ids, validate_command
from continuo.engine.client.connection import (
    EngineConnection,
    EngineLauncher,
    LinkSecurity,
    OnLoading,
    open_socket,
    reconnect_backoff,
)
from continuo.engine.client.engine_process import EngineProcess
from continuo.engine.client.router import Router
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.errors import (
    BadRequest,
    EngineError,
    EngineLost,
    StaleEngineFence,
    UnknownEngineSession,
)
from continuo.engine.text import ModelText
from continuo.engine.wire.bounds import check_sampling, check_token_ids
from continuo.engine.wire.messages import (
    AppendIds,
    AppendSpan,
    AttachSession,
    CancelTurn,
    CloseSession,
    CommandDone,
    DrainEngine,
    EngineCommand,
    EngineLoad,
    EngineReady,
    EngineStats,
    ForkSession,
    Generate,
    GetModelFiles,
    GetSessionInfo,
    GetStats,
    ListSessions,
    OpenSession,
    PauseTurn,
    RewindSession,
    Sampling,
    SessionInfo,
    TurnTokens,
)

FENCE_MAX = (1 << 63) - 1
"""The largest fence: the link carries signed 64-bit integers."""


class UnfinishedTurn(msgspec.Struct, frozen=True):
    """A turn that was begun elsewhere, or before. `sampling` has the seed it was begun with."""

    turn: str
    sampling: Sampling
    emitted: int
    """How many ids at the end of the log it has said."""


class EngineClient:
    """Sessions are named by the caller (or get a fresh id). Errors: see `continuo.engine.errors`.

    When an engine process dies, commands wait for it to come back, or go to another; sessions are
    attached there from their logs when they are next used, and turns go on where they were.
    EngineLost is raised when there will be none. Positions count tokens of a session's log.

    A session's fence is the right of its caller to it, and grows when another caller takes it
    over; from then on this one gets StaleFence.
    """

    ready: EngineReady
    text: ModelText

    def __init__(
        self,
        launch: EngineLauncher | None = None,
        on_loading: OnLoading = lambda what, fraction: None,
    ) -> None:
        """`launch` returns a socket to a fresh engine; `connect` makes use of it."""
        self._router = Router()
        self._on_loading = on_loading
        self._process: EngineProcess | None = None
        self._supervisors: dict[EngineConnection, asyncio.Task[None]] = {}
        self._monitor: asyncio.Task[None] | None = None
        if launch is not None:
            self._router.connections.append(
                EngineConnection("of this server", launch, self._router, on_loading=on_loading)
            )

    # ---- its engines ----------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        on_loading: OnLoading = lambda what, fraction: None,
        listener: ListenerConfig | None = None,
    ) -> "EngineClient":
        """Starts an engine process and waits until the model is loaded. It ends with this one.
        `listening`: it also takes fronts of other processes. Raises ModelError."""
        process = EngineProcess(config, listener)
        engine = cls(process.launch, on_loading)
        engine._process = process
        await engine.connect()
        return engine

    @property
    def pid(self) -> int | None:
        """Of the engine process, if it is ours."""
        return None if self._process is None else self._process.pid

    @property
    def is_available(self) -> bool:
        """Whether an engine is there and answers."""
        return any(peer.is_responsive for peer in self._router.connections)

    @property
    def is_available_soon(self) -> bool:
        """Whether what is asked now will be done soon: an engine answers, or may be starting
        again."""
        return any(peer.is_available_soon for peer in self._router.connections)

    @property
    def is_accepting_sessions(self) -> bool:
        """Whether one of them is not about to stop."""
        return any(
            peer.is_responsive and not peer.load.draining for peer in self._router.connections
        )

    @property
    def on_expired(self) -> Callable[[str], None]:
        """Told the id of each session that its timeout has ended."""
        return self._router.on_expired

    @on_expired.setter
    def on_expired(self, told: Callable[[str], None]) -> None:
        self._router.on_expired = told

    @property
    def on_superseded(self) -> Callable[[str], None]:
        """Told the id of each session that another front has taken over."""
        return self._router.on_superseded

    @on_superseded.setter
    def on_superseded(self, told: Callable[[str], None]) -> None:
        self._router.on_superseded = told

    async def connect(self) -> None:
        """Launches the engine for the first time; returns when it is ready. Raises ModelError."""
        (peer,) = self._router.connections
        try:
            await peer.connect()
            self.ready = await self._router.first_ready
            self.text = await asyncio.to_thread(
                functools.partial(
                    ModelText, self.ready.folder, tokens_max=_text_tokens_max(self.ready)
                )
            )
        except BaseException:
            await self.stop()
            raise
        self._supervise(peer)

    async def wait_until_ready(self) -> None:
        """Returns when the first of its engines elsewhere is ready, and has told how its model is
        read and spoken. Raises ModelError, EngineLost."""
        self.ready = await asyncio.shield(self._router.first_ready)
        done = await self._router.request(GetModelFiles(self._router.next_number()))
        self.text = await asyncio.to_thread(
            _load_text, done.files or {}, _text_tokens_max(self.ready)
        )

    def add_engine(self, host: str, port: int, security: LinkSecurity | None = None) -> None:
        """An engine elsewhere, from now on; it may come and go."""
        name = f"{host}:{port}"
        if all(peer.name != name for peer in self._router.connections):
            launch = functools.partial(open_socket, host, port)
            security = security or LinkSecurity()
            if security.hostname is None:
                security = msgspec.structs.replace(security, hostname=host)
            peer = EngineConnection(
                name, launch, self._router, backoff=reconnect_backoff, security=security
            )
            self._router.connections.append(peer)
            self._supervise(peer)

    def remove_engine(self, host: str, port: int) -> None:
        """It is not there any more, or not to be used: its sessions go to others."""
        for peer in list(self._router.connections):
            if peer.name == f"{host}:{port}":
                self._supervisors.pop(peer).cancel()
                peer.disconnect("it is not one of ours any more")
                self._router.remove(peer)

    def loads(self) -> dict[str, EngineLoad]:
        """How full each of its engines was when it last said so, by incarnation."""
        peers = [peer for peer in self._router.connections if peer.is_responsive]
        return {peer.ready.incarnation: peer.load for peer in peers if peer.ready}

    def is_responsive_at(self, host: str, port: int) -> bool:
        """Whether the engine that was added as this answers."""
        name = f"{host}:{port}"
        return any(peer.is_responsive for peer in self._router.connections if peer.name == name)

    @property
    def active_turns(self) -> int:
        """Turns of this front that have not ended."""
        return len(self._router.turns)

    async def drain(self) -> None:
        """Its engines take nothing new; what runs goes on."""
        await self._router.request_all(DrainEngine)

    async def stop(self) -> None:
        """Hangs up; an engine process of ours ends by itself, or is killed after a grace."""
        self._router.fail(EngineLost("the engine was stopped"))
        for task in (*self._supervisors.values(), self._monitor):
            if task is not None:
                task.cancel()
        for peer in self._router.connections:
            peer.close()
        if self._process is not None:
            await self._process.stop()

    async def wait_until_lost(self) -> None:
        """Returns when the engine is gone for good."""
        await self._router.failed.wait()

    def _supervise(self, peer: EngineConnection) -> None:
        self._supervisors[peer] = asyncio.create_task(peer.run(), name=f"engine {peer.name}")
        if self._monitor is None:
            self._monitor = asyncio.create_task(self._router.monitor(), name="engines")

    # ---- sessions -------------------------------------------------------------------------

    async def open(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
        fence: int = 0,
    ) -> str:
        """Opens a session on an empty log. KV is shared only within `cache_scope`. One that is open
        already is begun anew by a higher fence; else raises BadRequest, StaleFence."""
        session, n = session_id or _new_id("sess"), self._router.next_number()
        digest = self.ready.digest
        opened = validate_command(
            OpenSession(
                n, session, streaming, timeout_s, capacity_tokens, cache_scope, digest, fence=fence
            )
        )
        if self._router.has_session(session) and fence <= self._router.fence_of(session):
            self._check_fence(session, fence)
            raise BadRequest(f"session {session} is already open", field="session_id")
        await self._router.request(opened)
        return session

    async def attach(
        self,
        session: str,
        ids: Sequence[int],
        *,
        unfinished: UnfinishedTurn | None = None,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
        fence: int = 0,
    ) -> TurnStream | None:
        """Takes up a session that was begun elsewhere: its log is `ids`, whoever has it loses it.

        An engine that still has it keeps what KV it can; if none has it, it is opened where there
        is room. An `unfinished` turn goes on, there if it still runs, else from
        what it has said; the Turn returned begins with that, whole, and misses and doubles nothing.
        Raises StaleFence, TooLong, BadRequest."""
        routing, n = self._router, self._router.next_number()
        scope, digest = cache_scope, self.ready.digest
        opened = OpenSession(
            n, session, streaming, timeout_s, capacity_tokens, scope, digest, fence=fence
        )
        attach = self._build_attach(opened, ids, unfinished)
        self._check_fence(session, fence)
        turn = None
        if (generate := attach.generate) is not None:
            sampling, said = generate.sampling, generate.resumed
            turn = TurnStream(generate.turn, session, self.text.create_detokenizer(), sampling)
            if said:
                turn.put(TurnTokens(session, turn.id, 0, attach.ids[-said:]))
            routing.subscribe(turn)
        try:
            place = routing.incarnation_of(session) or await routing.locate(session)
            await routing.attach(attach, place)
        except EngineError:
            if turn is not None:
                routing.unsubscribe(turn)
            raise
        return turn

    def _build_attach(
        self, opened: OpenSession, ids: Sequence[int], unfinished: UnfinishedTurn | None
    ) -> AttachSession:
        """Raises BadRequest, TooLong."""
        generate, n = None, opened.n
        if unfinished is not None:
            turn, sampling, said = unfinished.turn, unfinished.sampling, unfinished.emitted
            generate = Generate(n, opened.session, turn, sampling, said)
        taken = list_token_ids(ids, self.ready.max_model_len)
        attach = validate_command(
            AttachSession(n, opened, taken, generate=generate, fence=opened.fence)
        )
        check_token_ids(attach.ids, self.ready.vocab_size)
        if (generate := attach.generate) is not None:
            check_sampling(generate.sampling, self.ready.vocab_size)
            if not 0 <= generate.resumed <= len(attach.ids):
                raise BadRequest(
                    f"said is {generate.resumed}; it must be from 0 to {len(attach.ids)}",
                    field="said",
                )
        return attach

    def _check_fence(self, session: str, fence: int) -> None:
        if (held := self._router.fence_of(session)) > fence:
            raise StaleEngineFence(
                f"session {session} is held by fence {held}, this one is {fence}"
            )

    def incarnation_of(self, session: str) -> str | None:
        """The incarnation of the engine that has a session."""
        return self._router.incarnation_of(session)

    def set_fence(self, session: str, fence: int) -> None:
        """Set the fence that later commands on the session carry. Raises BadRequest."""
        if type(fence) is not int or not 0 <= fence <= FENCE_MAX:
            raise BadRequest(f"fence is {fence!r}; it must be an int from 0", field="fence")
        self._router.set_fence(session, fence)

    async def pause(self, session: str) -> None:
        """Its turn stops within a step, and says nothing until `resume`. Harmless without one."""
        await self._request(PauseTurn(self._router.next_number(), session))

    async def resume(self, session: str) -> None:
        """Its turn goes on where it was paused. Harmless if it was not."""
        routing = self._router
        if not routing.replicas.resume_turn(session):
            return
        n, fence = routing.next_number(), routing.fence_of(session)
        attach = routing.replicas.build_attach(session, routing.turns, n=n, fence=fence)
        if attach is None:
            raise UnknownEngineSession(f"there is no session {session}", field="session")
        await routing.attach(attach, routing.incarnation_of(session))

    async def append(
        self,
        session: str,
        ids: Sequence[int],
        span: AppendSpan = "firm",
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
        n, new = self._router.next_number(), list_token_ids(ids, self.ready.max_model_len)
        command = AppendIds(n, session, new, span, after, replace, drop_previous_output, offset)
        command = validate_command(command)
        check_token_ids(command.ids, self.ready.vocab_size)
        return (await self._router.request(command)).length

    async def complete(
        self, ids: Sequence[int], sampling: Sampling, *, cache_scope: str = ""
    ) -> TurnStream:
        """One turn without a session: its prompt's KV is found if it is there, and left to be found
        again. Raises as `append` and `generate` do."""
        session = _new_id("once")
        ids = list_token_ids(ids, self.ready.max_model_len)
        try:
            *_, turn = await asyncio.gather(
                self.open(session, streaming=False, cache_scope=cache_scope),
                self.append(session, ids),
                self.generate(session, sampling),
            )
        except BaseException:
            self._close_in_background(session)
            raise
        turn.set_on_ended(lambda: self._close_in_background(session))
        return turn

    def _close_in_background(self, session: str) -> None:
        """Closes a session without waiting for it."""
        self._router.submit(CloseSession(self._router.next_number(), session))

    async def generate(
        self, session: str, sampling: Sampling, turn: str | None = None
    ) -> TurnStream:
        """Starts a turn on all that was appended; returns once it is accepted. The drawn ids,
        including a final stop id, become part of the log. `turn` names it; a regular session can
        go on from a turn by its name, and refuses that name for another."""
        asked_s = time.monotonic() if self._process is not None else 0.0
        n, name = self._router.next_number(), turn or _new_id("turn")
        command = validate_command(Generate(n, session, name, sampling, asked_s=asked_s))
        check_sampling(command.sampling, self.ready.vocab_size)
        if command.sampling.seed is None:
            sampling = msgspec.structs.replace(command.sampling, seed=secrets.randbits(63))
            command = msgspec.structs.replace(command, sampling=sampling)
        made = TurnStream(name, session, self.text.create_detokenizer(), command.sampling)
        key = (session, made.id)
        if key in self._router.turns:
            raise BadRequest(f"turn {made.id} is in flight already", field="turn")
        self._router.turns[key] = made
        try:
            await self._router.request(command)
        except EngineError:
            self._router.turns.pop(key, None)
            raise
        return made

    async def cancel(
        self, session: str, turn: str | None = None, *, discard_output: bool = False
    ) -> int:
        """Stops the turn within a step; what it said stays in the log unless `drop`. Harmless if
        the turn has ended. Returns the length of the log."""
        return (
            await self._request(
                CancelTurn(self._router.next_number(), session, turn, discard_output)
            )
        ).length

    async def rewind(self, session: str, to: int) -> int:
        """Forgets the log after `to`. Nothing that stays is computed again."""
        return (await self._request(RewindSession(self._router.next_number(), session, to))).length

    async def fork(
        self, session: str, at: int | None = None, *, child: str | None = None, fence: int = 0
    ) -> str:
        """A new session on the first `at` tokens (None: all) of another, sharing its KV, and with
        the turns that finished in them; `fence` is the child's. Raises BadRequest for a child
        that is open already."""
        name = child or _new_id("sess")
        command = validate_command(
            ForkSession(self._router.next_number(), session, name, at, fence)
        )
        if self._router.has_session(name):
            raise BadRequest(f"session {name} is already open", field="child")
        await self._router.request(command)
        return name

    async def close(self, session: str, *, keep_prefix: bool = True) -> None:
        """Ends the session and its turn, if any. `keep_prefix` leaves its KV to be found again."""
        await self._request(CloseSession(self._router.next_number(), session, keep_prefix))

    async def info(self, session: str) -> SessionInfo:
        info = (await self._request(GetSessionInfo(self._router.next_number(), session))).info
        assert info is not None
        return info

    async def _request(self, command: EngineCommand) -> CommandDone:
        """Raises BadRequest for an argument of another type."""
        return await self._router.request(validate_command(command))

    async def inspect(self, session: str) -> SessionInfo | None:
        """How a session is that perhaps another front holds. None: none of its engines has it, or
        says so soon."""
        return await self._router.inspect(session)

    async def list_sessions(self) -> list[SessionInfo]:
        """Of all its engines, and those that no engine knows until they are used again."""
        answers = await self._router.request_all(ListSessions)
        infos = [info for done in answers for info in done.sessions or []]
        known = {info.session for info in infos}
        return infos + [
            info for info in self._router.replicas.list_infos() if info.session not in known
        ]

    async def stats(self) -> EngineStats:
        """The sums over all its engines; sessions that none of them knows are counted too."""
        found = [done.stats for done in await self._router.request_all(GetStats) if done.stats]
        names = EngineStats.__struct_fields__
        sums = EngineStats(*(sum(getattr(stats, name) for stats in found) for name in names))
        sessions = sums.sessions + self._router.count_without_engine()
        return msgspec.structs.replace(sums, sessions=sessions)


_TEXT_TOKENS_MIN = 4096
"""Cheap in any context; a chat template is probed with conversations of some hundred."""


def _text_tokens_max(ready: EngineReady) -> int:
    """Tokens of one text at most: a new one and the one before may be encoded together."""
    return max(2 * ready.max_model_len, _TEXT_TOKENS_MIN)


def _load_text(files: dict[str, bytes], tokens_max: int) -> ModelText:
    """Of a model whose folder is elsewhere."""
    with TemporaryDirectory(prefix="continuo-") as folder:
        for name, content in files.items():
            Path(folder, Path(name).name).write_bytes(content)
        return ModelText(folder, tokens_max=tokens_max)


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
