"""Turn slots of one tenant: order, bounds, pauses."""

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TenantLimits
from continuo.realtime.store import CountsElsewhere
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.turn_slots import TurnSlot, TurnSlots


def slots_of(running: int, waiting: int = 2) -> TurnSlots:
    slots = TurnSlots(TenantLedger("acme"))
    slots.set_limits(TenantLimits(running_responses_max=running, waiting_responses_max=waiting))
    return slots


def states(*slots: TurnSlot) -> list[bool]:
    return [slot.is_waiting for slot in slots]


async def test_turns_above_the_limit_wait_in_order_and_then_are_refused() -> None:
    slots = slots_of(2)
    one, two, three, four = (slots.enter() for _ in range(4))
    assert states(one, two, three, four) == [False, False, True, True]
    with pytest.raises(Refusal, match="2 responses in generation and 2 waiting; the limits are 2 "):
        slots.enter()
    resumed = slots.enter(is_accepted=True)
    two.release()
    two.release()
    assert states(three, four, resumed) == [False, True, True]
    four.release()
    assert not await four.wait()
    one.release()
    assert await resumed.wait()
    assert (slots.running_count, slots.waiting_count) == (2, 0)


async def test_without_a_limit_no_turn_waits() -> None:
    slots = slots_of(0, 0)
    turns = [slots.enter() for _ in range(100)]
    assert not any(states(*turns))
    assert slots.running_count == 100


async def test_paused_turn_gives_its_slot_away_and_takes_one_again() -> None:
    slots = slots_of(1)
    one, two, three = (slots.enter() for _ in range(3))
    one.suspend()
    one.suspend()
    assert states(two, three) == [False, True]
    one.resume()
    assert slots.running_count == 2, "over the limit: it was accepted long ago"
    two.release()
    assert states(three) == [True]
    one.release()
    assert states(three) == [False]
    three.suspend()
    three.release()
    assert (slots.running_count, slots.waiting_count) == (0, 0)


async def test_higher_limit_lets_waiting_turns_begin() -> None:
    slots = slots_of(1)
    turns = [slots.enter() for _ in range(3)]
    slots.set_limits(TenantLimits(running_responses_max=2))
    assert states(*turns) == [False, False, True]
    slots.set_limits(TenantLimits())
    assert states(*turns) == [False, False, False]


def elsewhere(running: int, waiting: int = 0, gateways: int = 1) -> CountsElsewhere:
    return CountsElsewhere(running_turns=running, waiting_turns=waiting, gateways=gateways)


async def test_turns_at_other_gateways_count() -> None:
    slots = slots_of(3)
    slots.set_elsewhere(elsewhere(2))
    turns = [slots.enter() for _ in range(2)]
    assert states(*turns) == [False, True]
    slots.set_elsewhere(elsewhere(2, waiting=1))
    with pytest.raises(Refusal, match="3 responses in generation and 2 waiting; the limits are 3 "):
        slots.enter()
    slots.set_elsewhere(elsewhere(1))
    assert states(*turns) == [False, False]


async def test_freed_slot_is_left_to_turns_that_wait_elsewhere_above_the_equal_share() -> None:
    slots = slots_of(4, 10)
    turns = [slots.enter() for _ in range(8)]
    slots.set_elsewhere(elsewhere(0, waiting=5))
    turns[0].release()
    turns[1].release()
    assert slots.running_count == 2, "two of four are for the other gateway"
    slots.set_elsewhere(elsewhere(2, waiting=3))
    turns[2].release()
    assert slots.running_count == 2, "below the share it goes on"
    slots.set_elsewhere(elsewhere(2))
    turns[3].release()
    assert slots.running_count == 2
    slots.set_elsewhere(elsewhere(1))
    assert slots.running_count == 3, "nothing waits elsewhere"


async def test_one_slot_is_shared_by_several_gateways() -> None:
    """Neither keeps it for ever: a slot that becomes free is taken at an exchange only."""
    gateways = [slots_of(1, 100) for _ in range(3)]

    def exchange(at: int) -> None:
        others = [slots for n, slots in enumerate(gateways) if n != at]
        running = sum(slots.running_count for slots in others)
        waiting = sum(slots.waiting_count for slots in others)
        busy = sum(slots.running_count + slots.waiting_count > 0 for slots in others)
        gateways[at].set_elsewhere(CountsElsewhere(0, running, waiting, busy))

    served = [0, 0, 0]
    queued = [[slots.enter() for _ in range(30)] for slots in gateways[:1]]
    for at in (0, 1, 2):
        exchange(at)
    queued += [[slots.enter() for _ in range(30)] for slots in gateways[1:]]
    for at in (0, 1, 2):
        exchange(at)
    for step in range(60):
        assert sum(slots.running_count for slots in gateways) <= 1
        for at, turns in enumerate(queued):
            running = next((turn for turn in turns if not turn.is_waiting), None)
            if running is not None:
                running.release()
                turns.remove(running)
                served[at] += 1
        for offset in range(3):
            exchange((step + offset) % 3)
    assert min(served) >= 15, served
