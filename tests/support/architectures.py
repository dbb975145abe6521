"""Small random models of the known architectures, by which each row of their table is proved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers as tf
from safetensors.torch import save_file

from continuo.engine.architectures.known import KNOWN_ARCHITECTURES, Way
from tests.support.shrunk_models import shrunk
from tests.support.transformers_oracle import (
    NATIVE_SIZES,
    SMALL_CONFIG,
    randomize,
    small_model,
)


class Architecture(NamedTuple):
    """A row of `KNOWN_ARCHITECTURES`, with a model."""

    name: str
    models: str
    way: Way
    make: Callable[..., Any]
    """Make a small random model, which may differ from the row's in some fields of its config."""
    reason: str
    found: str | None
    """For a refused architecture, a part of what the error says in brackets."""


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
    kind: str,
    text_kind: str,
    vision: dict[str, Any] | None,
    differences: dict[str, Any],
    **others: Any,
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


def _olmo_hybrid(**differences: Any) -> Any:
    model = small_model("OlmoHybrid", **differences)
    model.save_pretrained = partial(save_olmo_hybrid, model)
    return model


def save_olmo_hybrid(model: Any, folder: Path) -> None:
    """Save a model as its publisher does. Transformers 5.24 renames a norm of the other layers as
    well when it saves one, and cuts its convolutions at the wrong places."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = {}
    mixers = {
        f"model.layers.{number}": layer.linear_attn
        for number, layer in enumerate(model.model.layers)
        if hasattr(layer, "linear_attn")
    }
    for name, tensor in model.state_dict().items():
        mixer = mixers.get(".".join(name.split(".")[:3]))
        if mixer is not None and ".conv1d." in name:
            sizes = [mixer.key_dim, mixer.key_dim, mixer.value_dim]
            parts = zip("qkv", tensor.split(sizes), strict=True)
            tensors |= {name.replace(".conv1d", f".{x}_conv1d"): part for x, part in parts}
            continue
        if mixer is not None:
            name = name.replace("input_layernorm", "attention_layer_norm")
            name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
        tensors[name] = tensor
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "model.safetensors")


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
OLMO_HYBRID: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MAMBA2: dict[str, Any] = {
    "num_heads": 6,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
}
NEMOTRON_H: dict[str, Any] = {
    "layers_block_type": ["mamba", "mlp", "attention", "moe", "mamba"],
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "head_dim": 16,
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
    **MIXTURE,
}
FALCON_H1: dict[str, Any] = {
    "mamba_d_ssm": 96,
    "mamba_n_groups": 1,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
    "mlp_multipliers": [0.9, 0.7],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
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
GEMMA4_UNIFIED: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 20,
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
MAKERS: dict[str, Callable[..., Any]] = {
    "LlamaForCausalLM": _native("Llama"),
    "MistralForCausalLM": _native("Mistral", sliding_window=20),
    "Qwen2ForCausalLM": _native("Qwen2"),
    "Qwen3ForCausalLM": _native("Qwen3"),
    "SmolLM3ForCausalLM": _native("SmolLM3"),
    "Gemma2ForCausalLM": _native("Gemma2", **GEMMA),
    "Gemma3ForCausalLM": _native("Gemma3Text", **GEMMA),
    "Gemma3ForConditionalGeneration": _native_wrapper(
        "Gemma3",
        "Gemma3Text",
        TINY_VISION | {"model_type": "siglip_vision_model"},
        GEMMA,
        mm_tokens_per_image=4,
    ),
    "Qwen3MoeForCausalLM": _native("Qwen3Moe", head_dim=16, **EXPERTS),
    "MixtralForCausalLM": _native("Mixtral", **LOCAL_EXPERTS),
    "GptOssForCausalLM": _native("GptOss", head_dim=16, sliding_window=20, **LOCAL_EXPERTS),
    "Phi3ForCausalLM": _native("Phi3"),
    "Mistral3ForConditionalGeneration": _native_wrapper(
        "Mistral3",
        "Mistral",
        TINY_VISION | {"model_type": "pixtral"},
        {"head_dim": 16, "sliding_window": None},
    ),
    "Qwen3_5ForCausalLM": _native("Qwen3_5Text", **DELTA_NET),
    "Qwen3_5ForConditionalGeneration": _native_wrapper(
        "Qwen3_5", "Qwen3_5Text", TINY_QWEN_VISION, DELTA_NET
    ),
    "Qwen3_5MoeForCausalLM": _native("Qwen3_5MoeText", **DELTA_NET, **EXPERTS, **SHARED_EXPERT),
    "Qwen3_5MoeForConditionalGeneration": _native_wrapper(
        "Qwen3_5Moe",
        "Qwen3_5MoeText",
        TINY_QWEN_VISION,
        {**DELTA_NET, **EXPERTS, **SHARED_EXPERT},
    ),
    "Qwen3NextForCausalLM": _native("Qwen3Next", **DELTA_NET, **EXPERTS, **SHARED_EXPERT),
    "Lfm2ForCausalLM": _native("Lfm2", **LFM2),
    "Lfm2MoeForCausalLM": _small("Lfm2Moe", num_dense_layers=1, **LFM2, **EXPERTS),
    "GraniteMoeHybridForCausalLM": _small(
        "GraniteMoeHybrid",
        shared_intermediate_size=40,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        **MAMBA,
        **LOCAL_EXPERTS,
    ),
    "NemotronHForCausalLM": _small("NemotronH", **NEMOTRON_H),
    "FalconH1ForCausalLM": _small("FalconH1", **FALCON_H1, **MAMBA),
    "BambaForCausalLM": _small("Bamba", attn_layer_indices=[1], **MAMBA),
    "Mamba2ForCausalLM": _small("Mamba2", **MAMBA2),
    "OlmoHybridForCausalLM": partial(_olmo_hybrid, **OLMO_HYBRID),
    "GraniteForCausalLM": _native("Granite"),
    "GraniteMoeForCausalLM": _native("GraniteMoe", **LOCAL_EXPERTS),
    "MinistralForCausalLM": _native("Ministral", head_dim=16, sliding_window=20),
    "Ministral3ForCausalLM": _small("Ministral3", head_dim=16),
    "GemmaForCausalLM": _native("Gemma", head_dim=16),
    "Gemma3nForCausalLM": _small("Gemma3nText", **GEMMA3N),
    "Gemma4ForCausalLM": _small("Gemma4Text", **GEMMA4),
    "Gemma4ForConditionalGeneration": _wrapper(
        "Gemma4", "Gemma4Text", TINY_VISION | {"head_dim": 8}, GEMMA4
    ),
    "Gemma4UnifiedForCausalLM": _small("Gemma4UnifiedText", **GEMMA4_UNIFIED),
    "Gemma4UnifiedForConditionalGeneration": _wrapper(
        "Gemma4Unified", "Gemma4UnifiedText", None, GEMMA4_UNIFIED
    ),
    "Qwen2MoeForCausalLM": _native("Qwen2Moe", **EXPERTS, **SHARED_EXPERT),
    "OlmoeForCausalLM": _small("Olmoe", num_experts=4, **MIXTURE),
    "OlmoForCausalLM": _small("Olmo"),
    "Olmo2ForCausalLM": _small("Olmo2"),
    "Olmo3ForCausalLM": _small("Olmo3", sliding_window=20),
    "GlmForCausalLM": _small("Glm", head_dim=16),
    "Glm4ForCausalLM": _small("Glm4", head_dim=16),
    "Glm4MoeForCausalLM": _small("Glm4Moe", head_dim=16, **ROUTED_EXPERTS),
    "Glm4MoeLiteForCausalLM": _small("Glm4MoeLite", **LATENT, **ROUTED_EXPERTS),
    "DeepseekV2ForCausalLM": _small("DeepseekV2", **LATENT, **ROUTED_EXPERTS),
    "DeepseekV3ForCausalLM": _small(
        "DeepseekV3", n_group=1, topk_group=1, **LATENT, **ROUTED_EXPERTS
    ),
    "PhiForCausalLM": _small("Phi", num_key_value_heads=4),
    "PhimoeForCausalLM": _small("Phimoe", **LOCAL_EXPERTS),
    "SeedOssForCausalLM": _small("SeedOss", head_dim=16),
    "Exaone4ForCausalLM": _small("Exaone4", sliding_window=20),
    "Ernie4_5ForCausalLM": _small("Ernie4_5", head_dim=16),
    "Ernie4_5_MoeForCausalLM": _small(
        "Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=24
    ),
    "HunYuanDenseV1ForCausalLM": _small("HunYuanDenseV1", head_dim=16),
    "ApertusForCausalLM": _small("Apertus"),
    "MiniMaxM2ForCausalLM": _small("MiniMaxM2", head_dim=16, **LOCAL_EXPERTS),
    "BitNetForCausalLM": _small("BitNet"),
    "CohereForCausalLM": _small("Cohere"),
    "Cohere2ForCausalLM": _small("Cohere2", head_dim=12, sliding_window=20),
    "NemotronForCausalLM": _small("Nemotron"),
    "Starcoder2ForCausalLM": _small("Starcoder2", sliding_window=20),
    "GPTNeoXForCausalLM": _small("GPTNeoX"),
    "GPT2LMHeadModel": _small("GPT2", n_positions=512, n_embd=48, n_head=4, n_layer=3),
    "ArceeForCausalLM": _small("Arcee"),
    "HeliumForCausalLM": _small("Helium", head_dim=12),
    "AfmoeForCausalLM": shrunk("Afmoe"),
    "Apertus1p5TextForCausalLM": shrunk("Apertus1p5Text"),
    "AriaTextForCausalLM": shrunk("AriaText"),
    "AXK1ForCausalLM": shrunk("AXK1"),
    "BeamForCausalLM": shrunk("Beam"),
    "BioGptForCausalLM": shrunk("BioGpt"),
    "CodeGenForCausalLM": shrunk("CodeGen", rotary_dim=8),
    "Cohere2MoeForCausalLM": shrunk("Cohere2Moe"),
    "CTRLLMHeadModel": shrunk("CTRL"),
    "CwmForCausalLM": shrunk("Cwm"),
    "Dots1ForCausalLM": shrunk(
        "Dots1", n_group=1, topk_group=1, n_shared_experts=1, **ROUTED_EXPERTS
    ),
    "ExaoneMoeForCausalLM": shrunk("ExaoneMoe"),
    "FlexOlmoForCausalLM": shrunk("FlexOlmo"),
    "FlintForCausalLM": shrunk("Flint"),
    "FuyuForCausalLM": shrunk("Fuyu"),
    "GPTBigCodeForCausalLM": shrunk("GPTBigCode"),
    "GPTJForCausalLM": shrunk("GPTJ", rotary_dim=8),
    "GraniteSWAForCausalLM": shrunk("GraniteSWA"),
    "GraniteMoeSWAForCausalLM": shrunk("GraniteMoeSWA"),
    "GraniteMoeSharedForCausalLM": shrunk("GraniteMoeShared"),
    "HunYuanMoEV1ForCausalLM": shrunk("HunYuanMoEV1", head_dim=16, num_experts=4, moe_topk=2),
    "HYV3ForCausalLM": shrunk("HYV3"),
    "HyperCLOVAXForCausalLM": shrunk("HyperCLOVAX"),
    "Jais2ForCausalLM": shrunk("Jais2"),
    "JetMoeForCausalLM": shrunk("JetMoe"),
    "Kolibri1ForCausalLM": shrunk("Kolibri1"),
    "LagunaForCausalLM": shrunk("Laguna"),
    "LongcatFlashForCausalLM": shrunk("LongcatFlash", qk_head_dim=32),
    "MellumForCausalLM": shrunk("Mellum"),
    "MiMoV2FlashForCausalLM": shrunk("MiMoV2Flash"),
    "MiniCPM3ForCausalLM": shrunk("MiniCPM3"),
    "ModernBertDecoderForCausalLM": shrunk("ModernBertDecoder"),
    "NanoChatForCausalLM": shrunk("NanoChat"),
    "OPTForCausalLM": shrunk("OPT"),
    "PersimmonForCausalLM": shrunk("Persimmon"),
    "SolarOpenForCausalLM": shrunk("SolarOpen"),
    "StableLmForCausalLM": shrunk("StableLm", partial_rotary_factor=0.5),
    "VaultGemmaForCausalLM": shrunk("VaultGemma"),
    "YoutuForCausalLM": shrunk("Youtu", pad_token_id=None, tie_word_embeddings=False),
    "Qwen3VLForConditionalGeneration": _native_wrapper(
        "Qwen3VL",
        "Qwen3VLText",
        TINY_QWEN_VISION | {"deepstack_visual_indexes": [0]},
        {"head_dim": 16},
    ),
    "Qwen2_5_VLForConditionalGeneration": _native_wrapper(
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
    "LlavaForConditionalGeneration": _native_wrapper(
        "Llava", "Llama", TINY_VISION | {"model_type": "clip_vision_model"}, {}
    ),
    "Llama4ForCausalLM": _small(
        "Llama4Text",
        head_dim=16,
        num_local_experts=2,
        intermediate_size_mlp=64,
        attention_chunk_size=32,
    ),
    "KimiLinearForCausalLM": _small("KimiLinear"),
    "JambaForCausalLM": _small(
        "Jamba",
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_dt_rank=4,
    ),
    "MambaForCausalLM": lambda: tf.MambaForCausalLM(
        tf.MambaConfig(vocab_size=131, hidden_size=32, num_hidden_layers=2, state_size=4)
    ),
    "BloomForCausalLM": lambda: tf.BloomForCausalLM(
        tf.BloomConfig(vocab_size=131, hidden_size=32, n_head=2)
    ),
    "FalconForCausalLM": _small("Falcon", num_kv_heads=2, new_decoder_architecture=True),
    "AXK2ForCausalLM": shrunk("AXK2"),
    "DeepseekV32ForCausalLM": shrunk("DeepseekV32"),
    "DeepseekV4ForCausalLM": shrunk("DeepseekV4"),
    "Dots3NoteForCausalLM": shrunk("Dots3NoteText", num_key_value_heads=4),
    "GlmMoeDsaForCausalLM": shrunk("GlmMoeDsa"),
    "HYV4ForCausalLM": shrunk("HYV4"),
    "MiniMaxM3VLForCausalLM": shrunk("MiniMaxM3VLText", layer_types=["minimax_m3_sparse"] * 3),
    "BailingHybridForCausalLM": shrunk("BailingHybrid", num_experts=8),
    "LaraMiniForCausalLM": shrunk("LaraMini"),
    "Lfm3ForCausalLM": shrunk("Lfm3"),
    "MiniMaxForCausalLM": shrunk("MiniMax"),
    "Qwen4ExpForCausalLM": shrunk("Qwen4ExpText"),
    "RecurrentGemmaForCausalLM": shrunk("RecurrentGemma"),
    "Zamba2ForCausalLM": shrunk("Zamba2", layers_block_type=["mamba", "hybrid", "mamba"]),
    "ZayaForCausalLM": shrunk("Zaya"),
    "FalconMambaForCausalLM": shrunk("FalconMamba"),
    "RwkvForCausalLM": shrunk("Rwkv"),
    "xLSTMForCausalLM": shrunk("xLSTM"),
    "DiffLlamaForCausalLM": shrunk("DiffLlama"),
    "DoryForCausalLM": shrunk("Dory"),
    "HrmTextForCausalLM": shrunk("HrmText"),
    "DogeForCausalLM": shrunk("Doge"),
    "InklingForCausalLM": shrunk("InklingText"),
    "Inkling2ForCausalLM": shrunk("Inkling2Text"),
    "Inkling2LoopForCausalLM": shrunk("Inkling2LoopText"),
    "MptForCausalLM": shrunk("Mpt"),
    "GPTNeoForCausalLM": shrunk("GPTNeo", attention_types=[[["global"], 3]]),
    "GPTNeoXJapaneseForCausalLM": shrunk("GPTNeoXJapanese"),
    "XGLMForCausalLM": shrunk("XGLM"),
    "T5ForConditionalGeneration": lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=131, d_model=32, d_ff=32, num_layers=1, num_heads=2)
    ),
}

LEFT_OUT = {
    "the decoder of a model with an encoder": (
        "BartForCausalLM BigBirdPegasusForCausalLM BlenderbotForCausalLM "
        "BlenderbotSmallForCausalLM MBartForCausalLM MarianForCausalLM MvpForCausalLM "
        "PLBartForCausalLM PegasusForCausalLM ProphetNetForCausalLM TrOCRForCausalLM "
        "WhisperForCausalLM"
    ),
    "an encoder, used as a decoder": (
        "BertGenerationDecoder BertLMHeadModel BigBirdForCausalLM CamembertForCausalLM "
        "Data2VecTextForCausalLM ElectraForCausalLM ErnieForCausalLM MegatronBertForCausalLM "
        "RemBertForCausalLM RoCBertForCausalLM RoFormerForCausalLM RobertaForCausalLM "
        "RobertaPreLayerNormForCausalLM XLMRobertaForCausalLM XLMRobertaXLForCausalLM "
        "XLMWithLMHeadModel XmodForCausalLM"
    ),
    "a model of images, speech or music, or a drafter for another model": (
        "CohereCompassForCausalLM Emu3ForCausalLM Gemma3nForConditionalGeneration GitForCausalLM "
        "Gemma4AssistantForCausalLM Gemma4UnifiedAssistantForCausalLM "
        "GotOcr2ForConditionalGeneration MllamaForCausalLM MoshiForCausalLM "
        "MossTranscribeDiarizeForConditionalGeneration MusicgenForCausalLM "
        "MusicgenMelodyForCausalLM Phi4MultimodalForCausalLM"
    ),
    "a model of years ago, or one of which transformers makes no small one": (
        "BltForCausalLM CpmAntForCausalLM DbrxForCausalLM OpenAIGPTLMHeadModel "
        "ReformerModelWithLMHead XLNetLMHeadModel ZambaForCausalLM"
    ),
}
"""Causal models of transformers that are not in the table, by reason."""
_RECURRENT = "of 3 layers use softmax attention"
_FOUND = {
    "Llama4ForCausalLM": "layers of type chunked_attention",
    "KimiLinearForCausalLM": _RECURRENT,
    "JambaForCausalLM": _RECURRENT,
}
"""Findings of the loader in refused architectures, which the error has beside the reason."""

ARCHITECTURES = [
    Architecture(row.name, row.models, row.way, MAKERS[row.name], row.reason, _FOUND.get(row.name))
    for row in KNOWN_ARCHITECTURES
]
