"""Token sessions: sessions of the engine that clients address directly, with token ids.

A streaming session is append-only. A regular session keeps a tree of its finished turns, and an
append can continue from any of them. Both live in this process and its engine: they are not stored,
and end when either does. One turn of a session runs at a time. A turn that is aborted is rolled
back: its prompt and its output leave the log.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypedDict

import msgspec

from continuo.engine import EngineError, OutputChunk, Sampling, TurnStream
from continuo.realtime.completions.token_turns import RawPrompt, TokenTurn, TokenTurns
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import map_engine_error
from continuo.realtime.ids import generate_id

TOKEN_SESSIONS_MAX = 10_000
"""Maximum number of token sessions of this process."""
_SCHEMA = "sampling_params.json_schema"
"""Field with the JSON schema of a turn."""


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
    and at its end."""

    prompt_tokens: int
    length: int


class TokenSession:
    """A token session of this process."""

    def __init__(self, engine_id: str, *, is_streaming: bool) -> None:
        self.engine_id = engine_id
        self.is_streaming = is_streaming
        self.finished: dict[str, FinishedTurn] = {}
        """The finished turns of a regular session, by turn id."""
        self.length = 0
        """Length of the log."""
        self.current: str | None = None
        """Id of the turn that runs or waits; None: none."""
        self.lock = asyncio.Lock()


