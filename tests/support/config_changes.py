"""Configs that differ from that of a small model in one field, and what becomes of each: the logits
of transformers, with effect or without, or a refusal."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, save_olmo_hybrid

TOLERANCE = 2e-4
Outcome = Literal["applied", "without effect", "refused", "transformers fails", "WRONG"]
"""The outcome of a change. "refused": by our decoder, whatever transformers does. "WRONG": other
logits than those of transformers."""


class Change(NamedTuple):
    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.field} {json.dumps(self.value)}"


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
ALTERNATING = ["full_attention", "sliding_attention", "full_attention"]
CHANGES = (
    Change("partial_rotary_factor", 0.5),
    Change("rope_theta", 100.0),
    Change("rope_parameters", LINEAR),
    Change("rope_parameters", LINEAR | {"rope_type": "dynamic"}),
    Change("rope_parameters", LLAMA3),
    Change("rope_parameters", YARN),
    Change("rope_parameters", YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}),
    Change("rope_parameters", YARN | {"attention_factor": 0.5}),
    Change("rope_parameters", YARN | {"truncate": False}),
    Change("rope_parameters", YARN | {"beta_fast": 4, "beta_slow": 2}),
    Change("rope_parameters", PLAIN | {"partial_rotary_factor": 0.5}),
    Change("rope_parameters", LLAMA3 | {"partial_rotary_factor": 0.5}),
    Change("rope_scaling", {"type": "linear", "factor": 3.0}),
    Change("rope_scaling", {"rope_type": "dynamic", "factor": 3.0}),
    Change("original_max_position_embeddings", 16),
    Change("sliding_window", 12),
    Change("use_sliding_window", True),
    Change("max_window_layers", 1),
    Change("sliding_window_pattern", 2),
    Change("layer_types", ALTERNATING),
    Change("hidden_activation", "relu"),
    Change("hidden_act", "relu"),
    Change("norm_topk_prob", True),
    Change("norm_topk_prob", False),
    Change("time_step_limit", [0.1, 0.2]),
    Change("attention_bias", True),
    Change("mlp_bias", True),
    Change("qkv_bias", False),
    Change("use_bidirectional_attention", True),
    Change("is_causal", False),
    Change("attn_logit_softcapping", 2.0),
    Change("final_logit_softcapping", 1.0),
    Change("tie_word_embeddings", True),
    Change("attention_multiplier", 0.9),
    Change("logit_scale", 0.5),
    Change("qk_layernorm", True),
    Change("rope_interleaved", True),
    Change("pretraining_tp", 2),
    Change("attention_dropout", 0.5),
    Change("head_dim", 32),
    Change("attn_output_gate", False),
    Change("full_attention_interval", 2),
    Change("query_pre_attn_scalar", 9),
    Change("routed_scaling_factor", 3.0),
    Change("rms_norm_eps", 0.3),
    Change("layer_norm_epsilon", 0.3),
    Change("norm_eps", 0.3),
)
"""Changes of fields that some family applies; all are tried in every family."""
SIZES = frozenset(
    """architectures bos_token_id dtype eos_token_id hidden_size layers_block_type
    max_position_embeddings model_type num_hidden_layers pad_token_id transformers_version
    vocab_size""".split()  # noqa: SIM905 - a list of names
)
"""Fields that are not changed: without them there is no model of this size."""


@cache
def saved_config(architecture: str) -> dict[str, Any]:
    """Return config.json as transformers saves it for a small model of an architecture."""
    (row,) = (row for row in ARCHITECTURES if row.name == architecture)
    return json.loads(row.make().config.to_json_string()) | {"architectures": [architecture]}


def list_changes(architecture: str) -> list[Change]:
    """Return the common changes, and one or two of each field of the config itself."""
    values = saved_config(architecture)
    found = {
        str(change): change
        for change in (*CHANGES, *_iter_changes(values))
        if values.get(change.field, ...) != change.value
    }
    return list(found.values())


def _iter_changes(values: dict[str, Any]) -> Iterator[Change]:
    for name, value in values.items():
        if name in SIZES or name.startswith("_"):
            continue
        match value:
            case bool():
                yield Change(name, not value)
            case float():
                yield Change(name, 0.37)
            case int():
                yield Change(name, 2 * value or 1)
            case None:
                yield Change(name, True)
                yield Change(name, 0.5)
            case _:
                pass


def changed_config(architecture: str, change: Change) -> dict[str, Any]:
    values = copy.deepcopy(saved_config(architecture))
    if change.field in ("rope_scaling", "rope_theta"):  # older forms of the same parameters
        values.pop("rope_parameters", None)
    return values | {change.field: change.value}


@cache
def _logits_unchanged(architecture: str) -> Tensor:
    with TemporaryDirectory() as folder:
        return _logits_by_transformers(Path(folder), saved_config(architecture))


def try_change(architecture: str, change: Change) -> Outcome:
    values = changed_config(architecture, change)
    with TemporaryDirectory() as folder:
        try:
            expected = _logits_by_transformers(Path(folder), values)
        except Exception:  # of any kind: fields reach all of its code
            return _try_without_oracle(Path(folder))
        try:
            logits = _logits_by_ours(Path(folder))
        except ModelError:
            return "refused"
    unchanged = _logits_unchanged(architecture)
    if not _is_equal(logits, expected, unchanged):
        return "WRONG"
    return "without effect" if _is_equal(expected, unchanged, unchanged) else "applied"


def _try_without_oracle(folder: Path) -> Outcome:
    """Return what becomes of a config with which transformers fails: refused, if it can be seen
    from the config."""
    if not (folder / "model.safetensors").exists():
        return "transformers fails"
    try:
        _logits_by_ours(folder)
    except ModelError:
        return "refused"
    except RuntimeError:
        pass
    return "transformers fails"


def _logits_by_transformers(folder: Path, values: dict[str, Any]) -> Tensor:
    """Save a random model with a config. Returns its logits [3, vocab] at three positions."""
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(3)
    oracle.randomize(model)
    if type(model).__name__ == "OlmoHybridForCausalLM":
        save_olmo_hybrid(model, folder)
    else:
        model.save_pretrained(folder)
    path.write_text(json.dumps(values))
    [ids] = oracle.random_prompts(1, [50])
    return oracle.full_logits(model, ids)[[0, 29, 49]]


def _logits_by_ours(folder: Path) -> Tensor:
    [ids] = oracle.random_prompts(1, [50])
    return oracle.chunk_end_logits(oracle.build_cpu_runner(folder, max_model_len=256), ids, [1, 30])


def _is_equal(logits: Tensor, expected: Tensor, unchanged: Tensor) -> bool:
    """Compare logits, with a tolerance relative to the largest of those `expected` or `unchanged`:
    a cap on the logits makes them small, but not what differs before it."""
    if logits.shape != expected.shape:
        return False
    largest = torch.maximum(expected.abs().max(), unchanged.abs().max())
    return bool((logits - expected).abs().max() <= TOLERANCE * largest)
