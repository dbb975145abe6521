"""Token sessions: sessions of the engine that clients address directly, with token ids.

A streaming session is append-only. A regular session keeps a tree of its finished turns, and an
append can continue from any of them. Both live in this process and its engine: they are not stored,
and end when either does, or when the engine reports that they expired. One turn of a session runs
at a time. A turn that is aborted is rolled back: its prompt and its output leave the log.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import NamedTuple, TypedDict

import msgspec

from continuo.engine import EngineError, EngineReady, OutputChunk, Sampling, TurnStream
from continuo.realtime.completions.token_turns import RawPrompt, TokenTurns
from continuo.realtime.completions.turn_register import TokenTurn
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import map_engine_error
from continuo.realtime.ids import generate_id

TOKEN_SESSIONS_MAX = 10_000
"""Maximum number of token sessions of this process."""
PER_FREE_PLACE_MAX = 9
"""Maximum token sessions of a tenant for each place that is free, so that a tenant alone leaves a
tenth of the places to others."""
FINISHED_TURNS_MAX = 1_024
"""Maximum finished turns of a regular session that others can continue; the oldest are forgotten,
as in the engine."""


class TurnPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position in a session at which a turn begins.

    `after`: id of a finished turn of a regular session; None: a new root. `drop_previous_output`:
    leave out its output. `offset`, unless None or 0: cut the rest of the history to its first
    `offset` ids; a negative `offset` cuts that many ids off its end.
    """

    after: str | None = None
    replace: bool = False
    drop_previous_output: bool = False
    offset: int | None = None


class _Options(TypedDict, total=False):
    """Options of `EngineClient.append` for regular sessions."""

    after: str | None
    replace: bool
    drop_previous_output: bool
    offset: int


class FinishedTurn(NamedTuple):
    """A turn that others can continue. `prompt_tokens`, `length`: of the log when the turn began,
    and at its end, equal if its output was discarded. `after`: the turn that it continues."""

    prompt_tokens: int
    length: int
    after: str | None


class TokenSession:
    """A token session of this process."""

    def __init__(self, tenant: str, name: str, *, is_streaming: bool) -> None:
        self.tenant = tenant
        self.name = name
        self.engine_id = generate_id("tok")
        self.is_streaming = is_streaming
        self.finished: dict[str, FinishedTurn] = {}
        """The finished turns of a regular session, by turn id."""
        self.length = 0
        """Length of the log."""

    def add_finished(self, turn_id: str, turn: FinishedTurn) -> None:
        """Record a turn that has finished, and forget the oldest if there are too many."""
        self.finished.pop(turn_id, None)
        self.finished[turn_id] = turn
        if len(self.finished) > FINISHED_TURNS_MAX:
            del self.finished[next(iter(self.finished))]

    def find_continuations(self, turn_id: str | None) -> set[str]:
        """Return the ids of the finished turns that continue a turn, or one of its continuations.
        None: all. A turn is recorded after the turn that it continues."""
        found = {turn_id}
        for name, past in self.finished.items():
            if turn_id is None or past.after in found:
                found.add(name)
        return {name for name in found if name is not None and name != turn_id}


