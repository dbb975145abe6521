"""Strangers on the port of an engine: a gateway connects whatever they do; the log stays short."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.client.connection import LinkSecurity
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.server import listener
from tests.support.certificates import create_certificate
from tests.support.engines import EngineHarness, digest_engine

pytestmark = pytest.mark.process

SECRET = b"a secret of the right length"
WRONG_PROOF = (4).to_bytes(4, "little") + b"junk"


@pytest.fixture
async def harness(letters: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(letters) as harness:
        yield harness


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the PEM files of a certificate and of its key."""
    return create_certificate(tmp_path_factory.mktemp("tls"))


async def listen(harness: EngineHarness, tmp_path: Path, tls: tuple[Path, Path] | None) -> int:
    """Let the engine listen, with a secret. Returns the port."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    return await harness.listen(file, *(tls or ()))


async def check_gateway_connects(port: int, tls: tuple[Path, Path] | None) -> None:
    trust = None
    if tls:
        trust = ssl.create_default_context(cafile=tls[0])
        trust.check_hostname = False
    engine = EngineClient()
    engine.fleet.add("127.0.0.1", port, LinkSecurity(SECRET, trust))
    try:
        async with asyncio.timeout(20):
            await engine.wait_until_ready()
        await engine.open("s")
    finally:
        await engine.stop()


@contextlib.asynccontextmanager
async def strangers(
    port: int, count: int, address: str = "127.0.0.1"
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Open connections from an address of this machine, and close them at the end."""
    opened = [
        await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        for _ in range(count)
    ]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def read_end(reader: asyncio.StreamReader) -> None:
    """Wait until the engine closes a connection."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


@pytest.mark.parametrize("with_tls", [False, True])
async def test_closed_scans_of_a_port_do_not_keep_a_gateway_out(
    harness: EngineHarness, tmp_path: Path, certificate: tuple[Path, Path], with_tls: bool
) -> None:
    tls = certificate if with_tls else None
    port = await listen(harness, tmp_path, tls)
    for _ in range(3 * listener.STRANGERS_MAX):
        async with strangers(port, 1):
            pass
    await check_gateway_connects(port, tls)


@pytest.mark.parametrize("with_tls", [False, True])
async def test_silent_connections_do_not_keep_a_gateway_out(
    harness: EngineHarness, tmp_path: Path, certificate: tuple[Path, Path], with_tls: bool
) -> None:
    tls = certificate if with_tls else None
    port = await listen(harness, tmp_path, tls)
    async with strangers(port, 2 * listener.STRANGERS_MAX):
        await check_gateway_connects(port, tls)


async def test_strangers_of_one_address_do_not_displace_those_of_another(
    harness: EngineHarness, tmp_path: Path
) -> None:
    port = await listen(harness, tmp_path, None)
    async with strangers(port, 1, "127.0.0.2") as [(reader, writer)], strangers(port, 100):
        writer.write(WRONG_PROOF)
        await read_end(reader)


@pytest.mark.parametrize("with_tls", [False, True])
async def test_log_has_one_line_of_hundreds_of_strangers(
    harness: EngineHarness,
    tmp_path: Path,
    certificate: tuple[Path, Path],
    with_tls: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = await listen(harness, tmp_path, certificate if with_tls else None)
    for _ in range(200):
        async with strangers(port, 1) as [(reader, writer)]:
            writer.write(WRONG_PROOF)
            await read_end(reader)
    lines = [record for record in caplog.records if record.name == listener.__name__]
    assert len(lines) == 1
    assert lines[0].getMessage().startswith("refused a client at 127.0.0.1: ")
