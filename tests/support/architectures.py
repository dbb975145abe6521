"""The table of architectures: a small random model of each, and how it runs. It is the source of
the table in docs/models.md.

A row's `way` is the fastest code that runs the architecture:

    C               our decoder, a whole step in C on a CPU, torch on a GPU
    torch           our decoder, in torch
    transformers    transformers' own module, with our paged attention
    refused         an error at load that names the architecture and the cause

`python -m tests.support.architectures` writes the table into docs/models.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers as tf

from tests.support.transformers_oracle import (
    NATIVE_SIZES,
    SMALL_CONFIG,
    randomize,
    small_model,
)

Way = Literal["C", "torch", "transformers", "refused"]


class Architecture(NamedTuple):
    name: str
    """The architecture, as config.json calls it."""
    models: str
    """Models that people know, for the documentation."""
    way: Way
    make: Callable[..., Any]
    """Make a small random model, which may differ from the row's in some fields of its config."""
    note: str = ""
    """For a refused architecture, a part of the error."""


def _small(kind: str, **differences: Any) -> Callable[..., Any]:
    return partial(small_model, kind, **differences)


def _native(kind: str, **differences: Any) -> Callable[..., Any]:
    return partial(small_model, kind, **(NATIVE_SIZES | differences))


TINY_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TINY_QWEN_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 48,
    "patch_size": 14,
}


def _wrapper(
    kind: str, text_kind: str, vision: dict[str, Any], differences: dict[str, Any], **others: Any
) -> Callable[[], Any]:
    """Return the maker of a `<kind>ForConditionalGeneration`, whose text part has the config
    `<text_kind>Config`. `others`: further fields of the outer config."""

    def make() -> Any:
        text = getattr(tf, f"{text_kind}Config")(**(SMALL_CONFIG | differences))
        config = getattr(tf, f"{kind}Config")(text_config=text, vision_config=vision, **others)
        torch.manual_seed(sum(map(ord, kind)))
        model = getattr(tf, f"{kind}ForConditionalGeneration")(config).eval()
        model.set_attn_implementation("eager")
        return randomize(model)

    return make


def _native_wrapper(
    kind: str, text_kind: str, vision: dict[str, Any], differences: dict[str, Any], **others: Any
) -> Callable[[], Any]:
    vision = vision | ({"out_hidden_size": 64} if "out_hidden_size" in vision else {})
    return _wrapper(kind, text_kind, vision, NATIVE_SIZES | differences, **others)


