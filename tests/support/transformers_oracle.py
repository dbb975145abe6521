"""Small random models of every family, transformers as the oracle of their logits, and a driver
that, like a scheduler, runs prompts in chunks mixed with decoding rows."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from continuo.engine.batch import (
    NO_STATE,
    Batch,
    BatchRow,
    SampleParams,
    StateSlots,
    WindowTable,
)
from continuo.engine.config import EngineConfig
from continuo.engine.device.build import build_runner
from continuo.engine.device.runner import TorchRunner

VOCAB_SIZE = 131
SMALL_CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


def small_model(kind: str, *, spread: float = 0.25, **differences: Any) -> Any:
    """Make a causal LM of family `kind` (as in `<kind>Config`) with random parameters; matrices
    have a standard deviation of `spread`."""
    config = getattr(tf, f"{kind}Config")(**(SMALL_CONFIG | differences))
    torch.manual_seed(sum(map(ord, kind)) + len(differences))
    return randomize(tf.AutoModelForCausalLM.from_config(config).eval(), spread)


def randomize(model: Any, spread: float = 0.25) -> Any:
    """Give the parameters of a model random values; matrices have a standard deviation of
    `spread`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, spread)
            else:
                parameter.normal_(1.0 if "norm" in name and "bias" not in name else 0.0, 0.2)
    return model


NATIVE_SIZES: dict[str, Any] = {
    "vocab_size": 144,
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
}
"""Model sizes that the native decoder supports, unlike those in SMALL_CONFIG."""

FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": partial(small_model, "Llama", num_key_value_heads=4),
    "llama3": partial(small_model, "Llama", rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
    "llama-biases": partial(small_model, "Llama", attention_bias=True, mlp_bias=True, head_dim=16),
    "llama-linear": partial(
        small_model,
        "Llama",
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    ),
    "llama-dynamic": partial(
        small_model,
        "Llama",
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    ),
    "mistral": partial(small_model, "Mistral", sliding_window=20, head_dim=16),
    "qwen2": partial(small_model, "Qwen2", tie_word_embeddings=True),
    "qwen2-windows": partial(
        small_model, "Qwen2", use_sliding_window=True, sliding_window=12, max_window_layers=1
    ),
    "qwen2-yarn": partial(small_model, "Qwen2", rope_parameters=YARN_ROPE),
    "qwen3": partial(small_model, "Qwen3", head_dim=24, tie_word_embeddings=True),
    "qwen3-biases": partial(small_model, "Qwen3", head_dim=24, attention_bias=True),
    "smollm3": partial(small_model, "SmolLM3", no_rope_layer_interval=2, tie_word_embeddings=True),
}


def build_cpu_runner(folder: Path, dtype: str = "float32", **bounds: Any) -> TorchRunner:
    """Build a CPU runner, by default with one thread: a second thread slows models this small.

    `bounds`: further fields of EngineConfig.
    """
    bounds = {"device": "cpu", "threads": 1} | bounds
    config = EngineConfig(model=str(folder), dtype=dtype, **bounds)  # pyright: ignore
    return build_runner(config, lambda what, fraction: None)[0]


def random_prompts(seed: int, lengths: Sequence[int], vocab: int = VOCAB_SIZE) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(vocab) for _ in range(length)] for length in lengths]


def full_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """Compute transformers' logits [len(ids), vocab] of one prefill."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()


def chunked_logits(model: Any, ids: Sequence[int], size: int) -> Tensor:
    """Compute transformers' logits [len(ids), vocab] of a prefill in chunks of `size` tokens, over
    its KV cache."""
    cache, rows = None, []
    with torch.inference_mode():
        for begin in range(0, len(ids), size):
            chunk = torch.tensor([list(ids[begin : begin + size])])
            out = model(input_ids=chunk, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append(out.logits[0].float())
    return torch.cat(rows)


CHUNK_SIZES = (1, 8, 64)
"""Chunk sizes in tokens: of a decode, of a prefill chunk in a busy step, of a whole append."""
NOISE_FACTOR = 3.0
BF16_SPREAD = 0.15
"""Value of `spread` in `small_model` for bf16. With a larger spread, attention concentrates on one
token, and where the scores of two tokens tie, rounding decides between them."""


def logit_tolerance(model: Any) -> float:
    """Compute the allowed distance of a logit from that of transformers.

    The distance is NOISE_FACTOR times the largest change that chunking alone causes in a logit of
    transformers. The whole and the chunked runs both use SDPA, because two implementations of
    attention differ by more. Asserts that the distance is smaller than the gap between the best and
    the second-best logit at most positions.
    """
    model.set_attn_implementation("sdpa")
    [ids] = random_prompts(9, [250], model.config.vocab_size)
    logits = full_logits(model, ids)
    changes = [
        (chunked_logits(model, ids, size) - logits).abs().max().item() for size in CHUNK_SIZES
    ]
    allowed = NOISE_FACTOR * max(changes)
    best, second = logits.topk(2).values.unbind(1)
    assert allowed > 0
    assert (best - second > allowed).double().mean() > 0.5
    return allowed


def greedy_continuation(model: Any, ids: Sequence[int], count: int) -> list[int]:
    """Compute transformers' greedy continuation with one full prefill per token."""
    out = list(ids)
    for _ in range(count):
        out.append(int(full_logits(model, out)[-1].argmax()))
    return out[len(ids) :]


