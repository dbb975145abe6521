"""F56: strangers crowd the port of an engine, over TLS or not, while gateways connect."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from continuo.engine import EngineClient, LinkSecurity
from tests.faults.cluster import DIGEST_HOST_MODULE, TIMEOUT_FACTOR
from tests.faults.row import FaultRow
from tests.realtime.conftest import chat_folder
from tests.support.certificates import create_certificate
from tests.support.processes import Process, read_engine_address
from tests.support.waiting import wait_until

SECRET = "known to gateways and engines alone"
CROWD = 100
"""Strangers at a time; an engine has places for fewer."""
CROWD_ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
CONNECT_S_MAX = 10.0 * TIMEOUT_FACTOR
LINES_MAX = 2
"""Lines about strangers in the log of an engine: one a minute."""


class Engine(msgspec.Struct):
    process: Process
    address: tuple[str, int]
    security: LinkSecurity
    """Security of the links of its gateways."""


Visit = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def crowd(engines: list[Engine], rng: Random) -> None:
    """Let strangers of a kind come back whenever they are disconnected; a gateway connects."""
    engine, visit = rng.choice(engines), rng.choice([scan, stay_silent, send_junk])
    lines_before = engine.process.output.count("refused a client")
    addresses, visits = CROWD_ADDRESSES[: rng.randint(1, 3)], Counter[Visit]()
    strangers = [
        asyncio.create_task(come_back(visit, engine, addresses[n % len(addresses)], visits))
        for n in range(CROWD)
    ]
    gateway = EngineClient()
    try:
        await wait_until(lambda: visits[visit] >= CROWD * (1 + rng.random()))
        gateway.fleet.add(*engine.address, engine.security)
        async with asyncio.timeout(CONNECT_S_MAX):
            await gateway.wait_until_ready()
        await gateway.open("s")
        await gateway.close("s")
    finally:
        for stranger in strangers:
            stranger.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        await gateway.stop()
    assert engine.process.output.count("refused a client") - lines_before <= LINES_MAX


async def come_back(visit: Visit, engine: Engine, address: str, visits: Counter[Visit]) -> None:
    while True:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection(*engine.address, local_addr=(address, 0))
            visits[visit] += 1
            try:
                await visit(reader, writer)
            finally:
                writer.transport.abort()


async def scan(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection at once."""


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def send_junk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((4).to_bytes(4, "little") + b"junk")
    await reader.read()


@asynccontextmanager
async def engines_with_and_without_tls(folder: Path) -> AsyncIterator[list[Engine]]:
    certificate, key = create_certificate(folder / "tls")
    (folder / "secret").write_text(SECRET)
    (folder / "words").mkdir()
    trust = ssl.create_default_context(cafile=certificate)
    trust.check_hostname = False
    model = str(chat_folder(folder / "words"))
    common = ("--listen", "127.0.0.1:0", "--model", model, "--secret-file", str(folder / "secret"))
    with contextlib.ExitStack() as stack:
        engines: list[Engine] = []
        files = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
        for tls, options in ((None, ()), (trust, files)):
            process = Process("engine", *common, *options, module=DIGEST_HOST_MODULE)
            stack.callback(process.stop)
            host, port = (await asyncio.to_thread(read_engine_address, process)).split(":")
            security = LinkSecurity(SECRET.encode(), tls)
            engines.append(Engine(process, (host, int(port)), security))
        yield engines


ROWS = (
    FaultRow(
        id="F56",
        fault="a hundred strangers of one to three addresses at the port of an engine, with TLS "
        "or not, which close, stay silent or send junk, and come back when they are disconnected",
        expectation="a gateway at another address connects meanwhile and opens a session; the "
        "engine's log has one line a minute about all of them",
        environment=engines_with_and_without_tls,
        trial=crowd,
        full_trials=50,
        quick_trials=2,
    ),
)
