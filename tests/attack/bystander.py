"""Bystanders: clients of the attacked server, and the same clients of an idle control beside it.

A stall is the longest response time on an open connection. Other processes of the machine delay the
control as well, so a stall of the server is its longest response time less the control's. The time
from a new connection to the end of an answer is measured apart.
"""

import asyncio
import gc
import json
import time
from collections.abc import Coroutine

import msgspec
from websockets.asyncio.client import connect

from tests.attack.target import BYSTANDER_KEY, Address

PROBE_INTERVAL_S = 0.02
"""Between two probes of a server."""
RESPONSE_TIMEOUT_S = 60.0
QUESTION, ANSWER = "What is 3 plus 4?", "3 + 4 = 7"


class Observations(msgspec.Struct):
    """Observations of the bystanders of one server."""

    probes: int = 0
    longest_s: float = 0.0
    slowest_s: list[float] = []
    """The five longest response times in seconds, longest first."""
    answers: int = 0
    longest_answer_s: float = 0.0
    """Longest time from the opening of a connection to the end of the answer to its question."""
    faults: list[str] = []
    """Faults: a response that differs, a connection that ended."""

    def add(self, seconds: float) -> None:
        self.probes += 1
        self.longest_s = max(self.longest_s, seconds)
        self.slowest_s = sorted([*self.slowest_s, seconds], reverse=True)[:5]


class Pair(msgspec.Struct):
    server: Observations
    control: Observations

    @property
    def stall_s(self) -> float:
        return self.server.longest_s - self.control.longest_s


async def watch(server: Address, control: Address, seconds: float) -> Pair:
    """Probe both at the same instants over HTTP and WebSocket, and hold conversations with the
    attacked one.
    """
    pair = Pair(Observations(), Observations())
    end_s = time.monotonic() + seconds
    gc.collect()
    gc.freeze()
    gc.disable()
    await asyncio.gather(
        *(
            _guarded(probe(address, observed, end_s), observed)
            for address, observed in ((server, pair.server), (control, pair.control))
            for probe in (_probe_http, _probe_websocket)
        ),
        _guarded(_converse(server, pair.server, end_s), pair.server),
    )
    return pair


async def _guarded(work: Coroutine[None, None, None], observed: Observations) -> None:
    try:
        await work
    except Exception as error:
        observed.faults.append(f"{type(error).__name__}: {error}")


async def _probe_http(address: Address, observed: Observations, end_s: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    await _request_health(reader, writer)
    while (began_s := time.monotonic()) < end_s:
        await _request_health(reader, writer)
        observed.add(time.monotonic() - began_s)
        await asyncio.sleep(PROBE_INTERVAL_S)
    writer.close()


async def _request_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), RESPONSE_TIMEOUT_S)
    assert head.startswith(b"HTTP/1.1 200 "), head
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(size)


async def _probe_websocket(address: Address, observed: Observations, end_s: float) -> None:
    headers = {"Authorization": f"Bearer {BYSTANDER_KEY}"}
    request = json.dumps({"type": "conversation.item.retrieve", "item_id": "none"})
    async with connect(address.websocket, additional_headers=headers) as socket:
        await socket.recv()
        while (began_s := time.monotonic()) < end_s:
            await socket.send(request)
            event = json.loads(await asyncio.wait_for(socket.recv(), RESPONSE_TIMEOUT_S))
            assert event["type"] == "error", event
            observed.add(time.monotonic() - began_s)
            await asyncio.sleep(PROBE_INTERVAL_S)


async def _converse(address: Address, observed: Observations, end_s: float) -> None:
    """Send a question with a known answer, in a new session each time."""
    headers = {"Authorization": f"Bearer {BYSTANDER_KEY}"}
    part = {"type": "input_text", "text": QUESTION}
    item = {"type": "message", "role": "user", "content": [part]}
    while (began_s := time.monotonic()) < end_s:
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            async with connect(address.websocket, additional_headers=headers) as socket:
                await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await socket.send(json.dumps({"type": "response.create"}))
                text = ""
                async for message in socket:
                    event = json.loads(message)
                    if event["type"] == "response.output_text.delta":
                        text += event["delta"]
                    if event["type"] == "error":
                        observed.faults.append(str(event["error"]["message"]))
                        break
                    if event["type"] == "response.done":
                        break
                if text.strip().rstrip(".") != ANSWER:
                    observed.faults.append(f"answered {text!r}")
                observed.answers += 1
                taken_s = time.monotonic() - began_s
                observed.longest_answer_s = max(observed.longest_answer_s, taken_s)
        await asyncio.sleep(0.2)
