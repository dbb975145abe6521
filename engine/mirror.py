"""Mirror: what the front knows of each session, kept in step with the engine's answers.

The token log is the truth, and KV a cache: when the engine is gone, a session is opened again from
here, at the first command that needs it, and its turn goes on after the last id that arrived.
"""

from array import array

import msgspec

from engine.log import Log, edits
from engine.messages import (
    AnyCommand,
    Append,
    Close,
    Done,
    Fork,
    Generate,
    Open,
    Rewind,
    Tokens,
    TurnEnded,
)
from engine.turn import Turn


class Record:
    """One session: how it was opened, its log, its turn."""

    def __init__(self, opened: Open, log: Log, incarnation: int) -> None:
        self.opened = opened
        self.log = log
        self.aside: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.turn: str | None = None
        self.prompt = 0
        """Length of the log when the turn began."""
        self.incarnation = incarnation
        """Of the engine that has it open."""
        self.reopened = False
        """The engine that has it knows the present log, but not the turns before."""


class Mirror:
    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    # ---- what the engine has answered ---------------------------------------------------------

    def done(self, command: AnyCommand, done: Done, incarnation: int, capacity: int) -> None:
        """A command has taken effect."""
        match command:
            case Open():
                log = Log(command.capacity_tokens or capacity, streaming=command.streaming)
                self._records[command.session] = Record(command, log, incarnation)
            case Append():
                self._records[command.session].log.append(command)
            case Rewind():
                self._records[command.session].log.rewind(command.to)
            case Generate():
                record = self._records[command.session]
                if record.turn != command.turn:
                    record.turn = command.turn
                    record.aside = record.log.take_span()
                    record.prompt = record.log.length
            case Fork():
                self._fork(command, done.length, incarnation)
            case Close():
                self._records.pop(command.session, None)
            case _:
                pass

    def tokens(self, event: Tokens) -> None:
        if record := self._records.get(event.session):
            record.log.ids.extend(event.ids)

    def ended(self, event: TurnEnded) -> None:
        """Also of a turn whose words were dropped: then the log is as it was before."""
        record = self._records.get(event.session)
        if record is None:
            return
        if event.length < len(record.log.ids):
            record.log.cut(event.length)
        else:
            record.log.turn_ended(event.turn, record.prompt)
        span, record.aside = record.aside, array("i")
        record.log.put_span(span)
        record.turn = None

    def expired(self, session: str) -> None:
        self._records.pop(session, None)

    # ---- what another engine must be told -------------------------------------------------------

    def reopening(
        self, session: str, incarnation: int, turns: dict[tuple[str, str], Turn]
    ) -> list[AnyCommand]:
        """Commands that make this incarnation of the engine know the session as it is; none if it
        does. All but the last put the log back; the last goes on with its turn, if it has one."""
        record = self._records.get(session)
        if record is None or record.incarnation == incarnation:
            return []
        record.incarnation = incarnation
        record.reopened = True
        log = record.log
        commands: list[AnyCommand] = [msgspec.structs.replace(record.opened, n=0)]
        firm = list(log.ids[: log.length])
        commands.append(Append(0, session, firm))
        span = list(record.aside or log.ids[log.length :])
        if span:
            commands.append(Append(0, session, span, "provisional"))
        turn = turns.get((session, record.turn)) if record.turn is not None else None
        if turn is not None:
            said = len(log.ids) - record.prompt
            commands.append(Generate(0, session, turn.id, turn.sampling, said))
        return commands

    def translated(self, command: AnyCommand) -> AnyCommand:
        """The command as an engine understands it that does not know the session's old turns.
        Raises BadRequest as that engine would have."""
        if not isinstance(command, Append) or edits(command) is None:
            return command
        record = self._records.get(command.session)
        if record is None or not record.reopened:
            return command
        base = record.log.base(command)
        if base is None:
            return command
        return Append(command.n, command.session, [*base.ids, *command.ids], replace=True)

    def with_turn(self) -> list[str]:
        return [name for name, record in self._records.items() if record.turn is not None]

    # ---- inside -----------------------------------------------------------------------------

    def _fork(self, command: Fork, length: int, incarnation: int) -> None:
        parent = self._records[command.session]
        log = Log(parent.log.capacity, streaming=parent.log.history is None)
        log.ids.extend(parent.log.ids[:length])
        opened = msgspec.structs.replace(parent.opened, session=command.child)
        self._records[command.child] = Record(opened, log, incarnation)
