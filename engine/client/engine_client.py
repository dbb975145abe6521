"""EngineClient: a gateway's async client of one or more engine processes. Decodes ids to text."""

import asyncio
import contextlib
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
    OnLoading,
)
from continuo.engine.client.engine_process import EngineProcess
from continuo.engine.client.fleet import EngineFleet
from continuo.engine.client.grammar_trials import GrammarTrials, TrialProcesses
from continuo.engine.client.router import Router, SessionSubscriber
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.errors import (
    BadRequest,
    EngineLost,
    ModelError,
    SessionDetached,
    StaleEngineFence,
)
from continuo.engine.event_loop import run_in_thread
from continuo.engine.local_checkpoint import find_local_text
from continuo.engine.sampling import Sampling
from continuo.engine.text import ModelText, OutputDecoder
from continuo.engine.wire.bounds import check_sampling, check_token_ids
from continuo.engine.wire.messages import (
    AppendIds,
    AppendSpan,
    AttachSession,
    CancelTurn,
    CloseSession,
    CommandDone,
    EngineCommand,
    EngineReady,
    ForkSession,
    Generate,
    GetModelFiles,
    GetSessionInfo,
    OpenSession,
    PauseTurn,
    ResumeTurn,
    RewindSession,
    SessionInfo,
    TurnTokens,
)

FENCE_MAX = (1 << 63) - 1
"""The largest fence: the link carries signed 64-bit integers."""


class SessionGroup(msgspec.Struct, frozen=True):
    """The sessions that share KV with one another, and the device fairly with other groups."""

    id: str = ""
    """Cache scope and group of the sessions, which the engine cannot read."""
    weight: float = 1.0
    """Share of rows, pages and prefill, relative to those of other groups."""


DEFAULT_GROUP = SessionGroup()


class UnfinishedTurn(msgspec.Struct, frozen=True):
    """A turn that was started by another client, or in an earlier process. `sampling` includes the
    seed of the turn."""

    turn: str
    sampling: Sampling
    emitted: int
    """Number of ids at the end of the log that the turn has emitted."""
    traceparent: str = ""
    """W3C trace context of the client's span of the turn; empty: none."""


