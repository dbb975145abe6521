"""Logits do not depend, in any bit, on how a prompt is cut into chunks or on the rows beside it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.batch import Batch
from continuo.engine.device.native.native_runner import NativeRunner
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed"),
]

VOCABULARY = 130
"""Ids that all models have."""
SIZES = {"vocab_size": 144, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
small = partial(oracle.small_model, **SIZES, spread=0.06)
MODELS_BY_NAME = {row.name: row.make for row in ARCHITECTURES}
MODELS: dict[str, Any] = {
    "groups of heads": partial(small, "Llama"),
    "one group": partial(small, "Qwen3", num_key_value_heads=1),
    "windows": partial(small, "Gemma3Text", num_hidden_layers=7, sliding_window=20),
    "long windows": partial(small, "Gemma3Text", num_hidden_layers=7, sliding_window=90),
    "capped scores": partial(small, "Gemma2", sliding_window=70),
    "experts": MODELS_BY_NAME["Qwen3MoeForCausalLM"],
    "sinks": MODELS_BY_NAME["GptOssForCausalLM"],
    "recurrent": MODELS_BY_NAME["Qwen3_5ForCausalLM"],
}
LENGTH = 200
CUTS = [*range(1, LENGTH)]


OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
EXCEPTIONS = {
    ("recurrent", "bfloat16"),  # convolutions keep their last inputs in bf16 between two steps
    *product(("experts", "sinks"), ("int8", "int4")),  # mixtures of experts are not quantized
}


@pytest.mark.parametrize(("name", "option"), sorted({*product(MODELS, OPTIONS)} - EXCEPTIONS))
def test_chunks_and_other_rows_change_no_bit(name: str, option: str, tmp_path: Path) -> None:
    MODELS[name]().save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, **OPTIONS[option])
    assert isinstance(runner, NativeRunner)
    [ids] = oracle.random_prompts(1, [LENGTH], VOCABULARY)
    one_by_one = oracle.chunk_end_logits(runner, ids, CUTS)
    source = random.Random(name)
    for size in (2, 4, 9, 40, 130):
        cuts = sorted(source.sample(CUTS, LENGTH // size))
        places = [cut - 1 for cut in cuts] + [LENGTH - 1]
        assert torch.equal(oracle.chunk_end_logits(runner, ids, cuts), one_by_one[places])
        assert torch.equal(logits_in_company(runner, ids, cuts), one_by_one[places])


def logits_in_company(
    runner: NativeRunner, ids: Sequence[int], cuts: Sequence[int]
) -> torch.Tensor:
    """Return the logits at the ends of chunks, each computed beside a chunk of another prompt."""
    [other] = oracle.random_prompts(2, [LENGTH], VOCABULARY)
    pages, found = oracle.ScrambledPages(runner), list[torch.Tensor]()
    with torch.inference_mode():
        for begin, end in pairwise([0, *cuts, LENGTH]):
            rows = [
                pages.row(number, prompt[begin:end], begin, oracle.SampleParams())
                for number, prompt in ((1, other), (0, ids))
            ]
            found.append(runner.compute_logits(Batch(0, rows))[1].float())
    return torch.stack(found)
