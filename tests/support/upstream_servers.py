"""Fakes of vLLM and llama-server: real HTTP servers that draw the ids of the null device.

Above temperature 0 the next id depends on the seed and on how many ids the request has drawn, so
that a turn that is continued by another request draws other ids, as on the real servers. Their
caches are as there: whole blocks of a prefix within one salt, and the ids of one slot. A test
queues faults, of which each request for a completion takes one.
"""

import asyncio
import contextlib
import json
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from continuo.engine.batch import SampleParams
from continuo.engine.core.turn import uniform
from continuo.engine.sampling import Sampling
from tests.support.digest_runner import VOCABULARY, draw_id, extend_digest, oracle
from tests.support.waiting import wait_until

EOS = 0


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one request for a completion."""

    status: int = 200
    """Status of a reply without a stream."""
    message: str = "out of order"
    cut_after: int | None = None
    """Ids after which the connection is cut."""
    fail_after: int | None = None
    """Ids after which the stream has an error of code `status`, or 500."""
    other_ids: bool = False
    """Whether other ids are drawn than without the fault."""
    pause_after: int | None = None
    """Ids after which the stream waits until `FakeServer.resume`."""
    lost: tuple[int, ...] = ()
    """Indexes of ids that are drawn and not sent, nor any text of them (llama-server)."""
    slot: int | None = None
    """Slot that is used instead of the requested one (llama-server)."""


NO_FAULT = Fault()


class Cut(Exception):
    """Raised in a reply, which makes uvicorn close the connection."""


def complete(prompt: Sequence[int], count: int, seed: int | None = None) -> list[int]:
    """Return the ids that follow a prompt, `count` or up to EOS. `seed`: None if greedy."""
    sampling = Sampling(temperature=0.0 if seed is None else 1.0)
    return oracle(prompt, count, (EOS,), sampling=sampling, seed=seed or 0)


class FakeServer(ABC):
    """A server with one model. `requests` has the body of each request for a completion."""

    def __init__(self, context_tokens: int = 1000) -> None:
        self.context_tokens = context_tokens
        self.make_ids: Callable[[str], list[int]] = lambda text: list(text.encode())
        """The tokenizer; an id for each byte."""
        self.vocab_size = VOCABULARY
        """Number of ids that the server reports; all that are drawn are below VOCABULARY."""
        self.end_ids: frozenset[int] = frozenset((EOS,))
        """Ids that end every completion of llama-server unless `ignore_eos` bans them."""
        self.step_s = 0.0
        """Seconds that each id takes."""
        self.faults: deque[Fault] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = 0
        """Completions whose connection was closed before their end."""
        self.finished = 0
        self.prefills = 0
        """Requests that compute a prompt ahead; they take no faults."""
        self.running = 0
        self.api_key: str | None = None
        self.model_name = "m"
        self.deadly_id: int | None = None
        """Id whose prompts crash the server: they and all completions that run are cut."""
        self.crashes = 0
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        """Let streams that are paused continue, and later ones not pause."""
        self._resumed.set()

    @abstractmethod
    def routes(self) -> list[Route]: ...

    @abstractmethod
    def is_prefill(self, body: dict[str, Any]) -> bool: ...

    @abstractmethod
    def stream(self, body: dict[str, Any], fault: Fault) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a completion."""

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        is_prefill = self.is_prefill(body)
        self.prefills += is_prefill
        fault = self.faults.popleft() if self.faults and not is_prefill else NO_FAULT
        if refusal := self.refuse(request, body, fault):
            return refusal
        return StreamingResponse(self._encode(body, fault), media_type="text/event-stream")

    def refuse(self, request: Request, body: dict[str, Any], fault: Fault) -> Response | None:
        if refusal := self.check_key(request):
            return refusal
        if fault.status != 200 and fault.fail_after is None:
            return self.error(fault.status, fault.message)
        if len(body["prompt"]) >= self.context_tokens:
            return self.error(400, f"the prompt exceeds the context of {self.context_tokens}")
        return None

    def check_key(self, request: Request) -> Response | None:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return self.error(401, "invalid API key")
        return None

    def error(self, status: int, message: str) -> Response:
        error = {"message": message, "type": "error", "code": status}
        return JSONResponse({"error": error}, status)

    async def _encode(self, body: dict[str, Any], fault: Fault) -> AsyncGenerator[bytes]:
        self.running += 1
        try:
            async with contextlib.aclosing(self.stream(body, fault)) as events:
                async for event in events:
                    yield b"data: " + json.dumps(event).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"
            self.finished += 1
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def drawn_ids(
        self, body: dict[str, Any], count: int, stops: frozenset[int], fault: Fault
    ) -> AsyncGenerator[int]:
        """Yield the ids of a completion, with the faults that all servers have."""
        past = b"other" if fault.other_ids else b""
        for id in body["prompt"]:
            past = extend_digest(past, id)
        sampling, last, crashes = Sampling(temperature=body["temperature"]), -1, self.crashes
        if self.deadly_id in body["prompt"]:
            self.crashes += 1
        for drawn in range(count + 1):
            if drawn == fault.pause_after:
                await self._resumed.wait()
            if drawn == fault.cut_after or self.crashes > crashes:
                raise Cut
            if drawn == fault.fail_after:
                raise FakeError(fault.status if fault.status != 200 else 500, fault.message)
            if drawn == count or last in stops:
                return
            last = draw_id(past, SampleParams(sampling, uniform(body["seed"], drawn)))
            past = extend_digest(past, last)
            yield last
            await asyncio.sleep(self.step_s)


