"""Models in GGUF files: their logits are those of transformers with the values in the file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine import Engine
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.device import build
from continuo.engine.device.build import build_runner
from continuo.engine.device.native import compile, native_decoder
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.errors import ModelError
from continuo.engine.gguf import folder as gguf_folder
from continuo.engine.local_checkpoint import find_local_checkpoint
from tests.support import architectures
from tests.support import transformers_oracle as oracle
from tests.support.gguf_files import KINDS, write_gguf

pytestmark = pytest.mark.torch

LOGITS_TOLERANCE = 2e-4
"""fp32, relative to the largest logit: the error of a different order of summation."""
ACTIVATIONS_TOLERANCE = 0.1
"""Largest relative difference of logits, in the 2-norm, that activations of 8 bits may cause in
these random models."""
SIZES = {"vocab_size": 144, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Sizes of which rows are whole blocks of every format."""

small = partial(oracle.small_model, **SIZES, spread=0.06)
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": partial(small, "Llama", tie_word_embeddings=True),
    "llama3": partial(small, "Llama", rope_parameters=oracle.LLAMA3_ROPE),
    "qwen2": partial(small, "Qwen2", tie_word_embeddings=True),
    "qwen2-yarn": partial(small, "Qwen2", rope_parameters=oracle.YARN_ROPE),
    "qwen3": partial(small, "Qwen3", tie_word_embeddings=True),
    "gemma3": partial(
        small, "Gemma3Text", num_hidden_layers=7, sliding_window=20, query_pre_attn_scalar=64
    ),
}
QUANTIZED = [KINDS.Q8_0, KINDS.Q4_0, KINDS.Q5_0, KINDS.Q4_K, KINDS.Q5_K, KINDS.Q6_K]
CUTS = [1, 2, 20, 21, 100]
[IDS] = oracle.random_prompts(1, [120], SIZES["vocab_size"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_folder, "CACHE_FOLDER", tmp_path / "cache")


@pytest.fixture(params=["torch", "C"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compute steps in torch, or in C."""
    if request.param == "torch":
        monkeypatch.setattr(
            native_decoder.NativeDecoder, "try_create", classmethod(lambda *_args: None)
        )
    elif shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    return request.param


def compute_logits(model: Path, path: str, **options: Any) -> torch.Tensor:
    runner = oracle.build_cpu_runner(model, **options)
    assert isinstance(runner, NativeRunner) == (path == "C")
    return oracle.chunk_end_logits(runner, IDS, CUTS)


def oracle_logits(model: Any, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute transformers' logits with these weights."""
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    return oracle.full_logits(model, IDS)[[cut - 1 for cut in CUTS] + [len(IDS) - 1]]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, path: str, tmp_path: Path) -> None:
    model = FAMILIES[family]()
    model.save_pretrained(tmp_path)
    values = write_gguf(tmp_path, tmp_path / "model-f.gguf", KINDS.F32, kinds={"attn_k": KINDS.F16})
    expected = oracle_logits(model, values)
    actual = compute_logits(tmp_path / "model-f.gguf", path)
    assert (actual - expected).abs().max() <= LOGITS_TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_logits_of_quantized_weights(kind: Any, path: str, tmp_path: Path) -> None:
    """In torch they are those of the values in the file; in C activations are rounded as well."""
    model = FAMILIES["llama"]()
    model.save_pretrained(tmp_path)
    values = write_gguf(
        tmp_path, tmp_path / "q.gguf", kind, kinds={"attn_v": KINDS.Q6_K, "ffn_up": KINDS.F16}
    )
    expected = oracle_logits(model, values)
    difference = compute_logits(tmp_path / "q.gguf", path) - expected
    if path == "torch":
        assert difference.abs().max() <= LOGITS_TOLERANCE * expected.abs().max()
    else:
        assert difference.norm() <= ACTIVATIONS_TOLERANCE * expected.norm()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_quantized_at_load_are_those_of_a_file(quantization: str, tmp_path: Path) -> None:
    """int8 and int4 are the blocks of Q8_0 and Q4_0."""
    FAMILIES["qwen3"]().save_pretrained(tmp_path)
    kind = {"int8": KINDS.Q8_0, "int4": KINDS.Q4_0}[quantization]
    write_gguf(tmp_path, tmp_path / "q.gguf", kind, kinds={"token_embd": KINDS.F32})
    made = oracle.build_cpu_runner(tmp_path, quantization=quantization)
    read = oracle.build_cpu_runner(tmp_path / "q.gguf")
    plain = oracle.build_cpu_runner(tmp_path)
    logits = [oracle.chunk_end_logits(runner, IDS, CUTS) for runner in (made, read, plain)]
    difference = (logits[0] - logits[2]).norm() / logits[2].norm()
    assert 0 < difference < {"int8": 0.05, "int4": 0.5}[quantization]
    # The head, which is tied to an embedding in fp32, is not quantized in the file.
    assert (logits[0] - logits[1]).norm() / logits[2].norm() < difference


@pytest.mark.parametrize("name", ["Lfm2ForCausalLM", "Qwen3_5ForCausalLM", "GraniteForCausalLM"])
def test_weights_of_other_layers_are_quantized(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short convolutions, gated delta nets, and a head whose logits are scaled: rounding weights
    and activations in C changes the logits about as much as rounding the weights in torch."""
    architecture = next(each for each in architectures.ARCHITECTURES if each.name == name)
    architecture.make().save_pretrained(tmp_path)
    plain = oracle.build_cpu_runner(tmp_path, max_model_len=256)
    [ids] = oracle.random_prompts(3, [120], plain.geometry.vocab_size)
    expected = oracle.chunk_end_logits(plain, ids, CUTS)
    changes: list[torch.Tensor] = []
    for in_c in (True, False):
        if not in_c:
            monkeypatch.setattr(native_decoder.NativeDecoder, "try_create", lambda *_args: None)
        runner = oracle.build_cpu_runner(tmp_path, max_model_len=256, quantization="int8")
        assert isinstance(runner, NativeRunner) == in_c
        changes.append((oracle.chunk_end_logits(runner, ids, CUTS) - expected).norm())
    assert 0 < changes[0] <= 2 * changes[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3MoeForCausalLM", "quantization is int8, but mixtures of experts are not quantized"),
        ("GPT2LMHeadModel", "but GPT2LMHeadModel runs through transformers"),
    ],
)
def test_model_that_is_not_quantized_is_refused(name: str, message: str, tmp_path: Path) -> None:
    architecture = next(each for each in architectures.ARCHITECTURES if each.name == name)
    architecture.make().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        oracle.build_cpu_runner(tmp_path, quantization="int8")


def test_quantized_weights_are_not_quantized_again(tmp_path: Path) -> None:
    FAMILIES["qwen3"]().save_pretrained(tmp_path)
    write_gguf(tmp_path, tmp_path / "q.gguf", KINDS.Q8_0)
    with pytest.raises(ModelError, match="is Q8_0: it cannot be quantized again"):
        oracle.build_cpu_runner(tmp_path / "q.gguf", quantization="int4")


def test_quantization_is_refused_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["qwen3"]().save_pretrained(tmp_path)
    monkeypatch.setattr(build, "_choose_device", lambda _config: torch.device("cuda"))
    with pytest.raises(ModelError, match="made for CPUs alone; the device is cuda"):
        oracle.build_cpu_runner(tmp_path, quantization="int8")


def test_greedy_ids_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Prompts in chunks, beside others that decode, continue as each does alone."""
    FAMILIES["qwen3"]().save_pretrained(tmp_path)
    write_gguf(tmp_path, tmp_path / "q.gguf", KINDS.Q8_0)
    prompts = oracle.random_prompts(2, [3, 37, 70, 1, 40], SIZES["vocab_size"])
    runner = oracle.build_cpu_runner(tmp_path / "q.gguf", kv_cache_memory_bytes=8 << 20)
    together = oracle.serve_mixed_batches(runner, prompts, count=8, seed=1)
    alone = [oracle.serve_mixed_batches(runner, [ids], count=8, seed=2)[0] for ids in prompts]
    assert together == alone


def test_logits_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    FAMILIES["qwen3"]().save_pretrained(tmp_path)
    one, many = (oracle.build_cpu_runner(tmp_path, quantization="int8", threads=n) for n in (1, 3))
    cuts = list(range(1, 20))
    expected = oracle.chunk_end_logits(one, IDS, cuts)
    assert torch.equal(oracle.chunk_end_logits(many, IDS, cuts), expected)


def test_parameters_are_counted_from_the_file(tmp_path: Path) -> None:
    model = FAMILIES["qwen3"]()
    model.save_pretrained(tmp_path)
    write_gguf(tmp_path, tmp_path / "q.gguf", KINDS.Q4_0)
    config = EngineConfig(model=str(tmp_path / "q.gguf"), device="cpu")
    runner, loaded = build_runner(config, lambda _what, _fraction: None)
    assert runner.parameter_count == sum(each.numel() for each in model.parameters())
    assert (loaded.architecture, loaded.dtype) == ("Qwen3ForCausalLM", "float32")


async def ask(model: str) -> str:
    async with Engine(EngineConfig(model=model, dtype="float32", device="cpu")) as engine:
        return await engine.chat().ask("Count from one to six.")


@pytest.mark.process
def test_engine_answers_from_a_file_as_from_the_folder_that_was_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_local_checkpoint(BUNDLED_MODEL)
    assert folder is not None
    # The bundled model's pre-tokenizer has no name in llama.cpp, so the file has it whole.
    whole = {"tokenizer.huggingface.json": (folder / "tokenizer.json").read_text()}
    write_gguf(folder, tmp_path / "demo.gguf", KINDS.BF16, metadata=whole)
    compiled = tmp_path / "continuo" / "native"
    compiled.parent.mkdir()
    compiled.symlink_to(compile.CACHE_FOLDER)  # so that the C code is not compiled again
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers = [asyncio.run(ask(model)) for model in (BUNDLED_MODEL, str(tmp_path / "demo.gguf"))]
    assert answers[0] == answers[1]
    assert "four" in answers[0]
