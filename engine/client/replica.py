"""Mirror: what the front knows of each session, kept in step with the engine's answers.

The token log is the truth, and KV a cache: when the engine is gone, a session is attached from here
to the next one, and its turn goes on after the last id that arrived.
"""

import time
from array import array

import msgspec

from continuo.engine.client.turn_stream import Turn
from continuo.engine.wire.messages import (
    AnyCommand,
    Append,
    Attach,
    Close,
    Done,
    Drain,
    Files,
    Fork,
    Generate,
    ListSessions,
    Locate,
    Open,
    Pause,
    Ping,
    Rewind,
    SessionCommand,
    SessionInfo,
    Stats,
    Tokens,
    TurnEnded,
)
from continuo.engine.wire.token_log import Log, edits


class Record:
    """One session: how it was opened, its log, its turn."""

    def __init__(self, opened: Open, log: Log) -> None:
        self.opened = opened
        self.log = log
        self.aside: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.turn: str | None = None
        self.prompt = 0
        """Length of the log when the turn began."""
        self.paused = False
        """Its turn, that is: it goes on when it is asked to."""
        self.attached = False
        """The engine that has it knows the present log, but perhaps not the turns before."""
        self.touched_s = time.monotonic()
        """The last change, or the end of the last turn."""

    @property
    def speaks(self) -> bool:
        return self.turn is not None and not self.paused

    def put_back(self) -> None:
        """The span that waited for the turn to end."""
        span, self.aside = self.aside, array("i")
        self.log.put_span(span)

    @property
    def timed_out(self) -> bool:
        """Not while it has a turn, even a paused one: who reads it would not hear its end."""
        timeout_s = self.opened.timeout_s
        if timeout_s is None or self.turn is not None:
            return False
        return time.monotonic() - self.touched_s >= timeout_s

    def info(self) -> SessionInfo:
        """As no engine has it: without KV."""
        return SessionInfo(
            session=self.opened.session,
            streaming=self.log.history is None,
            state="generating" if self.speaks else "idle",
            length=self.log.length,
            provisional=self.log.provisional,
            committed=0,
            held_pages=0,
            host_pages=0,
            host_tokens=0,
            lost_tokens=self.log.length,
            turn=self.turn if self.speaks else None,
            idle_s=time.monotonic() - self.touched_s,
        )


