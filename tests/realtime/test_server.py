"""The web server over real sockets, in this process; the engine is real, its device a fake."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.errors import SetupError
from realtime.server import app, logs
from realtime.server.app import Server, bind, build
from realtime.server.settings import Settings
from tests.support.engines import Bench, digest_engine

KEY = "key-one"


class Running:
    def __init__(self, port: int, server: Server) -> None:
        self.port = port
        self.server = server
        self.url = f"ws://127.0.0.1:{port}/v1/realtime"

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, object]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body)


@contextlib.asynccontextmanager
async def serve(bench: Bench, settings: Settings) -> AsyncIterator[Running]:
    sock = bind("127.0.0.1", 0)
    listening = asyncio.Event()
    server = Server(build(bench.engine, settings), settings, listening.set)
    serving = asyncio.create_task(server.serve([sock]))
    await listening.wait()
    yield Running(sock.getsockname()[1], server)
    server.should_exit = True
    await asyncio.wait_for(serving, 20)


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Running]:
    settings = Settings(tenants={KEY: "default"}, served_model_name=("demo", "alias"))
    async with serve(bench, settings) as running:
        yield running


BEARER = {"Authorization": f"Bearer {KEY}"}


async def closed(socket: ClientConnection) -> int:
    """The code the server closes with, whatever it says before."""
    try:
        while True:
            await first(socket)
    except ConnectionClosed as end:
        return end.rcvd.code if end.rcvd else 1006


async def first(socket: ClientConnection) -> dict[str, object]:
    return json.loads(await asyncio.wait_for(socket.recv(), 20))


# ---------------------------------------------------------------- http


async def test_models(running: Running) -> None:
    status, listed = await running.get("/v1/models", **BEARER)
    assert status == 200
    assert isinstance(listed["data"], list)
    assert [model["id"] for model in listed["data"]] == ["demo", "alias"]
    assert {model["max_model_len"] for model in listed["data"]} == {400}
    status, one = await running.get("/v1/models/alias", **BEARER)
    assert (status, one["id"]) == (200, "alias")
    status, none = await running.get("/v1/models/gpt-9", **BEARER)
    assert status == 404
    assert isinstance(none["error"], dict)
    assert none["error"]["code"] == "model_not_found"


async def test_health_is_for_everyone_and_models_are_not(running: Running) -> None:
    assert await running.get("/health") == (200, {"status": "ok", "engine": "up"})
    for path in ("/v1/models", "/v1/models/demo", "/v1/models/gpt-9"):
        status, denied = await running.get(path)
        assert status == 401
        assert isinstance(denied["error"], dict)
        assert denied["error"]["code"] == "missing_api_key"


# ---------------------------------------------------------------- the handshake


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["realtime"], "realtime"),
        (["realtime", "openai-beta.realtime-v1"], "realtime"),
        (["something-else"], None),
        (None, None),
    ],
)
async def test_the_subprotocol(
    running: Running, offered: list[str] | None, chosen: str | None
) -> None:
    async with connect(running.url, additional_headers=BEARER, subprotocols=offered) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == chosen
        assert (await first(socket))["type"] == "session.created"


async def test_a_browser_shows_its_key_as_a_subprotocol(running: Running) -> None:
    key = f"openai-insecure-api-key.{KEY}"
    async with connect(running.url, subprotocols=["realtime", key]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "realtime"
        assert KEY not in str(socket.response and socket.response.headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**BEARER, "Origin": "https://evil.example"}, 403),
        ({**BEARER, "Origin": "null"}, 403),
    ],
)
async def test_refused_before_the_upgrade(
    running: Running, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(running.url, additional_headers=headers)
    assert caught.value.response.status_code == status


async def test_nothing_is_compressed(running: Running) -> None:
    async with connect(running.url, additional_headers=BEARER, compression="deflate") as socket:
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


async def test_a_model_by_another_name(running: Running) -> None:
    async with connect(f"{running.url}?model=alias", additional_headers=BEARER) as socket:
        session = (await first(socket))["session"]
        assert isinstance(session, dict)
        assert session["model"] == "alias"


# ---------------------------------------------------------------- hostile peers


async def test_half_a_handshake_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HANDSHAKE_S", 0.05)
    async with serve(bench, Settings()) as running:
        half = [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: webso"]
        peers = [await asyncio.open_connection("127.0.0.1", running.port) for _ in half]
        for (_, writer), start in zip(peers, half, strict=True):
            writer.write(start)
        for reader, writer in peers:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()


async def test_a_whole_handshake_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HANDSHAKE_S", 0.05)
    async with serve(bench, Settings()) as running, connect(running.url) as socket:
        await first(socket)
        await asyncio.sleep(0.15)
        await socket.send('{"type": "input_audio_buffer.clear"}')
        assert (await first(socket))["type"] == "input_audio_buffer.cleared"


async def test_listening_sockets_drop_peers_that_do_not_acknowledge() -> None:
    with bind("127.0.0.1", 0) as sock:
        ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert ms == app.USER_TIMEOUT_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_reset_in_the_middle_of_an_answer_frees_everything(
    bench: Bench, running: Running
) -> None:
    socket = await connect(running.url, additional_headers=BEARER)
    await first(socket)
    await socket.send('{"type": "response.create"}')
    while (await first(socket))["type"] != "response.output_text.delta":
        pass
    socket.transport.abort()
    while await bench.engine.list():
        await asyncio.sleep(0.01)
    assert (await bench.engine.stats()).active_turns == 0


async def test_a_fragmented_message_counts_as_one(running: Running) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await socket.send(['{"type": ', '"input_audio_buffer.clear"', "}"])
        assert (await first(socket))["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize(("extra", "code"), [(1024, None), (2 * 1024 * 1024, 1009)])
async def test_frames_over_the_limit(running: Running, extra: int, code: int | None) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        half = "x" * (512 * 1024 + extra // 2)
        with contextlib.suppress(ConnectionClosed):
            await socket.send([half, half])
        if code is None:
            assert (await first(socket))["type"] == "error"
            return
        assert await closed(socket) == code


async def test_invalid_utf8_closes(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers[:]
    logs.configure("warning", ())
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await socket.send(b"\xff\xfe", text=True)
        assert await closed(socket) == 1007
    logging.getLogger().handlers[:] = handlers
    assert "Traceback" not in capsys.readouterr().err


# ---------------------------------------------------------------- start and stop


async def test_stopping_says_restart(bench: Bench) -> None:
    async with serve(bench, Settings()) as running:
        socket = await connect(running.url)
        await first(socket)
        await socket.send('{"type": "response.create"}')
        running.server.should_exit = True
        assert await closed(socket) == 1012
    assert await bench.engine.list() == []


async def test_a_model_that_cannot_converse_is_not_served(letters: object) -> None:
    async with digest_engine(letters) as bench:  # type: ignore[arg-type]
        with pytest.raises(SetupError, match="no chat template"):
            build(bench.engine, Settings())


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SetupError, match="choose another with --port"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(SetupError, match="--host"):
        bind("no such host", 1)