class TokenSessions:
    """The token sessions of all tenants of this process."""

    def __init__(self, turns: TokenTurns) -> None:
        self._turns = turns
        self._engine = turns.engine
        self._sessions: dict[tuple[str, str], TokenSession] = {}
        """By tenant and name; changed by `_add` and `_remove` alone."""
        self._by_engine_id: dict[str, TokenSession] = {}
        self._engine.subscribe(lambda _: None, self._on_lost)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> EngineReady:
        """Model and limits of the engine."""
        return self._engine.ready

    async def open(
        self, tenant: str, session_id: str | None, *, is_streaming: bool, timeout_s: float | None
    ) -> str:
        """Open a session and return its id. Raises Refusal."""
        name = session_id or generate_id("tok")
        if (tenant, name) in self._sessions:
            raise Refusal(
                f"The session with id '{name}' is already open.",
                code="session_already_open",
                param="session_id",
            )
        count, free = self.count_by_tenant()[tenant], TOKEN_SESSIONS_MAX - len(self._sessions)
        if count >= PER_FREE_PLACE_MAX * free:
            raise Refusal(
                f"The server has {len(self._sessions):,} token sessions of {TOKEN_SESSIONS_MAX:,}, "
                f"and {count:,} of them are yours. Close one.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        self._turns.tenants.of(tenant).ledger.check_session_count(count)
        record = TokenSession(tenant, name, is_streaming=is_streaming)
        self._add(record)
        try:
            await self._engine.open(
                record.engine_id,
                streaming=is_streaming,
                timeout_s=timeout_s,
                group=self._turns.group_of(tenant),
            )
        except EngineError as error:
            self._remove(record)
            raise map_engine_error(error) from error
        except BaseException:
            self._remove(record)
            self._close_at_engine(record)
            raise
        return name

    def _add(self, record: TokenSession) -> None:
        self._sessions[record.tenant, record.name] = record
        self._by_engine_id[record.engine_id] = record

    def _remove(self, record: TokenSession) -> None:
        """Remove a session. No effect if it is removed already."""
        if self._by_engine_id.pop(record.engine_id, None) is not None:
            del self._sessions[record.tenant, record.name]

    def _on_lost(self, engine_id: str) -> None:
        """Remove a session that has expired or whose engine was lost: nothing attaches it again."""
        if (record := self._by_engine_id.get(engine_id)) is not None:
            self._remove(record)
            self._close_at_engine(record)

    def _close_at_engine(self, record: TokenSession) -> None:
        self._run(self._try_close(record.engine_id))

    async def _try_close(self, engine_id: str) -> None:
        with contextlib.suppress(EngineError):
            await self._engine.close(engine_id)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def count_by_tenant(self) -> Counter[str]:
        """Return the number of open sessions of each tenant."""
        return Counter(tenant for tenant, _ in self._sessions)

    async def close(self, tenant: str, session_id: str) -> bool:
        """Close a session, and abort its turns. Returns False if it is unknown."""
        record = self._sessions.get((tenant, session_id))
        if record is None:
            return False
        self._remove(record)
        for turn in self._turns.register.in_session(record):
            await self._turns.cancel(turn, discard_output=True)
        await self._try_close(record.engine_id)
        return True

    async def abort(self, tenant: str, turn_id: str | None) -> None:
        """Abort a turn, or all turns on raw prompts of the tenant (None)."""
        for turn in self._turns.register.of_tenant(tenant):
            if turn_id is None or turn_id == turn.name:
                await self._turns.cancel(turn, discard_output=True)

    def close_tenant(self, tenant: str) -> None:
        """Cancel the turns of a deleted tenant, and close its sessions."""
        self._run(self._close_tenant(tenant))

    async def _close_tenant(self, tenant: str) -> None:
        await self._turns.cancel_tenant(tenant)
        for owner, name in list(self._sessions):
            if owner == tenant:
                await self.close(owner, name)

    async def generate(
        self, tenant: str, turn_id: str, prompt: RawPrompt, param: str, sampling: Sampling
    ) -> TokenTurn:
        """Start a turn without a session, and return it; `read` has its output. Raises Refusal."""
        turn = self._turns.arrive(TokenTurn(tenant, sampling, turn_id))
        async with self._closing_if_refused(turn):
            ids = await self._encode(turn, prompt, param)
            if not ids:
                raise _empty_input(param)
            await self._turns.complete(turn, ids, sampling, param)
        return turn

    async def generate_in_session(
        self,
        tenant: str,
        session_id: str,
        turn_id: str,
        position: TurnPosition,
        prompt: RawPrompt,
        param: str,
        sampling: Sampling,
        *,
        is_prefill_only: bool = False,
    ) -> TokenTurn:
        """Append a prompt to a session, start a turn and return it; `read` has its output. Raises
        Refusal; then the session is unchanged.

        `is_prefill_only`: the session keeps the prompt, and discards the output.
        """
        record = self._sessions.get((tenant, session_id))
        if record is None:
            raise _unknown_session(session_id)
        self._check_busy(record, position)
        turn = self._turns.arrive(TokenTurn(tenant, sampling, turn_id, record, position.after))
        turn.is_prefill_only = is_prefill_only
        async with self._closing_if_refused(turn):
            ids = await self._encode(turn, prompt, param)
            if position.replace and not record.is_streaming:
                await self._cut_continued(record, turn)
                if turn.is_cancelled:
                    return turn
            position = self._resolve(record, position)
            history = self._history_length(record, position)
            bos = self._engine.text.bos_ids
            if history and bos and tuple(ids[: len(bos)]) == bos:
                ids = ids[len(bos) :]
            if not history and not ids:
                raise _empty_input(param)
            bounded = self._turns.bound_sampling(sampling, history + len(ids), param)
            if position.replace:
                await self._abort_continuations(record, turn)

            async def start(traceparent: str) -> TurnStream:
                if self._sessions.get((tenant, session_id)) is not record:
                    raise _unknown_session(session_id)
                try:
                    return await self._start(
                        record, turn, turn_id, position, ids, bounded, traceparent
                    )
                except EngineError as error:
                    if error.code in ("unknown_session", "engine_lost"):
                        self._remove(record)
                        raise _unknown_session(session_id) from error
                    raise _map_error(error, param) from error

            await self._turns.begin(turn, bounded, start)
        return turn

    async def close_turns(self, turns: Sequence[TokenTurn]) -> None:
        """Close turns that nobody reads."""
        await self._turns.close_all(turns)

    def read(self, turn: TokenTurn) -> AsyncGenerator[OutputChunk, None]:
        """Yield the output of a turn, which starts here if it had to wait. Raises Refusal."""
        return self._turns.read(turn)

    @contextlib.asynccontextmanager
    async def _closing_if_refused(self, turn: TokenTurn) -> AsyncGenerator[None]:
        """Close a turn that arrived and did not begin."""
        try:
            yield
        except BaseException:
            await self._turns.close(turn)
            raise

    async def _encode(self, turn: TokenTurn, prompt: RawPrompt, param: str) -> list[int]:
        grammar = turn.sampling.grammar
        is_schema = grammar is not None and grammar.kind == "json_schema"
        field = "sampling_params.json_schema" if is_schema else "sampling_params.regex"
        await self._turns.check_grammar(grammar, turn.tenant, field)
        return await self._turns.encode(prompt, turn.tenant, param)

    def _check_busy(self, record: TokenSession, position: TurnPosition) -> None:
        """Check that the turn to continue has ended, or is to be replaced. Raises Refusal."""
        turns = self._turns.register.in_session(record)
        waited = None if position.replace else position.after
        if any(record.is_streaming or turn.name == waited for turn in turns):
            raise Refusal(
                "The session has a turn that has not finished.", code="session_busy", param="rid"
            )

    async def _cut_continued(self, record: TokenSession, turn: TokenTurn) -> None:
        """End the turn that `turn` continues, if it has not ended, and wait for its end."""
        for other in self._turns.register.in_session(record):
            if other is turn:
                return
            if other.name == turn.after:
                await self._turns.cut(other)
                await self._abort_continuations(record, turn)
                await self._turns.register.wait_for_earlier(turn)
                return

    async def _abort_continuations(self, record: TokenSession, turn: TokenTurn) -> None:
        """Abort the earlier turns that have not ended and that `turn`, which replaces, discards."""
        discarded = {turn.after, *record.find_continuations(turn.after)}
        for other in self._turns.register.in_session(record):
            if other is turn:
                return
            if turn.after is None or other.after in discarded:
                await self._turns.cancel(other, discard_output=True)

    async def _start(
        self,
        record: TokenSession,
        turn: TokenTurn,
        turn_id: str,
        position: TurnPosition,
        ids: Sequence[int],
        sampling: Sampling,
        traceparent: str,
    ) -> TurnStream:
        """Append `ids` and start the turn. Raises EngineError."""
        if not record.is_streaming and position.after is None and not position.replace:
            await self._engine.rewind(record.engine_id, 0)
        append = _append_options(record, position)
        length = await self._engine.append(record.engine_id, ids, **append)
        if position.replace:
            for name in record.find_continuations(position.after):
                del record.finished[name]
        before = length - len(ids)
        try:
            stream = await self._engine.generate(
                record.engine_id, sampling, turn_id, traceparent=traceparent
            )
        except EngineError:
            with contextlib.suppress(EngineError):
                await self._engine.rewind(record.engine_id, before)
            raise
        turn.settle = lambda: self._settle(record, turn, turn_id, before)
        return stream

    async def _settle(
        self, record: TokenSession, turn: TokenTurn, turn_id: str, before: int
    ) -> None:
        """Record a turn that has ended, or roll it back if it was aborted and no other turn
        continues it. `before`: length of the log before its append."""
        ended = turn.ended
        kept = ("stop", "length", "cancelled") if turn.is_cut else ("stop", "length")
        if ended is None or ended.reason not in kept:
            record.length = before
            with contextlib.suppress(EngineError):
                await self._engine.rewind(record.engine_id, before)
            return
        record.length = ended.prompt_tokens if turn.is_prefill_only else ended.length
        if not record.is_streaming:
            record.add_finished(
                turn_id, FinishedTurn(ended.prompt_tokens, record.length, turn.after)
            )
        elif turn.is_prefill_only:
            with contextlib.suppress(EngineError):
                await self._engine.rewind(record.engine_id, record.length)

    def _resolve(self, record: TokenSession, position: TurnPosition) -> TurnPosition:
        """Return where a turn begins, which is at the end of a streaming session. Raises
        Refusal."""
        if record.is_streaming:
            for field in ("replace", "drop_previous_output", "offset"):
                if getattr(position, field):
                    raise Refusal(
                        f"A streaming session does not support '{field}': it is append-only.",
                        code="unsupported_parameter",
                        param=f"session_params.{field}",
                    )
            return TurnPosition()
        if position.after is None:
            return position
        past = record.finished.get(position.after)
        if past is None:
            raise Refusal(
                f"The session has no finished turn with the id '{position.after}'.",
                code="invalid_value",
                param="session_params.rid",
            )
        is_output_discarded = past.length == past.prompt_tokens
        drops = position.drop_previous_output or is_output_discarded
        return msgspec.structs.replace(position, drop_previous_output=drops)

    def _history_length(self, record: TokenSession, position: TurnPosition) -> int:
        """Return the length of the history that an append continues."""
        if record.is_streaming:
            return record.length
        if position.after is None:
            return 0
        past = record.finished[position.after]
        length = past.prompt_tokens if position.drop_previous_output else past.length
        return len(range(length)[: position.offset or None])


def _append_options(record: TokenSession, position: TurnPosition) -> _Options:
    if record.is_streaming:
        return {}
    return {
        "after": position.after,
        "replace": position.replace,
        "drop_previous_output": position.drop_previous_output,
        "offset": position.offset or 0,
    }


def _map_error(error: EngineError, param: str) -> Refusal:
    """Map an engine error to a refusal that names the client's field."""
    fields = {"ids": param, "after": "session_params.rid", "turn": "rid"}
    refusal = map_engine_error(error)
    refusal.param = fields.get(refusal.param or "", refusal.param)
    return refusal


def _empty_input(param: str) -> Refusal:
    return Refusal(
        "The input has no tokens, and there is no history to continue.",
        code="invalid_value",
        param=param,
    )


def _unknown_session(session_id: str) -> Refusal:
    return Refusal(
        f"Invalid request: session id '{session_id[:200]}' does not exist.",
        code="session_not_open",
        param="session_params.id",
    )
