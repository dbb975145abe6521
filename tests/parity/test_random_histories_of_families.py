"""Parity of random histories on every kind of layer: windows, soft caps, sinks, mixtures of experts
and recurrences, in eight sessions each. See test_random_histories_parity.

In a mixture or a recurrence, two ids may tie: where the drawn id is not the oracle's most likely
one, its logit is within the tolerance, and such positions are at most one in a thousand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.test_random_histories_parity import (
    CONTEXT,
    crowded_engine,
    penalise,
    run_sessions,
)
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, GEMMA4_SHARED
from tests.support.digest_runner import VOCABULARY
from tests.support.worlds import crowded_world

TIES_MAX = 0.001
LOGITS_TOLERANCE = 2e-4
"""fp32, relative to the largest logit: the error of a different order of summation."""
MAKERS: dict[str, Callable[..., Any]] = {
    each.name: each.make
    for each in ARCHITECTURES
    if each.name
    in {
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GptOssForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3NextForCausalLM",
        "Lfm2ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "NemotronHForCausalLM",
        "FalconH1ForCausalLM",
        "Mamba2ForCausalLM",
        "OlmoHybridForCausalLM",
    }
}
MAKERS["Gemma4ForCausalLM"] = partial(
    oracle.small_model, "Gemma4Text", **(GEMMA4_SHARED | {"vocab_size_per_layer_input": VOCABULARY})
)


@pytest.mark.parametrize(
    ("page_size", "chunk", "ahead", "threads"), [(16, 8, 1, 1), (1, 512, 0, 1), (16, 64, 0, 2)]
)
@pytest.mark.parametrize("name", list(MAKERS))
async def test_output_after_random_histories_equals_one_prefill(
    name: str,
    letters: Path,
    tmp_path: Path,
    page_size: int,
    chunk: int,
    ahead: int,
    threads: int,
) -> None:
    """`ahead` 1: in torch. `threads` 2: our C decoder, where it runs the family, computes the end
    of a step on another thread while the next one is planned."""
    model = MAKERS[name](vocab_size=VOCABULARY)
    model.save_pretrained(tmp_path)
    seed = page_size + chunk
    world = crowded_world(
        random.Random(f"{name} {seed}"), page_size=page_size, session_tokens=CONTEXT
    )
    bounds: dict[str, Any] = {
        "block_size": page_size,
        "num_gpu_blocks_override": world.pages,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": chunk,
        "kv_offloading_size": 0.01,
        "steps_ahead": ahead,
        "threads": threads,
    }

    def make() -> Any:
        return oracle.build_cpu_runner(tmp_path, **bounds)

    async with crowded_engine(letters, make, world) as harness:
        outputs = await run_sessions(harness, VOCABULARY, seed, world)
        stats = await harness.engine.fleet.stats()
    assert stats.retractions > 0
    drawn = ties = 0
    for log, ids, _, sampling in outputs:
        logits = oracle.full_logits(model, log + ids)[len(log) - 1 : -1].clone()
        for count, row in enumerate(logits):
            penalise(row, log, ids[:count], sampling)
        best, chosen = logits.argmax(1), torch.tensor(ids)
        gap = logits.amax(1) - logits.gather(1, chosen[:, None])[:, 0]
        assert gap.max() <= LOGITS_TOLERANCE * logits.abs().max()
        drawn += len(ids)
        ties += int((best != chosen).sum())
    assert ties <= TIES_MAX * drawn
