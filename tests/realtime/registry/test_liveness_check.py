"""Who wants a session that another connection has is asked whether it is still there: a gateway
that slept may be handed a wish that was given up long ago."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.realtime.registry.test_takeover import gates
from tests.support.engines import Bench
from tests.support.frames import CLOSE, PING, PONG, Peer, frame
from tests.support.resuming import Client
from tests.support.sessions import Ears
from tests.support.web_servers import Running, closed, serve

__all__ = ["gates"]
LIMITS = Limits(liveness_timeout_s=0.3)


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Running]:
    async with serve(bench, GatewaySettings(limits=LIMITS)) as running:
        yield running


@contextlib.asynccontextmanager
async def talking(running: Running) -> AsyncIterator[tuple[ClientConnection, str]]:
    async with connect(running.url) as socket:
        created = json.loads(await socket.recv())
        yield socket, created["session"]["id"]


async def say(socket: ClientConnection, name: str) -> None:
    """Returns when it is accepted: the session is here."""
    await socket.send(item(name))
    while json.loads(await asyncio.wait_for(socket.recv(), 20))["type"] != ITEM_DONE:
        pass


ITEM_DONE = "conversation.item.done"


def item(name: str) -> str:
    content = [{"type": "input_text", "text": "hello"}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    return json.dumps({"type": "conversation.item.create", "item": item})


async def wish(running: Running, name: str) -> Peer:
    return await Peer.connect(running.port, path=f"/v1/realtime?session_id={name}")


async def test_who_does_not_answer_takes_nothing(running: Running) -> None:
    async with talking(running) as (socket, name):
        await say(socket, "u1")
        silent = await wish(running, name)
        asked = await silent.recv()
        assert asked is not None
        assert asked.opcode == PING
        said = await silent.recv()
        assert said is not None
        told = json.loads(said.payload)
        assert (told["type"], told["error"]["code"]) == ("error", "connection_lost")
        assert await silent.close_code() == 1013
        silent.close()
        await say(socket, "u2")


@pytest.mark.parametrize("reset", [False, True])
async def test_who_has_gone_takes_nothing(running: Running, reset: bool) -> None:
    async with talking(running) as (socket, name):
        await say(socket, "u1")
        gone = await wish(running, name)
        gone.reset() if reset else gone.close()
        while len(running.server.server_state.tasks) > 1:
            await asyncio.sleep(0.01)
        await say(socket, "u2")


async def test_who_answers_has_it(running: Running) -> None:
    """Also where it has said something before it is asked; what it said is not lost."""
    async with talking(running) as (socket, name):
        await say(socket, "u1")
        back = await wish(running, name)
        await back.send(frame(item("u2")))
        asked = await back.recv()
        assert asked is not None
        assert asked.opcode == PING
        await back.send(frame(item("u3")), frame(asked.payload, PONG))
        heard = [await back.event() for _ in range(7)]
        assert [event["type"] for event in heard[:1]] == ["session.updated"]
        done = [event["item"]["id"] for event in heard if event["type"] == ITEM_DONE]
        assert done == ["u1", "u2", "u3"]
        assert await closed(socket) == 4001
        await back.send(frame(opcode=CLOSE))
        back.close()


async def test_of_a_session_that_waits_nobody_is_asked(running: Running) -> None:
    async with talking(running) as (socket, name):
        await say(socket, "u1")
    while len(running.registry):
        await asyncio.sleep(0.01)
    back = await wish(running, name)
    first = await back.recv()
    assert first is not None
    assert json.loads(first.payload)["type"] == "session.updated"
    back.close()


async def test_what_has_changed_hands_while_it_was_asked_is_asked_for_again(
    gates: tuple[Registry, Registry],
) -> None:
    """A client gives one gateway up while that asks it, and comes back at the other."""
    client = Client(gates[0])
    client.connect()
    client.say("u1", "hello")
    await client.socket.until(ITEM_DONE)
    client.take()
    asked: list[str] = []

    async def there() -> bool:
        asked.append("there?")
        if len(asked) > 1:
            return False
        client.registry = gates[1]
        client.resume()
        await client.socket.until("session.updated")
        return True

    wish = ResumeRequest(client.session_id, client.seen[-1]["event_id"])
    for gate in gates:
        asked.clear()
        with pytest.raises(Refusal) as refused:
            await gate.resume(wish, Ears(), Credentials(), lambda code, reason: None, there)
        assert refused.value.code == "connection_lost"
        assert len(asked) == 2
    client.say("u2", "hello")
    await client.socket.until(ITEM_DONE)
    assert client.socket.closed is None
    await client.drop()
