"""The process of the competitor llama-cpp-python.

Mode `resend` uses its class Llama. The modes with slots call llama.cpp's C API; a slot is a
sequence of a context, with the KV of one session.
"""

import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]

from continuo.bench.competitors.to_gguf import convert
from continuo.bench.competitors.workload import (
    Ids,
    SequentialBackend,
    Workload,
    WorkloadResult,
    run_workload,
    serve_stdin,
)

BATCH_TOKENS_MAX = 512
FLASH_ATTENTION = 0
"""Flash attention is off, because it is slower at the measured lengths."""


def run(job: Workload) -> WorkloadResult:
    version = f"llama-cpp-python {llama_cpp.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        convert(Path(job.folder), path, job.dtype)
        if job.mode == "resend":
            return run_workload(SequentialBackend(_ResendGenerator(path, job)), job, version)
        return run_workload(
            _SlotBackend(path, job, resend=job.mode == "resend-slots"), job, version
        )


class _ResendGenerator:
    """Runs Llama.generate() on the whole context of a session.

    A Llama keeps only the KV of its last context, and reuses the prefix that the next context has
    in common with it. So each session has a Llama of its own.
    """

    def __init__(self, path: Path, job: Workload) -> None:
        self._models = [_create_llama(path, job) for _ in job.prompts]
        self._contexts: list[Ids] = [[] for _ in job.prompts]
        self._ids_out = job.ids_out

    def __call__(self, session: int, ids: Ids) -> Ids:
        context = self._contexts[session]
        context += ids
        drawn = self._models[session].generate(context, temp=0.0)
        output: Ids = [int(next(drawn)) for _ in range(self._ids_out)]
        drawn.close()
        context += output
        return output


def _create_llama(path: Path, job: Workload) -> Any:
    return llama_cpp.Llama(
        str(path),
        n_ctx=job.context_max,
        n_batch=BATCH_TOKENS_MAX,
        n_threads=job.threads,
        n_threads_batch=job.threads,
        flash_attn=bool(FLASH_ATTENTION),
        verbose=False,
    )


class _Slot:
    """The state of one session, which is a sequence of the llama.cpp context.

    `context`: all ids of the session; `cached`: the first ids of `context`, whose KV is computed;
    `output`: ids generated in the current turn.
    """

    def __init__(self) -> None:
        self.context: Ids = []
        self.cached: Ids = []
        self.output: Ids = []
        self.is_active = False


class _SlotBackend:
    """A llama.cpp context with a sequence per session. Each step computes the missing KV of all
    active sessions, for up to BATCH_TOKENS_MAX ids."""

    def __init__(self, path: Path, job: Workload, *, resend: bool) -> None:
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self._model, "llama.cpp did not load the model"
        self._context = llama_cpp.llama_init_from_model(self._model, _context_params(job))
        assert self._context, "llama.cpp did not create a context"
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS_MAX, 0, 1)
        self._slots = [_Slot() for _ in job.prompts]
        self._ids_out = job.ids_out
        self._is_resending = resend

    def submit(self, session: int, ids: Ids) -> None:
        slot = self._slots[session]
        slot.context += ids
        slot.output = []
        slot.is_active = True
        if self._is_resending:
            self._keep_prefix(session, list(slot.context))

    def _keep_prefix(self, session: int, sent: Ids) -> None:
        """Make `sent` the context of a session, like a server that receives whole contexts: keep
        the KV of the common prefix and discard the rest. The KV of the last id of `sent` is always
        computed again, for its logits."""
        slot = self._slots[session]
        kept = 0
        for old, new in zip(slot.cached, sent, strict=False):
            if old != new:
                break
            kept += 1
        llama_cpp.llama_memory_seq_rm(
            llama_cpp.llama_get_memory(self._context), session, min(kept, len(sent) - 1), -1
        )
        slot.context = sent
        del slot.cached[min(kept, len(sent) - 1) :]

    def step(self) -> list[tuple[int, Ids]]:
        sampled = self._fill_batch()
        failed = llama_cpp.llama_decode(self._context, self._batch)
        assert not failed, f"llama_decode returned {failed}"
        ended: list[tuple[int, Ids]] = []
        while sampled:
            session, row = sampled.popleft()
            slot = self._slots[session]
            id = int(llama_cpp.llama_sampler_sample(self._sampler, self._context, row))
            slot.output.append(id)
            slot.context.append(id)
            if len(slot.output) == self._ids_out:
                slot.is_active = False
                ended.append((session, slot.output))
        return ended

    def _fill_batch(self) -> deque[tuple[int, int]]:
        """Fill the batch with ids whose KV is missing. Returns (session, row of the batch) for each
        session that draws an id in this step."""
        batch, row = self._batch, 0
        sampled: deque[tuple[int, int]] = deque()
        for session, slot in enumerate(self._slots):
            if not slot.is_active:
                continue
            first = len(slot.cached)
            owed = slot.context[first : first + BATCH_TOKENS_MAX - row]
            for position, id in enumerate(owed, first):
                batch.token[row] = id
                batch.pos[row] = position
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = session
                batch.logits[row] = position == len(slot.context) - 1
                row += 1
            slot.cached += owed
            if owed and len(slot.cached) == len(slot.context):
                sampled.append((session, row - 1))
        batch.n_tokens = row
        return sampled


def _context_params(job: Workload) -> Any:
    params = llama_cpp.llama_context_default_params()
    session_context = -(-job.context_max // 256) * 256
    params.n_ctx = session_context * len(job.prompts)
    params.n_seq_max = len(job.prompts)
    params.n_batch = params.n_ubatch = BATCH_TOKENS_MAX
    params.n_threads = params.n_threads_batch = job.threads
    params.flash_attn_type = FLASH_ATTENTION
    params.kv_unified = False
    return params


if __name__ == "__main__":
    serve_stdin(run)
