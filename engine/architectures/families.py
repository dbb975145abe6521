# pyright: basic
"""The families that our decoder runs: a function from the config to the shape, and a row of the
table, for each. The config is that of the text part of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from continuo.engine.architectures.shapes import (
    AttentionShape,
    DecoderShape,
    GatedDeltaNetShape,
    LayerInputsShape,
    LayerShape,
    Mamba2Shape,
    MixerShape,
    MixtureShape,
    MlpShape,
    ParallelShape,
    ShortConvolutionShape,
    TensorNames,
)
from continuo.engine.errors import ModelError


def _decoder(
    config: Any, mixers: Iterable[MixerShape], mlps: Any = None, **more: Any
) -> DecoderShape:
    """Describe a decoder. `mlps`: one MLP for all layers, or one for each; None: dense."""
    mixers = list(mixers)
    if mlps is None:
        mlps = MlpShape(config.intermediate_size, config.hidden_act)
    if not isinstance(mlps, list):
        mlps = [mlps] * len(mixers)
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden": config.hidden_size,
        "eps": getattr(config, "rms_norm_eps", None),
        "layers": tuple(map(LayerShape, mixers, mlps)),
    }
    return DecoderShape(**(fields | more))


def _attention(config: Any, **differences: Any) -> AttentionShape:
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    fields: dict[str, Any] = {
        "heads": heads,
        "kv_heads": config.num_key_value_heads or heads,
        "head_dim": dim,
        "scale": dim**-0.5,
    }
    return AttentionShape(**(fields | differences))


def _layer_types(config: Any, *known: str) -> list[str]:
    """Return the type of each layer. Raises ModelError for one that is not `known`."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    unknown = set(kinds) - set(known)
    if unknown:
        raise ModelError(f"config.json: layer type {min(unknown)!r} is not supported")
    return kinds


def _windowed(config: Any, **differences: Any) -> list[AttentionShape]:
    """Return the attention of each layer, with the windows of `layer_types`."""
    attention = _attention(config, **differences)
    sliding = replace(attention, window=getattr(config, "sliding_window", None))
    kinds = _layer_types(config, "full_attention", "sliding_attention")
    if "sliding_attention" in kinds and not sliding.window:
        raise ModelError("config.json: layer_types has sliding windows, but no size is in use")
    return [sliding if kind == "sliding_attention" else attention for kind in kinds]


def _biases(config: Any) -> dict[str, bool]:
    return {"qkv_bias": config.attention_bias, "out_bias": config.attention_bias}


def _dense(config: Any, *, bias: bool = False) -> MlpShape:
    return MlpShape(config.intermediate_size, config.hidden_act, bias)


def _llama(config: Any) -> DecoderShape:
    attention = _attention(config, **_biases(config))
    mlp = _dense(config, bias=config.mlp_bias)
    return _decoder(config, [attention] * config.num_hidden_layers, mlp)


def _mistral(config: Any) -> DecoderShape:
    """Describe Mistral, whose window is that of every layer, or Ministral, which has types of
    layers. The type of the model decides, as in transformers: the name of the architecture is often
    Mistral's in both."""
    if config.model_type == "ministral":
        return _decoder(config, _windowed(config))
    attention = _attention(config, window=config.sliding_window)
    return _decoder(config, [attention] * config.num_hidden_layers)


def _qwen2(config: Any) -> DecoderShape:
    return _decoder(config, _windowed(config, qkv_bias=True))


def _qwen3(config: Any) -> DecoderShape:
    return _decoder(config, _windowed(config, qk_norm=True, **_biases(config)))


def _smollm3(config: Any) -> DecoderShape:
    has_rope = config.no_rope_layers[: config.num_hidden_layers]
    attention = [
        each if rotates else replace(each, rope=None)
        for each, rotates in zip(_windowed(config, **_biases(config)), has_rope, strict=True)
    ]
    return _decoder(config, attention, _dense(config, bias=config.mlp_bias))


def _phi3(config: Any) -> DecoderShape:
    attention = _attention(config, window=config.sliding_window, rotates_part=True)
    names = TensorNames(qkv=("qkv_proj",), gate_up=("gate_up_proj",))
    return _decoder(config, [attention] * config.num_hidden_layers, names=names)