class ScrambledPages:
    """Allocator of KV pages in random order, so that the pages of a sequence are not adjacent, and
    of two state slots for each sequence, which its rows read and write in turn. A sequence gives
    its window pages back as soon as its next row does not see them."""

    def __init__(self, runner: TorchRunner, seed: int = 0) -> None:
        self.size = runner.geometry.page_size
        self.free = list(range(runner.geometry.pages))
        random.Random(seed).shuffle(self.free)
        self.pages_by_sequence: dict[int, list[int]] = {}
        self.windows = runner.geometry.windows
        self.free_window_pages = [list(range(group.pages)) for group in self.windows]
        for free in self.free_window_pages:
            random.Random(seed).shuffle(free)
        self.window_pages: dict[tuple[int, int], dict[int, int]] = {}
        """By sequence and window group: the pages held, by index."""
        self.has_states = runner.geometry.state_slots > 0
        self.last_slot: dict[int, int] = {}

    def allocate(self, sequence: int, tokens: int) -> array[int]:
        held = self.pages_by_sequence.setdefault(sequence, [])
        while len(held) * self.size < tokens:
            held.append(self.free.pop())
        return array("i", held)

    def row(
        self, sequence: int, ids: Sequence[int], start: int, sample: SampleParams | None
    ) -> BatchRow:
        """Make the row that computes `ids` at position `start` of a sequence."""
        pages = self.allocate(sequence, start + len(ids))
        slots = NO_STATE
        if self.has_states:
            read = self.last_slot.get(sequence, -1)
            write = 2 * sequence + (read == 2 * sequence)
            slots = StateSlots(read, write)
            self.last_slot[sequence] = write
        windows = tuple(
            self._window(sequence, group, start, start + len(ids))
            for group in range(len(self.windows))
        )
        return BatchRow(array("i", ids), -1, start, pages, sample, windows, slots)

    def _window(self, sequence: int, group: int, start: int, end: int) -> WindowTable:
        held = self.window_pages.setdefault((sequence, group), {})
        free = self.free_window_pages[group]
        first = max(start - self.windows[group].window + 1, 0) // self.size
        for index in [n for n in held if n < first]:
            free.insert(0, held.pop(index))
        needed = range(first, -(-end // self.size))
        for index in needed:
            if index not in held:
                held[index] = free.pop()
        return WindowTable(first, array("i", [held[index] for index in needed]))


def chunk_end_logits(runner: TorchRunner, ids: Sequence[int], cuts: Sequence[int]) -> Tensor:
    """Prefill a prompt in chunks that end at the positions `cuts` and at its end.

    Returns the runner's logits [len(cuts) + 1, vocab] of the last token of each chunk.
    """
    pages, found = ScrambledPages(runner), []
    borders = [0, *cuts, len(ids)]
    with torch.inference_mode():
        for begin, end in pairwise(borders):
            row = pages.row(0, ids[begin:end], begin, SampleParams())
            found.append(runner.compute_logits(Batch(0, [row]))[0].float())
    return torch.stack(found)


def serve_mixed_batches(
    runner: TorchRunner, starts: Sequence[Sequence[int]], count: int, seed: int = 0
) -> list[list[int]]:
    """Generate greedy continuations of the prompts `starts`, `count` ids each, in batches that mix
    prompt chunks of random size with decoding rows in random order."""
    source = random.Random(seed)
    pages = ScrambledPages(runner, seed)
    logs = [list(ids) for ids in starts]
    ends_at = [len(ids) + count for ids in starts]
    committed = [0] * len(logs)
    number = 0
    while any(len(log) < end for log, end in zip(logs, ends_at, strict=True)):
        unfinished = [n for n in range(len(logs)) if len(logs[n]) < ends_at[n]]
        chosen = source.sample(unfinished, source.randint(1, len(unfinished)))
        rows, ends = [], []
        for n in chosen:
            owed = len(logs[n]) - committed[n]
            end = committed[n] + min(owed, source.choice((1, 2, 7, 40, 100)))
            sample = SampleParams() if end == len(logs[n]) else None
            rows.append(pages.row(n, logs[n][committed[n] : end], committed[n], sample))
            ends.append(end)
        number += 1
        result = runner.collect(runner.launch(Batch(number, rows)))
        for n, end, drawn in zip(chosen, ends, result.results, strict=True):
            committed[n] = end
            if drawn is not None:
                assert drawn.failure is None, drawn.failure
                logs[n].append(drawn.id)
    return [log[len(ids) :] for log, ids in zip(logs, starts, strict=True)]
