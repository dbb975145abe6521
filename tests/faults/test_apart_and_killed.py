"""Gateways and engines as processes of their own, with the bundled model. Each is killed, stopped
or asked to go in the middle of an answer, which goes on to the same end."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support import processes
from tests.support.certificates import certificate
from tests.support.processes import LONG, Client, Process, address_of, until_ready, url_of
from tests.support.redis_process import RedisProcess, needs_redis

STORY = "Tell me a short story."

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("secret") / "link"
    file.write_text("known to gateways and engines alone")
    return str(file)


@pytest.fixture(scope="module")
def engines(secret: str) -> Iterator[list[Process]]:
    with (
        processes.engine("--secret-file", secret) as one,
        processes.engine("--secret-file", secret) as two,
    ):
        yield [one, two]


@pytest.fixture(scope="module")
def addresses(engines: list[Process]) -> list[str]:
    return [address_of(engine) for engine in engines]


@pytest.fixture
def gateway(addresses: list[str], secret: str) -> Iterator[Process]:
    """Of the first engine."""
    with processes.gateway("--engine", addresses[0], "--secret-file", secret) as gateway:
        yield gateway


@pytest.fixture
async def url(gateway: Process) -> str:
    url = await asyncio.to_thread(url_of, gateway)
    await until_ready(url)
    return url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async for client in processes.talk(url):
        await client.say(STORY)
        yield client


async def test_an_engine_killed_in_an_answer(
    client: Client, url: str, engines: list[Process]
) -> None:
    whole = await client.whole(conversation="none", **LONG)
    for delta in (1, 40):
        await client.ask(conversation="none", **LONG)
        await client.deltas(delta)
        os.kill(engines[0].children()[0], signal.SIGKILL)
        await until_ready(url, 503, within_s=5)
        assert await processes.get(url, "/health/live") == 200
        assert await client.done() == whole
        assert "response.interrupted" not in client.heard, "it has not asked for it"
        await until_ready(url)


async def test_who_wants_to_know_hears_of_it_when_an_engine_dies(
    client: Client, url: str, engines: list[Process]
) -> None:
    """Where the answer stands is said within 2 s; from there it goes on, to the same text."""
    whole = await client.whole(conversation="none", **LONG)
    await client.send(
        type="session.update", session={"type": "realtime", "include": ["response.interrupted"]}
    )
    updated = await client.until(lambda event: event["type"] == "session.updated")
    assert updated["session"]["include"] == ["response.interrupted"]
    for delta in (1, 40):
        await client.ask(conversation="none", **LONG)
        await client.deltas(delta)
        os.kill(engines[0].children()[0], signal.SIGKILL)
        async with asyncio.timeout(2):
            told = await client.until(lambda event: event["type"] == "response.interrupted")
        assert told["upto"] == len(client.text)
        assert await client.done() == whole, "it goes on where it was"
        assert client.last["response"]["id"] == told["response_id"]
        (item,) = client.last["response"]["output"]
        assert item["id"] == told["item_id"]
        await until_ready(url)


async def test_an_engine_that_is_stopped(client: Client, url: str, engines: list[Process]) -> None:
    whole = await client.whole(conversation="none", **LONG)
    await client.ask(conversation="none", **LONG)
    await client.deltas(10)
    child = engines[0].children()[0]
    os.kill(child, signal.SIGSTOP)
    try:
        await until_ready(url, 503, within_s=10)
    finally:
        os.kill(child, signal.SIGCONT)
    assert await client.done() == whole
    await until_ready(url)


async def test_sigterm_lets_the_answer_end(client: Client, url: str, gateway: Process) -> None:
    whole = await client.whole(conversation="none", **LONG)
    await client.ask(conversation="none", **LONG)
    await client.deltas(1)
    async for idle in processes.talk(url):
        gateway.send(signal.SIGTERM)
        assert await idle.close_code() == 1012
    assert await processes.get(url, "/health/ready") == 503, "the other one is answered still"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url)
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"]
    assert await client.done() == whole
    assert await client.close_code() == 1012
    assert await gateway.ended() == 0


async def test_a_second_sigterm_leaves_at_once(client: Client, gateway: Process) -> None:
    await client.ask(**LONG)
    await client.deltas(1)
    gateway.send(signal.SIGTERM)
    await asyncio.to_thread(gateway.until, "(again to stop at once)")
    await asyncio.sleep(0.2)
    gateway.send(signal.SIGTERM)
    before_s = time.monotonic()
    assert await gateway.ended() == 1
    assert time.monotonic() - before_s < 2


async def test_what_is_wrong_is_said(addresses: list[str], tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_text("some other secret of gateways")
    for options, words in (
        ((), "a gateway needs engines"),
        (("--engine", "nowhere"), "--engine nowhere: expected HOST:PORT"),
        (("--engine", addresses[0], "--secret-file", "/none"), "/none: cannot be read"),
    ):
        with processes.gateway(*options) as gateway:
            assert await gateway.ended() == 1
            with pytest.raises(AssertionError, match=words):
                gateway.until("never")
    with processes.gateway("--engine", addresses[0], "--secret-file", str(file)) as gateway:
        assert await asyncio.to_thread(gateway.until, "(does not know the shared secret)")
        gateway.send(signal.SIGTERM)
        assert await gateway.ended() == 0
    with processes.running("engine", "--listen", "0.0.0.0:0") as engine:
        assert await engine.ended() == 1
        with pytest.raises(AssertionError, match="set --secret-file"):
            engine.until("never")


async def test_a_link_with_tls(secret: str, tmp_path: Path) -> None:
    """The engine is told by its certificate, which names another host than is asked for; who is
    signed by nobody that is trusted is told nothing, nor is who speaks no TLS."""
    ours, key = certificate(tmp_path / "ours")
    other, _ = certificate(tmp_path / "other")
    tls = ("--ssl-certfile", str(ours), "--ssl-keyfile", str(key))
    with processes.engine("--secret-file", secret, *tls) as engine:
        named = ("--engine", await asyncio.to_thread(address_of, engine), "--secret-file", secret)
        with processes.gateway(*named, "--engine-cafile", str(ours)) as gateway:
            url = await asyncio.to_thread(url_of, gateway)
            await until_ready(url)
            async for client in processes.talk(url):
                await client.say(STORY)
                assert await client.whole(max_output_tokens=8)
        with processes.gateway(*named, "--engine-cafile", str(other)) as gateway:
            await asyncio.to_thread(gateway.until, "(certificate verify failed)")
        with processes.gateway(*named) as gateway:
            await asyncio.to_thread(
                gateway.until, "(the link was closed before the engine was ready)"
            )
        with processes.gateway(*named, "--engine-cafile", "/none") as gateway:
            assert await gateway.ended() == 1
            with pytest.raises(AssertionError, match="--engine-cafile /none: No such file"):
                gateway.until("never")


async def test_serve_killed_takes_its_engine_with_it() -> None:
    with processes.running("serve", "--port", "0", "--no-web", "--store", "memory") as server:
        url = await asyncio.to_thread(url_of, server)
        async for client in processes.talk(url):
            await client.say(STORY)
            await client.ask(**LONG)
            await client.deltas(1)
            (engine,) = server.children()
            server.send(signal.SIGKILL)
            async with asyncio.timeout(20):
                while processes.is_running(engine):
                    await asyncio.sleep(0.02)
            assert await client.close_code() == 1006


@needs_redis
async def test_a_gateway_killed_in_an_answer(tmp_path: Path) -> None:
    """The client comes back to another one, which goes on with what the engine still says."""
    redis = RedisProcess(tmp_path)
    await redis.start()
    options = ("--store", redis.url)
    with (
        processes.engine(*options),
        processes.gateway(*options) as one,
        processes.gateway(*options) as two,
    ):
        urls = [await asyncio.to_thread(url_of, gateway) for gateway in (one, two)]
        for url in urls:
            await until_ready(url)
        async for client in processes.talk(urls[0]):
            await client.say(STORY)
            whole = await client.whole(conversation="none", **LONG)
            await client.ask(**LONG)
            await client.deltas(20)
            one.send(signal.SIGKILL)
            assert await client.close_code() == 1006
            async with connect(f"{urls[1]}?{client.position}") as socket:
                client.socket = socket
                assert await client.done() == whole, "nothing missing, nothing twice"
    redis.stop()


@needs_redis
async def test_engines_are_found_in_redis_and_leave_in_peace(tmp_path: Path) -> None:
    """Two engines: one is asked to go while it answers, and its sessions go on with the other."""
    redis = RedisProcess(tmp_path)
    await redis.start()
    with (
        processes.engine("--store", redis.url) as one,
        processes.engine("--store", redis.url) as two,
        processes.gateway("--store", redis.url) as gateway,
    ):
        engines = {await asyncio.to_thread(address_of, engine): engine for engine in (one, two)}
        url = await asyncio.to_thread(url_of, gateway)
        await until_ready(url)
        store = redis.client()
        async with asyncio.timeout(20):
            while await store.zcard("continuo:engines") < 2:
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # the gateway has looked again
        async for client in processes.talk(url):
            await client.say(STORY)
            whole = await client.whole(conversation="none", **LONG)
            await client.ask(**LONG)
            await client.deltas(2)
            busy = await _busy(store, engines)
            busy.send(signal.SIGTERM)
            assert await client.done() == whole
            assert await busy.ended() == 0
            assert await processes.get(url, "/health/ready") == 200
            await client.say("What is 3 plus 4?")
            assert await client.whole(max_output_tokens=20)
        await store.aclose()
    redis.stop()


async def _busy(store: Redis, engines: dict[str, Process]) -> Process:
    """The engine that has a session, as it is announced."""
    async with asyncio.timeout(20):
        while True:
            for address, engine in engines.items():
                said = await store.get(f"continuo:engine:{address}")
                if said and json.loads(said)["sessions"]:
                    return engine
            await asyncio.sleep(0.05)
