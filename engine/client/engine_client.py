"""EngineClient: a gateway's async client of one or more engine processes. Decodes ids to text."""

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
from continuo.engine.sampling import Sampling
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
    SessionInfo,
    TurnTokens,
)

FENCE_MAX = (1 << 63) - 1
"""The largest fence: the link carries signed 64-bit integers."""


class UnfinishedTurn(msgspec.Struct, frozen=True):
    """A turn that was started by another client, or in an earlier process. `sampling` includes the
    seed of the turn."""

    turn: str
    sampling: Sampling
    emitted: int
    """Number of ids at the end of the log that the turn has emitted."""


class EngineClient:
    """Client of one or more engines. Session ids are chosen by the caller, or generated. Errors:
    see `continuo.engine.errors`.

    When an engine process dies, commands wait until it is restarted, or are sent to another engine.
    A session is restored there from its log when it is next used, and a turn resumes after the last
    id received. EngineLost is raised if no engine will be available. Positions count tokens of a
    session's log.

    A session's fence is a fencing token: it grows with each takeover, and calls with a lower one
    raise StaleEngineFence.
    """

    ready: EngineReady
    text: ModelText

    def __init__(
        self,
        launch: EngineLauncher | None = None,
        on_loading: OnLoading = lambda _what, _fraction: None,
    ) -> None:
        """`launch` starts this client's own engine process and returns a socket to it; `connect`
        calls it. None if all engines are remote."""
        self._router = Router()
        self._on_loading = on_loading
        self._process: EngineProcess | None = None
        self._supervisors: dict[EngineConnection, asyncio.Task[None]] = {}
        self._monitor: asyncio.Task[None] | None = None
        if launch is not None:
            self._router.connections.append(
                EngineConnection("of this server", launch, self._router, on_loading=on_loading)
            )

    # ---- engines --------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        on_loading: OnLoading = lambda _what, _fraction: None,
        listener: ListenerConfig | None = None,
    ) -> "EngineClient":
        """Start an engine process and wait until its model is loaded. The engine process exits when
        the calling process does. With `listener` it also accepts clients of other processes. Raises
        ModelError."""
        process = EngineProcess(config, listener)
        client = cls(process.launch, on_loading)
        client._process = process
        await client.connect()
        return client

    @property
    def pid(self) -> int | None:
        """Process id of this client's own engine process, if it has one."""
        return None if self._process is None else self._process.pid

    @property
    def is_available(self) -> bool:
        """Whether an engine is connected and responds."""
        return any(connection.is_responsive for connection in self._router.connections)

    @property
    def is_available_soon(self) -> bool:
        """Whether a command sent now will be executed soon: an engine responds, or may be
        restarting."""
        return any(connection.is_available_soon for connection in self._router.connections)

    @property
    def is_accepting_sessions(self) -> bool:
        """Whether an engine responds and is not draining."""
        return any(
            connection.is_responsive and not connection.load.draining
            for connection in self._router.connections
        )

    @property
    def on_expired(self) -> Callable[[str], None]:
        """Callback for idle sessions that have expired; called with the id of each."""
        return self._router.on_expired

    @on_expired.setter
    def on_expired(self, callback: Callable[[str], None]) -> None:
        self._router.on_expired = callback

    @property
    def on_superseded(self) -> Callable[[str], None]:
        """Callback for sessions that another gateway has taken over; called with the id of each."""
        return self._router.on_superseded

    @on_superseded.setter
    def on_superseded(self, callback: Callable[[str], None]) -> None:
        self._router.on_superseded = callback

    async def connect(self) -> None:
        """Launch this client's own engine and wait until it is ready. Raises ModelError."""
        (connection,) = self._router.connections
        try:
            await connection.connect()
            self.ready = await self._router.first_ready
            self.text = await asyncio.to_thread(
                functools.partial(
                    ModelText, self.ready.folder, tokens_max=_text_tokens_max(self.ready)
                )
            )
        except BaseException:
            await self.stop()
            raise
        self._supervise(connection)

    async def wait_until_ready(self) -> None:
        """Wait until the first remote engine is ready, then load tokenizer and chat template from
        it. Raises ModelError, EngineLost."""
        self.ready = await asyncio.shield(self._router.first_ready)
        done = await self._router.request(GetModelFiles(self._router.next_number()))
        self.text = await asyncio.to_thread(
            _load_text, done.files or {}, _text_tokens_max(self.ready)
        )

    def add_engine(self, host: str, port: int, security: LinkSecurity | None = None) -> None:
        """Add a remote engine; it is connected in the background and may disconnect at any time."""
        name = f"{host}:{port}"
        if all(connection.name != name for connection in self._router.connections):
            launch = functools.partial(open_socket, host, port)
            security = security or LinkSecurity()
            if security.hostname is None:
                security = msgspec.structs.replace(security, hostname=host)
            connection = EngineConnection(
                name, launch, self._router, backoff=reconnect_backoff, security=security
            )
            self._router.connections.append(connection)
            self._supervise(connection)

    def remove_engine(self, host: str, port: int) -> None:
        """Remove a remote engine; its sessions move to others."""
        for connection in list(self._router.connections):
            if connection.name == f"{host}:{port}":
                self._supervisors.pop(connection).cancel()
                connection.disconnect("the engine was removed")
                self._router.remove(connection)

    def loads(self) -> dict[str, EngineLoad]:
        """Return the last reported load of each responsive engine, by incarnation."""
        responsive = [
            connection for connection in self._router.connections if connection.is_responsive
        ]
        return {
            connection.ready.incarnation: connection.load
            for connection in responsive
            if connection.ready
        }

    def is_responsive_at(self, host: str, port: int) -> bool:
        """Return whether the engine added under this address responds."""
        name = f"{host}:{port}"
        return any(
            connection.is_responsive
            for connection in self._router.connections
            if connection.name == name
        )

    @property
    def active_turns(self) -> int:
        """Number of turns of this client that have not ended."""
        return len(self._router.turns)

    async def drain(self) -> None:
        """Make all engines refuse new sessions and turns; running turns continue."""
        await self._router.request_all(DrainEngine)

    async def stop(self) -> None:
        """Close all links. This client's own engine process then exits, or is killed after
        STOP_GRACE_S."""
        self._router.fail(EngineLost("the engine was stopped"))
        for task in (*self._supervisors.values(), self._monitor):
            if task is not None:
                task.cancel()
        for connection in self._router.connections:
            connection.close()
        if self._process is not None:
            await self._process.stop()

    async def wait_until_lost(self) -> None:
        """Wait until no engine is available and none is expected to return."""
        await self._router.failed.wait()

    def _supervise(self, connection: EngineConnection) -> None:
        self._supervisors[connection] = asyncio.create_task(
            connection.run_with_restarts(), name=f"engine {connection.name}"
        )
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
        """Open a session with an empty log and return its id. KV is shared only within
        `cache_scope`. If the session is already open, a higher `fence` restarts it with an empty
        log, the same fence raises BadRequest, and a lower one raises StaleEngineFence."""
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
        """Take over a session that another client opened. `ids` becomes the log of the session, and
        the other client can no longer use the session.

        An engine that still has the session keeps the KV of the common prefix; if none has it, the
        session is placed on the least loaded engine. An `unfinished` turn continues on the engine
        that runs it; if none does, generation resumes after the ids that the turn has emitted. The
        returned TurnStream begins with the ids emitted so far, and then neither skips nor repeats
        any. Returns None if `unfinished` is None. Raises StaleEngineFence, TooLong, BadRequest."""
        router, n = self._router, self._router.next_number()
        scope, digest = cache_scope, self.ready.digest
        opened = OpenSession(
            n, session, streaming, timeout_s, capacity_tokens, scope, digest, fence=fence
        )
        attach = self._build_attach(opened, ids, unfinished)
        self._check_fence(session, fence)
        turn = None
        if (generate := attach.generate) is not None:
            sampling, emitted = generate.sampling, generate.resumed
            turn = TurnStream(generate.turn, session, self.text.create_detokenizer(), sampling)
            if emitted:
                turn.put(TurnTokens(session, turn.id, 0, attach.ids[-emitted:]))
            router.subscribe(turn)
        try:
            preferred = router.incarnation_of(session) or await router.locate(session)
            await router.attach(attach, preferred)
        except EngineError:
            if turn is not None:
                router.unsubscribe(turn)
            raise
        return turn

    def _build_attach(
        self, opened: OpenSession, ids: Sequence[int], unfinished: UnfinishedTurn | None
    ) -> AttachSession:
        """Build and validate the command that attaches a session. Raises BadRequest, TooLong."""
        generate, n = None, opened.n
        if unfinished is not None:
            turn, sampling, emitted = unfinished.turn, unfinished.sampling, unfinished.emitted
            generate = Generate(n, opened.session, turn, sampling, emitted)
        listed = list_token_ids(ids, self.ready.max_model_len)
        attach = validate_command(
            AttachSession(n, opened, listed, generate=generate, fence=opened.fence)
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
                f"session {session} was taken over: its fence is {held}, yours is {fence}"
            )

    def incarnation_of(self, session: str) -> str | None:
        """Return the incarnation of the engine that has a session; None if it is not placed."""
        return self._router.incarnation_of(session)

    def set_fence(self, session: str, fence: int) -> None:
        """Set the fence that later commands on the session carry. Raises BadRequest."""
        if type(fence) is not int or not 0 <= fence <= FENCE_MAX:
            raise BadRequest(
                f"fence is {fence!r}; it must be an int from 0 to {FENCE_MAX}", field="fence"
            )
        self._router.set_fence(session, fence)

    async def pause(self, session: str) -> None:
        """Pause the turn of a session within one step; the turn emits nothing until `resume`. No
        effect if no turn is running."""
        await self._request(PauseTurn(self._router.next_number(), session))

    async def resume(self, session: str) -> None:
        """Resume the paused turn of a session. No effect if it is not paused."""
        router = self._router
        if not router.replicas.resume_turn(session):
            return
        n, fence = router.next_number(), router.fence_of(session)
        attach = router.replicas.build_attach(session, router.turns, n=n, fence=fence)
        if attach is None:
            raise UnknownEngineSession(f"there is no session {session}", field="session")
        await router.attach(attach, router.incarnation_of(session))

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
        """Append ids to the log; they are prefilled when the device has time. Returns the new
        length of the log, without a provisional span. While a turn runs, the append is deferred
        until its end.

        `span`: `firm` ids are history; `provisional` ids are a replaceable span at the end (text
        that the user is still typing), which each further call replaces; `commit` replaces that
        span with firm ids. The other options are for regular sessions: see messages.AppendIds.
        Raises TooLong, BadRequest, UnknownEngineSession, Busy."""
        n, new = self._router.next_number(), list_token_ids(ids, self.ready.max_model_len)
        command = AppendIds(n, session, new, span, after, replace, drop_previous_output, offset)
        command = validate_command(command)
        check_token_ids(command.ids, self.ready.vocab_size)
        return (await self._router.request(command)).length

    async def complete(
        self, ids: Sequence[int], sampling: Sampling, *, cache_scope: str = ""
    ) -> TurnStream:
        """Run one turn without a lasting session. KV of the prompt is reused from the radix tree,
        and stays there afterwards. Raises the errors of `append` and `generate`."""
        session = _new_id("once")
        ids = list_token_ids(ids, self.ready.max_model_len)
        try:
            *_, turn = await asyncio.gather(
                self.open(session, streaming=False, cache_scope=cache_scope),
                self.append(session, ids),
                self._generate(session, sampling, None, lambda: self._close_in_background(session)),
            )
        except BaseException:
            self._close_in_background(session)
            raise
        return turn

    def _close_in_background(self, session: str) -> None:
        """Close a session without waiting for the reply."""
        self._router.submit(CloseSession(self._router.next_number(), session))

    async def generate(
        self, session: str, sampling: Sampling, turn: str | None = None
    ) -> TurnStream:
        """Start a turn on the whole log; returns once it has begun. The drawn ids, including a
        final stop id, become part of the log. `turn` is the id of the turn (None: generated). In a
        regular session, later appends can branch from the finished turn by this id, and another
        turn with the same id is refused. Raises BadRequest, TooLong, UnknownEngineSession, Busy."""
        return await self._generate(session, sampling, turn)

    async def _generate(
        self,
        session: str,
        sampling: Sampling,
        turn: str | None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> TurnStream:
        asked_s = time.monotonic() if self._process is not None else 0.0
        n, name = self._router.next_number(), turn or _new_id("turn")
        command = validate_command(Generate(n, session, name, sampling, asked_s=asked_s))
        check_sampling(command.sampling, self.ready.vocab_size)
        if command.sampling.seed is None:
            sampling = msgspec.structs.replace(command.sampling, seed=secrets.randbits(63))
            command = msgspec.structs.replace(command, sampling=sampling)
        detokenizer = self.text.create_detokenizer()
        stream = TurnStream(name, session, detokenizer, command.sampling, on_ended)
        key = (session, stream.id)
        if key in self._router.turns:
            raise BadRequest(f"turn {stream.id} is already in flight", field="turn")
        self._router.turns[key] = stream
        try:
            await self._router.request(command)
        except EngineError:
            self._router.turns.pop(key, None)
            raise
        return stream

    async def cancel(
        self, session: str, turn: str | None = None, *, discard_output: bool = False
    ) -> int:
        """Cancel `turn` (None: the current one) within one step. Its output stays in the log unless
        `discard_output`. No effect if the turn has ended. Returns the length of the log."""
        return (
            await self._request(
                CancelTurn(self._router.next_number(), session, turn, discard_output)
            )
        ).length

    async def rewind(self, session: str, to: int) -> int:
        """Cut the log to its first `to` tokens, whose KV is kept. Returns the new length of the
        log, which is `to`."""
        return (await self._request(RewindSession(self._router.next_number(), session, to))).length

    async def fork(
        self, session: str, at: int | None = None, *, child: str | None = None, fence: int = 0
    ) -> str:
        """Open session `child` (None: the id is generated) with the first `at` tokens (None: all)
        of `session`. The child shares their KV and has the turns that finished within them. `fence`
        is the child's fence. Returns the child's id. Raises BadRequest if a session with this id is
        already open."""
        name = child or _new_id("sess")
        command = validate_command(
            ForkSession(self._router.next_number(), session, name, at, fence)
        )
        if self._router.has_session(name):
            raise BadRequest(f"session {name} is already open", field="child")
        await self._router.request(command)
        return name

    async def close(self, session: str, *, keep_prefix: bool = True) -> None:
        """Close a session and cancel its turn, if any. `keep_prefix` leaves its KV in the radix
        tree."""
        await self._request(CloseSession(self._router.next_number(), session, keep_prefix))

    async def info(self, session: str) -> SessionInfo:
        info = (await self._request(GetSessionInfo(self._router.next_number(), session))).info
        assert info is not None
        return info

    async def _request(self, command: EngineCommand) -> CommandDone:
        """Validate and send a command. Raises BadRequest for an argument of the wrong type."""
        return await self._router.request(validate_command(command))

    async def inspect(self, session: str) -> SessionInfo | None:
        """Return the SessionInfo of a session that may be attached to another client. Returns None
        if no engine reports it in time."""
        return await self._router.inspect(session)

    async def list_sessions(self) -> list[SessionInfo]:
        """List the sessions of all engines, and the sessions whose engine was lost and that are not
        attached to another one yet."""
        replies = await self._router.request_all(ListSessions)
        infos = [info for done in replies for info in done.sessions or []]
        known = {info.session for info in infos}
        return infos + [
            info for info in self._router.replicas.list_infos() if info.session not in known
        ]

    async def stats(self) -> EngineStats:
        """Return the sums of the statistics of all engines. `sessions` also counts those whose
        engine was lost."""
        found = [done.stats for done in await self._router.request_all(GetStats) if done.stats]
        names = EngineStats.__struct_fields__
        sums = EngineStats(*(sum(getattr(stats, name) for stats in found) for name in names))
        sessions = sums.sessions + self._router.count_without_engine()
        return msgspec.structs.replace(sums, sessions=sessions)


_TEXT_TOKENS_MIN = 4096
"""Lower bound of the limit on the tokens of one encode call (`_text_tokens_max`). Even if the
model's context is tiny, its chat template is probed with texts of some hundred tokens."""


def _text_tokens_max(ready: EngineReady) -> int:
    """Return the maximum tokens of one encode call: more than one context, because two adjacent
    texts may be encoded together."""
    return max(2 * ready.max_model_len, _TEXT_TOKENS_MIN)


def _load_text(files: dict[str, bytes], tokens_max: int) -> ModelText:
    """Load the ModelText of a remote model from copies of its files."""
    with TemporaryDirectory(prefix="continuo-") as folder:
        for name, content in files.items():
            Path(folder, Path(name).name).write_bytes(content)
        return ModelText(folder, tokens_max=tokens_max)


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
