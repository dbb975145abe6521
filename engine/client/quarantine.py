"""Quarantine: sessions whose computation makes engine processes die. Pure.

    deaths of engines with the session in the last step   the session then
    1                                                     goes on as before
    2 or more                                             is a suspect: runs in steps of its own
    3 or more, the last with no other row in the step     is quarantined: is not computed again

The rows of the last step are told by the engine that is started next. Until then, all sessions with
work on the dead engine count; so they do where its record cannot be had, but that quarantines none.
A session is cleared when it has drawn ids after a death, or when its turn has ended.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from continuo.engine.wire.flight_recorder import mark_of
from continuo.engine.wire.messages import Predecessor

SUSPECT_DEATHS = 2
QUARANTINE_DEATHS = 3
WINDOW_S = 600.0
"""Deaths longer ago are no evidence: engines are also killed by other causes."""
PROOF_IDS = 4
"""Ids that a suspect must draw to be cleared. More than one, because those drawn just before a
death were not received. Doubled with each death, so that a search ends however many were lost."""
PROOF_DOUBLINGS_MAX = 16
UNEXPLAINED_MAX = 16
"""Deaths of which the record is awaited; the oldest are given up."""
QUARANTINED_MAX = 1000
"""Names remembered; the oldest are given up, which costs three deaths to learn anew."""


class Scene(NamedTuple):
    """An engine that may have died: its sessions, and those of them that had work."""

    sessions: tuple[str, ...]
    at_work: frozenset[str]


class Case:
    """The evidence against one session."""

    __slots__ = ("deaths", "drawn")

    def __init__(self) -> None:
        self.deaths: dict[str, float] = {}
        """Times of death, in seconds, by incarnation."""
        self.drawn = 0
        """Ids since the last death."""

    def died(self, incarnation: str, now: float) -> None:
        self.deaths = {name: at for name, at in self.deaths.items() if now - at < WINDOW_S}
        self.deaths[incarnation] = now
        self.drawn = 0

    def is_recent(self, now: float) -> bool:
        return any(now - at < WINDOW_S for at in self.deaths.values())

    @property
    def suspect(self) -> bool:
        return len(self.deaths) >= SUSPECT_DEATHS

    @property
    def proof(self) -> int:
        """Ids to draw before it is cleared."""
        more = max(len(self.deaths) - SUSPECT_DEATHS, 0)
        return PROOF_IDS << min(more, PROOF_DOUBLINGS_MAX)


class Quarantine:
    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}
        self._scenes: dict[str, Scene] = {}
        """Deaths that are not explained yet, by incarnation."""
        self._quarantined: dict[str, None] = {}

    # ---- deaths -------------------------------------------------------------------------------

    def lost(
        self, incarnation: str, sessions: Iterable[str], at_work: Collection[str], now: float
    ) -> None:
        """The link to an engine with these sessions is lost."""
        self._scenes[incarnation] = Scene(tuple(sessions), frozenset(at_work))
        while len(self._scenes) > UNEXPLAINED_MAX:
            del self._scenes[next(iter(self._scenes))]
        self._cases = {name: case for name, case in self._cases.items() if case.is_recent(now)}
        for session in at_work:
            self._cases.setdefault(session, Case()).died(incarnation, now)

    def found(self, incarnation: str) -> None:
        """Clear the sessions of an engine that has reconnected: only its link was lost."""
        if scene := self._scenes.pop(incarnation, None):
            for session in scene.at_work:
                self._acquit(session, incarnation)

    def explained(self, died: Predecessor, now: float) -> str | None:
        """The record of an engine that died. Returns the session that is quarantined for it."""
        scene = self._scenes.pop(died.incarnation, None)
        if scene is None:
            return None
        rows = {mark for step in died.steps for mark in step}
        there = {session for session in scene.sessions if mark_of(session) in rows}
        for session in scene.at_work - there:
            self._acquit(session, died.incarnation)
        for session in there - scene.at_work:
            self._cases.setdefault(session, Case()).died(died.incarnation, now)
        if len(rows) != 1 or not there:
            return None
        (session,) = there
        case = self._cases.get(session)
        if case is None or len(case.deaths) < QUARANTINE_DEATHS:
            return None
        self._add(session)
        return session

    def _acquit(self, session: str, incarnation: str) -> None:
        if case := self._cases.get(session):
            case.deaths.pop(incarnation, None)
            if not case.deaths:
                del self._cases[session]

    def _add(self, session: str) -> None:
        del self._cases[session]
        self._quarantined[session] = None
        while len(self._quarantined) > QUARANTINED_MAX:
            del self._quarantined[next(iter(self._quarantined))]

    # ---- what speaks for a session --------------------------------------------------------------

    def drew(self, session: str, ids: int) -> None:
        """Count ids that a session has drawn since the last death."""
        case = self._cases.get(session)
        if case is not None:
            case.drawn += ids
            if case.drawn >= case.proof:
                del self._cases[session]

    def clear(self, session: str) -> None:
        """Clear a session whose turn has ended well, or that was closed."""
        self._cases.pop(session, None)

    def lift(self, session: str) -> None:
        """The name is given to a new session, with an empty log."""
        self._quarantined.pop(session, None)

    # ---- what follows ---------------------------------------------------------------------------

    def __contains__(self, session: str) -> bool:
        return session in self._quarantined

    def ids_apart(self, session: str) -> int:
        """Ids that it must compute in steps of its own; 0: it is no suspect."""
        case = self._cases.get(session)
        return case.proof if case is not None and case.suspect else 0

    def awaits(self, session: str, incarnation: str) -> bool:
        """Whether a suspect should go to no other engine before this one has told its last step."""
        return incarnation in self._scenes and self.ids_apart(session) > 0
