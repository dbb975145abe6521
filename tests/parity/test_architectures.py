"""Every architecture of the table is equal to transformers, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from continuo.engine.device.models.transformers_model import TransformersModel
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.runner import TorchRunner
from continuo.engine.errors import ModelError
from tests.support import architectures
from tests.support import transformers_oracle as oracle
from tests.support.architectures import Architecture, Way

LOGITS_TOLERANCE = 2e-4
TABLE_VERSION = "5.24"
"""The version of transformers whose causal models the table has."""
BF16_NOISE = 0.02
"""Relative error that rounding to bf16 causes in models this small, however exact the code is."""


def way_of(runner: TorchRunner) -> Way:
    if isinstance(runner, NativeRunner):
        return "C"
    return "transformers" if isinstance(runner.model, TransformersModel) else "torch"


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES, ids=lambda each: each.name)
def test_architecture_is_equal_to_transformers_or_refused(
    architecture: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if architecture.way == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    model = architecture.make()
    assert type(model).__name__ == architecture.name
    model.save_pretrained(tmp_path)
    if architecture.way == "refused":
        with pytest.raises(ModelError) as refused:
            oracle.build_cpu_runner(tmp_path)
        message = refused.value.message
        assert architecture.name in message
        assert f": {architecture.reason}" in message
        assert architecture.found is None or architecture.found in message
        assert "\n" not in message
        return
    assert_parity(model, tmp_path, architecture.way)
    if architecture.way == "C":  # In torch, as on a GPU, and where there is no compiler.
        monkeypatch.setattr(NativeDecoder, "try_create", lambda *_: None)
        assert_parity(model, tmp_path, "torch")


def assert_parity(model: Any, folder: Path, way: Way) -> None:
    runner = oracle.build_cpu_runner(folder, block_size=16, max_model_len=256)
    assert way_of(runner) == way
    vocabulary = model.config.get_text_config().vocab_size
    [ids] = oracle.random_prompts(1, [90], vocabulary)
    expected = oracle.full_logits(model, ids)
    logits = oracle.chunk_end_logits(runner, ids, [1, 2, 40, 60])
    difference = (logits - expected[[0, 1, 39, 59, 89]]).abs().max()
    assert difference <= LOGITS_TOLERANCE * expected.abs().max()
    prompts = oracle.random_prompts(2, [3, 70, 1, 37], vocabulary)
    assert oracle.serve_mixed_batches(runner, prompts, 8) == [
        oracle.greedy_continuation(model, ids, 8) for ids in prompts
    ]


@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "Lfm2ForCausalLM"])
def test_bf16_output_is_within_the_noise_of_chunking(name: str, tmp_path: Path) -> None:
    """See the test of this name in test_families."""
    [architecture] = [each for each in architectures.ARCHITECTURES if each.name == name]
    model = architecture.make(spread=oracle.BF16_SPREAD).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    epsilon = oracle.logit_tolerance(model)
    prompts = oracle.random_prompts(3, [3, 37, 70], model.config.vocab_size)
    runner = oracle.build_cpu_runner(tmp_path, "bfloat16")
    for ids, output in zip(prompts, oracle.serve_mixed_batches(runner, prompts, 10), strict=True):
        logits = oracle.full_logits(model, ids + output)[len(ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.amax(1) - chosen).max() <= epsilon


@pytest.mark.parametrize(
    "architecture",
    [each for each in architectures.ARCHITECTURES if each.way in ("C", "torch")],
    ids=lambda each: each.name,
)
def test_bf16_is_about_as_close_to_fp32_as_that_of_transformers(
    architecture: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = architecture.make()
    model.save_pretrained(tmp_path)
    [ids] = oracle.random_prompts(1, [60], model.config.get_text_config().vocab_size)
    ends = [0, 29, 59]
    exact = oracle.full_logits(model, ids)[ends]
    theirs = (oracle.full_logits(model.to(torch.bfloat16), ids)[ends] - exact).norm()
    for _ in ("as on this machine", "in torch"):
        runner = oracle.build_cpu_runner(tmp_path, "bfloat16", max_model_len=128)
        ours = (oracle.chunk_end_logits(runner, ids, [1, 30]) - exact).norm()
        assert ours <= 2 * theirs + BF16_NOISE * exact.norm()
        monkeypatch.setattr(NativeDecoder, "try_create", lambda *_: None)


def test_each_known_architecture_has_a_model_and_a_reason_if_it_is_refused() -> None:
    rows = architectures.ARCHITECTURES
    assert list(architectures.MAKERS) == [row.name for row in rows]
    assert all(bool(row.reason) == (row.way == "refused") for row in rows)


def test_table_has_every_causal_model_of_transformers() -> None:
    if not tf.__version__.startswith(f"{TABLE_VERSION}."):
        pytest.skip(f"the table is that of transformers {TABLE_VERSION}, not of {tf.__version__}")
    names = {
        name
        for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for name in ([value] if isinstance(value, str) else value)
    }
    left_out = set(" ".join(architectures.LEFT_OUT.values()).split())
    assert names - {row.name for row in architectures.ARCHITECTURES} == left_out
