"""LlamaServer: completions on llama.cpp's llama-server, by its `/completion`.

Each session has a slot of the server, which keeps its KV: of a prompt that begins with the ids of
the slot, only the others are computed.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import msgspec

from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.upstream.errors import (
    ReplyLost,
    RequestRefused,
    ServerLost,
    UnusableReply,
    UpstreamError,
)
from continuo.engine.upstream.http import HttpClient, make_error
from continuo.engine.upstream.lost_ids import LostIds
from continuo.engine.upstream.server import (
    Chunk,
    Completion,
    ServerLoad,
    ServerModel,
    decode_reply,
)
from continuo.engine.upstream.slots import SlotTable
from continuo.engine.wire.messages import TokenLogprobs

log = logging.getLogger(__name__)

SEEDS = 2**32 - 1
"""Number of seeds; the next one, the last of 32 bits, asks the server for a random seed."""
REPEAT_TOKENS_MAX = 65_536
"""Bound on the tokens that penalties look back on: the server reserves memory for as many."""
MISSING_TOKENS_MAX = 64
"""Tokens that a slot may hold less of than it should before that is logged: models with a sliding
window or a recurrent state compute some again."""
COPIED_TOKENS_MIN = 64
"""Shared tokens from which on the slot of a fork is copied, by a file of the server."""
COPY_S_MAX = 10.0
"""Time in which a slot is written to a file, or read."""
PINNING_FLAGS = "-np SLOTS -c SLOTS*CONTEXT --no-kv-unified --no-cache-idle-slots -b 512 --slots"
"""Flags of llama-server under which a slot keeps the KV of its session."""
_STOP_TYPES: dict[str, Literal["stop", "length"]] = {
    "eos": "stop",
    "word": "stop",
    "limit": "length",
}
_RESPONSE_FIELDS = ("stop", "stop_type", "tokens_predicted", "id_slot")
"""Fields of the last event: without this list it has the whole prompt and all settings."""


class _Settings(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Settings
    build_info: str = ""


class _ModelMeta(msgspec.Struct):
    n_vocab: int | None = None


class _Model(msgspec.Struct):
    id: str
    meta: _ModelMeta | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Slot(msgspec.Struct):
    n_ctx: int = 0
    n_prompt_tokens: int = 0
    is_processing: bool = False


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Progress(msgspec.Struct):
    cache: int = 0


class _TopLogprob(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Logprob(msgspec.Struct):
    logprob: float | None = None
    top_logprobs: list[_TopLogprob] = []


class _Error(msgspec.Struct):
    message: str = ""
    code: int | None = None


class _Event(msgspec.Struct):
    content: str = ""
    """Text that this event completes, also of ids that have no event."""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int | None = None
    id_slot: int | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Logprob] | None = None
    error: _Error | None = None


class LlamaServer:
    """An UpstreamServer. Owns the table of the slots. `describe` comes first, and again when the
    server may have been started anew, with another number of slots."""

    kind = "llama-server"
    reuse_tokens = 1
    has_slots = True
    enforces_lark = False

    def __init__(self, http: HttpClient, lost_ids: LostIds) -> None:
        self._http = http
        self._lost_ids = lost_ids
        self._slots = SlotTable(1)
        self._context_tokens = REPEAT_TOKENS_MAX
        self._has_logged_miss = False
        self._parents: dict[str, str] = {}
        """Parent of each fork whose slot has not been copied yet."""
        self._copying = asyncio.Lock()
        """Held while a slot is copied."""
        self._can_copy = True
        """Whether slots may be copied: False once the server has said that it has no folder for
        them."""

    @property
    def max_rows(self) -> int:
        return self._slots.count

    async def describe(self) -> ServerModel:
        props = decode_reply(await self._http.fetch("GET", "/props"), _Props)
        models = decode_reply(await self._http.fetch("GET", "/v1/models"), _Models).data
        if not models or props.total_slots < 1:
            raise UnusableReply("the server serves no model")
        if props.total_slots != self._slots.count:
            self._slots = SlotTable(props.total_slots)
        self._context_tokens = props.default_generation_settings.n_ctx
        meta = models[0].meta
        return ServerModel(
            name=models[0].id,
            max_model_len=self._context_tokens,
            vocab_size=meta and meta.n_vocab,
            version=props.build_info,
        )

    async def measure(self) -> ServerLoad:
        """Read the server's slots. Call it once a second at most: the server answers between
        batches. A server that does not report them has an unknown load."""
        try:
            slots = decode_reply(await self._http.fetch("GET", "/slots"), list[_Slot])
        except RequestRefused:
            return ServerLoad()
        except ServerLost:
            self._slots.clear()
            raise
        return ServerLoad(
            kv_tokens=sum(slot.n_ctx for slot in slots),
            kv_tokens_used=sum(slot.n_prompt_tokens for slot in slots),
            running=sum(slot.is_processing for slot in slots),
        )

    async def tokenize(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": False}
        return decode_reply(await self._http.fetch("POST", "/tokenize", body), _Tokens).tokens

    def find_problem(self, sampling: Sampling) -> str | None:
        if sampling.grammar is not None and sampling.grammar.kind == "lark":
            return "llama-server enforces JSON schemas only, no Lark grammars and no forced calls"
        return None

    def keeps(self, session: str) -> bool | None:
        return self._slots.keeps(session)

    def fork(self, parent: str, child: str) -> None:
        self._parents[child] = parent

    def close(self, session: str) -> None:
        self._parents.pop(session, None)
        self._slots.close(session)

    async def prefill(self, session: str, ids: "array[int]", scope: str) -> None:
        request = Completion(
            session=session, ids=ids, sampling=Sampling(), max_tokens=0, seed=0, scope=scope
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    async def generate(self, request: Completion) -> AsyncGenerator[Chunk]:
        """See UpstreamServer. Cached tokens are known before the first id. Raises UnusableReply if
        the server has left out ids, which end within a character, and its text does not determine
        them."""
        slots = self._slots
        slot = slots.begin(request.session)
        held: array[int] | None = None
        try:
            await self._copy_parent(slots, slot, request)
            body = self._encode(request, slot)
            stream = self._stream(body, request, slot, slots.count_held(slot, request.ids))
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    held = request.ids[:] if held is None else held
                    held.extend(chunk.ids)
                    yield chunk
        except ServerLost:
            held = None
            slots.clear()
            raise
        finally:
            slots.end(slot, request.session, held)

    async def _copy_parent(self, slots: SlotTable, slot: int, request: Completion) -> None:
        """Copy the slot of a fork's parent before the first request of the fork; other requests of
        the fork wait for it. Does nothing where that is impossible or not worth it: the ids are
        computed then."""
        if request.session in self._parents:
            async with self._copying:
                parent = self._parents.get(request.session, "")
                source = slots.find_idle(parent) if parent and self._can_copy else None
                held = 0 if source is None else slots.count_held(source, request.ids)
                if source is not None and held >= COPIED_TOKENS_MIN:
                    slots.begin(parent)  # it stays that of the parent
                    await self._copy(slots, source, slot)
                self._parents.pop(request.session, None)

    async def _copy(self, slots: SlotTable, source: int, slot: int) -> None:
        """Copy a slot for which a request has begun, and end that."""
        file = {"filename": f"continuo-slot-{slot}.bin"}
        try:
            for number, action in ((source, "save"), (slot, "restore")):
                path = f"/slots/{number}?action={action}"
                await self._http.fetch("POST", path, file, COPY_S_MAX)
            slots.copy(source, slot)
        except UpstreamError as error:
            self._can_copy = not (isinstance(error, RequestRefused) and error.status == 501)
            log.debug("the slot of a forked session was not copied: %s", error)
        finally:
            slots.release(source)

    async def _stream(
        self, body: dict[str, object], request: Completion, slot: int, held: int
    ) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a request. `held`: ids whose KV the slot should have. Raises
        ReplyLost for a stream without an end."""
        received = 0
        async with aclosing(self._http.stream_events("/completion", body)) as events:
            async for data in events:
                event = decode_reply(data, _Event)
                if event.error is not None:
                    raise make_error(event.error.code or 500, event.error.message)
                if event.prompt_progress is not None:  # its `tokens` are not output
                    cached = event.prompt_progress.cache
                    self._check_pin(slot, None, held - cached)
                    yield Chunk([], cached_tokens=cached)
                    continue
                chunk = _read_chunk(event, request)
                received += len(event.tokens)
                if request.max_tokens and event.tokens_predicted not in (None, received):
                    lost = await self._find_lost(event, received)
                    received += len(lost)
                    if chunk.logprobs is not None:
                        raise UnusableReply(
                            "llama-server has left out the log-probabilities of ids that end within"
                            " a character"
                        )
                    chunk = msgspec.structs.replace(chunk, ids=[*lost, *chunk.ids])
                if event.stop:  # the other events have -1 for the slot
                    self._check_pin(slot, event.id_slot, 0)
                yield chunk
                if event.stop:
                    return
        raise ReplyLost("the stream of a completion was cut")

    async def _find_lost(self, event: _Event, received: int) -> list[int]:
        """Return the ids that were drawn before those of an event and left out. Raises
        UnusableReply unless the text of the event determines them."""
        drawn = event.tokens_predicted or 0
        await asyncio.to_thread(self._lost_ids.prepare)
        found = self._lost_ids.find(event.content, drawn - received, event.tokens)
        if found is None:
            raise UnusableReply(
                "llama-server has left out ids that end within a character, and its text does not"
                f" determine them: {drawn} were drawn, {received} received"
            )
        return found

    def _check_pin(self, slot: int, used_slot: int | None, missing: int) -> None:
        """Log once that a slot does not keep its KV, which costs time and changes no output."""
        if self._has_logged_miss:
            return
        if used_slot not in (None, slot) or missing > MISSING_TOKENS_MAX:
            self._has_logged_miss = True
            log.warning(
                "llama-server has computed %d tokens again that slot %d should hold (it used slot"
                " %s); sessions keep their KV with %s",
                max(missing, 0), slot, "?" if used_slot is None else used_slot, PINNING_FLAGS,
            )  # fmt: skip

    def _encode(self, request: Completion, slot: int) -> dict[str, object]:
        return {
            "prompt": request.ids.tolist(),
            "id_slot": slot,
            "cache_prompt": True,
            "n_predict": request.max_tokens,
            "seed": request.seed % SEEDS,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "response_fields": _RESPONSE_FIELDS,
            **_encode_sampling(request.sampling, min(self._context_tokens, REPEAT_TOKENS_MAX)),
        }


