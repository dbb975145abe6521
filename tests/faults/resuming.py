"""F19 and F20: concurrent resumes of one session, and resumes at invalid positions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from websockets.exceptions import ConnectionClosed

from continuo.realtime.limits import Limits
from tests.faults.caller import ReconnectingClient
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.row import FaultRow
from tests.support.clients import RequestRefused
from tests.support.waiting import wait_until

RACER_COUNT = 100
RESUME_WINDOW_S = 0.5


async def race_resumes(deployment: Deployment, rng: Random) -> None:
    """Resume one session RACERS times at once at two gateways: exactly one client may write."""
    client, expected = deployment.create_client(), deployment.expected_conversation()
    await client.connect()
    await client.add_message("hello")
    expected.add_user_message("hello")
    racers = [
        _copy_state(client, deployment.create_client(rng.randrange(2))) for _ in range(RACER_COUNT)
    ]
    response = None
    if rng.random() < 0.5:
        response = await client.start_response(max_output_tokens=60)
        racers = [_copy_state(client, racer) for racer in racers]
    await asyncio.gather(*(racer.connect() for racer in racers), return_exceptions=True)
    codes = {racer: asyncio.create_task(racer.wait_close_code()) for racer in [client, *racers]}
    await wait_until(
        lambda: sum(not code.done() for code in codes.values()) <= len(deployment.gateways),
        60,
    )
    remaining = [racer for racer, code in codes.items() if not code.done()]
    receiving = [codes.pop(racer) for racer in remaining]
    for task in receiving:
        task.cancel()
    await asyncio.gather(*receiving, return_exceptions=True)
    assert {code.result() for code in codes.values()} <= {4001}
    # A gateway that has not read the lease since it lost the session may keep a connection open.
    owners = [racer for racer in remaining if await _may_write(racer)]
    assert len(owners) == 1, f"{len(owners)} may write"
    (winner,) = owners
    if response is not None:
        assert await winner.wait_response(response) == expected.compute_response(60)
    await winner.add_message("still there?", "item_owner")
    expected.add_user_message("still there?")
    assert await winner.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await winner.close_session()


async def _may_write(racer: ReconnectingClient) -> bool:
    """Append an item. Returns False if the client is refused as superseded and closed with 4001."""
    try:
        await racer.send_message("still there?", "item_owner")
        while "item_owner" not in racer.item_ids:
            await racer.wait_for("conversation.item.done")
    except (RequestRefused, ConnectionClosed) as error:
        error_code = error.code if isinstance(error, RequestRefused) else "session_replaced"
        close_code = await racer.wait_close_code()
        return (error_code, close_code) != ("session_replaced", 4001)
    return True


def _copy_state(client: ReconnectingClient, racer: ReconnectingClient) -> ReconnectingClient:
    """Give `racer` the session, the resume cursor and the received events of `caller`."""
    racer.session, racer.last_event_id = client.session, client.last_event_id
    racer.item_ids, racer.response_texts = client.item_ids[:], dict(client.response_texts)
    return racer


async def resume_at_invalid_positions(deployment: Deployment, rng: Random) -> None:
    """Resume at an event id of another epoch, of the future or of no event; then after the end."""
    client, expected = (
        deployment.create_client(rng.randrange(2)),
        deployment.expected_conversation(),
    )
    await client.connect()
    await client.add_message("hello")
    expected.add_user_message("hello")
    assert await client.complete_response(max_output_tokens=9) == expected.compute_response(9)
    last = client.last_event_id
    epoch, position = last.split("_")[1], "_".join(last.split("_")[2:])
    invalid_ids = {
        "old epoch": f"event_f{epoch}_{position}",
        "future": f"event_{epoch}_999-.1",
        "future answer": f"event_{epoch}_1_999.0.0.0",
    }
    for name in rng.sample(sorted(invalid_ids), 3):
        await client.disconnect()
        event = await client.connect(last=invalid_ids[name])
        assert event["session"]["resume"]["resumed"] == "snapshot", name
        await client.synchronize()
        assert len(client.item_ids) == 2, "the snapshot is incomplete"
    await client.disconnect()
    last = client.last_event_id
    event = await client.connect(last="event_never")
    assert (event["error"]["code"], await client.wait_close_code()) == ("resume_gap", 1008)
    await client.connect(last=last)
    last = client.last_event_id
    client.urls, session = client.urls[:1], client.session_id
    if rng.random() < 0.5:
        await client.close_session()
        codes = {"session_not_found"}
    else:
        await client.disconnect()
        gateways = deployment.gateways
        await wait_until(
            lambda: not any(session in g.registry.open_sessions.ids for g in gateways), 60
        )
        codes = {"session_expired", "session_not_found"}
    event = await client.connect(last=last)
    assert event["error"]["code"] in codes, event
    assert await client.wait_close_code() == 1008
    await client.disconnect()


@asynccontextmanager
async def deployment_with_short_window(folder: Path) -> AsyncIterator[Deployment]:
    async with running_deployment(
        folder, limits=Limits(resume_window_s=RESUME_WINDOW_S, sweep_interval_s=0.2)
    ) as deployment:
        yield deployment


ROWS = (
    FaultRow(
        id="F19",
        fault=f"{RACER_COUNT} clients resume one session at two gateways at once",
        expectation="one gets it, the others are closed with 4001; the response continues",
        environment=running_deployment,
        trial=race_resumes,
        full_trials=200,
        quick_trials=2,
    ),
    FaultRow(
        id="F20",
        fault="resumes at a position of the past, the future, another epoch; after the "
        "session's end",
        expectation="a snapshot marked as such, or an error and 1008; never a part",
        environment=deployment_with_short_window,
        trial=resume_at_invalid_positions,
        full_trials=200,
        quick_trials=4,
    ),
)
