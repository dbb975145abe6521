"""Configs that differ from that of a small model in one field, and what becomes of each: the logits
of transformers, with effect or without, or a refusal."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from continuo.engine.architectures.families import FAMILIES
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES

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
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
ALTERNATING = ["full_attention", "sliding_attention", "full_attention"]
SIZES = frozenset(
    """architectures bos_token_id dtype eos_token_id hidden_size layers_block_type
    max_position_embeddings model_type num_hidden_layers pad_token_id transformers_version
    vocab_size""".split()  # noqa: SIM905 - a list of names
)
"""Fields that are not changed: without them there is no model of this size."""
SAVED_OTHERWISE = "OlmoHybridForCausalLM"
"""Transformers does not save this model as its publisher does (`tests.support.architectures`)."""


def list_architectures() -> list[str]:
    return [name for name in FAMILIES if name != SAVED_OTHERWISE]


@cache
def saved_config(architecture: str) -> dict[str, Any]:
    """Return config.json as transformers saves it for a small model of an architecture."""
    (row,) = (row for row in ARCHITECTURES if row.name == architecture)
    return json.loads(row.make().config.to_json_string()) | {"architectures": [architecture]}


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
    if not _is_equal(logits, expected):
        return "WRONG"
    return "without effect" if _is_equal(expected, _logits_unchanged(architecture)) else "applied"


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
    oracle.randomize(model).save_pretrained(folder)
    path.write_text(json.dumps(values))
    [ids] = oracle.random_prompts(1, [50])
    return oracle.full_logits(model, ids)[[0, 29, 49]]


def _logits_by_ours(folder: Path) -> Tensor:
    [ids] = oracle.random_prompts(1, [50])
    return oracle.chunk_end_logits(oracle.build_cpu_runner(folder, max_model_len=256), ids, [1, 30])


def _is_equal(logits: Tensor, expected: Tensor) -> bool:
    if logits.shape != expected.shape:
        return False
    return bool((logits - expected).abs().max() <= TOLERANCE * expected.abs().max())
