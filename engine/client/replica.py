"""Mirror: what the front knows of each session, kept in step with the engine's answers.

The token log is the truth, and KV a cache: when the engine is gone, a session is attached from here
to the next one, and its turn goes on after the last id that arrived.
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
    """One session: how it was opened, its log, its turn."""

    def __init__(self, opened: OpenSession, log: TokenLog) -> None:
        self.opened = opened
        self.log = log
        self.deferred_span: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.turn_id: str | None = None
        self.prompt_length = 0
        """Length of the log when the turn began."""
        self.is_paused = False
        """Its turn, that is: it goes on when it is asked to."""
        self.is_attached = False
        """The engine that has it knows the present log, but perhaps not the turns before."""
        self.last_used_s = time.monotonic()
        """The last change, or the end of the last turn."""

    @property
    def is_generating(self) -> bool:
        return self.turn_id is not None and not self.is_paused

    def restore_span(self) -> None:
        """The span that waited for the turn to end."""
        span, self.deferred_span = self.deferred_span, array("i")
        self.log.put_provisional(span)

    @property
    def has_timed_out(self) -> bool:
        """Not while it has a turn, even a paused one: who reads it would not hear its end."""
        timeout_s = self.opened.timeout_s
        if timeout_s is None or self.turn_id is not None:
            return False
        return time.monotonic() - self.last_used_s >= timeout_s

    def build_info(self) -> SessionInfo:
        """As no engine has it: without KV."""
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

    # ---- what the engine has answered ---------------------------------------------------------

    def apply_command(self, command: EngineCommand, done: CommandDone, capacity: int) -> None:
        """A command has taken effect. `capacity` is that of a session that sets none."""
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
                if record := self._replicas.get(command.session):
                    self._apply_change(record, command, done)

    def _apply_change(
        self, record: SessionReplica, command: SessionCommand, done: CommandDone
    ) -> None:
        match command:
            case AppendIds(span="provisional") if record.is_generating:
                record.deferred_span = array("i", command.ids)
            case AppendIds():
                record.log.append(command)
            case RewindSession():
                record.log.rewind(command.to)
            case Generate():
                self._begin_turn(record, command)
            case PauseTurn():
                record.is_paused = record.turn_id is not None
                record.restore_span()
            case ForkSession():
                self._fork(record, command, done.length)
            case CloseSession():
                del self._replicas[command.session]
            case _:
                return
        record.last_used_s = time.monotonic()

    def apply_tokens(self, event: TurnTokens) -> None:
        record = self._replicas.get(event.session)
        if record is None or record.turn_id != event.turn:
            return
        if new := event.select_new(len(record.log.ids) - record.prompt_length):
            record.log.ids.extend(new.ids)

    def apply_turn_ended(self, event: TurnEnded) -> None:
        """Also of a turn whose words were dropped: then the log is as it was before."""
        record = self._replicas.get(event.session)
        if record is None:
            return
        if record.is_paused:
            record.deferred_span = record.log.take_provisional()
        if event.length < len(record.log.ids):
            record.log.truncate(event.length)
        else:
            record.log.record_turn(event.turn, record.prompt_length)
        record.turn_id, record.is_paused = None, False
        record.last_used_s = time.monotonic()
        record.restore_span()

    def remove(self, session: str) -> None:
        self._replicas.pop(session, None)

    # ---- what another engine must be told -------------------------------------------------------

    def build_attach(
        self,
        session: str,
        turns: dict[tuple[str, str], TurnStream],
        *,
        n: int = 0,
        fence: int = 0,
        isolated_ids: int = 0,
    ) -> AttachSession | None:
        """Makes any engine know the session as it is, and go on with its turn if it has one, or
        keep it paused. None: there is no such session."""
        record = self._replicas.get(session)
        if record is None:
            return None
        record.is_attached = True
        log = record.log
        turn = turns.get((session, record.turn_id)) if record.turn_id is not None else None
        generate = None
        if turn is not None:
            generate = Generate(
                0, session, turn.id, turn.sampling, log.length - record.prompt_length
            )
        return AttachSession(
            n,
            opened=record.opened,
            ids=log.ids[: log.length].tolist(),
            provisional=(record.deferred_span or log.ids[log.length :]).tolist(),
            generate=generate,
            paused=record.is_paused,
            apart=isolated_ids,
            fence=fence,
        )

    def build_failed_end(self, turn: TurnStream, error: str) -> TurnEnded | None:
        """The end of a turn that no engine will end. None: it has not begun."""
        record = self._replicas.get(turn.session)
        if record is None or record.turn_id != turn.id:
            return None
        length = len(record.log.ids)
        return TurnEnded(
            session=turn.session,
            turn=turn.id,
            reason="failed",
            length=length,
            prompt_tokens=record.prompt_length,
            cached_tokens=0,
            output_tokens=length - record.prompt_length,
            seed=turn.sampling.seed or 0,
            error=error,
        )

    def resume_turn(self, session: str) -> bool:
        """Its turn is not paused any more. False: it was not."""
        record = self._replicas.get(session)
        if record is None or not record.is_paused:
            return False
        record.is_paused = False
        return True

    def translate(self, command: SessionCommand) -> SessionCommand:
        """The command as an engine understands it that does not know the session's old turns.
        Raises BadRequest as that engine would have."""
        record = self._replicas.get(command.session)
        if record is None or not record.is_attached:
            return command
        if isinstance(command, Generate):
            record.log.check_turn_unused(command.turn)
        if not isinstance(command, AppendIds) or regular_only_option(command) is None:
            return command
        base = record.log.find_base(command)
        if base is None:
            return command
        return AppendIds(command.n, command.session, [*base.ids, *command.ids], replace=True)

    def list_generating(self) -> list[str]:
        """Sessions that an engine should be at work for."""
        return [name for name, record in self._replicas.items() if record.is_generating]

    def list_timed_out(self) -> list[str]:
        """Sessions that have not been used for as long as they may be."""
        return [name for name, record in self._replicas.items() if record.has_timed_out]

    def list_infos(self) -> list[SessionInfo]:
        """All its sessions, as if no engine had them."""
        return [record.build_info() for record in self._replicas.values()]

    def has_session(self, session: str) -> bool:
        return session in self._replicas

    def has_turn(self, session: str) -> bool:
        record = self._replicas.get(session)
        return record is not None and record.turn_id is not None

    # ---- inside -----------------------------------------------------------------------------

    def _open(self, command: OpenSession | AttachSession, capacity: int) -> None:
        opened = command if isinstance(command, OpenSession) else command.opened
        log = TokenLog(opened.capacity_tokens or capacity, streaming=opened.streaming)
        record = self._replicas[opened.session] = SessionReplica(opened, log)
        if isinstance(command, OpenSession):
            return
        record.is_attached = True
        log.ids.extend(command.ids)
        span = array("i", command.provisional)
        if command.generate is None:
            log.put_provisional(span)
        else:
            record.deferred_span = span
            record.turn_id = command.generate.turn
            record.prompt_length = log.length - command.generate.resumed

    def _begin_turn(self, record: SessionReplica, command: Generate) -> None:
        if record.turn_id != command.turn:
            record.turn_id = command.turn
            record.deferred_span = record.log.take_provisional()
            record.prompt_length = record.log.length

    def _fork(self, parent: SessionReplica, command: ForkSession, length: int) -> None:
        opened = msgspec.structs.replace(parent.opened, session=command.child)
        child = self._replicas[command.child] = SessionReplica(opened, parent.log.fork(length))
        child.is_attached = parent.is_attached
