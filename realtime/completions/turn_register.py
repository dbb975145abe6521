"""TurnRegister: the turns on raw prompts from arrival to end.

    arrive ──▶ earlier turns of its session end ──▶ turn slot ──▶ run ──▶ close
                                     cancelled ────────┴───────────────────▲

An abort finds a turn here wherever it is on its way. A session is busy while it has a turn here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from continuo.engine import Sampling, TurnEnded, TurnStream
from continuo.realtime.generation.observation import ResponseObservation
from continuo.realtime.protocol.response import ResponseStatus, Usage
from continuo.realtime.tenants.turn_slots import TurnSlot

K = TypeVar("K")
StartTurn = Callable[[str], Awaitable[TurnStream]]
"""Starts a turn at the engine, given the W3C trace context of its span."""
_STATUS: dict[str, ResponseStatus] = {
    "stop": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "failed": "failed",
}
"""Status of a response by the reason for the end of its turn."""


class TokenTurn:
    """A turn on a raw prompt."""

    def __init__(
        self,
        tenant: str,
        sampling: Sampling,
        name: str | None = None,
        session: object | None = None,
        after: str | None = None,
    ) -> None:
        """Args:
        tenant: whose turn it is.
        sampling: the sampling parameters, as requested.
        name: id by which its client can abort it; None: it has no id.
        session: the session in which turns run one at a time; None: it is in no session.
        after: name of the turn of the session that it continues.
        """
        self.tenant = tenant
        self.sampling = sampling
        self.name = name
        self.session = session
        self.after = after
        self.start: StartTurn | None = None
        """Starts the turn; None: the request is still examined."""
        self.slot: TurnSlot | None = None
        """The turn slot; None: the turn has not asked for one."""
        self.stream: TurnStream | None = None
        """The turn at the engine; None: it has not started."""
        self.observation: ResponseObservation | None = None
        """Begins with the request for a turn slot."""
        self.settle: Callable[[], Awaitable[None]] | None = None
        """Called when the turn closes, before the next turn of its session begins."""
        self.is_prefill_only = False
        """Whether its output is discarded."""
        self.is_cancelled = False
        self.is_cut = False
        """Whether it was cancelled for another turn, which continues its output so far."""
        self.is_closed = False
        self.changed = asyncio.Event()
        """Set when the turn is cancelled, or another turn of its session has ended."""

    @property
    def ended(self) -> TurnEnded | None:
        return None if self.stream is None else self.stream.ended

    @property
    def status(self) -> ResponseStatus:
        if self.ended is None:
            return "cancelled"
        return _STATUS[self.ended.reason]

    @property
    def last_id(self) -> int | None:
        """The last id that was received."""
        return self.stream.ids[-1] if self.stream is not None and self.stream.ids else None

    @property
    def usage(self) -> Usage:
        """Usage of the turn, so far if it has not ended."""
        if self.stream is None:
            return Usage()
        ended = self.stream.ended
        if ended is None:
            return Usage(input_tokens=self.stream.prompt_tokens, output_tokens=self.stream.received)
        return Usage(
            input_tokens=ended.prompt_tokens,
            cached_tokens=ended.cached_tokens,
            output_tokens=ended.output_tokens,
            queued_s=ended.queued_s,
            prefill_s=ended.prefill_s,
            residency=ended.residency,
            computed_tokens=ended.computed_tokens,
            prefilled_after_commit=ended.prefilled_after_commit,
        )


class TurnRegister:
    def __init__(self) -> None:
        self._of_tenant: dict[str, list[TokenTurn]] = {}
        """The turns of each tenant, in the order of their arrival."""
        self._in_session: dict[object, list[TokenTurn]] = {}
        """The turns of each session, in the order of their arrival."""

    def add(self, turn: TokenTurn) -> None:
        self._of_tenant.setdefault(turn.tenant, []).append(turn)
        if turn.session is not None:
            self._in_session.setdefault(turn.session, []).append(turn)

    def remove(self, turn: TokenTurn) -> None:
        """Remove a turn that has ended, and wake the turns of its session that wait for it."""
        _remove(self._of_tenant, turn.tenant, turn)
        if turn.session is not None:
            _remove(self._in_session, turn.session, turn)
            for other in self.in_session(turn.session):
                other.changed.set()

    def of_tenant(self, tenant: str) -> list[TokenTurn]:
        return list(self._of_tenant.get(tenant, ()))

    def in_session(self, session: object) -> list[TokenTurn]:
        return list(self._in_session.get(session, ()))

    def has_earlier(self, turn: TokenTurn) -> bool:
        """Whether the session of `turn` has a turn that arrived earlier."""
        return turn.session is not None and self._in_session[turn.session][0] is not turn

    async def wait_for_earlier(self, turn: TokenTurn) -> None:
        """Wait until the earlier turns of its session have ended, or `turn` is cancelled."""
        while not turn.is_cancelled and self.has_earlier(turn):
            turn.changed.clear()
            await turn.changed.wait()


def _remove(turns: dict[K, list[TokenTurn]], key: K, turn: TokenTurn) -> None:
    turns[key].remove(turn)
    if not turns[key]:
        del turns[key]
