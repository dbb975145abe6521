"""Parity of random histories on models with sliding windows: eight sessions each, on torch's
operations, on our C decoder and through transformers. See test_random_histories_parity.

A session holds the pages of its windows alone, in a pool far smaller than its history would need.
"""

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.device.native.native_runner import NativeRunner
from tests.parity.test_random_histories_parity import (
    CONTEXT,
    ModelUnderTest,
    check,
    crowded_engine,
    run_sessions,
)
from tests.support import transformers_oracle as oracle
from tests.support.digest_runner import VOCABULARY
from tests.support.worlds import crowded_world

WINDOW = 40
GEMMA_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS: dict[str, Callable[[], Any]] = {
    "mistral-torch": partial(
        oracle.small_model, "Mistral", sliding_window=WINDOW, vocab_size=VOCABULARY, head_dim=24
    ),
    "mistral-C": partial(
        oracle.small_model, "Mistral", sliding_window=WINDOW, **oracle.NATIVE_SIZES
    ),
    "qwen2-C": partial(
        oracle.small_model,
        "Qwen2",
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
        **oracle.NATIVE_SIZES,
    ),
    "gemma3": partial(
        oracle.small_model,
        "Gemma3Text",
        vocab_size=VOCABULARY,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=GEMMA_LAYERS,
    ),
}


@pytest.mark.parametrize(
    ("page_size", "chunk", "host"), [(1, 8, True), (16, 8, True), (16, 64, False)]
)
@pytest.mark.parametrize("name", list(MODELS))
async def test_output_after_random_histories_equals_one_prefill(
    name: str, letters: Path, tmp_path: Path, page_size: int, chunk: int, host: bool
) -> None:
    native = name.endswith("-C")
    if native and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    reference = MODELS[name]()
    reference.save_pretrained(tmp_path)
    seed = page_size + chunk
    world = crowded_world(
        random.Random(f"{name} {seed}"), page_size=page_size, session_tokens=CONTEXT
    )
    bounds: dict[str, Any] = {
        "block_size": page_size,
        "num_gpu_blocks_override": world.pages,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": chunk,
        "kv_offloading_size": 0.01 if host else 0.0,
    }

    def make() -> Any:
        return oracle.build_cpu_runner(tmp_path, **bounds)

    async with crowded_engine(letters, make, world) as harness:
        assert harness.runner.geometry.windows[0].window == WINDOW
        vocabulary = reference.config.vocab_size
        outputs = await run_sessions(harness, vocabulary, seed, world)
        stats = await harness.engine.fleet.stats()
        assert isinstance(harness.runner, NativeRunner) == native
    assert stats.retractions > 0
    assert not host or stats.pages_recalled > 0
    tolerance = oracle.logit_tolerance(reference)
    model = ModelUnderTest(native, "float32", reference, tolerance, tmp_path)
    for output in outputs:
        check(output, model)
