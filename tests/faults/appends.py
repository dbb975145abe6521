"""F16 to F18: repeated, late and out-of-order client events, and reused item ids."""

import asyncio
from random import Random

from tests.faults.caller import Caller, Refused, item
from tests.faults.deployment import House, house
from tests.faults.row import Row


async def repeated(deployment: House, rng: Random) -> None:
    """Send one append ten times at once, reconnect to another gateway, and send it ten times more.

    The repetitions carry the same item id, so the item must be appended exactly once.
    """
    client, expected = deployment.caller(rng.randrange(2)), deployment.expected()
    await client.connect()
    for turn in range(2):
        name, text = f"item_{turn}", f"words {rng.random()}"
        message = item(name, text)
        sent = [client.send(type="conversation.item.create", item=message) for _ in range(10)]
        await asyncio.gather(*sent)
        if rng.random() < 0.5:
            await client.settle()
        await client.come_back()
        for _ in range(10):
            await client.send(type="conversation.item.create", item=message)
        await client.settle()
        assert client.items.count(name) == 1
        expected.say(text)
        assert await client.answer(max_output_tokens=6) == expected.answer(6)
    await client.leave()


async def out_of_order(deployment: House, rng: Random) -> None:
    """Send events that refer to missing items or responses: each is refused and changes nothing."""
    client, expected = deployment.caller(), deployment.expected()
    await client.connect()
    first = await client.say("begin")
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
    for event in rng.sample(late, len(late)):
        await refused(client, event)
        if rng.random() < 0.2:
            await client.come_back()
    assert client.items == [first]
    await client.say("a", "item_a")
    await client.send(**late[4])
    await client.settle()
    assert client.items == [first, "item_a", "item_b"]
    expected.say("a")
    expected.say("b")
    assert await client.answer(max_output_tokens=6) == expected.answer(6)
    await client.leave()


async def other_words(deployment: House, rng: Random) -> None:
    """Reuse an item id with other content: an error, and the first item is unchanged."""
    client, expected = deployment.caller(), deployment.expected()
    await client.connect()
    await client.say("the first words", "item_x")
    expected.say("the first words")
    for _ in range(3):
        if rng.random() < 0.5:
            await client.come_back()
        changed = item("item_x", f"other words {rng.random()}")
        code = await refused(client, {"type": "conversation.item.create", "item": changed})
        assert code == "item_create_duplicate_item_id"
    assert await client.answer(max_output_tokens=6) == expected.answer(6)
    await client.leave()


async def refused(client: Caller, event: dict[str, object]) -> str:
    """Send `event`, which must be refused. Returns the code of the error."""
    await client.send(**event)
    try:
        await client.settle()
    except Refused as error:
        await client.until("input_audio_buffer.cleared")
        return error.code
    raise AssertionError(f"not refused: {event}")


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
