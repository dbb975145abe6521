"""Logits do not depend, in any bit, on how a prompt is cut into chunks or on the rows beside it."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.device.native.native_runner import NativeRunner
from tests.support import transformers_oracle as oracle

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed"),
]

SIZES = {"vocab_size": 144, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
small = partial(oracle.small_model, **SIZES, spread=0.06)
MODELS: dict[str, Any] = {
    "groups of heads": partial(small, "Llama"),
    "one group": partial(small, "Qwen3", num_key_value_heads=1),
    "windows": partial(small, "Gemma3Text", num_hidden_layers=7, sliding_window=20),
    "long windows": partial(small, "Gemma3Text", num_hidden_layers=7, sliding_window=90),
    "capped scores": partial(small, "Gemma2", sliding_window=70),
}
LENGTH = 200
CUTS = [*range(1, LENGTH)]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"quantization": "int4"},
    ],
    ids=["float32", "bfloat16", "int8", "int4"],
)
@pytest.mark.parametrize("name", MODELS)
def test_chunks_change_no_bit(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    MODELS[name]().save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, **options)
    assert isinstance(runner, NativeRunner)
    [ids] = oracle.random_prompts(1, [LENGTH], SIZES["vocab_size"])
    one_by_one = oracle.chunk_end_logits(runner, ids, CUTS)
    source = random.Random(name)
    for size in (2, 4, 9, 40, 130):
        cuts = sorted(source.sample(CUTS, LENGTH // size))
        chunks = oracle.chunk_end_logits(runner, ids, cuts)
        places = [cut - 1 for cut in cuts] + [LENGTH - 1]
        assert torch.equal(chunks, one_by_one[places])
