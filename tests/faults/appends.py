"""F16 to F18: what a client sends twice, late, out of order, or once more with other words."""

import asyncio
from random import Random

from tests.faults.caller import Caller, Refused, item
from tests.faults.deployment import House, house
from tests.faults.row import Row


async def repeated(world: House, chance: Random) -> None:
    """The same append ten times at once, then again over another connection of another gateway."""
    caller, expected = world.caller(chance.randrange(2)), world.expected()
    await caller.connect()
    for turn in range(2):
        name, text = f"item_{turn}", f"words {chance.random()}"
        again = item(name, text)
        sent = [caller.send(type="conversation.item.create", item=again) for _ in range(10)]
        await asyncio.gather(*sent)
        if chance.random() < 0.5:
            await caller.settle()
        await caller.come_back()
        for _ in range(10):
            await caller.send(type="conversation.item.create", item=again)
        await caller.settle()
        assert caller.items.count(name) == 1
        expected.say(text)
        assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.leave()


async def out_of_order(world: House, chance: Random) -> None:
    """What refers to what is not there yet, or not any more, changes nothing."""
    caller, expected = world.caller(), world.expected()
    await caller.connect()
    first = await caller.say("begin")
    expected.say("begin")
    late = [
        {"type": "conversation.item.delete", "item_id": "item_never"},
        {"type": "conversation.item.truncate", "item_id": "item_never", "content_index": 0}
        | {"audio_end_ms": 0, "text_end": 3},
        {"type": "conversation.item.retrieve", "item_id": "item_never"},
        {"type": "response.cancel"},
        {"type": "conversation.item.create", "item": item("item_b", "b")}
        | {"previous_item_id": "item_a"},
        {"type": "input_text_buffer.commit"},
    ]
    for event in chance.sample(late, len(late)):
        await refused(caller, event)
        if chance.random() < 0.2:
            await caller.come_back()
    assert caller.items == [first]
    await caller.say("a", "item_a")
    await caller.send(**late[4])
    await caller.settle()
    assert caller.items == [first, "item_a", "item_b"]
    expected.say("a")
    expected.say("b")
    assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.leave()


async def other_words(world: House, chance: Random) -> None:
    """An id that was used before, with other content: an error, and the first stands."""
    caller, expected = world.caller(), world.expected()
    await caller.connect()
    await caller.say("the first words", "item_x")
    expected.say("the first words")
    for _ in range(3):
        if chance.random() < 0.5:
            await caller.come_back()
        other = item("item_x", f"other words {chance.random()}")
        code = await refused(caller, {"type": "conversation.item.create", "item": other})
        assert code == "item_create_duplicate_item_id"
    assert await caller.answer(max_output_tokens=6) == expected.answer(6)
    await caller.leave()


async def refused(caller: Caller, event: dict[str, object]) -> str:
    """The code of the error."""
    await caller.send(**event)
    try:
        await caller.settle()
    except Refused as error:
        await caller.until("input_audio_buffer.cleared")
        return error.code
    raise AssertionError(f"taken: {event}")


ROWS = (
    Row(
        id="F16",
        fault="an append ten times at once, across reconnects and gateways",
        passes="applied once",
        world=house,
        trial=repeated,
        full=1000,
        few=8,
    ),
    Row(
        id="F17",
        fault="late events, events out of order, events that refer to what never came",
        passes="an error, and nothing has changed",
        world=house,
        trial=out_of_order,
        full=1000,
        few=8,
    ),
    Row(
        id="F18",
        fault="an id used again with other content",
        passes="an error; the first stands",
        world=house,
        trial=other_words,
        full=100,
        few=5,
    ),
)