class EngineClient:
    """Client of one or more engines. Session ids are chosen by the caller, or generated. Errors:
    see `continuo.engine.errors`.

    Positions count tokens of a session's log.

    When the link to an engine is lost, its streaming sessions are detached: their turns and all
    commands but `close` raise SessionDetached, until `attach` restores the session from the log
    that the caller gives, on the same engine or another one. A regular session is closed; its turn
    raises EngineLost, and later commands raise UnknownEngineSession. `open` and `attach` wait for
    an engine unless `waits` is False. EngineLost is raised if no engine will be available.

    A session's fence is a fencing token: it grows with each takeover, and calls with a lower one
    raise StaleEngineFence.
    """

    text: ModelText

    def __init__(
        self,
        launch: EngineLauncher | None = None,
        on_loading: OnLoading = lambda _what, _fraction: None,
        model: str | None = None,
        grammar_trials: GrammarTrials | None = None,
    ) -> None:
        """Args:
        launch: starts this client's own engine process and returns a socket to it; `connect` calls
            it. None if all engines are remote.
        on_loading: called with the progress of the engine process.
        model: the model that the process will load, if it is known before.
        grammar_trials: where the grammars of turns are tried. None: in processes of their own.
        """
        self._router = Router()
        self._on_loading = on_loading
        self._model = model
        self.fleet = EngineFleet(self._router)
        self.grammar_trials = grammar_trials or TrialProcesses()
        """Tries the grammar of a turn, which the caller does before `generate`."""
        self._process: EngineProcess | None = None
        self.has_own_engine = launch is not None
        """Whether the engine belongs to this process, and serves no other client by default."""
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
        client = cls(process.launch, on_loading, config.model)
        client._process = process
        await client.connect()
        return client

    @property
    def ready(self) -> EngineReady:
        """The report of an engine about itself: of one that enforces the least, if they differ,
        because a session may move to it."""
        return self._router.find_least_able()

    @property
    def pid(self) -> int | None:
        """Process id of this client's own engine process, if it has one."""
        return None if self._process is None else self._process.pid

    def kill_process(self) -> int:
        """Kill this client's own engine process with SIGKILL, as a fault would, and return its
        process id. It is restarted."""
        assert self._process is not None
        assert self._process.pid is not None
        pid = self._process.pid
        self._process.kill()
        return pid

    def subscribe(
        self,
        on_superseded: Callable[[str], None],
        on_lost: Callable[[str], None] = lambda _session: None,
    ) -> None:
        """Call `on_superseded` with the id of each session that another gateway takes over, and
        `on_lost` with the id of each session that expires, is quarantined, or whose engine is
        lost. A streaming session whose engine is lost can be attached again, and must be closed
        otherwise."""
        self._router.subscribers.append(SessionSubscriber(on_superseded, on_lost))

    async def connect(self) -> None:
        """Launch this client's own engine and wait until it is ready. Raises ModelError."""
        (connection,) = self._router.connections
        early_text = asyncio.create_task(run_in_thread("model text", _try_load_text, self._model))
        try:
            await connection.connect()
            self.fleet.supervise(connection)
            await self._router.first_ready
            self.text = await early_text or await run_in_thread(
                "model text", ModelText, self.ready.folder
            )
            await run_in_thread("model text", self.text.limit_tokens, _text_tokens_max(self.ready))
        except BaseException:
            await self.stop()
            raise

    async def wait_until_ready(self) -> None:
        """Wait until the first remote engine is ready, then load tokenizer and chat template from
        it. Raises ModelError, EngineLost."""
        await asyncio.shield(self._router.first_ready)
        done = await self._router.request(GetModelFiles(self._router.next_number()))
        self.text = await run_in_thread(
            "model text", _load_text, done.files or {}, _text_tokens_max(self.ready)
        )

    async def stop(self) -> None:
        """Close all links. This client's own engine process then exits, or is killed after
        STOP_GRACE_S."""
        self._router.fail(EngineLost("the engine was stopped"))
        self.fleet.stop()
        await self.grammar_trials.stop()
        if self._process is not None:
            await self._process.stop()

    # ---- sessions -------------------------------------------------------------------------

    async def open(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        group: SessionGroup = DEFAULT_GROUP,
        fence: int = 0,
        waits: bool = True,
    ) -> str:
        """Open a session with an empty log and return its id. KV is shared only within
        `group`. If the session is already open, a higher `fence` restarts it with an empty
        log, the same fence raises BadRequest, and a lower one raises StaleEngineFence. `waits`
        False: raise SessionDetached if no engine can take the session now."""
        session, n = session_id or _new_id("sess"), self._router.next_number()
        digest = self.ready.digest
        opened = validate_command(
            OpenSession(
                n,
                session,
                streaming,
                timeout_s,
                capacity_tokens,
                group.id,
                digest,
                group=group.id,
                weight=group.weight,
                fence=fence,
            )
        )
        placement = self._router.placements.get(session)
        if self._router.has_session(session) and placement and fence <= placement.fence:
            self._check_fence(session, fence)
            raise BadRequest(f"session {session} is already open", field="session_id")
        await self._router.request(opened, waits=waits)
        return session

    async def attach(
        self,
        session: str,
        ids: Sequence[int],
        *,
        provisional: Sequence[int] = (),
        unfinished: UnfinishedTurn | TurnStream | None = None,
        group: SessionGroup = DEFAULT_GROUP,
        fence: int = 0,
        waits: bool = True,
    ) -> TurnStream | None:
        """Attach a streaming session whose engine was lost, or take over one that another client
        opened, which can then no longer use it. `ids` becomes the log of the session, and
        `provisional` its provisional span. A session that this client has keeps the options it was
        opened with, but for the weight of its group.

        An engine that still has the session keeps the KV of the common prefix; if none has it, the
        session is placed on the least loaded engine. An `unfinished` turn continues on the engine
        that runs it; if none does, generation resumes after the ids that the turn has emitted,
        which are at the end of `ids`. The returned TurnStream begins with these ids, and then
        neither skips nor repeats any; if `unfinished` is the stream of a detached turn, that stream
        continues and is returned. A paused turn stays paused. Returns None if `unfinished` is None.
        `waits` as in `open`. Raises StaleEngineFence, TooLong, BadRequest."""
        router, n = self._router, self._router.next_number()
        placement = router.placements.get(session)
        opened = (
            OpenSession(n, session, scope=group.id, digest=self.ready.digest, group=group.id)
            if placement is None
            else placement.opened
        )
        opened = msgspec.structs.replace(opened, n=n, fence=fence, weight=group.weight)
        attach = self._build_attach(opened, ids, provisional, unfinished)
        self._check_fence(session, fence)
        turn = self._subscribe(attach, unfinished)
        try:
            preferred = self.fleet.incarnation_of(session) or await router.locate(session)
            await router.attach(attach, preferred, waits=waits)
        except BaseException:
            if turn is not None:
                router.turns.unsubscribe(turn)
            raise
        return turn

    def _subscribe(
        self, attach: AttachSession, unfinished: UnfinishedTurn | TurnStream | None
    ) -> TurnStream | None:
        """Subscribe the stream of the turn that an attach continues, if any."""
        if (generate := attach.generate) is None:
            return None
        if isinstance(unfinished, TurnStream):
            turn = unfinished
        else:
            decoder, emitted = self._create_decoder(generate.sampling), generate.resumed
            turn = TurnStream(
                generate.turn,
                attach.session,
                decoder,
                generate.sampling,
                traceparent=generate.traceparent,
            )
            turn.prompt_tokens = len(attach.ids) - emitted
            if emitted:
                turn.put(TurnTokens(turn.session, turn.id, 0, attach.ids[-emitted:]))
        self._router.turns.subscribe(turn)
        return turn

    def _create_decoder(self, sampling: Sampling) -> OutputDecoder:
        return self.text.create_output_decoder(starts_in_reasoning=sampling.starts_in_reasoning)

    def _build_attach(
        self,
        opened: OpenSession,
        ids: Sequence[int],
        provisional: Sequence[int],
        unfinished: UnfinishedTurn | TurnStream | None,
    ) -> AttachSession:
        """Build and validate the command that attaches a session. Raises BadRequest, TooLong."""
        generate, n = None, opened.n
        if isinstance(unfinished, TurnStream):
            if list(ids[len(ids) - unfinished.received :]) != unfinished.ids:
                raise BadRequest("ids must end with those of the unfinished turn", field="ids")
            unfinished = UnfinishedTurn(
                unfinished.id, unfinished.sampling, unfinished.received, unfinished.traceparent
            )
        if unfinished is not None:
            generate = Generate(
                n,
                opened.session,
                unfinished.turn,
                _with_seed(unfinished.sampling),
                unfinished.emitted,
                traceparent=unfinished.traceparent,
            )
        listed = list_token_ids(ids, self.ready.max_model_len)
        span = list_token_ids(provisional, self.ready.max_model_len, "provisional")
        attach = validate_command(
            AttachSession(n, opened, listed, span, generate=generate, fence=opened.fence)
        )
        check_token_ids(attach.ids, self.ready.vocab_size)
        check_token_ids(attach.provisional, self.ready.vocab_size, "provisional")
        if (generate := attach.generate) is not None:
            check_sampling(generate.sampling, self.ready.vocab_size)
            if not 0 <= generate.resumed <= len(attach.ids):
                raise BadRequest(
                    f"resumed is {generate.resumed}; it must be from 0 to {len(attach.ids)}",
                    field="resumed",
                )
        return attach

    def _check_fence(self, session: str, fence: int) -> None:
        placement = self._router.placements.get(session)
        if placement is not None and placement.fence > fence:
            raise StaleEngineFence(
                f"session {session} was taken over: its fence is {placement.fence}, "
                f"yours is {fence}"
            )

    def set_fence(self, session: str, fence: int) -> None:
        """Set the fence that later commands on the session carry. Raises BadRequest."""
        if type(fence) is not int or not 0 <= fence <= FENCE_MAX:
            raise BadRequest(
                f"fence is {fence!r}; it must be an int from 0 to {FENCE_MAX}", field="fence"
            )
        if placement := self._router.placements.get(session):
            placement.fence = fence

    async def pause(self, session: str) -> None:
        """Pause the turn of a session within one step; the turn emits nothing until `resume`. A
        detached turn is paused when it is attached. No effect if no turn is running."""
        self._router.mark_paused(session, is_paused=True)
        with contextlib.suppress(SessionDetached):
            await self._request(PauseTurn(self._router.next_number(), session))

    async def resume(self, session: str) -> None:
        """Resume the paused turn of a session. No effect if it is not paused."""
        self._router.mark_paused(session, is_paused=False)
        if self._router.detach_before_link_3(session):
            return
        with contextlib.suppress(SessionDetached):
            await self._request(ResumeTurn(self._router.next_number(), session))

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
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        group: SessionGroup = DEFAULT_GROUP,
        traceparent: str = "",
    ) -> TurnStream:
        """Run one turn without a lasting session. KV of the prompt is reused from the radix tree,
        and stays there afterwards. `traceparent` as in `generate`. Raises the errors of `append`
        and `generate`, and EngineLost."""
        session = _new_id("once")
        ids = list_token_ids(ids, self.ready.max_model_len)
        opening = asyncio.ensure_future(self.open(session, streaming=False, group=group))
        try:
            *_, turn = await asyncio.gather(
                opening,
                self.append(session, ids),
                self._generate(
                    session,
                    sampling,
                    None,
                    lambda: self._close_in_background(session),
                    traceparent=traceparent,
                ),
            )
        except BaseException:
            opening.cancel()
            self._close_in_background(session)
            raise
        return turn

    def _close_in_background(self, session: str) -> None:
        """Close a session without waiting for the reply."""
        self._router.submit(CloseSession(self._router.next_number(), session))

    async def generate(
        self, session: str, sampling: Sampling, turn: str | None = None, *, traceparent: str = ""
    ) -> TurnStream:
        """Start a turn on the whole log; returns once it has begun. The drawn ids, including a
        final stop id, become part of the log. `turn` is the id of the turn (None: generated). In a
        regular session, later appends can branch from the finished turn by this id, and another
        turn with the same id is refused. `traceparent` is the W3C trace context of the caller's
        span of the turn, for the spans of the engine. Raises BadRequest, TooLong,
        UnknownEngineSession, Busy."""
        return await self._generate(session, sampling, turn, traceparent=traceparent)

    async def _generate(
        self,
        session: str,
        sampling: Sampling,
        turn: str | None,
        on_ended: Callable[[], None] = lambda: None,
        *,
        traceparent: str,
    ) -> TurnStream:
        asked_s = time.monotonic() if self._process is not None else 0.0
        n, name = self._router.next_number(), turn or _new_id("turn")
        command = validate_command(
            Generate(n, session, name, sampling, asked_s=asked_s, traceparent=traceparent)
        )
        check_sampling(command.sampling, self.ready.vocab_size)
        command = msgspec.structs.replace(command, sampling=_with_seed(command.sampling))
        decoder = self._create_decoder(command.sampling)
        stream = TurnStream(
            name, session, decoder, command.sampling, on_ended, traceparent=traceparent
        )
        if self._router.turns.find(session, stream.id) is not None:
            raise BadRequest(f"turn {stream.id} is already in flight", field="turn")
        self._router.turns.subscribe(stream)
        try:
            await self._router.request(command)
        except asyncio.CancelledError:
            self._router.turns.unsubscribe(stream)
            number = self._router.next_number()
            self._router.submit(CancelTurn(number, session, stream.id, drop=True))
            raise
        except BaseException:
            self._router.turns.unsubscribe(stream)
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

    async def close(self, session: str, *, keep_prefix: bool = True, fence: int = 0) -> None:
        """Close a session and cancel its turn, if any. `keep_prefix` leaves its KV in the radix
        tree. `fence`: fence of its owner, with which a session that another client has opened, and
        this one has not attached, is closed on whichever engine has it."""
        number = self._router.next_number()
        command = validate_command(CloseSession(number, session, keep_prefix, fence=fence))
        if not self._router.close_elsewhere(command):
            await self._router.request(command)

    async def info(self, session: str) -> SessionInfo:
        info = (await self._request(GetSessionInfo(self._router.next_number(), session))).info
        assert info is not None
        return info

    async def _request(self, command: EngineCommand) -> CommandDone:
        """Validate and send a command. Raises BadRequest for an argument of the wrong type."""
        return await self._router.request(validate_command(command))