class Mirror:
    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    # ---- what the engine has answered ---------------------------------------------------------

    def done(self, command: AnyCommand, done: Done, capacity: int) -> None:
        """A command has taken effect. `capacity` is that of a session that sets none."""
        match command:
            case Open() | Attach():
                self._open(command, capacity)
            case ListSessions() | Stats() | Drain() | Ping() | Locate() | Files():
                pass
            case _:
                if record := self._records.get(command.session):
                    self._change(record, command, done)

    def _change(self, record: Record, command: SessionCommand, done: Done) -> None:
        match command:
            case Append(span="provisional") if record.speaks:
                record.aside = array("i", command.ids)
            case Append():
                record.log.append(command)
            case Rewind():
                record.log.rewind(command.to)
            case Generate():
                self._begin(record, command)
            case Pause():
                record.paused = record.turn is not None
                record.put_back()
            case Fork():
                self._fork(record, command, done.length)
            case Close():
                del self._records[command.session]
            case _:
                return
        record.touched_s = time.monotonic()

    def tokens(self, event: Tokens) -> None:
        record = self._records.get(event.session)
        if record is None or record.turn != event.turn:
            return
        if new := event.after(len(record.log.ids) - record.prompt):
            record.log.ids.extend(new.ids)

    def ended(self, event: TurnEnded) -> None:
        """Also of a turn whose words were dropped: then the log is as it was before."""
        record = self._records.get(event.session)
        if record is None:
            return
        if record.paused:
            record.aside = record.log.take_span()
        if event.length < len(record.log.ids):
            record.log.cut(event.length)
        else:
            record.log.turn_ended(event.turn, record.prompt)
        record.turn, record.paused = None, False
        record.touched_s = time.monotonic()
        record.put_back()

    def forget(self, session: str) -> None:
        self._records.pop(session, None)

    # ---- what another engine must be told -------------------------------------------------------

    def attaching(
        self,
        session: str,
        turns: dict[tuple[str, str], Turn],
        *,
        n: int = 0,
        fence: int = 0,
        apart: int = 0,
    ) -> Attach | None:
        """Makes any engine know the session as it is, and go on with its turn if it has one, or
        keep it paused. None: there is no such session."""
        record = self._records.get(session)
        if record is None:
            return None
        record.attached = True
        log = record.log
        turn = turns.get((session, record.turn)) if record.turn is not None else None
        generate = None
        if turn is not None:
            generate = Generate(0, session, turn.id, turn.sampling, log.length - record.prompt)
        return Attach(
            n,
            opened=record.opened,
            ids=log.ids[: log.length].tolist(),
            provisional=(record.aside or log.ids[log.length :]).tolist(),
            generate=generate,
            paused=record.paused,
            apart=apart,
            fence=fence,
        )

    def failing(self, turn: Turn, error: str) -> TurnEnded | None:
        """The end of a turn that no engine will end. None: it has not begun."""
        record = self._records.get(turn.session)
        if record is None or record.turn != turn.id:
            return None
        length = len(record.log.ids)
        return TurnEnded(
            session=turn.session,
            turn=turn.id,
            reason="failed",
            length=length,
            prompt_tokens=record.prompt,
            cached_tokens=0,
            output_tokens=length - record.prompt,
            seed=turn.sampling.seed or 0,
            error=error,
        )

    def go_on(self, session: str) -> bool:
        """Its turn is not paused any more. False: it was not."""
        record = self._records.get(session)
        if record is None or not record.paused:
            return False
        record.paused = False
        return True

    def translated(self, command: SessionCommand) -> SessionCommand:
        """The command as an engine understands it that does not know the session's old turns.
        Raises BadRequest as that engine would have."""
        record = self._records.get(command.session)
        if record is None or not record.attached:
            return command
        if isinstance(command, Generate):
            record.log.check_turn(command.turn)
        if not isinstance(command, Append) or edits(command) is None:
            return command
        base = record.log.base(command)
        if base is None:
            return command
        return Append(command.n, command.session, [*base.ids, *command.ids], replace=True)

    def with_turn(self) -> list[str]:
        """Sessions that an engine should be at work for."""
        return [name for name, record in self._records.items() if record.speaks]

    def timed_out(self) -> list[str]:
        """Sessions that have not been used for as long as they may be."""
        return [name for name, record in self._records.items() if record.timed_out]

    def infos(self) -> list[SessionInfo]:
        """All its sessions, as if no engine had them."""
        return [record.info() for record in self._records.values()]

    def knows(self, session: str) -> bool:
        return session in self._records

    def has_turn(self, session: str) -> bool:
        record = self._records.get(session)
        return record is not None and record.turn is not None

    # ---- inside -----------------------------------------------------------------------------

    def _open(self, command: Open | Attach, capacity: int) -> None:
        opened = command if isinstance(command, Open) else command.opened
        log = Log(opened.capacity_tokens or capacity, streaming=opened.streaming)
        record = self._records[opened.session] = Record(opened, log)
        if isinstance(command, Open):
            return
        record.attached = True
        log.ids.extend(command.ids)
        span = array("i", command.provisional)
        if command.generate is None:
            log.put_span(span)
        else:
            record.aside = span
            record.turn = command.generate.turn
            record.prompt = log.length - command.generate.resumed

    def _begin(self, record: Record, command: Generate) -> None:
        if record.turn != command.turn:
            record.turn = command.turn
            record.aside = record.log.take_span()
            record.prompt = record.log.length

    def _fork(self, parent: Record, command: Fork, length: int) -> None:
        opened = msgspec.structs.replace(parent.opened, session=command.child)
        child = self._records[command.child] = Record(opened, parent.log.fork(length))
        child.attached = parent.attached
