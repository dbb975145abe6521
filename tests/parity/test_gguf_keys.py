"""A metadata key of a GGUF file is applied as by llama.cpp, or has no effect, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.engine.gguf import folder as gguf_folder
from tests.support.gguf_key_changes import (
    LLAMA_VENV,
    Change,
    LlamaCpp,
    Outcome,
    Trial,
)

pytestmark = [pytest.mark.torch, pytest.mark.process]

PERIOD = "attention.sliding_window_pattern"
KNOWN_OUTCOMES: list[tuple[str, Change, Outcome]] = [
    ("llama", Change("rope.scaling.factor", 2.0), "applied"),
    ("llama", Change("rope.scaling.factor", 2.0, "none"), "without effect"),
    ("llama", Change("rope.scale_linear", 5.0, "none"), "without effect"),
    ("llama", Change("rope.scaling.attn_factor", 0.5), "refused"),
    ("qwen2", Change("attention.causal", False), "refused"),
    ("qwen2", Change("rope.scaling.yarn_beta_fast", 4.0, "yarn"), "without effect"),
    ("qwen3", Change("rope.scaling.original_context_length", None, "yarn"), "applied"),
    ("gemma3", Change("rope.freq_base", None), "applied"),
    ("gemma3", Change("rope.scaling.factor", 2.0, "yarn"), "applied"),
    ("gemma3", Change(PERIOD, 2), "applied"),
    ("gemma3", Change(PERIOD, [True, False, False]), "applied"),
    ("gemma3", Change("rope.dimension_count_swa", 8), "refused"),
]


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaCpp]:
    if not (LLAMA_VENV / "ready").exists():
        pytest.skip("`make test` could not install tests/parity/requirements.txt")
    llama = LlamaCpp()
    yield llama
    llama.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_folder, "CACHE_FOLDER", tmp_path / "cache")


@pytest.mark.parametrize(("architecture", "change", "outcome"), KNOWN_OUTCOMES, ids=str)
def test_change_of_a_key_has_the_outcome_of_llama_cpp(
    architecture: str, change: Change, outcome: Outcome, tmp_path: Path, llama: LlamaCpp
) -> None:
    trial = Trial(architecture, tmp_path, llama)
    assert trial.try_change(change) == outcome
    assert (change.key in trial.refusal) == (outcome == "refused")
