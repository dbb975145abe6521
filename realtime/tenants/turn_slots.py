"""Turn slots: the responses of one tenant that are generated at the same time.

enter ──▶ running ──────────────▶ released
  │          ▲ │ suspended while no client is connected
  └▶ waiting ┘ (first come, first served)

The limits are those of all gateways of one Redis together. Each knows what the others had at the
last exchange. While turns wait at another gateway, this one takes a slot that becomes free only up
to its equal share; else the turns that wait elsewhere would never find one free.
"""

import asyncio
from collections import deque

from continuo.realtime.limits import TenantLimits
from continuo.realtime.store import CountsElsewhere
from continuo.realtime.tenants.ledger import TenantLedger


class TurnSlot:
    """The place of one response: waiting, running or released."""

    def __init__(self, slots: "TurnSlots") -> None:
        self._slots = slots
        self._granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._is_suspended = False

    @property
    def is_waiting(self) -> bool:
        return not self._granted.done()

    async def wait(self) -> bool:
        """Wait for the slot. Returns False if it was released instead."""
        return await asyncio.shield(self._granted)

    def grant(self) -> None:
        self._granted.set_result(True)

    def release(self) -> None:
        """Give the slot to the next response that waits; or leave the queue. Idempotent."""
        if self.is_waiting:
            self._granted.set_result(False)
            self._slots.remove(self)
        elif not self._is_suspended:
            self._slots.end_one(self)

    def suspend(self) -> None:
        """Give the slot away while generation is paused."""
        if not self._is_suspended and not self.is_waiting:
            self._slots.end_one(self)
            self._is_suspended = True

    def resume(self) -> None:
        """Take a slot again, even if all are taken: the response was accepted long ago."""
        if self._is_suspended:
            self._is_suspended = False
            self._slots.start_one(self)


class TurnSlots:
    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._running: set[TurnSlot] = set()
        self._waiting: deque[TurnSlot] = deque()

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def set_limits(self, limits: TenantLimits) -> None:
        """Set the limits of the ledger, and start what waits if they permit it."""
        self._ledger.set_limits(limits)
        self._grant()

    def set_elsewhere(self, counts: CountsElsewhere) -> None:
        """Set what the other gateways have in the ledger, and start what waits here if that permits
        it."""
        self._ledger.elsewhere = counts
        self._grant(is_exchange=True)

    def enter(self, *, is_accepted: bool = False) -> TurnSlot:
        """Take a slot, or a place in the queue. `is_accepted`: the response was accepted before, by
        another gateway, and is never refused. Raises Refusal if the queue is full."""
        slot = TurnSlot(self)
        elsewhere = self._ledger.elsewhere
        running = len(self._running) + elsewhere.running_turns
        waiting = len(self._waiting) + elsewhere.waiting_turns
        if self._has_room() and not self._waiting:
            self.start_one(slot)
            slot.grant()
        elif waiting < self._ledger.limits.waiting_responses_max or is_accepted:
            self._waiting.append(slot)
        else:
            raise self._ledger.refuse_turn(running, waiting)
        return slot

    def start_one(self, slot: TurnSlot) -> None:
        self._running.add(slot)

    def end_one(self, slot: TurnSlot) -> None:
        self._running.discard(slot)
        self._grant()

    def remove(self, slot: TurnSlot) -> None:
        """Remove a slot from the queue."""
        if slot in self._waiting:
            self._waiting.remove(slot)

    def _has_room(self, *, is_exchange: bool = False) -> bool:
        """Return whether a turn may start. `is_exchange`: the counts of the other gateways are new,
        so that a share that is no whole number is rounded up."""
        limit, running = self._ledger.limits.running_responses_max, len(self._running)
        elsewhere = self._ledger.elsewhere
        if not limit:
            return True
        if running + elsewhere.running_turns >= limit:
            return False
        gateways = 1 + elsewhere.gateways
        share = -(-limit // gateways) if is_exchange else limit // gateways
        return not elsewhere.waiting_turns or running < share

    def _grant(self, *, is_exchange: bool = False) -> None:
        while self._waiting and self._has_room(is_exchange=is_exchange):
            slot = self._waiting.popleft()
            self.start_one(slot)
            slot.grant()
