"""Parity where a checkpoint differs from what transformers saves: the layouts that publishers use,
and rotary embeddings beyond the length that a model was trained with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from continuo.engine.architectures.listing import read_model_size
from continuo.engine.device.models.decoder import Decoder
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, GEMMA4_MIXTURE, GEMMA4_SHARED

LOGITS_TOLERANCE = 2e-4
FILE = "model.safetensors"
MAKERS = {each.name: each.make for each in ARCHITECTURES}


@pytest.mark.parametrize("differences", [GEMMA4_SHARED, GEMMA4_MIXTURE], ids=["2B", "26B"])
def test_sizes_of_gemma_4_equal_transformers(differences: dict[str, Any], tmp_path: Path) -> None:
    """Keys and values shared by layers; keys as values, and a mixture beside the dense MLP."""
    model = oracle.small_model("Gemma4Text", **differences)
    model.save_pretrained(tmp_path)
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("position", ["rope", None])
def test_dense_granite_4_equals_transformers(position: str | None, tmp_path: Path) -> None:
    """Attention with and without rotary embeddings, beside Mamba-2 layers; no experts."""
    model = MAKERS["GraniteMoeHybridForCausalLM"](
        num_local_experts=0, position_embedding_type=position, attention_multiplier=0.2
    )
    model.save_pretrained(tmp_path)
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("norms_first", [True, False])
def test_falcon_h1_with_a_norm_equals_transformers(norms_first: bool, tmp_path: Path) -> None:
    """Before and after the gate, in groups; and a bias in each projection."""
    model = MAKERS["FalconH1ForCausalLM"](
        mamba_rms_norm=True,
        mamba_norm_before_gate=norms_first,
        mamba_n_groups=2,
        mamba_proj_bias=True,
        projectors_bias=True,
        attention_bias=True,
        mlp_bias=True,
    )
    model.save_pretrained(tmp_path)
    assert_equal_logits(model, tmp_path)


def test_pattern_of_the_layers_of_nemotron_h_is_read(tmp_path: Path) -> None:
    """Published configs have one letter for each layer."""
    model = MAKERS["NemotronHForCausalLM"]()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layers_block_type"]
    config["hybrid_override_pattern"] = "M-*EM"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "MinistralForCausalLM"])
@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"layer_types": None},
        {},
    ],
    ids=["types", "null", "absent"],
)
def test_window_of_mistral_is_in_the_layers_that_its_config_says(
    architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Ministral is published as a Mistral whose layers have types."""
    oracle.small_model("Mistral", sliding_window=20).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": [architecture], **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_equal_logits(model, tmp_path)


def test_grouped_experts_of_nemotron_h_are_refused(tmp_path: Path) -> None:
    MAKERS["NemotronHForCausalLM"](n_group=2).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="n_group"):
        oracle.build_cpu_runner(tmp_path)


def test_mamba_2_has_no_longest_context(tmp_path: Path) -> None:
    model = MAKERS["Mamba2ForCausalLM"]()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_equal_logits(model, tmp_path)
    size = read_model_size(tmp_path)
    assert size is not None
    assert size.context == 262_144


def test_window_wider_than_the_longest_sequence_is_no_window(tmp_path: Path) -> None:
    model = oracle.small_model("Mistral", sliding_window=64)
    model.save_pretrained(tmp_path)
    windows = {
        length: [
            x.window for x in oracle.build_cpu_runner(tmp_path, max_model_len=length).model.memory
        ]
        for length in (64, 65)
    }
    assert windows == {64: [None] * 3, 65: [64] * 3}


def test_head_of_a_text_part_is_read_though_the_config_ties_it(tmp_path: Path) -> None:
    model = MAKERS["Mistral3ForConditionalGeneration"]()
    assert model.config.tie_word_embeddings
    model.lm_head.weight = torch.nn.Parameter(0.25 * torch.randn_like(model.lm_head.weight))
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_equal_logits(model, tmp_path)


def assert_equal_logits(model: Any, folder: Path) -> None:
    [ids] = oracle.random_prompts(1, [50])
    runner = oracle.build_cpu_runner(folder, max_model_len=256)
    assert isinstance(runner.model, Decoder)
    expected = oracle.full_logits(model, ids)
    logits = oracle.chunk_end_logits(runner, ids, [1, 30])
    difference = (logits - expected[[0, 29, 49]]).abs().max()
    assert difference <= LOGITS_TOLERANCE * expected.abs().max()


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(load_file(folder / FILE)), folder / FILE)


def stack_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store the experts of each layer in two tensors, as Qwen publishes its newer mixtures."""
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(3):
        at = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors[f"{at}.{expert}.{part}_proj.weight"] for expert in range(4)])
            for part in ("gate", "up", "down")
        )
        stacked |= {f"{at}.gate_up_proj": torch.cat((gate, up), 1), f"{at}.down_proj": down}
    return stacked


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "Qwen3_5MoeForCausalLM"])
def test_stacked_experts_equal_separate_ones(name: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, stack_experts)
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize(
    "name", ["Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration"]
)
@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_both_prefixes_of_a_text_part_are_read(name: str, prefix: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    model.save_pretrained(tmp_path)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key.replace("language_model.model.", prefix): x for key, x in tensors.items()}

    rewrite(tmp_path, change)
    assert_equal_logits(model, tmp_path)


def test_weights_in_mxfp4_equal_decoded_ones(tmp_path: Path) -> None:
    differences = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    model = MAKERS["GptOssForCausalLM"](**differences)
    model.save_pretrained(tmp_path)
    source = torch.Generator().manual_seed(5)

    def quantize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for layer in range(3):
            experts = model.model.layers[layer].mlp.experts
            for part in ("gate_up_proj", "down_proj"):
                name = f"model.layers.{layer}.mlp.experts.{part}"
                count, columns, rows = tensors.pop(name).shape
                shape = (count, rows, columns // 32, 16)
                blocks = torch.randint(0, 256, shape, generator=source).to(torch.uint8)
                scales = torch.randint(122, 127, shape[:3], generator=source).to(torch.uint8)
                tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
                decoded = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
                getattr(experts, part).data.copy_(decoded)
        return tensors

    rewrite(tmp_path, quantize)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("rotated", [1.0, 0.5])
def test_long_rope_equals_decoding_by_transformers_to_the_full_length(
    rotated: float, tmp_path: Path
) -> None:
    """Position p has the frequencies of a sequence of p + 1 tokens, as in a session that grows."""
    pairs = int(12 * rotated) // 2
    model = oracle.small_model(
        "Phi3",
        max_position_embeddings=120,
        original_max_position_embeddings=40,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0 + n / 10 for n in range(pairs)],
            "long_factor": [2.0 + n for n in range(pairs)],
            "original_max_position_embeddings": 40,
            "partial_rotary_factor": rotated,
        },
    )
    model.save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path)
    assert runner.geometry.max_model_len == 120
    [ids] = oracle.random_prompts(1, [120])
    expected = oracle.chunked_logits(model, ids, 1)
    logits = oracle.chunk_end_logits(runner, ids, [20, 39, 40, 41, 80])
    difference = (logits - expected[[19, 38, 39, 40, 79, 119]]).abs().max()
    assert difference <= LOGITS_TOLERANCE * expected.abs().max()
