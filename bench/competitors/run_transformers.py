"""The process of competitor transformers: `generate()`, and continuous batching."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.cache_utils import DynamicCache

from continuo.bench.competitors.workload import (
    CompetitorBackend,
    Ids,
    SequentialBackend,
    Workload,
    WorkloadResult,
    run_workload,
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


def run(job: Workload) -> WorkloadResult:
    torch.set_num_threads(job.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(
        job.folder, dtype=getattr(torch, job.dtype), local_files_only=True
    ).eval()
    version = f"transformers {transformers.__version__}"
    if job.mode == "continuous-batching":
        batched = _ContinuousBatching(model, job)
        try:
            return run_workload(batched, job, version)
        finally:
            batched.stop()
    backend: CompetitorBackend = SequentialBackend(
        _Generator(model, job, keep_cache=job.mode == "session-cache")
    )
    with torch.inference_mode():
        return run_workload(backend, job, version)


class _Generator:
    """Runs generate() on the whole context of a session; `keep_cache`: with a KV cache per
    session."""

    def __init__(self, model: Any, job: Workload, *, keep_cache: bool) -> None:
        self._model = model
        # Without a stop id, no turn ends early.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._ids_out = job.ids_out
        self._contexts: list[Ids] = [[] for _ in job.prompts]
        self._caches = [
            DynamicCache(config=model.config) if keep_cache else None for _ in job.prompts
        ]

    def __call__(self, session: int, ids: Ids) -> Ids:
        context = self._contexts[session]
        context += ids
        inputs = torch.tensor([context])
        generated = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            past_key_values=self._caches[session],
            max_new_tokens=self._ids_out,
            do_sample=False,
        )
        output: Ids = generated[0, len(context) :].tolist()
        context += output
        return output


class _ContinuousBatching:
    """Runs continuous batching. It has no sessions: each turn resends the whole context, and full
    KV pages are shared by prefix."""

    def __init__(self, model: Any, job: Workload) -> None:
        generation = GenerationConfig(
            max_new_tokens=job.ids_out, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        pages = -(-job.context_max // PAGE_SIZE) + 2
        config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=POOL_HEADROOM * pages * len(job.prompts),
            max_batch_tokens=BATCH_TOKENS_MAX,
        )
        self._manager = model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=config
        )
        self._manager.start()
        self._ids_out = job.ids_out
        self._contexts: list[Ids] = [[] for _ in job.prompts]
        self._turn_count = 0

    def submit(self, session: int, ids: Ids) -> None:
        self._contexts[session] += ids
        self._turn_count += 1
        self._manager.add_request(
            self._contexts[session],
            request_id=f"{session}-{self._turn_count}",
            max_new_tokens=self._ids_out,
            eos_token_id=-1,
        )

    def step(self) -> list[tuple[int, Ids]]:
        while (result := self._manager.get_result(timeout=1.0)) is None:
            if not self._manager.is_running():
                raise RuntimeError("the continuous batching loop has ended")
        if result.error is not None:
            raise RuntimeError(result.error)
        session = int(result.request_id.partition("-")[0])
        output: Ids = list(result.generated_tokens)
        self._contexts[session] += output
        return [(session, output)]

    def stop(self) -> None:
        self._manager.stop(block=True, timeout=10.0)


if __name__ == "__main__":
    serve_stdin(run)
