"""LlamaServer: completions on llama.cpp's llama-server, by its `/completion`.

Each session has a slot of the server, which keeps its KV: of a prompt that begins with the ids of
the slot, only the others are computed. Where the server has a folder for files, the slot of a
session that is taken by another one is written to a file, and read when the session continues.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import msgspec

from continuo.engine.event_loop import run_in_thread
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
from continuo.engine.upstream.slots import SlotContent, SlotTable
from continuo.engine.wire.messages import TokenLogprobs
from continuo.engine.wire.turn_tree import common_prefix_length

log = logging.getLogger(__name__)

SEEDS = 2**32 - 1
"""Number of seeds; the next one, the last of 32 bits, asks the server for a random seed."""
REPEAT_TOKENS_MAX = 65_536
"""Bound on the tokens that penalties look back on: the server reserves memory for as many."""
MISSING_TOKENS_MAX = 64
"""Tokens that a slot may hold less of than it should before that is logged: models with a sliding
window or a recurrent state compute some again."""
COPIED_TOKENS_MIN = 64
"""Tokens from which on a slot is written to a file, and read where a session needs as many."""
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
        """Held while a slot is written to a file, or read: the server computes nothing then."""
        self._has_folder = True
        """Whether the server has a folder for files: False once it has said that it has none."""

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

    def find_kv(self, session: str) -> Literal["device", "host", "none"]:
        return self._slots.find_kv(session)

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
            is_recalled = await self._prepare(slots, slot, request)
            slots.displaced.pop(slot, None)  # the request overwrites it
            body = self._encode(request, slot)
            stream = self._stream(body, request, slot, slots.count_held(slot, request.ids))
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    held = request.ids[:] if held is None else held
                    held.extend(chunk.ids)
                    if is_recalled and chunk.cached_tokens is not None:
                        chunk = msgspec.structs.replace(chunk, is_recalled=True)
                    yield chunk
        except ServerLost:
            held = None
            slots.clear()
            raise
        finally:
            slots.end(slot, request.session, held)

    async def _prepare(self, slots: SlotTable, slot: int, request: Completion) -> bool:
        """Write what the slot holds of another session to a file, and fill it from the file of this
        one, or of the parent of a fork. Other requests of the session wait for that. Returns
        whether it was filled from its own file; where that is impossible or not worth it, the ids
        are computed."""
        if not self._has_folder:
            return False
        async with self._copying:
            displaced = slots.displaced.pop(slot, None)
            if displaced is None and slots.is_shared(slot):
                return False  # it was filled before, or the server would wait for the other request
            source = self._parents.pop(request.session, request.session)
            if displaced is not None:
                await self._write(slots, slot, displaced, needed=source)
                if displaced.session == source:
                    slots.fill(slot, request.session, displaced.ids)
            is_filled = await self._fill_from(slots, slot, source, request)
            return is_filled and source == request.session

    async def _fill_from(
        self, slots: SlotTable, slot: int, session: str, request: Completion
    ) -> bool:
        """Fill a slot with the KV of `session`, which is that of the request, or its parent.
        Returns whether it was filled."""
        source = slots.find_idle(session) if session != request.session else None
        if source is not None and slots.count_held(source, request.ids) >= COPIED_TOKENS_MIN:
            slots.begin(session)  # it stays that of the parent
            try:
                await self._write(slots, source, slots.content_of(source))
            finally:
                slots.release(source)
        if (found := slots.files.find(session)) is None:
            return False
        file, content = found
        shared = common_prefix_length(content.ids, request.ids)
        if shared < max(COPIED_TOKENS_MIN, slots.count_held(slot, request.ids) + 1):
            return False
        is_filled = await self._act(slot, "restore", file)
        if is_filled:
            slots.fill(slot, request.session, content.ids)
        if source is not None or session == request.session:
            slots.files.remove(session)
        return is_filled

    async def _write(
        self, slots: SlotTable, slot: int, content: SlotContent, needed: str = ""
    ) -> None:
        """Write a slot to a file, unless it holds little; not to that of the session `needed`."""
        if len(content.ids) >= COPIED_TOKENS_MIN:
            file = slots.files.begin(content.session, needed)
            if await self._act(slot, "save", file):
                slots.files.end(file, content)

    async def _act(self, slot: int, action: Literal["save", "restore"], file: int) -> bool:
        """Write a slot to a file, or fill it from one. Returns whether the server has done it."""
        body = {"filename": f"continuo-slot-{file}.bin"}
        try:
            await self._http.fetch("POST", f"/slots/{slot}?action={action}", body, COPY_S_MAX)
        except UpstreamError as error:
            self._has_folder = not (isinstance(error, RequestRefused) and error.status == 501)
            log.debug("llama-server did not %s slot %d: %s", action, slot, error)
            return False
        return True

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
        await run_in_thread("lost ids", self._lost_ids.prepare)
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
