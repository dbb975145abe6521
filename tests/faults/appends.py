"""F16 to F18: repeated, late and out-of-order client events, and reused item ids."""

import asyncio
from random import Random

from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.row import FaultRow
from tests.support.clients import JsonEvent, RequestRefused, message_item


async def repeat_append(deployment: Deployment, rng: Random) -> None:
    """Send one append ten times at once, reconnect to another gateway, and send it ten times more.

    The repetitions carry the same item id, so the item must be appended exactly once.
    """
    client, expected = (
        deployment.create_client(rng.randrange(2)),
        deployment.expected_conversation(),
    )
    await client.connect()
    for turn in range(2):
        name, text = f"item_{turn}", f"words {rng.random()}"
        message = message_item(text, name)
        sent = [client.send(type="conversation.item.create", item=message) for _ in range(10)]
        await asyncio.gather(*sent)
        if rng.random() < 0.5:
            await client.synchronize()
        await client.reconnect()
        for _ in range(10):
            await client.send(type="conversation.item.create", item=message)
        await client.synchronize()
        assert client.item_ids.count(name) == 1
        expected.add_user_message(text)
        assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await client.close_session()


async def send_out_of_order(deployment: Deployment, rng: Random) -> None:
    """Send events that refer to missing items or responses: each is refused and changes nothing."""
    client, expected = deployment.create_client(), deployment.expected_conversation()
    await client.connect()
    first = await client.add_message("begin")
    expected.add_user_message("begin")
    late = [
        {"type": "conversation.item.delete", "item_id": "item_never"},
        {"type": "conversation.item.truncate", "item_id": "item_never", "content_index": 0}
        | {"audio_end_ms": 0, "text_end": 3},
        {"type": "conversation.item.retrieve", "item_id": "item_never"},
        {"type": "response.cancel"},
        {"type": "conversation.item.create", "item": message_item("b", "item_b")}
        | {"previous_item_id": "item_a"},
        {"type": "input_text_buffer.commit"},
    ]
    for event in rng.sample(late, len(late)):
        await expect_error(client, event)
        if rng.random() < 0.2:
            await client.reconnect()
    assert client.item_ids == [first]
    await client.add_message("a", "item_a")
    await client.send(**late[4])
    await client.synchronize()
    assert client.item_ids == [first, "item_a", "item_b"]
    expected.add_user_message("a")
    expected.add_user_message("b")
    assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await client.close_session()


async def reuse_item_id(deployment: Deployment, rng: Random) -> None:
    """Reuse an item id with other content: an error, and the first item is unchanged."""
    client, expected = deployment.create_client(), deployment.expected_conversation()
    await client.connect()
    await client.add_message("the first words", "item_x")
    expected.add_user_message("the first words")
    for _ in range(3):
        if rng.random() < 0.5:
            await client.reconnect()
        changed = message_item(f"other words {rng.random()}", "item_x")
        code = await expect_error(client, {"type": "conversation.item.create", "item": changed})
        assert code == "item_create_duplicate_item_id"
    assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await client.close_session()


async def expect_error(client: ReconnectingClient, event: JsonEvent) -> str:
    """Send `event`, which must be refused. Returns the code of the error."""
    await client.send(**event)
    try:
        await client.synchronize()
    except RequestRefused as error:
        await client.wait_for("input_audio_buffer.cleared")
        return error.code
    raise AssertionError(f"not refused: {event}")


ROWS = (
    FaultRow(
        id="F16",
        fault="an append sent ten times at once, across reconnects and gateways",
        expectation="applied once",
        environment=running_deployment,
        trial=repeat_append,
        full_trials=1000,
        quick_trials=8,
    ),
    FaultRow(
        id="F17",
        fault="late events, events out of order, events that refer to an unknown item",
        expectation="an error, and nothing changes",
        environment=running_deployment,
        trial=send_out_of_order,
        full_trials=1000,
        quick_trials=8,
    ),
    FaultRow(
        id="F18",
        fault="an item id reused with other content",
        expectation="an error; the first item stays",
        environment=running_deployment,
        trial=reuse_item_id,
        full_trials=100,
        quick_trials=5,
    ),
)