def _encode_sampling(sampling: Sampling, repeat_tokens: int) -> dict[str, object]:
    """`repeat_tokens`: number of last tokens to which penalties apply."""
    params: dict[str, object] = {
        "samplers": ("penalties", "temperature", "top_k", "top_p", "min_p"),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": repeat_tokens,
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.logit_bias:
        params["logit_bias"] = list(sampling.logit_bias.items())
    if sampling.logprobs is not None:
        params["n_probs"] = max(sampling.logprobs, 1)
    if sampling.grammar is not None:
        params["json_schema"] = _encode_schema(sampling.grammar)
    return params


def _encode_schema(grammar: Grammar) -> object:
    """Return the JSON schema of a grammar. Raises RequestRefused for one that is not JSON."""
    if grammar.kind == "json":
        return {"type": "object"}
    try:
        return msgspec.json.decode(grammar.source)
    except msgspec.DecodeError as error:
        raise RequestRefused(400, f"the schema is not JSON: {error}") from None


def _read_chunk(event: _Event, request: Completion) -> Chunk:
    count, logprobs = request.sampling.logprobs, None
    if count is not None:
        logprobs = [_read_logprobs(one, count) for one in event.completion_probabilities or ()]
        if len(logprobs) != len(event.tokens):
            raise UnusableReply(f"{len(logprobs)} log-probabilities for {len(event.tokens)} ids")
    finish = _STOP_TYPES.get(event.stop_type, "length") if event.stop else None
    return Chunk(event.tokens, logprobs, finish)


def _read_logprobs(found: _Logprob, count: int) -> TokenLogprobs:
    top = [(one.id, _finite(one.logprob)) for one in found.top_logprobs[:count]]
    return TokenLogprobs(_finite(found.logprob), top)


def _finite(logprob: float | None) -> float:
    """Return a log-probability; for minus infinity, which is null in JSON, a very low one."""
    return -9999.0 if logprob is None else logprob