class FakeError(Exception):
    """Raised in a stream, which sends the error as its last event."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.event = {"error": {"message": message, "type": "error", "code": code}}


class FakeVllm(FakeServer):
    """`/v1/completions` and what else is asked of vLLM 0.32."""

    def __init__(self, context_tokens: int = 1000, block_tokens: int = 4) -> None:
        super().__init__(context_tokens)
        self.block_tokens = block_tokens
        self.has_priorities = True
        self.has_metrics = True
        self.owner = "vllm"
        self._cached: dict[str | None, list[list[int]]] = {}
        """Prompts and their output, by salt."""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        if refusal := self.check_key(request):
            return refusal
        model = {
            "id": self.model_name,
            "owned_by": self.owner,
            "max_model_len": self.context_tokens,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        return Response()

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": "0.32.0"})

    async def metrics(self, request: Request) -> Response:
        if not self.has_metrics:
            return self.error(404, "Not Found")
        return PlainTextResponse(
            "# TYPE vllm:cache_config_info gauge\n"
            f'vllm:cache_config_info{{block_size="{self.block_tokens}",engine="0",'
            'num_gpu_blocks="50",other="None"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            f'vllm:num_requests_running{{engine="0"}} {self.running:.1f}\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
        )

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"tokens": self.make_ids(body["prompt"]), "count": 1})

    def refuse(self, request: Request, body: dict[str, Any], fault: Fault) -> Response | None:
        if body["max_tokens"] < 1:
            return self.error(400, "max_tokens must be at least 1")
        if body.get("priority") and not self.has_priorities:
            message = f"Got priority {body['priority']} but Priority scheduling is not enabled."
            return self.error(400, message)
        return super().refuse(request, body, fault)

    def is_prefill(self, body: dict[str, Any]) -> bool:
        return body["max_tokens"] == 1 and body["temperature"] == 0 and body["seed"] == 0

    async def stream(self, body: dict[str, Any], fault: Fault) -> AsyncGenerator[dict[str, Any]]:
        prompt, salt = body["prompt"], body.get("cache_salt")
        cached = self._count_cached(prompt, salt)
        ids: list[int] = []
        stops = frozenset(body["stop_token_ids"])
        try:
            async with contextlib.aclosing(
                self.drawn_ids(body, body["max_tokens"], stops, fault)
            ) as drawn:
                async for id in drawn:
                    ids.append(id)
                    is_last = id in stops or len(ids) == body["max_tokens"]
                    reason = "stop" if id in stops else "length" if is_last else None
                    yield {"choices": [self._choice(body, id, reason, prompt, len(ids) == 1)]}
        except FakeError as error:
            yield error.event
            return
        finally:
            self._cached.setdefault(salt, []).append(prompt + ids)
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
        yield {"choices": [], "usage": usage}

    def _choice(
        self, body: dict[str, Any], id: int, reason: str | None, prompt: list[int], first: bool
    ) -> dict[str, Any]:
        choice = {"index": 0, "text": "?", "finish_reason": reason, "token_ids": [id]}
        if first:
            choice["prompt_token_ids"] = prompt
        if "logprobs" in body:
            others = [(id + n) % VOCABULARY for n in range(body["logprobs"] + 1)]
            tops = {f"token_id:{other}": -0.5 - n for n, other in enumerate(others)}
            choice["logprobs"] = {
                "tokens": [f"token_id:{id}"],
                "token_logprobs": [-0.5],
                "top_logprobs": [tops],
            }
        return choice

    def _count_cached(self, prompt: list[int], salt: str | None) -> int:
        common = max((_common(known, prompt) for known in self._cached.get(salt, [])), default=0)
        return min(common, len(prompt) - 1) // self.block_tokens * self.block_tokens


class FakeLlama(FakeServer):
    """`/completion` and what else is asked of llama-server b11434."""

    def __init__(self, context_tokens: int = 1000, slots: int = 2) -> None:
        super().__init__(context_tokens)
        self.slots: list[list[int]] = [[] for _ in range(slots)]
        """Ids whose KV each slot holds."""
        self.keeps_slots = True
        """Whether a slot keeps its KV from one request to the next: False with unified KV."""
        self.files: dict[str, list[int]] | None = None
        """Saved slots by the name of their file; None: without --slot-save-path."""
        self.bytes_of: Callable[[int], bytes] = lambda id: b"?"
        """Text of each id. One after which the text ends within a character has no event."""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/props", self.props),
            Route("/slots", self.list_slots),
            Route("/slots/{slot:int}", self.copy_slot, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/completion", self.complete, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        model = {
            "id": f"{self.model_name}.gguf",
            "owned_by": "llamacpp",
            "meta": {"n_vocab": self.vocab_size},
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def props(self, request: Request) -> Response:
        return JSONResponse(
            {
                "default_generation_settings": {"id": 0, "n_ctx": self.context_tokens},
                "total_slots": len(self.slots),
                "build_info": "b11434-fake",
            }
        )

    async def list_slots(self, request: Request) -> Response:
        return JSONResponse(
            [
                {
                    "id": number,
                    "n_ctx": self.context_tokens,
                    "n_prompt_tokens": len(ids),
                    "is_processing": False,
                }
                for number, ids in enumerate(self.slots)
            ]
        )

    async def copy_slot(self, request: Request) -> Response:
        if self.files is None:
            return self.error(501, "This server does not support slots action.")
        slot, name = request.path_params["slot"], (await request.json())["filename"]
        if request.query_params["action"] == "save":
            self.files[name] = list(self.slots[slot])
        else:
            self.slots[slot] = list(self.files[name])
        return JSONResponse({"id_slot": slot, "filename": name})

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse({"tokens": self.make_ids((await request.json())["content"])})

    def is_prefill(self, body: dict[str, Any]) -> bool:
        return body["n_predict"] == 0

    async def stream(self, body: dict[str, Any], fault: Fault) -> AsyncGenerator[dict[str, Any]]:
        prompt, count = body["prompt"], body["n_predict"]
        slot = body["id_slot"] if fault.slot is None else fault.slot
        common = _common(self.slots[slot], prompt) if self.keeps_slots else 0
        progress = {"total": len(prompt), "cache": min(common, len(prompt) - 1), "processed": 0}
        # The id 0 of a progress event is none that was drawn, and its slot is none: llama-server
        # sends them so, and the event twice.
        for _ in range(2):
            yield {"tokens": [0], "stop": False, "id_slot": -1, "prompt_progress": progress}
        held = self.slots[slot] = list(prompt)
        stops = frozenset() if body["ignore_eos"] else self.end_ids
        sent, stop_type, text = 0, "limit", b""
        try:
            async with contextlib.aclosing(self.drawn_ids(body, count, stops, fault)) as drawn:
                async for id in drawn:
                    held.append(id)
                    sent += 1
                    stop_type = "eos" if id in stops else "limit"
                    if sent - 1 in fault.lost:
                        continue
                    text += self.bytes_of(id)
                    if not _ends_within_character(text):
                        yield self._event(body, id, sent) | {"content": text.decode()}
                        text = b""
        except FakeError as error:
            yield error.event
            return
        yield {
            "tokens": [],
            "stop": True,
            "stop_type": stop_type,
            "tokens_predicted": max(sent, 1),
            "id_slot": slot,
        }

    def _event(self, body: dict[str, Any], id: int, sent: int) -> dict[str, Any]:
        event = {"tokens": [id], "stop": False, "tokens_predicted": sent, "id_slot": -1}
        if "n_probs" in body:
            others = [(id + n) % VOCABULARY for n in range(body["n_probs"])]
            tops = [{"id": other, "logprob": -0.5 - n} for n, other in enumerate(others)]
            event["completion_probabilities"] = [{"id": id, "logprob": -0.5, "top_logprobs": tops}]
        return event


def _ends_within_character(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@contextlib.asynccontextmanager
async def serve_fake(fake: FakeServer, port: int = 0) -> AsyncIterator[str]:
    """Serve a fake on loopback. Yields its URL. At the end its connections are cut."""
    app = Starlette(routes=fake.routes())
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    with socket.create_server(("127.0.0.1", port)) as sock:
        serving = asyncio.create_task(server._serve([sock]))
        try:
            await wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            for listening in server.servers:
                listening.close()
            for connection in list(server.server_state.connections):
                if (transport := connection.transport) is not None:
                    transport.abort()
            fake.resume()
            server.should_exit = server.force_exit = True
            await serving
