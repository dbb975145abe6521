"""Parity of our decoders with transformers: every family, whole, in chunks and mixed batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.device.native.native_runner import NativeRunner
from tests.support import transformers_oracle as oracle

LOGITS_TOLERANCE = 2e-4
"""fp32, relative to the largest logit: the error of a different order of summation."""


@pytest.fixture(scope="module", params=["torch", "C"])
def sizes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Sizes of models that run on torch's operations, and of models that our C decoder runs."""
    if request.param == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    return oracle.NATIVE_SIZES if request.param == "C" else {}


@pytest.fixture(scope="module", params=list(oracle.FAMILIES))
def family(
    request: pytest.FixtureRequest, sizes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, Path]:
    """(name, transformers' model in fp32, its checkpoint); one family is saved in shards."""
    folder = tmp_path_factory.mktemp(request.param)
    model = oracle.FAMILIES[request.param](**sizes)
    model.save_pretrained(folder, max_shard_size="30KB" if request.param == "llama" else "1GB")
    return request.param, model, folder


def test_logits_of_a_prompt_in_chunks_equal_transformers(family: tuple[str, Any, Path]) -> None:
    _, model, folder = family
    [ids] = oracle.random_prompts(1, [150])
    runner = oracle.build_cpu_runner(folder)
    assert isinstance(runner, NativeRunner) == (model.config.vocab_size != oracle.VOCAB_SIZE)
    expected = oracle.full_logits(model, ids)
    for cuts in ([], [1, 2, 20, 21, 100], [70], [16, 32, 148, 149]):
        ends = [cut - 1 for cut in cuts] + [len(ids) - 1]
        actual = oracle.chunk_end_logits(runner, ids, cuts)
        scale = expected[ends].abs().max()
        assert (actual - expected[ends]).abs().max() <= LOGITS_TOLERANCE * scale


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_greedy_ids_in_mixed_batches_equal_transformers(
    family: tuple[str, Any, Path], page_size: int
) -> None:
    _, model, folder = family
    prompts = oracle.random_prompts(2, [3, 37, 70, 1, 40])
    runner = oracle.build_cpu_runner(folder, block_size=page_size, kv_cache_memory_bytes=8 << 20)
    actual = oracle.serve_mixed_batches(runner, prompts, count=8, seed=page_size)
    assert actual == [oracle.greedy_continuation(model, ids, 8) for ids in prompts]


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2", "qwen3", "smollm3"])
def test_bf16_output_is_within_the_noise_of_chunking(
    name: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    """The served ids are the most likely in one prefill by transformers, within the noise of
    chunking, which is measured on transformers alone.
    """
    model = oracle.FAMILIES[name](**sizes, spread=oracle.BF16_SPREAD).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    epsilon = oracle.logit_tolerance(model)
    prompts = oracle.random_prompts(3, [3, 37, 70])
    served = oracle.serve_mixed_batches(
        oracle.build_cpu_runner(tmp_path, "bfloat16"), prompts, count=10, seed=5
    )
    for ids, output in zip(prompts, served, strict=True):
        logits = oracle.full_logits(model, ids + output)[len(ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.amax(1) - chosen).max() <= epsilon


def test_sharded_checkpoint_has_several_shards(tmp_path: Path) -> None:
    oracle.FAMILIES["llama"]().save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
