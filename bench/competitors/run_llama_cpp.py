"""The process of the competitor llama.cpp, by the C API of llama-cpp-python.

Each session is a sequence of one context, with its own KV (a slot of llama.cpp's server); each step
computes what all active sessions need.
"""

from pathlib import Path
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np

from continuo.bench.competitors.to_gguf import ensure_gguf, read_step_bytes
from continuo.bench.competitors.turn_server import Drawn, Ids, Request, Setup, now_s, serve_stdin

BATCH_TOKENS_MAX = 512
FLASH_ATTENTION = 0
"""Flash attention is off, because it is slower at the measured lengths."""
SEED = 1


def load(setup: Setup) -> "LlamaCppBackend":
    path = ensure_gguf(Path(setup.folder), setup.dtype, Path(setup.gguf))
    return LlamaCppBackend(path, setup.threads)


class _Slot:
    """The state of one session, which is a sequence of the llama.cpp context.

    `context`: all ids of the session; `cached`: how many of them have their KV computed; `missing`:
    ids that the turn has still to draw.
    """

    def __init__(self) -> None:
        self.context: Ids = []
        self.cached = 0
        self.missing = 0
        self.sampler: Any = None
        self.sampling: tuple[float, float] | None = None


class LlamaCppBackend:
    def __init__(self, path: Path, threads: int) -> None:
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        assert self._model, "llama.cpp did not load the model"
        self.version = f"llama-cpp-python {llama_cpp.__version__}; KV f16"
        self.step_bytes: float | None = read_step_bytes(path)
        self._threads = threads
        self._context: Any = None
        self._slots: list[_Slot] = []
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS_MAX, 0, 1)
        self._columns = [
            np.ctypeslib.as_array(column, (BATCH_TOKENS_MAX,))
            for column in (self._batch.token, self._batch.pos, self._batch.logits)
        ]
        for row in range(BATCH_TOKENS_MAX):
            self._batch.n_seq_id[row] = 1
        self._sequences = [self._batch.seq_id[row] for row in range(BATCH_TOKENS_MAX)]

    def resize(self, sessions: int, context: int) -> None:
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = -(-context // 256) * 256 * sessions
        params.n_seq_max = sessions
        params.n_batch = params.n_ubatch = BATCH_TOKENS_MAX
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = FLASH_ATTENTION
        params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._context, "llama.cpp did not create a context"
        self._slots = [_Slot() for _ in range(sessions)]

    def submit(self, request: Request) -> None:
        slot = self._slots[request.session]
        if request.kept < slot.cached:
            slot.cached = self._cut(request.session, request.kept)
        slot.context[request.kept :] = request.ids
        slot.missing = request.tokens
        if slot.sampling != (request.temperature, request.top_p):
            slot.sampling = (request.temperature, request.top_p)
            slot.sampler = _make_sampler(*slot.sampling)

    def _cut(self, session: int, length: int) -> int:
        """Remove what is cached after `length` ids. Returns how many ids are still cached: none of
        a hybrid model, whose recurrent states llama.cpp cannot cut."""
        memory = llama_cpp.llama_get_memory(self._context)
        if llama_cpp.llama_memory_seq_rm(memory, session, length, -1):
            return length
        llama_cpp.llama_memory_seq_rm(memory, session, -1, -1)
        return 0

    def step(self) -> list[Drawn]:
        rows = self._fill_batch()
        failed = llama_cpp.llama_decode(self._context, self._batch)
        assert not failed, f"llama_decode returned {failed}"
        drawn: list[Drawn] = []
        for session, row in rows:
            slot = self._slots[session]
            id = int(llama_cpp.llama_sampler_sample(slot.sampler, self._context, row))
            slot.context.append(id)
            slot.missing -= 1
            drawn.append(Drawn(session, id, now_s()))
        return drawn

    def _fill_batch(self) -> list[tuple[int, int]]:
        """Fill the batch with ids whose KV is missing. Returns (session, row of the batch) for each
        session that draws an id in this step."""
        tokens, positions, logits = self._columns
        rows: list[tuple[int, int]] = []
        end = 0
        for session, slot in enumerate(self._slots):
            if not slot.missing:
                continue
            owed = slot.context[slot.cached : slot.cached + BATCH_TOKENS_MAX - end]
            if not owed:
                break
            begin, end = end, end + len(owed)
            tokens[begin:end] = owed
            positions[begin:end] = np.arange(slot.cached, slot.cached + len(owed))
            logits[begin:end] = 0
            for row in range(begin, end):
                self._sequences[row][0] = session
            slot.cached += len(owed)
            if slot.cached == len(slot.context):
                logits[end - 1] = 1
                rows.append((session, end - 1))
        self._batch.n_tokens = end
        return rows


def _make_sampler(temperature: float, top_p: float) -> Any:
    if temperature == 0:
        return llama_cpp.llama_sampler_init_greedy()
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in (
        llama_cpp.llama_sampler_init_top_p(top_p, 1),
        llama_cpp.llama_sampler_init_temp(temperature),
        llama_cpp.llama_sampler_init_dist(SEED),
    ):
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


if __name__ == "__main__":
    serve_stdin(load)
