"""SessionReplica: the client's copy of each session's token log and turn, updated by the replies
and events of the engine.

The token log is the source of truth, and KV a cache: if the engine is lost, a session is attached
to another one from its replica, and its turn continues after the last id that was received.
"""

import time
from array import array

import msgspec

from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    CloseSession,
    CommandDone,
    DrainEngine,
    EngineCommand,
    ForkSession,
    Generate,
    GetModelFiles,
    GetStats,
    ListSessions,
    LocateSession,
    OpenSession,
    PauseTurn,
    Ping,
    RewindSession,
    SessionCommand,
    SessionInfo,
    TurnEnded,
    TurnTokens,
)
from continuo.engine.wire.token_log import TokenLog, regular_only_option


class SessionReplica:
    """Copy of one session: the command that opened it, its log, its turn."""

    def __init__(self, opened: OpenSession, log: TokenLog) -> None:
        self.opened = opened
        self.log = log
        self.deferred_span: array[int] = array("i")
        """Provisional span kept out of the log while a turn runs, and put back when the turn
        ends."""
        self.turn_id: str | None = None
        self.prompt_length = 0
        """Length of the log when the turn began."""
        self.is_paused = False
        self.is_attached = False
        """Whether an AttachSession has ever restored the session on an engine. If so, the engine
        may have no record of the turns that finished before."""
        self.last_used_s = time.monotonic()
        """Monotonic time of the last change, or of the end of the last turn."""

    @property
    def is_generating(self) -> bool:
        return self.turn_id is not None and not self.is_paused

    def restore_span(self) -> None:
        """Move the ids in `deferred_span` back to the end of the log, as its provisional span."""
        span, self.deferred_span = self.deferred_span, array("i")
        self.log.put_provisional(span)

    @property
    def has_timed_out(self) -> bool:
        """Whether the idle timeout has passed. Never true while the session has a turn, even a
        paused one, because the reader of the TurnStream would never receive its end."""
        timeout_s = self.opened.timeout_s
        if timeout_s is None or self.turn_id is not None:
            return False
        return time.monotonic() - self.last_used_s >= timeout_s

    def build_info(self) -> SessionInfo:
        """Build the SessionInfo of a session that no engine has. All of its KV counts as lost."""
        return SessionInfo(
            session=self.opened.session,
            streaming=self.log.turn_tree is None,
            state="generating" if self.is_generating else "idle",
            length=self.log.length,
            provisional=self.log.provisional,
            committed=0,
            held_pages=0,
            host_pages=0,
            host_tokens=0,
            lost_tokens=self.log.length,
            turn=self.turn_id if self.is_generating else None,
            idle_s=time.monotonic() - self.last_used_s,
        )


