"""Tests of the schemas of config.json: what they accept, they read as transformers does."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from continuo.engine.architectures.config_schemas import SCHEMAS, read_by_schema
from continuo.engine.architectures.families import read_shape
from continuo.engine.device.models import rope
from continuo.engine.errors import ModelError
from tests.support.architectures import ARCHITECTURES

pytestmark = pytest.mark.torch

LLAMA3_SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
YARN_SCALING = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE_SCALING = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

DIVISORS = ("query_pre_attn_scalar", "logits_scaling")


@cache
def saved(architecture: str) -> dict[str, Any]:
    """Return config.json as transformers saves it for a small model."""
    (row,) = (row for row in ARCHITECTURES if row.name == architecture)
    return json.loads(row.make().config.to_json_string()) | {"architectures": [architecture]}


def describe(config: Any) -> tuple[object, ...]:
    """Return all that the decoder and its runner take from a config."""
    shape = read_shape(config, set())
    assert shape is not None
    dims = {layer.mixer.head_dim for layer in shape.layers if hasattr(layer.mixer, "head_dim")}  # pyright: ignore
    tables = [rope.build_table(config, dim, 40, torch.empty(0)).tolist() for dim in sorted(dims)]
    quantization = getattr(config, "quantization_config", None)
    return shape, rope.context_limit(config), tables, config.architectures, quantization


def describe_by_transformers(values: dict[str, Any]) -> tuple[object, ...] | None:
    """Return the same by transformers; None if it refuses the config."""
    values = copy.deepcopy(values)
    try:
        return describe(AutoConfig.for_model(values.pop("model_type"), **values))
    except Exception:
        return None


def describe_by_schema(values: dict[str, Any]) -> tuple[object, ...] | None:
    """Return the same by the schema; None if the config is left to transformers, or refused."""
    config = read_by_schema(copy.deepcopy(values))
    try:
        return None if config is None else describe(config)
    except ModelError:
        return None


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "transformers")


@pytest.mark.parametrize("architecture", list(SCHEMAS))
def test_saved_config_is_read_as_by_transformers(architecture: str) -> None:
    found = describe_by_schema(saved(architecture))
    assert found is not None
    assert found == describe_by_transformers(saved(architecture))


def iter_changes(architecture: str) -> Iterator[dict[str, Any]]:
    """Yield the config without each of its fields, with each field of a wrong type or value, and
    with fields that older versions of transformers wrote."""
    values = saved(architecture)
    fields = set(SCHEMAS[architecture].__struct_fields__)
    for name in values:
        if name not in ("model_type", "architectures"):
            yield {key: value for key, value in values.items() if key != name}
        if name in fields - {"model_type", "architectures", "quantization_config", *DIVISORS}:
            for wrong in (None, 0, 2, 1.5, "x", True, False, [], {}, [1, 2, 3]):
                if (type(values[name]), type(wrong)) != (float, int):  # harmless
                    yield values | {name: wrong}
    without_rope = {k: v for k, v in values.items() if k != "rope_parameters"}
    for scaling in (None, {}, LLAMA3_SCALING, YARN_SCALING, LONGROPE_SCALING, {"type": "linear"}):
        yield without_rope | {"rope_theta": 500000.0, "rope_scaling": scaling}
        yield without_rope | {"rope_scaling": scaling}
        yield without_rope | {"rope_parameters": scaling}
    for change in (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5.0}}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "beta_fast": 16, "mscale": None}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "mscale": 2, "mscale_all_dim": 1}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "attention_factor": 0.5}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": False}},
        {"rope_parameters": {"rope_type": "yarn", "factor": None}},
        {"rope_parameters": {"rope_type": "linear", "factor": 3}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 3}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_theta": None},
        {"partial_rotary_factor": 0.5},
        {"original_max_position_embeddings": 64, "rope_parameters": {**YARN_SCALING}},
        {"head_dim": 16},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": None},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["chunked_attention"] * values["num_hidden_layers"]},
        {"num_local_experts": 8},
        {"num_experts": 8},
        {"hidden_act": "gelu"},
        {"hidden_act": "gelu", "hidden_activation": None},
        {"architectures": None},
        {"architectures": ["NoForCausalLM"]},
        {"model_type": "warp"},
        {"text_config": {"hidden_size": 3}},
        {"no_rope_layers": None, "no_rope_layer_interval": 0},
        {"unknown": 1},
        {"hidden_size": values["hidden_size"] + 1},
    ):
        yield values | change


@pytest.mark.parametrize("architecture", list(SCHEMAS))
def test_accepted_config_is_read_as_by_transformers(architecture: str) -> None:
    accepted = 0
    for values in iter_changes(architecture):
        found = describe_by_schema(values)
        if found is not None:
            accepted += 1
            assert found == describe_by_transformers(values), values
    assert accepted > 20


PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 3.2": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3_SCALING,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "SmolLM 2": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "vocab_size": 49152,
    },
    "Qwen 2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen 3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Mistral 7B": {
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32768,
    },
}
"""Relevant fields of published configs."""


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_config_is_read_by_its_schema(name: str) -> None:
    found = describe_by_schema(PUBLISHED[name])
    assert found is not None
    assert found == describe_by_transformers(PUBLISHED[name])