class TokenSessions:
    """The token sessions of all tenants of this process."""

    def __init__(self, turns: TokenTurns) -> None:
        self._turns = turns
        self._engine = turns.engine
        self._sessions: dict[tuple[str, str], TokenSession] = {}
        self._running: dict[tuple[str, str], TokenTurn] = {}
        """Turns that run or wait, by tenant and turn id."""
        self._tasks: set[asyncio.Task[None]] = set()

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
        if len(self._sessions) >= TOKEN_SESSIONS_MAX:
            raise Refusal(
                f"The server has {TOKEN_SESSIONS_MAX:,} token sessions, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        count = self.count_by_tenant()[tenant]
        self._turns.tenants.of(tenant).ledger.check_session_count(count)
        record = TokenSession(generate_id("tok"), is_streaming=is_streaming)
        self._sessions[tenant, name] = record
        try:
            await self._engine.open(
                record.engine_id,
                streaming=is_streaming,
                timeout_s=timeout_s,
                group=self._turns.group_of(tenant),
            )
        except EngineError as error:
            del self._sessions[tenant, name]
            raise map_engine_error(error) from error
        return name

    def count_by_tenant(self) -> Counter[str]:
        """Return the number of open sessions of each tenant."""
        return Counter(tenant for tenant, _ in self._sessions)

    async def close(self, tenant: str, session_id: str) -> bool:
        """Close a session, and abort its turn, if any. Returns False if it is unknown."""
        record = self._sessions.pop((tenant, session_id), None)
        if record is None:
            return False
        with contextlib.suppress(EngineError):
            await self._engine.close(record.engine_id)
        return True

    async def abort(self, tenant: str, turn_id: str | None) -> None:
        """Abort a turn, or all turns of the tenant (None)."""
        for (owner, name), turn in list(self._running.items()):
            if owner == tenant and turn_id in (None, name):
                await self._turns.cancel(turn, discard_output=True)

    def close_tenant(self, tenant: str) -> None:
        """Cancel the turns of a deleted tenant, and close its sessions."""
        task = asyncio.create_task(self._close_tenant(tenant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_tenant(self, tenant: str) -> None:
        await self._turns.cancel_tenant(tenant)
        for owner, name in list(self._sessions):
            if owner == tenant:
                await self.close(owner, name)

    async def generate(
        self, tenant: str, turn_id: str, prompt: RawPrompt, param: str, sampling: Sampling
    ) -> tuple[TokenTurn, AsyncGenerator[OutputChunk, None]]:
        """Start a turn without a session. Returns it, and its output. Raises Refusal."""
        await self._turns.check_schema(sampling, tenant, _SCHEMA)
        ids = await self._turns.encode(prompt, tenant, param)
        if not ids:
            raise _empty_input()
        turn = await self._turns.complete(ids, sampling, tenant, param)
        return turn, self._follow(tenant, turn_id, turn)

    async def generate_in_session(
        self,
        tenant: str,
        session_id: str,
        turn_id: str,
        position: TurnPosition,
        prompt: RawPrompt,
        param: str,
        sampling: Sampling,
    ) -> tuple[TokenTurn, AsyncGenerator[OutputChunk, None]]:
        """Append a prompt to a session and start a turn. Returns it, and its output. Raises
        Refusal; then the session is unchanged."""
        record = self._sessions.get((tenant, session_id))
        if record is None:
            raise _unknown_session(session_id)
        if record.current is not None and (record.is_streaming or record.current == position.after):
            raise Refusal(
                "The session has a turn that has not finished.", code="session_busy", param="rid"
            )
        await self._turns.check_schema(sampling, tenant, _SCHEMA)
        ids = await self._turns.encode(prompt, tenant, param)
        before = 0

        async def start(traceparent: str) -> TurnStream:
            nonlocal before
            if self._sessions.get((tenant, session_id)) is not record:
                raise _unknown_session(session_id)
            try:
                stream, before = await self._start(
                    record, turn_id, position, ids, param, sampling, traceparent
                )
            except EngineError as error:
                if error.code in ("unknown_session", "engine_lost"):
                    self._sessions.pop((tenant, session_id), None)
                    raise _unknown_session(session_id) from error
                raise _map_error(error, param) from error
            return stream

        await record.lock.acquire()
        try:
            record.current = turn_id
            turn = await self._turns.enter(tenant, sampling, start)
            await self._turns.start(turn)
            if turn.stream is None:
                await self._turns.close(turn)
                raise _unknown_session(session_id)
        except BaseException:
            record.current = None
            record.lock.release()
            raise
        return turn, self._follow_session(tenant, turn_id, turn, record, before)

    async def _start(
        self,
        record: TokenSession,
        turn_id: str,
        position: TurnPosition,
        ids: Sequence[int],
        param: str,
        sampling: Sampling,
        traceparent: str,
    ) -> tuple[TurnStream, int]:
        """Append `ids` and start the turn. Returns it, and the length of the log before the
        append, to which an abort rolls back. Raises Refusal and EngineError."""
        position = self._resolve(record, position)
        history = self._history_length(record, position)
        bos = self._engine.text.bos_ids
        if history and bos and tuple(ids[: len(bos)]) == bos:
            ids = ids[len(bos) :]
        if not history and not ids:
            raise _empty_input()
        bounded = self._turns.bound_sampling(sampling, history + len(ids), param)
        if not record.is_streaming and position.after is None and not position.replace:
            await self._engine.rewind(record.engine_id, 0)
        append = _append_options(record, position)
        length = await self._engine.append(record.engine_id, ids, **append)
        before = length - len(ids)
        try:
            stream = await self._engine.generate(
                record.engine_id, bounded, turn_id, traceparent=traceparent
            )
            return stream, before
        except EngineError:
            with contextlib.suppress(EngineError):
                await self._engine.rewind(record.engine_id, before)
            raise

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
        if position.after is not None and position.after not in record.finished:
            raise Refusal(
                f"The session has no finished turn with the id '{position.after}'.",
                code="invalid_value",
                param="session_params.rid",
            )
        return position

    def _history_length(self, record: TokenSession, position: TurnPosition) -> int:
        """Return the length of the history that an append continues."""
        if record.is_streaming:
            return record.length
        if position.after is None:
            return 0
        past = record.finished[position.after]
        length = past.prompt_tokens if position.drop_previous_output else past.length
        return len(range(length)[: position.offset or None])

    async def _follow(
        self, tenant: str, turn_id: str, turn: TokenTurn
    ) -> AsyncGenerator[OutputChunk, None]:
        """Yield the output of a turn, during which `abort` finds it."""
        self._running[tenant, turn_id] = turn
        try:
            async with aclosing(self._turns.read(turn)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._running.pop((tenant, turn_id), None)

    async def _follow_session(
        self,
        tenant: str,
        turn_id: str,
        turn: TokenTurn,
        record: TokenSession,
        before: int,
    ) -> AsyncGenerator[OutputChunk, None]:
        """Yield the output of a turn of a session; then record it, or roll it back if it was
        aborted."""
        try:
            async with aclosing(self._follow(tenant, turn_id, turn)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            ended = turn.ended
            if ended is not None and ended.reason in ("stop", "length"):
                record.length = ended.length
                if not record.is_streaming:
                    record.finished[turn_id] = FinishedTurn(ended.prompt_tokens, ended.length)
            else:
                with contextlib.suppress(EngineError):
                    await self._engine.rewind(record.engine_id, before)
                record.length = before
            record.current = None
            record.lock.release()


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


def _empty_input() -> Refusal:
    return Refusal(
        "The input has no tokens, and there is no history to continue.",
        code="invalid_value",
        param="input_ids",
    )


def _unknown_session(session_id: str) -> Refusal:
    return Refusal(
        f"Invalid request: session id '{session_id[:200]}' does not exist.",
        code="session_not_open",
        param="session_params.id",
    )