MIXTURE: dict[str, Any] = {"num_experts_per_tok": 2}
EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 32, **MIXTURE}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, **MIXTURE}
ROUTED_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    **MIXTURE,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
DELTA_NET: dict[str, Any] = {
    "head_dim": 64,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
SHARED_EXPERT: dict[str, Any] = {"shared_expert_intermediate_size": 32}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
GEMMA: dict[str, Any] = {"head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24}
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 131,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
GEMMA4_SHARED: dict[str, Any] = GEMMA4 | {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA4_MIXTURE: dict[str, Any] = GEMMA4 | {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "final_logit_softcapping": 5.0,
}
GEMMA3N: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 20,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "laurel_rank": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 131,
    "altup_num_inputs": 2,
    "intermediate_size": [80] * 4,
    "activation_sparsity_pattern": [0.0] * 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LFM2: dict[str, Any] = {
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
RECURRENT = "of 3 layers use softmax attention"
REASONS = {
    RECURRENT: "it has recurrent layers of a kind that is not supported",
    "MambaForCausalLM": "it has no layer of attention",
    "BloomForCausalLM": "its attention has no rotary positions",
}
"""Why an architecture is refused, for docs/models.md, where its note is a part of the error that
does not say it."""

ARCHITECTURES: list[Architecture] = [
    Architecture("LlamaForCausalLM", "Llama 2, 3.x", "C", _native("Llama")),
    Architecture(
        "MistralForCausalLM", "Mistral 7B, Nemo", "C", _native("Mistral", sliding_window=20)
    ),
    Architecture("Qwen2ForCausalLM", "Qwen 2, 2.5", "C", _native("Qwen2")),
    Architecture("Qwen3ForCausalLM", "Qwen 3 (dense)", "C", _native("Qwen3")),
    Architecture("SmolLM3ForCausalLM", "SmolLM 3", "C", _native("SmolLM3")),
    Architecture(
        "Gemma2ForCausalLM",
        "Gemma 2",
        "C",
        _native("Gemma2", **GEMMA),
    ),
    Architecture("Gemma3ForCausalLM", "Gemma 3 1B", "C", _native("Gemma3Text", **GEMMA)),
    Architecture(
        "Gemma3ForConditionalGeneration",
        "Gemma 3 4B to 27B",
        "C",
        _native_wrapper(
            "Gemma3",
            "Gemma3Text",
            TINY_VISION | {"model_type": "siglip_vision_model"},
            GEMMA,
            mm_tokens_per_image=4,
        ),
    ),
    Architecture(
        "Qwen3MoeForCausalLM",
        "Qwen 3 MoE",
        "C",
        _native("Qwen3Moe", head_dim=16, **EXPERTS),
    ),
    Architecture("MixtralForCausalLM", "Mixtral", "C", _native("Mixtral", **LOCAL_EXPERTS)),
    Architecture(
        "GptOssForCausalLM",
        "gpt-oss 20B, 120B",
        "C",
        _native("GptOss", head_dim=16, sliding_window=20, **LOCAL_EXPERTS),
    ),
    Architecture("Phi3ForCausalLM", "Phi 3, 3.5, 4", "C", _native("Phi3")),
    Architecture(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.x",
        "C",
        _native_wrapper(
            "Mistral3",
            "Mistral",
            TINY_VISION | {"model_type": "pixtral"},
            {"head_dim": 16, "sliding_window": None},
        ),
    ),
    Architecture(
        "Qwen3_5ForCausalLM",
        "Qwen 3.5 (text)",
        "C",
        _native("Qwen3_5Text", **DELTA_NET),
    ),
    Architecture(
        "Qwen3_5ForConditionalGeneration",
        "Qwen 3.5 (dense)",
        "C",
        _native_wrapper("Qwen3_5", "Qwen3_5Text", TINY_QWEN_VISION, DELTA_NET),
    ),
    Architecture(
        "Qwen3_5MoeForCausalLM",
        "Qwen 3.5 MoE (text)",
        "C",
        _native("Qwen3_5MoeText", **DELTA_NET, **EXPERTS, **SHARED_EXPERT),
    ),
    Architecture(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen 3.5 MoE, 3.6 35B-A3B",
        "C",
        _native_wrapper(
            "Qwen3_5Moe",
            "Qwen3_5MoeText",
            TINY_QWEN_VISION,
            {**DELTA_NET, **EXPERTS, **SHARED_EXPERT},
        ),
    ),
    Architecture(
        "Qwen3NextForCausalLM",
        "Qwen 3 Next",
        "C",
        _native("Qwen3Next", **DELTA_NET, **EXPERTS, **SHARED_EXPERT),
    ),
    Architecture("Lfm2ForCausalLM", "LFM 2, 2.5", "C", _native("Lfm2", **LFM2)),
    Architecture(
        "Lfm2MoeForCausalLM",
        "LFM 2 MoE",
        "torch",
        _small("Lfm2Moe", num_dense_layers=1, **LFM2, **EXPERTS),
    ),
    Architecture(
        "GraniteMoeHybridForCausalLM",
        "Granite 4",
        "torch",
        _small(
            "GraniteMoeHybrid",
            shared_intermediate_size=40,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            **MAMBA,
            **LOCAL_EXPERTS,
        ),
    ),
    Architecture("GraniteForCausalLM", "Granite 3", "C", _native("Granite")),
    Architecture(
        "GraniteMoeForCausalLM",
        "Granite 3 MoE",
        "C",
        _native("GraniteMoe", **LOCAL_EXPERTS),
    ),
    Architecture(
        "MinistralForCausalLM",
        "Ministral 8B",
        "C",
        _native("Ministral", head_dim=16, sliding_window=20),
    ),
    Architecture(
        "Ministral3ForCausalLM", "Ministral 3", "transformers", _small("Ministral3", head_dim=16)
    ),
    Architecture("GemmaForCausalLM", "Gemma", "C", _native("Gemma", head_dim=16)),
    Architecture(
        "Gemma3nForCausalLM", "Gemma 3n", "transformers", _small("Gemma3nText", **GEMMA3N)
    ),
    Architecture("Gemma4ForCausalLM", "Gemma 4 (text)", "torch", _small("Gemma4Text", **GEMMA4)),
    Architecture(
        "Gemma4ForConditionalGeneration",
        "Gemma 4",
        "torch",
        _wrapper("Gemma4", "Gemma4Text", TINY_VISION | {"head_dim": 8}, GEMMA4),
    ),
    Architecture(
        "Qwen2MoeForCausalLM",
        "Qwen 1.5 MoE, 2 57B",
        "C",
        _native("Qwen2Moe", **EXPERTS, **SHARED_EXPERT),
    ),
    Architecture(
        "OlmoeForCausalLM", "OLMoE", "transformers", _small("Olmoe", num_experts=4, **MIXTURE)
    ),
    Architecture("OlmoForCausalLM", "OLMo", "transformers", _small("Olmo")),
    Architecture("Olmo2ForCausalLM", "OLMo 2", "transformers", _small("Olmo2")),
    Architecture("Olmo3ForCausalLM", "OLMo 3", "transformers", _small("Olmo3", sliding_window=20)),
    Architecture("GlmForCausalLM", "GLM 4 9B", "transformers", _small("Glm", head_dim=16)),
    Architecture("Glm4ForCausalLM", "GLM 4 0414", "transformers", _small("Glm4", head_dim=16)),
    Architecture(
        "Glm4MoeForCausalLM",
        "GLM 4.5, 4.6",
        "transformers",
        _small("Glm4Moe", head_dim=16, **ROUTED_EXPERTS),
    ),
    Architecture(
        "Glm4MoeLiteForCausalLM",
        "GLM 4.7 Flash",
        "transformers",
        _small("Glm4MoeLite", **LATENT, **ROUTED_EXPERTS),
    ),
    Architecture(
        "DeepseekV2ForCausalLM",
        "DeepSeek V2",
        "transformers",
        _small("DeepseekV2", **LATENT, **ROUTED_EXPERTS),
    ),
    Architecture(
        "DeepseekV3ForCausalLM",
        "DeepSeek V3, R1, Kimi K2",
        "transformers",
        _small("DeepseekV3", n_group=1, topk_group=1, **LATENT, **ROUTED_EXPERTS),
    ),
    Architecture(
        "PhiForCausalLM", "Phi 1, 2", "transformers", _small("Phi", num_key_value_heads=4)
    ),
    Architecture(
        "PhimoeForCausalLM", "Phi 3.5 MoE", "transformers", _small("Phimoe", **LOCAL_EXPERTS)
    ),
    Architecture("SeedOssForCausalLM", "Seed-OSS", "transformers", _small("SeedOss", head_dim=16)),
    Architecture(
        "Exaone4ForCausalLM", "EXAONE 4", "transformers", _small("Exaone4", sliding_window=20)
    ),
    Architecture(
        "Ernie4_5ForCausalLM", "ERNIE 4.5", "transformers", _small("Ernie4_5", head_dim=16)
    ),
    Architecture(
        "Ernie4_5_MoeForCausalLM",
        "ERNIE 4.5 MoE",
        "transformers",
        _small("Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=24),
    ),
    Architecture(
        "HunYuanDenseV1ForCausalLM",
        "Hunyuan (dense)",
        "transformers",
        _small("HunYuanDenseV1", head_dim=16),
    ),
    Architecture("ApertusForCausalLM", "Apertus", "transformers", _small("Apertus")),
    Architecture(
        "MiniMaxM2ForCausalLM",
        "MiniMax M2",
        "transformers",
        _small("MiniMaxM2", head_dim=16, **LOCAL_EXPERTS),
    ),
    Architecture("BitNetForCausalLM", "BitNet b1.58", "transformers", _small("BitNet")),
    Architecture("CohereForCausalLM", "Command R", "transformers", _small("Cohere")),
    Architecture(
        "Cohere2ForCausalLM",
        "Command R7B, Command A",
        "transformers",
        _small("Cohere2", head_dim=12, sliding_window=20),
    ),
    Architecture("NemotronForCausalLM", "Nemotron 3 8B", "transformers", _small("Nemotron")),
    Architecture(
        "Starcoder2ForCausalLM",
        "StarCoder 2",
        "transformers",
        _small("Starcoder2", sliding_window=20),
    ),
    Architecture("GPTNeoXForCausalLM", "Pythia", "transformers", _small("GPTNeoX")),
    Architecture(
        "GPT2LMHeadModel",
        "GPT-2",
        "transformers",
        _small("GPT2", n_positions=512, n_embd=48, n_head=4, n_layer=3),
    ),
    Architecture("ArceeForCausalLM", "Arcee AFM", "transformers", _small("Arcee")),
    Architecture("HeliumForCausalLM", "Helium", "transformers", _small("Helium", head_dim=12)),
    Architecture(
        "Qwen3VLForConditionalGeneration",
        "Qwen 3 VL",
        "C",
        _native_wrapper(
            "Qwen3VL",
            "Qwen3VLText",
            TINY_QWEN_VISION | {"deepstack_visual_indexes": [0]},
            {"head_dim": 16},
        ),
    ),
    Architecture(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen 2.5 VL",
        "C",
        _native_wrapper(
            "Qwen2_5_VL",
            "Qwen2_5_VLText",
            TINY_QWEN_VISION,
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "default",
                    "mrope_section": [2, 3, 3],
                }
            },
        ),
    ),
    Architecture(
        "LlavaForConditionalGeneration",
        "LLaVA",
        "C",
        _native_wrapper("Llava", "Llama", TINY_VISION | {"model_type": "clip_vision_model"}, {}),
    ),
    Architecture(
        "Llama4ForCausalLM",
        "Llama 4",
        "refused",
        _small(
            "Llama4Text",
            head_dim=16,
            num_local_experts=2,
            intermediate_size_mlp=64,
            attention_chunk_size=32,
        ),
        "layers of type chunked_attention",
    ),
    Architecture(
        "NemotronHForCausalLM",
        "Nemotron-H, Nemotron Nano 2",
        "refused",
        _small(
            "NemotronH",
            layers_block_type=["mamba", "attention", "mamba"],
            mamba_num_heads=6,
            mamba_head_dim=16,
            ssm_state_size=8,
            n_groups=1,
            chunk_size=16,
            head_dim=16,
        ),
        RECURRENT,
    ),
    Architecture(
        "FalconH1ForCausalLM",
        "Falcon-H1",
        "refused",
        _small("FalconH1", mamba_d_ssm=96, mamba_n_groups=1, **MAMBA),
        "layers of type hybrid",
    ),
    Architecture(
        "KimiLinearForCausalLM", "Kimi Linear", "refused", _small("KimiLinear"), RECURRENT
    ),
    Architecture(
        "BambaForCausalLM",
        "Bamba",
        "refused",
        _small("Bamba", attn_layer_indices=[1], **MAMBA),
        RECURRENT,
    ),
    Architecture(
        "JambaForCausalLM",
        "Jamba",
        "refused",
        _small(
            "Jamba",
            num_experts=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            use_mamba_kernels=False,
            mamba_dt_rank=4,
        ),
        RECURRENT,
    ),
    Architecture(
        "OlmoHybridForCausalLM", "OLMo Hybrid", "refused", _small("OlmoHybrid"), RECURRENT
    ),
    Architecture(
        "MambaForCausalLM",
        "Mamba",
        "refused",
        lambda: tf.MambaForCausalLM(
            tf.MambaConfig(vocab_size=131, hidden_size=32, num_hidden_layers=2, state_size=4)
        ),
        "MambaForCausalLM",
    ),
    Architecture(
        "BloomForCausalLM",
        "BLOOM",
        "refused",
        lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=131, hidden_size=32, n_head=2)),
        "BloomForCausalLM",
    ),
    Architecture(
        "FalconForCausalLM",
        "Falcon",
        "refused",
        _small("Falcon", num_kv_heads=2, new_decoder_architecture=True),
        "its attention cannot be replaced",
    ),
    Architecture(
        "T5ForConditionalGeneration",
        "T5",
        "refused",
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(vocab_size=131, d_model=32, d_ff=32, num_layers=1, num_heads=2)
        ),
        "it has an encoder",
    ),
]


def to_markdown() -> str:
    """Render the table for docs/models.md."""
    lines = ["| architecture | models | runs in |", "|---|---|---|"]
    for each in ARCHITECTURES:
        reason = REASONS.get(each.note, each.note)
        way = f"refused: {reason}" if each.way == "refused" else each.way
        lines.append(f"| `{each.name}` | {each.models} | {way} |")
    return "\n".join(lines)


DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


def _update_document() -> None:
    """Write the table into docs/models.md, in place of the one that is there."""
    before, _, rest = DOCUMENT.read_text("utf-8").partition("| architecture |")
    _, _, after = rest.partition("\n\n")
    DOCUMENT.write_text(f"{before}{to_markdown()}\n\n{after}", "utf-8")


if __name__ == "__main__":
    _update_document()