def _gemma(config: Any, attention: list[AttentionShape], act: str, **more: Any) -> DecoderShape:
    return _decoder(
        config,
        attention,
        MlpShape(config.intermediate_size, act),
        has_centered_norms=True,
        embedding_scale=config.hidden_size**0.5,
        **more,
    )


GEMMA2_NAMES = TensorNames(mlp_norm="pre_feedforward_layernorm")


def _gemma1(config: Any) -> DecoderShape:
    attention = _attention(config, **_biases(config))
    return _gemma(config, [attention] * config.num_hidden_layers, config.hidden_act)


def _gemma2(config: Any) -> DecoderShape:
    return _post_normed_gemma(config, softcap=config.attn_logit_softcapping)


def _post_normed_gemma(config: Any, **differences: Any) -> DecoderShape:
    scale = config.query_pre_attn_scalar**-0.5
    return _gemma(
        config,
        _windowed(config, scale=scale, **_biases(config), **differences),
        config.hidden_activation,
        has_output_norms=True,
        logit_softcap=config.final_logit_softcapping,
        names=GEMMA2_NAMES,
    )


def _gemma3(config: Any) -> DecoderShape:
    shape = _post_normed_gemma(config, qk_norm=True)
    layers: list[LayerShape] = []
    for layer, kind in zip(shape.layers, config.layer_types, strict=True):
        assert layer.attention is not None
        layers.append(replace(layer, mixer=replace(layer.attention, rope=kind)))
    return replace(shape, layers=tuple(layers))


def _gemma4(config: Any) -> DecoderShape:
    kinds = _layer_types(config, "full_attention", "sliding_attention")
    sharing = config.kv_sharing_modes
    layers: list[LayerShape] = []
    for number, (kind, mode) in enumerate(zip(kinds, sharing, strict=True)):
        is_sliding, is_shared = kind == "sliding_attention", mode == "reuse"
        sources = [n for n in range(number) if kinds[n] == kind and sharing[n] == "store"]
        attention = _attention(
            config.per_layer_config[number],
            scale=1.0,
            window=config.sliding_window if is_sliding else None,
            rope=kind,
            qk_norm=True,
            v_norm=True,
            key_is_value=config.attention_k_eq_v and not is_sliding,
            kv_layer=sources[-1] if is_shared else None,
            **_biases(config),
        )
        width = 2 if config.use_double_wide_mlp and is_shared else 1
        mlp = MlpShape(width * config.intermediate_size, config.hidden_activation)
        layers.append(LayerShape(attention, mlp, _gemma4_mixture(config)))
    inputs = None
    if getattr(config, "hidden_size_per_layer_input", 0):
        inputs = LayerInputsShape(
            config.vocab_size_per_layer_input,
            config.hidden_size_per_layer_input,
            config.hidden_activation,
        )
    return DecoderShape(
        config.vocab_size,
        config.hidden_size,
        config.rms_norm_eps,
        tuple(layers),
        has_output_norms=True,
        embedding_scale=config.hidden_size**0.5,
        logit_softcap=config.final_logit_softcapping,
        layer_inputs=inputs,
        has_layer_scalars=True,
        names=GEMMA2_NAMES,
    )


def _gemma4_mixture(config: Any) -> MixtureShape | None:
    if not getattr(config, "enable_moe_block", False):
        return None
    return MixtureShape(
        config.num_experts,
        config.top_k_experts,
        config.moe_intermediate_size,
        config.hidden_activation,
        "softmax",
    )


def _granite(config: Any, mlps: Any = None, **more: Any) -> DecoderShape:
    attention = _attention(config, scale=config.attention_multiplier, **_biases(config))
    return _decoder(
        config,
        more.pop("mixers", [attention] * config.num_hidden_layers),
        mlps or _dense(config, bias=getattr(config, "mlp_bias", False)),
        embedding_scale=float(config.embedding_multiplier),
        residual_scale=float(config.residual_multiplier),
        logit_scale=1.0 / config.logits_scaling,
        **more,
    )


def _softmax_mixture(config: Any, **differences: Any) -> MixtureShape:
    """Return a mixture of experts in the form of Qwen's configs."""
    fields: dict[str, Any] = {
        "experts": config.num_experts,
        "chosen": config.num_experts_per_tok,
        "intermediate": config.moe_intermediate_size,
        "act": config.hidden_act,
        "router": "softmax",
        "normalizes": getattr(config, "norm_topk_prob", True),
    }
    return MixtureShape(**(fields | differences))


