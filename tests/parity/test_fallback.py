"""Architectures that run as transformers' own modules, and those that cannot and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle

LOGITS_TOLERANCE = 2e-4

RUN: dict[str, Callable[[], Any]] = {
    "phi": lambda: oracle.small("Phi", num_key_value_heads=4),
    "gpt-neox": lambda: oracle.small("GPTNeoX"),
    "olmo2": lambda: oracle.small("Olmo2"),
    "gemma": lambda: oracle.small("Gemma", head_dim=16),
    "gpt2": lambda: oracle.small("GPT2", n_positions=512, n_embd=48, n_head=4, n_layer=3),
    "starcoder2-windows": lambda: oracle.small("Starcoder2", sliding_window=20),
}

REFUSE: dict[str, tuple[Callable[[], Any], str]] = {
    "state-space": (
        lambda: tf.MambaForCausalLM(
            tf.MambaConfig(vocab_size=131, hidden_size=32, num_hidden_layers=2, state_size=4)
        ),
        "MambaForCausalLM",
    ),
    "position-bias": (
        lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=131, hidden_size=32, n_head=2)),
        "BloomForCausalLM",
    ),
    "soft-capped": (
        lambda: oracle.small("Gemma2", head_dim=16),
        "Gemma2ForCausalLM cannot run here: soft-capped attention scores",
    ),
    "encoder": (
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(vocab_size=131, d_model=32, d_ff=32, num_layers=1, num_heads=2)
        ),
        "T5ForConditionalGeneration cannot run here: it has an encoder",
    ),
    "sinks": (
        lambda: oracle.small("GptOss", head_dim=16, num_local_experts=2, num_experts_per_tok=1),
        "GptOssForCausalLM cannot run here: attention sinks",
    ),
}


@pytest.mark.parametrize("name", list(RUN))
def test_what_runs_gives_the_logits_and_ids_of_transformers(name: str, tmp_path: Path) -> None:
    model = RUN[name]()
    model.save_pretrained(tmp_path)
    runner = oracle.runner_of(tmp_path, block_size=16)
    [ids] = oracle.prompts(1, [70])
    wanted = oracle.whole(model, ids)
    found = oracle.logits_in_chunks(runner, ids, [5, 6, 40])
    difference = (found - wanted[[4, 5, 39, 69]]).abs().max()
    assert difference <= LOGITS_TOLERANCE * wanted.abs().max()
    starts = oracle.prompts(2, [3, 37, 1])
    assert oracle.serve(runner, starts, 6) == [oracle.greedy(model, s, 6) for s in starts]


@pytest.mark.parametrize("name", list(REFUSE))
def test_what_cannot_run_names_the_architecture_and_why(name: str, tmp_path: Path) -> None:
    make, message = REFUSE[name]
    make().save_pretrained(tmp_path)
    with pytest.raises(ModelError) as refused:
        oracle.runner_of(tmp_path)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
