"""Parity of architectures that run as transformers' modules, and errors of unsupported ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from continuo.engine.architectures.refusals import ALTERNATIVES
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES

LOGITS_TOLERANCE = 2e-4

SUPPORTED: dict[str, Callable[[], Any]] = {
    "phi": lambda: oracle.small_model("Phi", num_key_value_heads=4),
    "gpt-neox": lambda: oracle.small_model("GPTNeoX"),
    "olmo2": lambda: oracle.small_model("Olmo2"),
    "gemma": lambda: oracle.small_model("Gemma", head_dim=16),
    "gpt2": lambda: oracle.small_model("GPT2", n_positions=512, n_embd=48, n_head=4, n_layer=3),
    "starcoder2-windows": lambda: oracle.small_model("Starcoder2", sliding_window=20),
}

UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
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
    "encoder": (
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(vocab_size=131, d_model=32, d_ff=32, num_layers=1, num_heads=2)
        ),
        "T5ForConditionalGeneration cannot run here: it has an encoder",
    ),
}


def test_alternatives_of_an_unsupported_architecture_run_in_c() -> None:
    ways = {each.name: each.way for each in ARCHITECTURES}
    assert {ways[name] for name in ALTERNATIVES} == {"C"}


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_fallback_architecture_equals_transformers(name: str, tmp_path: Path) -> None:
    model = SUPPORTED[name]()
    model.save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, block_size=16)
    [ids] = oracle.random_prompts(1, [70])
    expected = oracle.full_logits(model, ids)
    logits = oracle.chunk_end_logits(runner, ids, [5, 6, 40])
    difference = (logits - expected[[4, 5, 39, 69]]).abs().max()
    assert difference <= LOGITS_TOLERANCE * expected.abs().max()
    prompts = oracle.random_prompts(2, [3, 37, 1])
    assert oracle.serve_mixed_batches(runner, prompts, 6) == [
        oracle.greedy_continuation(model, ids, 6) for ids in prompts
    ]


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_error_of_an_unsupported_architecture_names_it_and_the_cause(
    name: str, tmp_path: Path
) -> None:
    make, message = UNSUPPORTED[name]
    make().save_pretrained(tmp_path)
    with pytest.raises(ModelError) as refused:
        oracle.build_cpu_runner(tmp_path)
    assert message in refused.value.message
    assert refused.value.message.endswith(
        "; use a model of another architecture, such as Qwen3ForCausalLM or LlamaForCausalLM"
    )
    assert "\n" not in refused.value.message
