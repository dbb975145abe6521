"""The process of competitor transformers: `generate()`, and continuous batching."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

from continuo.bench.competitors.turn_server import (
    CompetitorBackend,
    Drawn,
    Ids,
    Request,
    SequentialBackend,
    Setup,
    now_s,
    serve_stdin,
)

PAGE_SIZE = 32
"""Tokens per KV page of continuous batching. Only full pages are shared: the tokens of a context
after its last full page are computed again each turn."""
POOL_HEADROOM = 3
"""Size of the page pool of continuous batching, as a multiple of the pages that all sessions need
at their last turn. A pool of just these pages evicts prefixes that are needed again, so that whole
contexts are recomputed."""
BATCH_TOKENS_MAX = 512
VERSION = f"transformers {transformers.__version__}"


def load(setup: Setup) -> CompetitorBackend:
    torch.set_num_threads(setup.threads)
    torch.set_grad_enabled(False)
    model: Any = AutoModelForCausalLM.from_pretrained(
        setup.folder, dtype=getattr(torch, setup.dtype), local_files_only=True
    ).eval()
    if setup.mode == "continuous-batching":
        return _ContinuousBatching(model)
    return _Generator(model, keep_cache=setup.mode == "session-cache")


class _Generator(SequentialBackend):
    """Runs generate() on the whole context of a session; `keep_cache`: with a KV cache per
    session."""

    version = VERSION + "; sessions take turns, one at a time"
    step_bytes: float | None = None

    def __init__(self, model: Any, *, keep_cache: bool) -> None:
        super().__init__(self._run)
        self._model = model
        # Without a stop id, no turn ends early.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._keeps_cache = keep_cache
        self._caches: list[DynamicCache | None] = []

    def resize(self, sessions: int, context: int) -> None:
        super().resize(sessions, context)
        self._caches = [
            DynamicCache(config=self._model.config) if self._keeps_cache else None
            for _ in range(sessions)
        ]

    @torch.inference_mode()
    def _run(self, request: Request, context: Ids) -> list[tuple[int, float]]:
        cache = self._caches[request.session]
        if cache is not None and (surplus := cache.get_seq_length() - request.kept) > 0:
            cache.crop(-surplus)
        inputs, arrivals = torch.tensor([context]), _Arrivals()
        is_sampled = request.temperature > 0
        sampling = {"temperature": request.temperature, "top_p": request.top_p, "top_k": 0}
        self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            past_key_values=cache,
            max_new_tokens=request.tokens,
            do_sample=is_sampled,
            streamer=arrivals,
            **(sampling if is_sampled else {}),
        )
        return arrivals.drawn


class _Arrivals(BaseStreamer):
    """Records each id that generate() draws, and its time."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, float]] = []
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self.drawn += [(id, now_s()) for id in value.tolist()]
        self._has_prompt = True

    def end(self) -> None:
        """Called by generate() at the end; there is nothing to flush."""


class _ContinuousBatching:
    """Runs continuous batching. It has no sessions: each turn resends the whole context, and full
    KV pages are shared by prefix."""

    version = VERSION + "; sessions batched, re-sent, prefix shared"
    step_bytes: float | None = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self._manager: Any = None
        self._contexts: list[Ids] = []
        self._received: dict[str, int] = {}
        self._turn_count = 0

    def resize(self, sessions: int, context: int) -> None:
        if self._manager is not None:
            self._manager.stop(block=True, timeout=10.0)
        pages = -(-context // PAGE_SIZE) + 2
        self._manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=POOL_HEADROOM * pages * sessions,
                max_batch_tokens=BATCH_TOKENS_MAX,
            ),
        )
        self._manager.start()
        self._contexts = [[] for _ in range(sessions)]

    def submit(self, request: Request) -> None:
        if request.temperature > 0:
            raise ValueError("continuous batching is measured with greedy output only")
        context = self._contexts[request.session]
        context[request.kept :] = request.ids
        self._turn_count += 1
        name = f"{request.session}-{self._turn_count}"
        self._received[name] = 0
        self._manager.add_request(
            context,
            request_id=name,
            max_new_tokens=request.tokens,
            eos_token_id=-1,
            streaming=True,
        )

    def step(self) -> list[Drawn]:
        while (result := self._manager.get_result(timeout=1.0)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching loop has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        at_s, name = now_s(), result.request_id
        new = list(result.generated_tokens)[self._received.get(name, 0) :]
        self._received[name] = self._received.get(name, 0) + len(new)
        session = int(name.partition("-")[0])
        self._contexts[session] += new
        return [Drawn(session, id, at_s) for id in new]


if __name__ == "__main__":
    serve_stdin(load)
