"""Parity of the bundled checkpoint: our decoder and transformers read the same model from it."""

from __future__ import annotations

import itertools

import torch
import transformers as tf

from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.device.build import build_runner
from continuo.engine.device.weights import resolve
from tests.support import transformers_oracle as oracle

LOGITS_TOLERANCE = 2e-4


def test_bundled_model_equals_transformers_in_chunks_and_batches() -> None:
    folder = resolve(BUNDLED_MODEL, None, lambda what, fraction: None)
    assert (folder / "config.json").exists(), f"no checkpoint in {folder}"
    reference = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = EngineConfig(dtype="float32", device="cpu", threads=1, max_model_len=2048)
    runner, loaded = build_runner(config, lambda what, fraction: None)
    assert loaded.folder == str(folder)
    prompts = oracle.random_prompts(1, [5, 120, 40], vocab=reference.config.vocab_size)
    expected = oracle.full_logits(reference, prompts[1])
    cuts = [1, 17, 90]
    ends = [end - 1 for end in cuts] + [119]
    logits = oracle.chunk_end_logits(runner, prompts[1], cuts)
    assert (logits - expected[ends]).abs().max() <= LOGITS_TOLERANCE * expected.abs().max()
    served = oracle.serve_mixed_batches(runner, prompts, count=16)
    assert served == [oracle.greedy_continuation(reference, ids, 16) for ids in prompts]
    assert len(set(itertools.chain(*served))) > 3