class SessionReplicas:
    def __init__(self) -> None:
        self._replicas: dict[str, SessionReplica] = {}

    # ---- events of the engine -----------------------------------------------------------------

    def apply_command(self, command: EngineCommand, done: CommandDone, capacity: int) -> None:
        """Apply a command that the engine has executed. `capacity` is the default capacity of a
        session, in tokens."""
        match command:
            case OpenSession() | AttachSession():
                self._open(command, capacity)
            case (
                ListSessions()
                | GetStats()
                | DrainEngine()
                | Ping()
                | LocateSession()
                | GetModelFiles()
            ):
                pass
            case _:
                if replica := self._replicas.get(command.session):
                    self._apply_change(replica, command, done)

    def _apply_change(
        self, replica: SessionReplica, command: SessionCommand, done: CommandDone
    ) -> None:
        match command:
            case AppendIds(span="provisional") if replica.is_generating:
                replica.deferred_span = array("i", command.ids)
            case AppendIds():
                replica.log.append(command)
            case RewindSession():
                replica.log.rewind(command.to)
            case Generate():
                self._begin_turn(replica, command)
            case PauseTurn():
                replica.is_paused = replica.turn_id is not None
                replica.restore_span()
            case ForkSession():
                self._fork(replica, command, done.length)
            case CloseSession():
                del self._replicas[command.session]
            case _:
                return
        replica.last_used_s = time.monotonic()

    def apply_tokens(self, event: TurnTokens) -> None:
        replica = self._replicas.get(event.session)
        if replica is None or replica.turn_id != event.turn:
            return
        if new := event.select_new(len(replica.log.ids) - replica.prompt_length):
            replica.log.ids.extend(new.ids)

    def apply_turn_ended(self, event: TurnEnded) -> None:
        """Apply the end of a turn. If its output was dropped, the log is cut to the prompt of the
        turn."""
        replica = self._replicas.get(event.session)
        if replica is None:
            return
        if replica.is_paused:
            replica.deferred_span = replica.log.take_provisional()
        if event.length < len(replica.log.ids):
            replica.log.truncate(event.length)
        else:
            replica.log.record_turn(event.turn, replica.prompt_length)
        replica.turn_id, replica.is_paused = None, False
        replica.last_used_s = time.monotonic()
        replica.restore_span()

    def remove(self, session: str) -> None:
        self._replicas.pop(session, None)

    # ---- commands for another engine ------------------------------------------------------------

    def build_attach(
        self,
        session: str,
        turns: dict[tuple[str, str], TurnStream],
        *,
        n: int = 0,
        fence: int = 0,
        isolated_ids: int = 0,
    ) -> AttachSession | None:
        """Build the command that restores the session on any engine and continues its turn; a
        paused turn stays paused. `n`: number of the command. `isolated_ids`: number of ids after
        the log for which the session's rows are computed in steps of their own; 0: no isolation
        (`AttachSession.apart`). Returns None if there is no such session."""
        replica = self._replicas.get(session)
        if replica is None:
            return None
        replica.is_attached = True
        log = replica.log
        turn = turns.get((session, replica.turn_id)) if replica.turn_id is not None else None
        generate = None
        if turn is not None:
            generate = Generate(
                0, session, turn.id, turn.sampling, log.length - replica.prompt_length
            )
        return AttachSession(
            n,
            opened=replica.opened,
            ids=log.ids[: log.length].tolist(),
            provisional=(replica.deferred_span or log.ids[log.length :]).tolist(),
            generate=generate,
            paused=replica.is_paused,
            apart=isolated_ids,
            fence=fence,
        )

    def build_failed_end(self, turn: TurnStream, error: str) -> TurnEnded | None:
        """Build the TurnEnded of a turn that fails here, because no engine may continue it. Returns
        None if the turn has not begun."""
        replica = self._replicas.get(turn.session)
        if replica is None or replica.turn_id != turn.id:
            return None
        length = len(replica.log.ids)
        return TurnEnded(
            session=turn.session,
            turn=turn.id,
            reason="failed",
            length=length,
            prompt_tokens=replica.prompt_length,
            cached_tokens=0,
            output_tokens=length - replica.prompt_length,
            seed=turn.sampling.seed or 0,
            error=error,
        )

    def resume_turn(self, session: str) -> bool:
        """Mark the turn of a session as running. Returns False if it was not paused."""
        replica = self._replicas.get(session)
        if replica is None or not replica.is_paused:
            return False
        replica.is_paused = False
        return True

    def translate(self, command: SessionCommand) -> SessionCommand:
        """Rewrite a command for an engine without a record of the session's older turns: an append
        that branches from one of them is replaced by an append of the whole log. Raises BadRequest
        in the same cases as an engine with that record."""
        replica = self._replicas.get(command.session)
        if replica is None or not replica.is_attached:
            return command
        if isinstance(command, Generate):
            replica.log.check_turn_unused(command.turn)
        if not isinstance(command, AppendIds) or regular_only_option(command) is None:
            return command
        base = replica.log.find_base(command)
        if base is None:
            return command
        return AppendIds(command.n, command.session, [*base.ids, *command.ids], replace=True)

    def list_generating(self) -> list[str]:
        """List the sessions with a running turn."""
        return [name for name, replica in self._replicas.items() if replica.is_generating]

    def list_timed_out(self) -> list[str]:
        """List the sessions whose idle timeout has passed."""
        return [name for name, replica in self._replicas.items() if replica.has_timed_out]

    def list_infos(self) -> list[SessionInfo]:
        """List a SessionInfo of every session as if no engine had the session, so without KV."""
        return [replica.build_info() for replica in self._replicas.values()]

    def has_session(self, session: str) -> bool:
        return session in self._replicas

    def has_turn(self, session: str) -> bool:
        replica = self._replicas.get(session)
        return replica is not None and replica.turn_id is not None

    # ---- inside -----------------------------------------------------------------------------

    def _open(self, command: OpenSession | AttachSession, capacity: int) -> None:
        opened = command if isinstance(command, OpenSession) else command.opened
        log = TokenLog(opened.capacity_tokens or capacity, streaming=opened.streaming)
        replica = self._replicas[opened.session] = SessionReplica(opened, log)
        if isinstance(command, OpenSession):
            return
        replica.is_attached = True
        log.ids.extend(command.ids)
        span = array("i", command.provisional)
        if command.generate is None:
            log.put_provisional(span)
        else:
            replica.deferred_span = span
            replica.turn_id = command.generate.turn
            replica.prompt_length = log.length - command.generate.resumed

    def _begin_turn(self, replica: SessionReplica, command: Generate) -> None:
        if replica.turn_id != command.turn:
            replica.turn_id = command.turn
            replica.deferred_span = replica.log.take_provisional()
            replica.prompt_length = replica.log.length

    def _fork(self, parent: SessionReplica, command: ForkSession, length: int) -> None:
        opened = msgspec.structs.replace(parent.opened, session=command.child)
        child = self._replicas[command.child] = SessionReplica(opened, parent.log.fork(length))
        child.is_attached = parent.is_attached
