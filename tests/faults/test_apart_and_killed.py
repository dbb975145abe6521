"""Tests of gateway and engine processes with the bundled model.

Processes are killed, stopped or drained during a response, which must end with the same text.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support import processes
from tests.support.certificates import create_certificate
from tests.support.clients import LONG_RESPONSE, RealtimeClient, open_realtime_session
from tests.support.processes import (
    Process,
    read_engine_address,
    read_gateway_url,
    wait_ready,
)
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.waiting import wait_until

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
        processes.running_engine("--secret-file", secret) as one,
        processes.running_engine("--secret-file", secret) as two,
    ):
        yield [one, two]


@pytest.fixture(scope="module")
def addresses(engines: list[Process]) -> list[str]:
    return [read_engine_address(engine) for engine in engines]


@pytest.fixture
def gateway(addresses: list[str], secret: str) -> Iterator[Process]:
    """Gateway of the first engine."""
    with processes.running_gateway("--engine", addresses[0], "--secret-file", secret) as gateway:
        yield gateway


@pytest.fixture
async def url(gateway: Process) -> str:
    url = await asyncio.to_thread(read_gateway_url, gateway)
    await wait_ready(url)
    return url


@pytest.fixture
async def client(url: str) -> AsyncIterator[RealtimeClient]:
    async with open_realtime_session(url) as client:
        await client.add_message(STORY)
        yield client


async def test_response_resumes_after_its_engine_is_killed(
    client: RealtimeClient, url: str, engines: list[Process]
) -> None:
    text = await client.complete_response(conversation="none", **LONG_RESPONSE)
    for delta in (1, 40):
        response = await client.start_response(conversation="none", **LONG_RESPONSE)
        await client.wait_deltas(delta)
        os.kill(engines[0].children()[0], signal.SIGKILL)
        await wait_ready(url, 503, within_s=5)
        assert await processes.http_status(url, "/health/live") == 200
        assert await client.wait_response(response) == text
        assert "response.interrupted" not in client.received_types, "sent without being requested"
        await wait_ready(url)


async def test_included_response_interrupted_event_is_sent_when_an_engine_dies(
    client: RealtimeClient, url: str, engines: list[Process]
) -> None:
    """`response.interrupted` arrives within 2 s with the offset at which the text continues."""
    text = await client.complete_response(conversation="none", **LONG_RESPONSE)
    session = {"type": "realtime", "include": ["response.interrupted"]}
    await client.send("session.update", session=session)
    updated = await client.wait_for("session.updated")
    assert updated["session"]["include"] == ["response.interrupted"]
    for delta in (1, 40):
        response = await client.start_response(conversation="none", **LONG_RESPONSE)
        await client.wait_deltas(delta)
        os.kill(engines[0].children()[0], signal.SIGKILL)
        event = await client.wait_for("response.interrupted")
        assert event["upto"] == len(client.response_texts[response])
        assert await client.wait_response(response) == text, "the text does not continue at `upto`"
        assert event["response_id"] == response
        (item,) = client.ended_responses[response]["output"]
        assert item["id"] == event["item_id"]
        await wait_ready(url)


async def test_response_resumes_after_its_engine_was_stopped(
    client: RealtimeClient, url: str, engines: list[Process]
) -> None:
    text = await client.complete_response(conversation="none", **LONG_RESPONSE)
    response = await client.start_response(conversation="none", **LONG_RESPONSE)
    await client.wait_deltas(10)
    child = engines[0].children()[0]
    os.kill(child, signal.SIGSTOP)
    try:
        await wait_ready(url, 503, within_s=10)
    finally:
        os.kill(child, signal.SIGCONT)
    assert await client.wait_response(response) == text
    await wait_ready(url)


async def test_gateway_finishes_open_responses_on_sigterm(
    client: RealtimeClient, url: str, gateway: Process
) -> None:
    text = await client.complete_response(conversation="none", **LONG_RESPONSE)
    response = await client.start_response(conversation="none", **LONG_RESPONSE)
    await client.wait_deltas(1)
    async with open_realtime_session(url) as idle:
        gateway.send_signal(signal.SIGTERM)
        assert await idle.wait_close_code() == 1012
    assert await processes.http_status(url, "/health/ready") == 503, "ready while draining"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url)
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"]
    assert await client.wait_response(response) == text
    assert await client.wait_close_code() == 1012
    assert await gateway.wait_exit() == 0


async def test_gateway_exits_at_once_on_a_second_sigterm(
    client: RealtimeClient, gateway: Process
) -> None:
    await client.start_response(**LONG_RESPONSE)
    await client.wait_deltas(1)
    gateway.send_signal(signal.SIGTERM)
    await asyncio.to_thread(gateway.wait_for_output, "(again to stop at once)")
    await asyncio.sleep(0.2)
    gateway.send_signal(signal.SIGTERM)
    assert await gateway.wait_exit() == 1, "a drained gateway exits with 0"


async def test_invalid_options_are_reported(addresses: list[str], tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_text("some other secret of gateways")
    for options, message in (
        ((), "a gateway needs engines"),
        (("--engine", "nowhere"), "--engine nowhere: expected HOST:PORT"),
        (("--engine", addresses[0], "--secret-file", "/none"), "/none: cannot be read"),
    ):
        with processes.running_gateway(*options) as gateway:
            assert await gateway.wait_exit() == 1
            with pytest.raises(AssertionError, match=message):
                gateway.wait_for_output("never")
    with processes.running_gateway("--engine", addresses[0], "--secret-file", str(file)) as gateway:
        assert await asyncio.to_thread(gateway.wait_for_output, "(does not know the shared secret)")
        gateway.send_signal(signal.SIGTERM)
        assert await gateway.wait_exit() == 0
    with processes.running_process("engine", "--listen", "0.0.0.0:0") as engine:
        assert await engine.wait_exit() == 1
        with pytest.raises(AssertionError, match="set --secret-file"):
            engine.wait_for_output("never")


async def test_engine_link_with_tls_requires_a_trusted_certificate(
    secret: str, tmp_path: Path
) -> None:
    """The certificate must be trusted, but may name another host than the address. Neither a
    gateway that does not trust the certificate nor one without TLS gets ready."""
    trusted, key = create_certificate(tmp_path / "ours")
    other, _ = create_certificate(tmp_path / "other")
    tls = ("--ssl-certfile", str(trusted), "--ssl-keyfile", str(key))
    with processes.running_engine("--secret-file", secret, *tls) as engine:
        options = (
            "--engine",
            await asyncio.to_thread(read_engine_address, engine),
            "--secret-file",
            secret,
        )
        with processes.running_gateway(*options, "--engine-cafile", str(trusted)) as gateway:
            url = await asyncio.to_thread(read_gateway_url, gateway)
            await wait_ready(url)
            async with open_realtime_session(url) as client:
                await client.add_message(STORY)
                assert await client.complete_response(max_output_tokens=8)
        with processes.running_gateway(*options, "--engine-cafile", str(other)) as gateway:
            await asyncio.to_thread(gateway.wait_for_output, "(certificate verify failed)")
        with processes.running_gateway(*options) as gateway:
            await asyncio.to_thread(
                gateway.wait_for_output, "(the link was closed before the engine was ready)"
            )
        with processes.running_gateway(*options, "--engine-cafile", "/none") as gateway:
            assert await gateway.wait_exit() == 1
            with pytest.raises(AssertionError, match="--engine-cafile /none: No such file"):
                gateway.wait_for_output("never")


async def test_engine_process_exits_when_its_server_is_killed() -> None:
    with processes.running_process(
        "serve", "--port", "0", "--no-web", "--store", "memory"
    ) as server:
        url = await asyncio.to_thread(read_gateway_url, server)
        async with open_realtime_session(url) as client:
            await client.add_message(STORY)
            await client.start_response(**LONG_RESPONSE)
            await client.wait_deltas(1)
            (engine,) = server.children()
            server.send_signal(signal.SIGKILL)
            await wait_until(lambda pid=engine: not processes.is_running(pid))
            assert await client.wait_close_code() == 1006


@needs_redis
async def test_response_resumes_at_another_gateway_after_a_kill(tmp_path: Path) -> None:
    """The client resumes at the other gateway while the engine still generates the response."""
    redis = RedisProcess(tmp_path)
    await redis.start()
    options = ("--store", redis.url)
    with (
        processes.running_engine(*options),
        processes.running_gateway(*options) as one,
        processes.running_gateway(*options) as two,
    ):
        urls = [await asyncio.to_thread(read_gateway_url, gateway) for gateway in (one, two)]
        for url in urls:
            await wait_ready(url)
        async with open_realtime_session(urls[0]) as client:
            await client.add_message(STORY)
            text = await client.complete_response(conversation="none", **LONG_RESPONSE)
            response = await client.start_response(**LONG_RESPONSE)
            await client.wait_deltas(20)
            one.send_signal(signal.SIGKILL)
            assert await client.wait_close_code() == 1006
            await client.resume(urls[1])
            assert await client.wait_response(response) == text, (
                "text lost or repeated after the takeover"
            )
    redis.stop()


@needs_redis
async def test_engines_announced_in_redis_can_be_drained_one_by_one(tmp_path: Path) -> None:
    """The engine that generates is drained; its sessions continue on the other engine."""
    redis = RedisProcess(tmp_path)
    await redis.start()
    with (
        processes.running_engine("--store", redis.url) as one,
        processes.running_engine("--store", redis.url) as two,
        processes.running_gateway("--store", redis.url) as gateway,
    ):
        engines = {
            await asyncio.to_thread(read_engine_address, engine): engine for engine in (one, two)
        }
        url = await asyncio.to_thread(read_gateway_url, gateway)
        await wait_ready(url)
        store = redis.client()
        async with asyncio.timeout(20):
            while await store.zcard("continuo:engines") < 2:
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # until the gateway has read the announcements again
        async with open_realtime_session(url) as client:
            await client.add_message(STORY)
            text = await client.complete_response(conversation="none", **LONG_RESPONSE)
            response = await client.start_response(**LONG_RESPONSE)
            await client.wait_deltas(2)
            busy = await _busy_engine(store, engines)
            busy.send_signal(signal.SIGTERM)
            assert await client.wait_response(response) == text
            assert await busy.wait_exit() == 0
            assert await processes.http_status(url, "/health/ready") == 200
            await client.add_message("What is 3 plus 4?")
            assert await client.complete_response(max_output_tokens=20)
        await store.aclose()
    redis.stop()


async def _busy_engine(store: Redis, engines: dict[str, Process]) -> Process:
    """Wait for the announcement of an engine with a session. Returns that engine."""
    async with asyncio.timeout(20):
        while True:
            for address, engine in engines.items():
                announcement = await store.get(f"continuo:engine:{address}")
                if announcement and json.loads(announcement)["sessions"]:
                    return engine
            await asyncio.sleep(0.05)
