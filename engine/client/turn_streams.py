"""TurnStreams: the unfinished turns of this client, by session and turn."""

from collections.abc import Callable, Iterator

from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.errors import EngineLost, StaleEngineFence


class TurnStreams:
    """Each stream receives the events of its turn until it ends. Finding those of a session takes
    time in proportion to the turns of that session alone."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[str, TurnStream]] = {}
        """By session, then by turn."""

    def __iter__(self) -> Iterator[TurnStream]:
        """Iterate over all streams, of which some may end meanwhile."""
        return iter([turn for turns in self._streams.values() for turn in turns.values()])

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def find(self, session: str, turn: str) -> TurnStream | None:
        return self._streams.get(session, {}).get(turn)

    def of_session(self, session: str) -> list[TurnStream]:
        return list(self._streams.get(session, {}).values())

    def has_session(self, session: str) -> bool:
        return session in self._streams

    def subscribe(self, turn: TurnStream) -> None:
        """Deliver the events of a turn to this stream. Another stream of the same turn that was
        subscribed before ends with StaleEngineFence."""
        previous = self.find(turn.session, turn.id)
        if previous is not None and previous is not turn:
            previous.put(StaleEngineFence(f"session {turn.session} was taken over"))
        self._streams.setdefault(turn.session, {})[turn.id] = turn

    def unsubscribe(self, turn: TurnStream) -> None:
        """Deliver no more events to this stream, if it was not replaced by another one."""
        turns = self._streams.get(turn.session, {})
        if turns.get(turn.id) is not turn:
            return
        del turns[turn.id]
        if not turns:
            del self._streams[turn.session]

    def end_session(self, session: str, end: Callable[[TurnStream], None]) -> None:
        """Unsubscribe the streams of a session, and end each of them by a call of `end`."""
        for turn in self._streams.pop(session, {}).values():
            end(turn)

    def fail_all(self, error: EngineLost) -> None:
        """End all streams with an error."""
        for turn in self:
            turn.put(error)
        self._streams.clear()
