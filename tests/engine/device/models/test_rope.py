"""Tests of rotary tables: the frequencies of transformers at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from continuo.engine.device.models import rope
from tests.support.transformers_oracle import LLAMA3_ROPE, YARN_ROPE

pytestmark = pytest.mark.torch

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + n / 10 for n in range(8)],
    "long_factor": [2.0 + n for n in range(8)],
    "original_max_position_embeddings": 40,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def config(parameters: dict[str, Any], positions: int = 60) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=positions,
        rope_parameters=parameters,
    )


@pytest.mark.parametrize("parameters", [PLAIN, LINEAR, DYNAMIC, YARN_ROPE, LLAMA3_ROPE, LONG])
def test_rope_table_equals_that_of_transformers_at_every_position(
    parameters: dict[str, Any],
) -> None:
    """Position p equals that of a sequence of p + 1 tokens, also past the trained length, at which
    dynamic scaling ends."""
    model_config = config(parameters)
    table = rope.build_table(model_config, 16, 100, torch.empty(0))
    theirs = LlamaRotaryEmbedding(model_config)
    for position in range(60 if parameters is DYNAMIC else 100):
        cos, sin = theirs(torch.empty(1, 1, 16), torch.tensor([[position]]))
        sign = torch.tensor([-1.0] * 8 + [1.0] * 8)
        assert torch.allclose(table[position, 0], cos[0, 0], atol=1e-5)
        assert torch.allclose(table[position, 1] * sign, sin[0, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [(PLAIN, 60), (LINEAR, 240), (DYNAMIC, 60), (YARN_ROPE, 512), (LLAMA3_ROPE, 60), (LONG, 60)],
)
def test_context_limit_follows_the_rope_parameters(parameters: dict[str, Any], tokens: int) -> None:
    assert rope.context_limit(config(parameters)) == tokens
