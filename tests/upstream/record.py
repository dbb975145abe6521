"""python -m tests.upstream.record KIND [VERSION]: record replies of a real server as test data.

VERSION: of its package, which is installed once. Default: the one that is tested.

`tests/engine/upstream/test_recorded_replies.py` reads them without the server. The ids of each
completion are recorded a second time by a request without a stream, which leaves none out.
"""

import asyncio
import json
import sys
import tempfile
from array import array
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.errors import RequestRefused
from continuo.engine.upstream.http import NO_HEADERS, REPLY_S, HttpClient, make_error
from continuo.engine.upstream.server import Completion
from continuo.engine.upstream.sse import EventStreamDecoder
from tests.support.processes import ROOT
from tests.upstream.servers import running_server

RECORDED = ROOT / "tests/engine/upstream/recorded"
PROBE = "Ünïcode — 日本語"
CHARACTERS = json.dumps({"const": "日本 ß 😀!"})


class RecordingClient(HttpClient):
    """A client that keeps the replies. Streams are read whole, then decoded."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.replies: list[dict[str, Any]] = []

    async def fetch(
        self, method: str, path: str, body: object = None, timeout_s: float = REPLY_S
    ) -> bytes:
        return await asyncio.to_thread(self._exchange, method, path, body)

    async def stream_events(
        self, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[bytes]:
        reply = await asyncio.to_thread(self._exchange, "POST", path, body)
        for data in EventStreamDecoder().push(reply):
            if data != b"[DONE]":
                yield data

    def _exchange(self, method: str, path: str, body: object) -> bytes:
        request = Request(self.url + path, method=method)
        request.add_header("Content-Type", "application/json")
        request.data = None if body is None else msgspec.json.encode(body)
        try:
            with urlopen(request, timeout=60) as found:
                status, reply = found.status, found.read()
        except HTTPError as error:
            status, reply = error.code, error.read()
        # llama-server names its model by the file's path on this machine.
        text = reply.decode().replace(f"{ROOT}/", "")
        self.replies.append({"method": method, "path": path, "status": status, "body": text})
        if status != 200:
            raise make_error(status, text)
        return reply


def completions(text: ModelText) -> dict[str, Completion]:
    """Return the completions to record, by name."""
    ids = array("i", text.encode("<|user|>Who are you?<|end|><|assistant|>") * 10)
    stops = text.stop_ids
    samplings = {
        "first": Sampling(),
        "cached": Sampling(),
        "end": Sampling(stop_ids=stops),
        "logprobs": Sampling(logprobs=2),
        "sampled": Sampling(temperature=1.0, presence_penalty=0.5, ignore_eos=True),
        "characters": Sampling(grammar=Grammar("json_schema", CHARACTERS), stop_ids=stops),
        "refused": Sampling(),
    }
    lengths = {"end": 100, "characters": 60, "logprobs": 3}
    return {
        name: Completion(
            session="s",
            ids=ids * 300 if name == "refused" else ids,
            sampling=sampling,
            max_tokens=lengths.get(name, 8),
            seed=7,
        )
        for name, sampling in samplings.items()
    }


async def record(url: str, folder: str) -> dict[str, Any]:
    client, text = RecordingClient(url), ModelText(folder)
    server = await detect_server(client, text)
    model = await server.describe()
    await server.measure()
    await server.tokenize(PROBE)
    found: dict[str, Any] = {"kind": server.kind, "version": model.version}
    found["replies"], client.replies = client.replies, []
    found["completions"] = {}
    for name, request in completions(text).items():
        try:
            async for _ in server.generate(request):
                pass
            ids = await asyncio.to_thread(_draw_whole, client, server, request)
        except RequestRefused:
            ids = None
        replies, client.replies = client.replies, []
        found["completions"][name] = {"ids": ids, "reply": replies[0]}
    return found


def _draw_whole(client: RecordingClient, server: Any, request: Completion) -> list[int]:
    """Return the ids of a completion without a stream."""
    if server.kind == "llama-server":
        body = server._encode(request, 0) | {"stream": False, "return_progress": False}
        del body["response_fields"]
        return json.loads(client._exchange("POST", "/completion", body))["tokens"]
    body = server._encode(request) | {"stream": False}
    del body["stream_options"]
    (choice,) = json.loads(client._exchange("POST", "/v1/completions", body))["choices"]
    return choice["token_ids"]


async def main(kind: str, version: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_server(kind, Path(folder), version) as server:
            found = await record(server.url, str(find_local_checkpoint("demo")))
    RECORDED.mkdir(exist_ok=True)
    path = RECORDED / f"{kind}-{server.version.removesuffix('.0.0')}.json"
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