def _sparse_layers(config: Any, mixture: MixtureShape) -> list[MlpShape | MixtureShape]:
    """Return the MLP of each layer: the mixture in every `decoder_sparse_step`-th one."""
    step = getattr(config, "decoder_sparse_step", None) or 1
    dense_layers = getattr(config, "mlp_only_layers", None) or []
    return [
        mixture
        if number not in dense_layers and mixture.experts > 0 and (number + 1) % step == 0
        else _dense(config)
        for number in range(config.num_hidden_layers)
    ]


def _with_shared_expert(config: Any, **differences: Any) -> MixtureShape:
    shared = MlpShape(config.shared_expert_intermediate_size, config.hidden_act)
    return _softmax_mixture(config, shared=shared, shared_has_gate=True, **differences)


def _qwen2_moe(config: Any) -> DecoderShape:
    attention = _windowed(config, qkv_bias=getattr(config, "qkv_bias", True))
    return _decoder(config, attention, _sparse_layers(config, _with_shared_expert(config)))


def _qwen3_moe(config: Any) -> DecoderShape:
    attention = _attention(config, qk_norm=True, window=config.sliding_window, **_biases(config))
    mlps = _sparse_layers(config, _softmax_mixture(config))
    return _decoder(config, [attention] * config.num_hidden_layers, mlps)


def _mixtral(config: Any) -> DecoderShape:
    mixture = MixtureShape(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        config.hidden_act,
        "softmax",
    )
    names = TensorNames(mixture="block_sparse_moe", expert_gate_up=("w1", "w3"), expert_down="w2")
    attention = _attention(config, window=config.sliding_window)
    return _decoder(config, [attention] * config.num_hidden_layers, mixture, names=names)


def _gpt_oss(config: Any) -> DecoderShape:
    mixture = MixtureShape(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        config.hidden_act,
        "softmax of chosen",
        router_bias=True,
        expert_bias=True,
        clamp=(config.swiglu_alpha, config.swiglu_limit),
    )
    names = TensorNames(router="router", experts="stacked, transposed")
    attention = _windowed(config, has_sinks=True, **_biases(config))
    return _decoder(config, attention, mixture, names=names)


def _delta_layers(config: Any, projections: str) -> list[MixerShape]:
    """Return the mixers of Qwen3-Next and Qwen3.5: gated attention, and gated delta nets."""
    differences = {"qk_norm": True, "has_gate": True, "rotates_part": True}
    attention = _attention(config, **differences, **_biases(config))
    delta_net = GatedDeltaNetShape(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        kernel=config.linear_conv_kernel_dim,
        act=config.hidden_act,
        projections=projections,  # pyright: ignore[reportArgumentType]
    )
    kinds = _layer_types(config, "full_attention", "linear_attention")
    return [delta_net if kind == "linear_attention" else attention for kind in kinds]


def _qwen3_next(config: Any) -> DecoderShape:
    mlps = _sparse_layers(config, _with_shared_expert(config))
    return _decoder(config, _delta_layers(config, "interleaved"), mlps, has_centered_norms=True)


def _qwen3_5(config: Any) -> DecoderShape:
    return _decoder(config, _delta_layers(config, "separate"), has_centered_norms=True)


def _qwen3_5_moe(config: Any) -> DecoderShape:
    mixture = _with_shared_expert(config, normalizes=True)
    return _decoder(config, _delta_layers(config, "separate"), mixture, has_centered_norms=True)


LFM2_NAMES = TensorNames(
    recurrence="conv",
    input_norm="operator_norm",
    mlp_norm="ffn_norm",
    out="out_proj",
    q_norm="q_layernorm",
    k_norm="k_layernorm",
    mlp="feed_forward",
    gate_up=("w1", "w3"),
    down="w2",
    mixture="feed_forward",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
    final_norm="embedding_norm",
)


def _lfm2_mixers(config: Any) -> list[MixerShape]:
    convolution = ShortConvolutionShape(config.conv_L_cache, config.conv_bias)
    attention = _attention(config, qk_norm=True)
    kinds = _layer_types(config, "full_attention", "conv")
    return [convolution if kind == "conv" else attention for kind in kinds]


