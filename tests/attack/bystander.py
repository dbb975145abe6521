"""Bystanders: clients of the attacked server, and the same clients of an idle control beside it.

Other processes of the machine delay the control as well, so each time of the server is compared
with that of the control. The times are the 99th percentile and the longest of the responses on open
connections, the longest of the requests on new connections, and the median time to the first token
of an answer.
"""

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Coroutine

import msgspec
from websockets.asyncio.client import connect

from tests.attack.target import BYSTANDER_KEY, Address

PROBE_INTERVAL_S = 0.02
"""Between two probes of a server on an open connection."""
CONNECT_INTERVAL_S = 0.1
"""Between two probes of a server on a new connection."""
RESPONSE_TIMEOUT_S = 60.0
QUESTION, ANSWER = "What is 3 plus 4?", "3 + 4 = 7"


class Observations(msgspec.Struct):
    """Observations of the bystanders of one server. Times are in seconds."""

    probes_s: list[float] = []
    """Response times on open connections."""
    connects_s: list[float] = []
    """From the opening of a connection to the response to its first request."""
    first_tokens_s: list[float] = []
    """From the request of an answer to its first token."""
    answers: int = 0
    longest_answer_s: float = 0.0
    """Longest time from the opening of a connection to the end of the answer to its question."""
    faults: list[str] = []
    """Faults: a response that differs, a connection that ended."""

    @property
    def p99_s(self) -> float:
        return sorted(self.probes_s)[len(self.probes_s) * 99 // 100] if self.probes_s else 0.0

    @property
    def longest_s(self) -> float:
        return max(self.probes_s, default=0.0)

    @property
    def longest_connect_s(self) -> float:
        return max(self.connects_s, default=0.0)

    @property
    def first_token_s(self) -> float:
        return statistics.median(self.first_tokens_s) if self.first_tokens_s else 0.0


class Pair(msgspec.Struct):
    server: Observations
    control: Observations

    @property
    def p99_beyond_s(self) -> float:
        return self.server.p99_s - self.control.p99_s

    @property
    def longest_beyond_s(self) -> float:
        return self.server.longest_s - self.control.longest_s

    @property
    def connect_beyond_s(self) -> float:
        """How much longer the longest request on a new connection took."""
        return self.server.longest_connect_s - self.control.longest_connect_s

    @property
    def stall_s(self) -> float:
        """How much longer the longest response took, on an open or a new connection."""
        return max(self.longest_beyond_s, self.connect_beyond_s)

    @property
    def first_token_ratio(self) -> float:
        control_s = self.control.first_token_s
        return self.server.first_token_s / control_s if control_s else 0.0


async def watch(server: Address, control: Address, seconds: float) -> Pair:
    """Probe both at the same instants over HTTP, over WebSocket and by new connections, and hold
    conversations with both."""
    pair = Pair(Observations(), Observations())
    end_s = time.monotonic() + seconds
    gc.collect()
    gc.freeze()
    gc.disable()
    await asyncio.gather(
        *(
            _guarded(bystander(address, observed, end_s), observed)
            for address, observed in ((server, pair.server), (control, pair.control))
            for bystander in (_probe_http, _probe_websocket, _connect_anew, _converse)
        )
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
        observed.probes_s.append(time.monotonic() - began_s)
        await asyncio.sleep(PROBE_INTERVAL_S)
    writer.close()


async def _connect_anew(address: Address, observed: Observations, end_s: float) -> None:
    while (began_s := time.monotonic()) < end_s:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        await _request_health(reader, writer)
        observed.connects_s.append(time.monotonic() - began_s)
        writer.close()
        await asyncio.sleep(CONNECT_INTERVAL_S)


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
            observed.probes_s.append(time.monotonic() - began_s)
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
                requested_s = time.monotonic()
                await socket.send(json.dumps({"type": "response.create"}))
                text = ""
                async for message in socket:
                    event = json.loads(message)
                    if event["type"] == "response.output_text.delta":
                        if not text:
                            observed.first_tokens_s.append(time.monotonic() - requested_s)
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
