"""A field of a config is applied as transformers does, or without effect in both, or refused.

evidence/config-fields.md has the table of all changes, which `--record` rewrites.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from continuo.engine.architectures.config_fields import APPLIED_BY_TYPE, known_fields
from continuo.engine.architectures.families import FAMILIES
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES
from tests.support.config_changes import (
    ALTERNATING,
    LINEAR,
    LLAMA3,
    PLAIN,
    SIZES,
    Change,
    Outcome,
    changed_config,
    list_changes,
    saved_config,
    try_change,
)

PAGE = Path(__file__).parents[2] / "evidence" / "config-fields.md"
OUTCOMES: tuple[Outcome, ...] = ("applied", "without effect", "refused")
PART = Change("partial_rotary_factor", 0.5)
DYNAMIC = Change("rope_parameters", LINEAR | {"rope_type": "dynamic"})
PART_OF_PLAIN = Change("rope_parameters", PLAIN | {"partial_rotary_factor": 0.5})
PART_OF_LLAMA3 = Change("rope_parameters", LLAMA3 | {"partial_rotary_factor": 0.5})
KNOWN_OUTCOMES: list[tuple[str, Change, Outcome]] = [
    ("LlamaForCausalLM", PART, "without effect"),
    ("LlamaForCausalLM", PART_OF_LLAMA3, "refused"),
    ("LlamaForCausalLM", DYNAMIC, "without effect"),
    ("LlamaForCausalLM", Change("is_causal", False), "refused"),
    ("LlamaForCausalLM", Change("num_key_value_heads", 3), "refused"),
    ("SmolLM3ForCausalLM", PART, "without effect"),
    ("Phi3ForCausalLM", PART_OF_PLAIN, "applied"),
    ("Olmo3ForCausalLM", PART, "without effect"),
    ("MistralForCausalLM", Change("layer_types", ALTERNATING), "applied"),
    ("Qwen2ForCausalLM", Change("layer_types", ALTERNATING), "refused"),
    ("GemmaForCausalLM", Change("hidden_activation", "relu"), "without effect"),
    ("GemmaForCausalLM", Change("use_bidirectional_attention", True), "refused"),
    ("Gemma3ForCausalLM", Change("attn_logit_softcapping", 2.0), "without effect"),
    ("NemotronHForCausalLM", Change("time_step_limit", [0.1, 0.2]), "without effect"),
    ("NemotronHForCausalLM", Change("time_step_min", 0.37), "applied"),
    ("NemotronHForCausalLM", Change("use_bias", True), "applied"),
    ("NemotronHForCausalLM", Change("tie_word_embeddings", True), "without effect"),
    ("Qwen3_5MoeForCausalLM", Change("norm_topk_prob", False), "without effect"),
    ("Qwen3MoeForCausalLM", Change("norm_topk_prob", True), "applied"),
    ("MixtralForCausalLM", Change("num_experts_per_tok", 8), "refused"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize(("architecture", "change", "outcome"), KNOWN_OUTCOMES, ids=str)
def test_change_of_a_field_has_the_outcome_of_transformers(
    architecture: str, change: Change, outcome: Outcome
) -> None:
    assert try_change(architecture, change) == outcome


@pytest.mark.slow
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_change_of_a_field_has_the_outcome_of_the_table(
    architecture: str, request: pytest.FixtureRequest
) -> None:
    by_outcome: dict[Outcome, list[Change]] = {}
    for change in list_changes(architecture):
        by_outcome.setdefault(try_change(architecture, change), []).append(change)
    assert by_outcome.get("WRONG", []) == []
    row = describe_row(architecture, by_outcome)
    if request.config.getoption("--record"):
        record(architecture, row)
    assert row in PAGE.read_text("utf-8").splitlines()


def describe_row(architecture: str, by_outcome: dict[Outcome, list[Change]]) -> str:
    cells = [_describe(by_outcome.get(outcome, [])) for outcome in OUTCOMES]
    return f"| `{architecture}` | {' | '.join(cells)} |"


def _describe(changes: list[Change]) -> str:
    """Return the names of fields; the kind of rotary embedding beside its field."""
    names: dict[str, None] = {}
    for field, value in changes:
        kind = value.get("rope_type", value.get("type", "")) if isinstance(value, dict) else ""
        names[f"{field} ({kind})" if kind else field] = None
    return ", ".join(sorted(names)) or "-"


def record(architecture: str, row: str) -> None:
    """Replace the row of an architecture, or add it at the end of the page."""
    lines = PAGE.read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(f"| `{architecture}` |")]
    PAGE.write_text("\n".join([*kept, row]) + "\n", "utf-8")


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_field_of_transformers_is_known(architecture: str) -> None:
    """Also those that its class has and a saved config lacks."""
    values = saved_config(architecture)
    model_type = values["model_type"]
    fields = values.keys() | vars(CONFIG_MAPPING[model_type]()).keys()
    unknown = {name for name in fields - known_fields(model_type) if not name.startswith("_")}
    assert sorted(unknown - SIZES) == []


def test_table_has_every_architecture_once() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    named = sorted(line.split("`")[1] for line in rows)
    assert named == sorted(FAMILIES)


def test_every_type_of_text_part_has_fields() -> None:
    types = {saved_config(name)["model_type"] for name in FAMILIES}
    assert types - APPLIED_BY_TYPE.keys() == set()


def test_unknown_field_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, Change("attention_gain", 3.0))
    oracle.build_cpu_runner(tmp_path)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message for message in warned if "attention_gain" in message]


@pytest.mark.parametrize("value", [None, False])
def test_unknown_field_that_is_not_set_is_not_named(
    value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _save(tmp_path, Change("attention_gain", value))
    oracle.build_cpu_runner(tmp_path)
    assert "attention_gain" not in caplog.text


def test_refusal_names_the_field_and_its_value(tmp_path: Path) -> None:
    _save(tmp_path, Change("is_causal", False))
    with pytest.raises(ModelError, match="is_causal is False, which is not supported"):
        oracle.build_cpu_runner(tmp_path)


def _save(folder: Path, change: Change) -> None:
    (row,) = (row for row in ARCHITECTURES if row.name == "LlamaForCausalLM")
    row.make().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(changed_config(row.name, change)))