_TEXT_TOKENS_MIN = 4096
"""Lower bound of the limit on the tokens of one encode call (`_text_tokens_max`). Even if the
model's context is tiny, its chat template is probed with texts of some hundred tokens."""


def _text_tokens_max(ready: EngineReady) -> int:
    """Return the maximum tokens of one encode call: more than one context, because two adjacent
    texts may be encoded together."""
    return max(2 * ready.max_model_len, _TEXT_TOKENS_MIN)


def _try_load_text(model: str | None) -> ModelText | None:
    """Load the ModelText of a model, and prepare its chat template, while the engine starts.
    Returns None if the model is no folder of this machine, or its text cannot be loaded, which the
    engine reports."""
    try:
        folder = None if model is None else find_local_text(model)
        text = None if folder is None else ModelText(str(folder))
    except ModelError:
        return None
    if text is not None and text.template is not None:
        text.template.prepare()
    return text


def _load_text(files: dict[str, bytes], tokens_max: int) -> ModelText:
    """Load the ModelText of a remote model from copies of its files."""
    with TemporaryDirectory(prefix="continuo-") as folder:
        for name, content in files.items():
            Path(folder, Path(name).name).write_bytes(content)
        return ModelText(folder, tokens_max=tokens_max)


def _with_seed(sampling: Sampling) -> Sampling:
    """Return the sampling parameters with a seed, with which any engine can continue the turn."""
    if sampling.seed is not None:
        return sampling
    return msgspec.structs.replace(sampling, seed=secrets.randbits(63))


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
