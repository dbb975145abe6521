"""A metadata key of a GGUF file is applied as by llama.cpp, or without effect in both, or refused.

evidence/gguf-keys.md has the outcome of every change. `--record` rewrites it:

    pytest tests/parity/test_gguf_keys.py -k every_change --record
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.engine.gguf import folder as gguf_folder
from continuo.engine.gguf.architectures import ARCHITECTURES
from continuo.engine.gguf.metadata_keys import known_keys
from tests.support.gguf_key_changes import (
    CHANGES,
    KINDS,
    LLAMA_VENV,
    SIZES,
    Change,
    LlamaCpp,
    Outcome,
    Trial,
    list_guesses,
)
from tests.support.gguf_key_table import Table, list_named_keys, read_table, write_table

pytestmark = [pytest.mark.torch, pytest.mark.process]

DRAWN_CHANGES = 6
DRAWN_GUESSES = 2
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
    ("gemma3", Change(PERIOD, (True, False, False)), "applied"),
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


@pytest.mark.parametrize("architecture", KINDS)
def test_drawn_changes_have_the_outcomes_of_the_table(
    architecture: str, tmp_path: Path, llama: LlamaCpp, request: pytest.FixtureRequest
) -> None:
    source = random.Random(f"{request.config.getoption('share_seed')} {architecture}")
    guesses = [change for together in list_guesses(llama.keys) for change in together]
    drawn = source.sample(CHANGES, DRAWN_CHANGES) + source.sample(guesses, DRAWN_GUESSES)
    trial, table = Trial(architecture, tmp_path, llama), read_table()
    found = {change: trial.try_change(change) for change in drawn}
    assert found == {change: expected(table, architecture, change) for change in drawn}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", KINDS)
def test_every_change_of_a_key_has_the_outcome_of_the_table(
    architecture: str, tmp_path: Path, llama: LlamaCpp, request: pytest.FixtureRequest
) -> None:
    trial = Trial(architecture, tmp_path, llama)
    outcomes = dict(iter_outcomes(trial, llama))
    assert [change for change, outcome in outcomes.items() if outcome == "WRONG"] == []
    if request.config.getoption("--record"):
        write_table({**read_table(), architecture: outcomes}, llama.keys)
    table = read_table()
    assert outcomes == {change: expected(table, architecture, change) for change in outcomes}


def iter_outcomes(trial: Trial, llama: LlamaCpp) -> Iterator[tuple[Change, Outcome]]:
    """Yield each change and its outcome. A refusal names the key."""
    for change in CHANGES:
        outcome = trial.try_change(change)
        assert outcome != "refused" or change.key in trial.refusal
        yield change, outcome
    for changes in list_guesses(llama.keys):
        yield from trial.try_together(changes)
    for change, differences in SIZES.items():
        yield change, trial.try_size(differences)


def expected(table: Table, architecture: str, change: Change) -> Outcome:
    return table[architecture].get(change, "without effect")


def test_table_has_every_architecture() -> None:
    assert read_table().keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_page_has_every_key_of_the_reader(architecture: str) -> None:
    assert sorted(known_keys(architecture) - list_named_keys()) == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_table_has_every_change(architecture: str) -> None:
    assert [x for x in (*CHANGES, *SIZES) if x not in read_table()[architecture]] == []
