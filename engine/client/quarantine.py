"""Quarantine: sessions whose computation makes engine processes die. Pure.

    engine deaths with the session in the last step     consequence for the session
    1                                                   none
    2 or more                                           suspect: runs in steps without other rows
    3 or more, the last with no other row in the step   quarantined: is not computed again

The engine process that is started next reports the flight record of the dead one, which lists the
rows of its last step. Until then, and if the record is lost, the death counts against all sessions
with work on the dead engine; without a record no session is quarantined. A session is cleared of
suspicion when enough ids have been drawn for it since the last death, or when its turn has ended.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from continuo.engine.wire.flight_recorder import hash_session_id
from continuo.engine.wire.messages import Predecessor

SUSPECT_DEATHS = 2
QUARANTINE_DEATHS = 3
EVIDENCE_WINDOW_S = 600.0
"""Seconds for which an engine death counts against a session. Older deaths are no evidence, because
engines also die from other causes."""
IDS_TO_CLEAR = 4
"""Number of token ids that must be drawn for a session after an engine death to clear the session
of suspicion. Doubled with each death beyond SUSPECT_DEATHS.

Ids that were drawn just before the death may be lost with the engine; the session first repeats
these on the next engine. Only ids after them show that the session does not make the engine die
again. The number of lost ids is unknown, but repeated doubling exceeds it."""
IDS_TO_CLEAR_DOUBLINGS_MAX = 16
UNEXPLAINED_LOSSES_MAX = 16
"""Maximum number of engine losses whose flight record is awaited; the oldest is discarded first."""
QUARANTINED_MAX = 1000
"""Maximum number of quarantined sessions. The oldest is discarded first; to be quarantined again,
it would have to cause QUARANTINE_DEATHS more deaths."""


class EngineLoss(NamedTuple):
    """Loss of the link to an engine, which may have died: the sessions placed on that engine, and
    those of them that had work."""

    sessions: tuple[str, ...]
    busy_sessions: frozenset[str]


class CrashEvidence:
    """Engine deaths that count against one session, and the ids it has drawn since."""

    __slots__ = ("deaths", "ids_drawn")

    def __init__(self) -> None:
        self.deaths: dict[str, float] = {}
        """Time of each death, in seconds, by the incarnation of the engine."""
        self.ids_drawn = 0
        """Number of token ids drawn for the session since the last of `deaths`."""

    def add_death(self, incarnation: str, now: float) -> None:
        self.deaths = {name: at for name, at in self.deaths.items() if now - at < EVIDENCE_WINDOW_S}
        self.deaths[incarnation] = now
        self.ids_drawn = 0

    def is_recent(self, now: float) -> bool:
        return any(now - at < EVIDENCE_WINDOW_S for at in self.deaths.values())

    @property
    def is_suspect(self) -> bool:
        return len(self.deaths) >= SUSPECT_DEATHS

    @property
    def ids_to_clear(self) -> int:
        """Value of `ids_drawn` at which the session is cleared of suspicion."""
        more = max(len(self.deaths) - SUSPECT_DEATHS, 0)
        return IDS_TO_CLEAR << min(more, IDS_TO_CLEAR_DOUBLINGS_MAX)


class Quarantine:
    def __init__(self) -> None:
        self._evidence: dict[str, CrashEvidence] = {}
        self._losses: dict[str, EngineLoss] = {}
        """Engine losses whose flight record has not been received, by incarnation."""
        self._quarantined: dict[str, None] = {}

    # ---- deaths -------------------------------------------------------------------------------

    def record_loss(
        self, incarnation: str, sessions: Iterable[str], busy_sessions: Collection[str], now: float
    ) -> None:
        """Record that the link to an engine with these sessions is lost. A death of the engine
        counts against `busy_sessions`, those with work, until its flight record is received."""
        self._losses[incarnation] = EngineLoss(tuple(sessions), frozenset(busy_sessions))
        while len(self._losses) > UNEXPLAINED_LOSSES_MAX:
            del self._losses[next(iter(self._losses))]
        self._evidence = {
            name: evidence for name, evidence in self._evidence.items() if evidence.is_recent(now)
        }
        for session in busy_sessions:
            self._evidence.setdefault(session, CrashEvidence()).add_death(incarnation, now)

    def record_reconnect(self, incarnation: str) -> None:
        """Withdraw the death of an engine that has reconnected, because only its link was lost."""
        if loss := self._losses.pop(incarnation, None):
            for session in loss.busy_sessions:
                self._remove_death(session, incarnation)

    def attribute_crash(self, predecessor: Predecessor, now: float) -> str | None:
        """Evaluate the flight record of an engine that has died: its death then counts only against
        the sessions in its last step. Returns the session that is quarantined as a result, or
        None."""
        loss = self._losses.pop(predecessor.incarnation, None)
        if loss is None:
            return None
        rows = {mark for step in predecessor.steps for mark in step}
        in_last_step = {session for session in loss.sessions if hash_session_id(session) in rows}
        for session in loss.busy_sessions - in_last_step:
            self._remove_death(session, predecessor.incarnation)
        for session in in_last_step - loss.busy_sessions:
            self._evidence.setdefault(session, CrashEvidence()).add_death(
                predecessor.incarnation, now
            )
        if len(rows) != 1 or not in_last_step:
            return None
        (session,) = in_last_step
        evidence = self._evidence.get(session)
        if evidence is None or len(evidence.deaths) < QUARANTINE_DEATHS:
            return None
        self._quarantine(session)
        return session

    def _remove_death(self, session: str, incarnation: str) -> None:
        if evidence := self._evidence.get(session):
            evidence.deaths.pop(incarnation, None)
            if not evidence.deaths:
                del self._evidence[session]

    def _quarantine(self, session: str) -> None:
        del self._evidence[session]
        self._quarantined[session] = None
        while len(self._quarantined) > QUARANTINED_MAX:
            del self._quarantined[next(iter(self._quarantined))]

    # ---- clearing -------------------------------------------------------------------------------

    def count_drawn(self, session: str, ids: int) -> None:
        """Count ids drawn for a session, and clear the session of suspicion when `ids_to_clear` are
        reached."""
        evidence = self._evidence.get(session)
        if evidence is not None:
            evidence.ids_drawn += ids
            if evidence.ids_drawn >= evidence.ids_to_clear:
                del self._evidence[session]

    def clear(self, session: str) -> None:
        """Withdraw all deaths that count against a session, because its turn has ended normally, or
        because this client no longer has the session."""
        self._evidence.pop(session, None)

    def release(self, session: str) -> None:
        """Release a session id from quarantine because a new session with an empty log is opened
        under it."""
        self._quarantined.pop(session, None)

    # ---- consequences ---------------------------------------------------------------------------

    def __contains__(self, session: str) -> bool:
        return session in self._quarantined

    def isolated_ids(self, session: str) -> int:
        """Return for how many ids after its current log a suspect must be computed in steps without
        other rows. Returns 0 for a session that is no suspect."""
        evidence = self._evidence.get(session)
        return evidence.ids_to_clear if evidence is not None and evidence.is_suspect else 0

    def must_wait_for(self, session: str, incarnation: str) -> bool:
        """Return whether a session is a suspect that must not be placed before the flight record of
        this lost engine is received."""
        return incarnation in self._losses and self.isolated_ids(session) > 0
