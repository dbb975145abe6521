"""The fields of a config.json in our decoder: each is applied, has no effect, or is refused.

A field that nobody knows is named in a warning: transformers ignores it, too. A field that
transformers applies and our decoder does not is refused, unless its value changes nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

from continuo.engine.errors import ModelError

log = logging.getLogger(__name__)


def _names(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


APPLIED = _names(
    """architectures attention_bias head_dim hidden_act hidden_size intermediate_size layer_types
    max_position_embeddings mlp_bias model_type num_attention_heads num_hidden_layers
    num_key_value_heads original_max_position_embeddings quantization_config rms_norm_eps
    rope_parameters rope_scaling rope_theta sliding_window tie_word_embeddings vocab_size"""
)
"""Fields that decide the output in most families, and in the others have no effect."""

_WINDOWS = "max_window_layers use_sliding_window"
_GEMMA = "final_logit_softcapping hidden_activation query_pre_attn_scalar"
_GEMMA4 = """attention_k_eq_v enable_moe_block final_logit_softcapping global_head_dim
    hidden_activation hidden_size_per_layer_input kv_sharing_modes moe_intermediate_size num_experts
    num_global_key_value_heads num_kv_shared_layers per_layer_config top_k_experts
    use_double_wide_mlp vocab_size_per_layer_input"""
_GRANITE = "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"
_EXPERTS = "num_experts num_experts_per_tok num_local_experts"
_QWEN_EXPERTS = f"""{_EXPERTS} decoder_sparse_step mlp_only_layers moe_intermediate_size
    norm_topk_prob shared_expert_intermediate_size"""
_MAMBA = """mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_n_groups mamba_n_heads
    mamba_proj_bias time_step_limit layers_block_type"""
_DELTA_NET = """full_attention_interval linear_conv_kernel_dim linear_key_head_dim
    linear_num_key_heads linear_num_value_heads linear_value_head_dim partial_rotary_factor"""
_LFM2 = "block_dim block_ff_dim conv_L_cache conv_bias full_attn_idxs norm_eps theta"

APPLIED_BY_TYPE = {
    "llama": "",
    "mistral": "",
    "ministral": "",
    "qwen2": _WINDOWS,
    "qwen2_5_vl_text": _WINDOWS,
    "qwen3": _WINDOWS,
    "qwen3_vl_text": _WINDOWS,
    "smollm3": f"{_WINDOWS} no_rope_layers no_rope_layer_interval",
    "phi3": "partial_rotary_factor",
    "gemma": "",
    "gemma2": f"{_GEMMA} attn_logit_softcapping",
    "gemma3_text": f"{_GEMMA} rope_local_base_freq sliding_window_pattern",
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "granite": _GRANITE,
    "granitemoe": f"{_GRANITE} {_EXPERTS}",
    "granitemoehybrid": f"""{_GRANITE} {_EXPERTS} {_MAMBA} position_embedding_type
        shared_intermediate_size""",
    "bamba": f"{_MAMBA} attn_layer_indices",
    "falcon_h1": f"""{_MAMBA} attention_in_multiplier attention_out_multiplier embedding_multiplier
        key_multiplier lm_head_multiplier mamba_d_ssm mamba_norm_before_gate mamba_rms_norm
        mlp_multipliers projectors_bias ssm_in_multiplier ssm_multipliers ssm_out_multiplier""",
    "nemotron_h": f"""{_EXPERTS} conv_kernel hybrid_override_pattern layer_norm_epsilon
        layers_block_type mamba_conv_bias mamba_d_conv mamba_dt_min mamba_head_dim mamba_hidden_act
        mamba_n_groups mamba_num_heads mlp_hidden_act moe_intermediate_size
        moe_shared_expert_intermediate_size n_groups n_routed_experts norm_topk_prob
        routed_scaling_factor ssm_state_size time_step_min use_bias use_conv_bias""",
    "mamba2": """conv_kernel layer_norm_epsilon n_groups num_heads state_size time_step_limit
        use_bias use_conv_bias""",
    "olmo2": "",
    "olmo3": "",
    "olmo_hybrid": f"{_DELTA_NET} linear_allow_neg_eigval",
    "qwen2_moe": f"{_WINDOWS} {_QWEN_EXPERTS} qkv_bias",
    "qwen3_moe": f"{_WINDOWS} {_QWEN_EXPERTS}",
    "mixtral": _EXPERTS,
    "gpt_oss": f"{_EXPERTS} swiglu_alpha swiglu_limit",
    "qwen3_next": f"{_DELTA_NET} {_QWEN_EXPERTS}",
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": f"{_DELTA_NET} {_QWEN_EXPERTS}",
    "lfm2": f"{_LFM2} block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of",
    "lfm2_moe": f"""{_LFM2} {_EXPERTS} moe_intermediate_size norm_topk_prob num_dense_layers
        routed_scaling_factor use_expert_bias""",
}
"""Further fields that decide the output, by `model_type`, in one string."""

WITHOUT_EFFECT = _names(
    """attention_dropout attn_implementation auto_map block_auto_adjust_ff_dim bos_token_id
    chunk_size chunk_size_feed_forward dtype embd_pdrop eos_token_id expand hidden_dropout id2label
    ignore_keys_at_rope_validation
    initializer_range is_encoder_decoder is_llama_config label2id linear_a_log_max linear_a_log_min
    linear_dt_init_floor linear_dt_max linear_dt_min mamba_chunk_size mamba_expand
    mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_layers_block_type n_shared_experts
    name_or_path num_logits_to_keep num_nextn_predict_layers output_attentions
    output_hidden_states output_router_logits pad_token_id pretraining_tp problem_type
    rescale_prenorm_residual resid_pdrop residual_in_fp32 return_dict router_aux_loss_coef
    router_jitter_noise time_step_floor time_step_max time_step_rank torch_dtype
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_cache
    use_mamba_kernels z_loss_coefficient"""
)
"""Fields of training, of other programs, and of memory and speed."""
WRITTEN_BY_PUBLISHERS = _names(
    """attn_output_gate block_mlp_init_scale block_norm_eps block_use_swiglu block_use_xavier_init
    cache_implementation conv_dim conv_dim_out conv_use_xavier_init experts_per_token init_method
    initial_context_length mamba_ssm_dtype mamba_use_mlp mlp_expansion_factor mtp_num_hidden_layers
    mtp_use_dedicated_embeddings normalization_function use_pos_enc"""
)
"""Fields of published configs that no class of transformers has, so that its models ignore them."""
WITHOUT_EFFECT_BY_TYPE = {
    "gemma": "hidden_activation",
    "gemma3_text": "attn_logit_softcapping",
    "lfm2": "num_heads",
    "lfm2_moe": "num_heads",
    "mamba2": "time_step_min",
    "nemotron_h": "mamba_proj_bias time_step_limit",
}
"""Fields that the model of this type ignores and another one applies."""

REFUSED: dict[str, tuple[object, ...]] = {
    "is_causal": (True, None),
    "moe_latent_size": (None,),
    "n_group": (1, None),
    "topk_group": (1, None),
    "use_bidirectional_attention": (False, None, "vision"),
}
"""Fields that transformers applies and our decoder does not, and the values that change nothing."""
NAMED_MAX = 8
"""How many unknown fields a warning names."""


def known_fields(model_type: str) -> frozenset[str]:
    """Return the fields that a config of this type may have."""
    by_type = (table.get(model_type, "") for table in (APPLIED_BY_TYPE, WITHOUT_EFFECT_BY_TYPE))
    everywhere = APPLIED | WITHOUT_EFFECT | WRITTEN_BY_PUBLISHERS | REFUSED.keys()
    return everywhere | _names(*by_type)


def check_fields(path: Path, values: dict[str, Any]) -> None:
    """Warn of the fields of a config.json that nobody knows, or of those of its text part. Does
    nothing for types of models that our decoder does not run.

    Raises ModelError for a field that our decoder would have to apply and does not.
    """
    text: Any = values.get("text_config")
    if isinstance(text, dict):
        values = cast("dict[str, Any]", text)
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in APPLIED_BY_TYPE:
        return
    for name, accepted in REFUSED.items():
        if (value := values.get(name)) not in accepted:
            raise ModelError(
                f"{path}: {name} is {value!r}, which is not supported; a model of type "
                f"{model_type} runs here with {accepted[0]!r}"
            )
    if unknown := _find_unknown(values, model_type):
        more = len(unknown) - NAMED_MAX
        log.warning(
            "%s: no model of type %s has the fields %s%s; they have no effect",
            path,
            model_type,
            ", ".join(unknown[:NAMED_MAX]),
            f" and {more} more" if more > 0 else "",
        )


def _find_unknown(values: dict[str, Any], model_type: str) -> list[str]:
    """Return the unknown fields that are set to something, in order."""
    known = known_fields(model_type)
    return sorted(
        name
        for name, value in values.items()
        if name not in known and not name.startswith("_") and value not in (None, False)
    )