def _lfm2(config: Any) -> DecoderShape:
    size = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        size = int((config.block_ffn_dim_multiplier or 1.0) * int(2 * size / 3))
        size = -(-size // config.block_multiple_of) * config.block_multiple_of
    mlp = MlpShape(size, "silu")
    return _decoder(config, _lfm2_mixers(config), mlp, eps=config.norm_eps, names=LFM2_NAMES)


def _lfm2_moe(config: Any) -> DecoderShape:
    mixture = MixtureShape(
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        "silu",
        "sigmoid",
        normalizes=config.norm_topk_prob,
        weight_scale=config.routed_scaling_factor,
        has_choice_bias=config.use_expert_bias,
    )
    dense = config.num_dense_layers
    mlps: list[Any] = [MlpShape(config.intermediate_size, "silu")] * dense
    mlps += [mixture] * (config.num_hidden_layers - dense)
    return _decoder(config, _lfm2_mixers(config), mlps, eps=config.norm_eps, names=LFM2_NAMES)


GRANITE_MOE_NAMES = TensorNames(
    recurrence="mamba",
    mixture="block_sparse_moe",
    router="router.layer",
    experts="stacked",
    stacked_gate_up="input_linear.weight",
    stacked_down="output_linear.weight",
    mlp="shared_mlp",
    gate_up=("input_linear",),
    down="output_linear",
    shared="shared_mlp",
    shared_gate_up=("input_linear",),
    shared_down="output_linear",
)


def _granite_mixture(config: Any, shared: MlpShape | None = None) -> MixtureShape:
    return MixtureShape(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        config.hidden_act,
        "softmax of chosen",
        shared=shared,
    )


def _granite_moe(config: Any) -> DecoderShape:
    return _granite(config, _granite_mixture(config), names=GRANITE_MOE_NAMES)


def _granite_hybrid(config: Any) -> DecoderShape:
    shared = MlpShape(config.shared_intermediate_size, config.hidden_act)
    attention = _attention(
        config,
        scale=config.attention_multiplier,
        rope="" if config.position_embedding_type == "rope" else None,
        **_biases(config),
    )
    mamba = _mamba2(config)
    kinds = _layer_types(config, "full_attention", "attention", "linear_attention", "mamba")
    return _granite(
        config,
        _granite_mixture(config, shared) if config.num_local_experts else shared,
        mixers=[mamba if kind in ("linear_attention", "mamba") else attention for kind in kinds],
        names=GRANITE_MOE_NAMES,
    )


def _mamba2(config: Any, **differences: Any) -> Mamba2Shape:
    fields: dict[str, Any] = {
        "heads": config.mamba_n_heads,
        "head_dim": config.mamba_d_head,
        "groups": config.mamba_n_groups,
        "state": config.mamba_d_state,
        "kernel": config.mamba_d_conv,
        "act": config.hidden_act,
        "conv_bias": config.mamba_conv_bias,
        "proj_bias": config.mamba_proj_bias,
        "out_bias": config.mamba_proj_bias,
        "time_step_limit": tuple(config.time_step_limit),
    }
    return Mamba2Shape(**(fields | differences))


BAMBA_NAMES = TensorNames(
    mlp_norm="pre_ff_layernorm",
    recurrence="mamba",
    mlp="feed_forward",
    final_norm="final_layernorm",
)


def _bamba(config: Any) -> DecoderShape:
    attention = _attention(config, rotates_part=True, **_biases(config))
    mamba = _mamba2(config)
    kinds = _layer_types(config, "full_attention", "linear_attention")
    mixers = [mamba if kind == "linear_attention" else attention for kind in kinds]
    return _decoder(config, mixers, _dense(config, bias=config.mlp_bias), names=BAMBA_NAMES)


def _falcon_h1(config: Any) -> DecoderShape:
    attention = _attention(config, **_biases(config))
    norm = "before gate" if config.mamba_norm_before_gate else "after gate"
    gate_scale, output_scale = config.mlp_multipliers
    mixers = ParallelShape(
        replace(attention, scale=attention.scale * config.key_multiplier),
        _mamba2(
            config,
            out_bias=config.projectors_bias,
            norm=norm if config.mamba_rms_norm else "none",
            row_scales=tuple(config.ssm_multipliers),
        ),
        attention_scales=(config.attention_in_multiplier, config.attention_out_multiplier),
        mamba_scales=(config.ssm_in_multiplier, config.ssm_out_multiplier),
    )
    mlp = replace(
        _dense(config, bias=config.mlp_bias), gate_scale=gate_scale, output_scale=output_scale
    )
    return _decoder(
        config,
        [mixers] * config.num_hidden_layers,
        mlp,
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
        names=BAMBA_NAMES,
    )


NEMOTRON_H_NAMES = TensorNames(
    embedding="embeddings",
    input_norm="norm",
    mlp_norm="norm",
    attention="mixer",
    recurrence="mixer",
    mlp="mixer",
    gate_up=("up_proj",),
    mixture="mixer",
    choice_bias="gate.e_score_correction_bias",
    expert_gate_up=("up_proj",),
    stacked_gate_up="experts.up_proj",
    shared="mixer.shared_experts",
    shared_gate_up=("up_proj",),
    final_norm="norm_f",
)


def _nemotron_h(config: Any) -> DecoderShape:
    mamba = Mamba2Shape(
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        groups=config.n_groups,
        state=config.ssm_state_size,
        kernel=config.conv_kernel,
        act=config.mamba_hidden_act,
        conv_bias=config.use_conv_bias,
        proj_bias=config.use_bias,
        out_bias=config.use_bias,
        time_step_limit=(config.time_step_min, math.inf),
    )
    act = config.mlp_hidden_act
    mlp = MlpShape(config.intermediate_size, act, config.mlp_bias, is_gated=False)
    attention = _attention(config, rope=None)
    parts = {
        "linear_attention": LayerShape(mamba, None),
        "full_attention": LayerShape(attention, None),
        "mlp": LayerShape(None, mlp),
        "moe": LayerShape(None, _nemotron_h_mixture(config)),
    }
    kinds = _layer_types(config, *parts)
    return DecoderShape(
        config.vocab_size,
        config.hidden_size,
        config.layer_norm_epsilon,
        tuple(parts[kind] for kind in kinds),
        names=NEMOTRON_H_NAMES,
    )


def _nemotron_h_mixture(config: Any) -> MixtureShape:
    act = config.mlp_hidden_act
    shared = MlpShape(
        config.moe_shared_expert_intermediate_size, act, config.mlp_bias, is_gated=False
    )
    return MixtureShape(
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        act,
        "sigmoid",
        normalizes=config.norm_topk_prob,
        weight_scale=float(config.routed_scaling_factor),
        has_choice_bias=True,
        is_gated=False,
        has_fp32_router=True,
        shared=shared,
    )


def _olmo2(config: Any) -> DecoderShape:
    return _norming_outputs(config, _windowed(config, norms_all_heads=True, **_biases(config)))


def _olmo3(config: Any) -> DecoderShape:
    attention = _windowed(config, norms_all_heads=True, **_biases(config))
    by_type = zip(attention, config.layer_types, strict=True)
    return _norming_outputs(config, [replace(each, rope=kind) for each, kind in by_type])


def _norming_outputs(config: Any, attention: list[AttentionShape]) -> DecoderShape:
    """Describe a decoder that normalizes the outputs of mixers and MLPs, not their inputs."""
    layers = [LayerShape(each, _dense(config), has_input_norms=False) for each in attention]
    return _decoder(config, attention, layers=tuple(layers))


OLMO_HYBRID_NAMES = TensorNames(
    input_norm="attention_layer_norm", mlp_norm="feedforward_layer_norm"
)


def _olmo_hybrid(config: Any) -> DecoderShape:
    rotates = (config.rope_parameters or {}).get("rope_theta") is not None
    rope = "" if rotates else None
    attention = _attention(config, norms_all_heads=True, rope=rope, **_biases(config))
    delta_net = GatedDeltaNetShape(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        kernel=config.linear_conv_kernel_dim,
        act=config.hidden_act,
        projections="each",
        rate_scale=2.0 if config.linear_allow_neg_eigval else 1.0,
        norm_eps=1e-5,
    )
    parts = {
        "full_attention": LayerShape(attention, _dense(config), has_input_norms=False),
        "linear_attention": LayerShape(delta_net, _dense(config)),
    }
    layers = tuple(parts[kind] for kind in _layer_types(config, *parts))
    return _decoder(config, [], layers=layers, names=OLMO_HYBRID_NAMES)


MAMBA2_NAMES = TensorNames(
    embedding="embeddings", input_norm="norm", recurrence="mixer", final_norm="norm_f"
)


CONTEXT_OF_RECURRENCES = 262_144
"""Longest context, in tokens, of a model that consists of recurrences and states none: nothing in
it depends on the length."""


def _mamba2_alone(config: Any) -> DecoderShape:
    if not hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = CONTEXT_OF_RECURRENCES
    mamba = Mamba2Shape(
        heads=config.num_heads,
        head_dim=config.head_dim,
        groups=config.n_groups,
        state=config.state_size,
        kernel=config.conv_kernel,
        act=config.hidden_act,
        conv_bias=config.use_conv_bias,
        proj_bias=config.use_bias,
        out_bias=config.use_bias,
        time_step_limit=tuple(config.time_step_limit),
    )
    return DecoderShape(
        config.vocab_size,
        config.hidden_size,
        config.layer_norm_epsilon,
        (LayerShape(mamba, None),) * config.num_hidden_layers,
        names=MAMBA2_NAMES,
    )


FAMILIES: dict[str, Callable[[Any], DecoderShape]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MinistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "SmolLM3ForCausalLM": _smollm3,
    "Phi3ForCausalLM": _phi3,
    "GemmaForCausalLM": _gemma1,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma4ForCausalLM": _gemma4,
    "Gemma4UnifiedForCausalLM": _gemma4,
    "GraniteForCausalLM": _granite,
    "GraniteMoeForCausalLM": _granite_moe,
    "GraniteMoeHybridForCausalLM": _granite_hybrid,
    "BambaForCausalLM": _bamba,
    "FalconH1ForCausalLM": _falcon_h1,
    "NemotronHForCausalLM": _nemotron_h,
    "Mamba2ForCausalLM": _mamba2_alone,
    "Olmo2ForCausalLM": _olmo2,
    "Olmo3ForCausalLM": _olmo3,
    "OlmoHybridForCausalLM": _olmo_hybrid,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MixtralForCausalLM": _mixtral,
    "GptOssForCausalLM": _gpt_oss,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_5,
    "Qwen3_5MoeForCausalLM": _qwen3_5_moe,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2_moe,
}

WRAPPERS = {
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
}
"""Architectures of images and text, of which the text part runs."""

TEXT_FAMILIES: dict[str, Callable[[Any], DecoderShape]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
}
"""Families of the text parts of wrappers, by `model_type`."""


NEVER_TIED = {"NemotronHForCausalLM"}
"""Architectures that have a head of their own, whatever their config says."""


def read_shape(config: Any, tensors: set[str]) -> DecoderShape | None:
    """Return the shape of the model, or of its text part. Returns None if no family of ours runs
    it. Raises ModelError if one does, but not with this config.

    `tensors`: names of all tensors in the checkpoint. The configs of some wrappers do not say that
    there is a head.
    """
    architecture = (config.architectures or [""])[0]
    text = config.get_text_config()
    family, has_head = FAMILIES.get(architecture), False
    if architecture in WRAPPERS:
        family = TEXT_FAMILIES.get(text.model_type)
        has_head = any(name.endswith("lm_head.weight") for name in tensors)
    if family is None:
        return None
    never_tied = architecture in NEVER_TIED
    is_tied = bool(config.tie_word_embeddings) and not (has_head or never_tied)
    shape = replace(family(text), has_tied_embeddings=is_tied)
    _check_sizes(shape)
    return shape


def _check_sizes(shape: DecoderShape) -> None:
    """Raise ModelError if a layer has sizes with which no step can be computed."""
    for layer in shape.layers:
        attention, mixture = layer.attention, layer.mlp
        if attention is not None and attention.heads % attention.kv_heads:
            raise ModelError(
                f"config.json: num_attention_heads is {attention.heads}, which is no multiple of "
                f"num_key_value_heads, {attention.kv_heads}"
            )
        if attention is not None and attention.head_dim % 2 and attention.rope is not None:
            raise ModelError(f"config.json: head_dim is {attention.head_dim}; it must be even")
        if isinstance(mixture, MixtureShape) and mixture.chosen > mixture.experts:
            raise ModelError(
                f"config.json: num_experts_per_tok is {mixture.chosen}, more than the experts, "
                f"{mixture.experts}"
            )
