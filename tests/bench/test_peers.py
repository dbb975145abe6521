"""Tests of competitors: each, in its own process, returns the same ids for the same prompts."""

import subprocess
from pathlib import Path

import pytest

from continuo.bench import competitors, random_checkpoints
from continuo.bench.competitors.checkpoint import count_parameters, iterate_tensors
from continuo.bench.competitors.workload import (
    Ids,
    Prompts,
    SequentialBackend,
    Workload,
    run_workload,
)

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
}
PROMPTS: Prompts = [[[7, 300, 21], [9, 9, 4000]], [[1, 2, 3], [4, 5, 6]]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    random_checkpoints.save_checkpoint(TINY, folder)
    return folder


def measure(folder: Path, names: list[str]) -> list[competitors.CompetitorResult]:
    return competitors.measure(
        folder, sessions=2, turns=2, ids_in=3, ids_out=4, prompts=PROMPTS, names=names, threads=1
    )


def test_transformers_output_is_equal_with_and_without_a_cache(checkpoint: Path) -> None:
    modes = ["transformers resend", "transformers session-cache"]
    resend, cached = measure(checkpoint, modes)
    assert (resend.mode, cached.mode) == ("resend", "session-cache")
    assert resend.mean_all_ms is not None, resend.note
    assert cached.mean_last10_ms is not None, cached.note
    assert resend.has_equal_outputs is None, "the first competitor has no reference"
    assert cached.has_equal_outputs is True, cached.note
    assert resend.outputs is not None
    assert len({id for session in resend.outputs for turn in session for id in turn}) > 4


def test_note_of_a_missing_competitor_says_how_to_install_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competitors, "find_interpreter", lambda needs: None)
    for result in measure(checkpoint, ["llama-cpp-python"]):
        assert result.mean_all_ms is None
        assert "not installed: python3 -m venv .venv-peers" in result.note


def test_note_of_a_failed_competitor_has_the_cause(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = competitors.COMPETITORS[0]._replace(module="continuo.bench.competitors.nowhere")
    monkeypatch.setattr(competitors, "COMPETITORS", (broken,))
    (result,) = measure(checkpoint, ["transformers resend"])
    assert result.mean_all_ms is None
    assert result.note.startswith("failed (1): ")
    assert "nowhere" in result.note


def test_llama_cpp_output_equals_transformers(checkpoint: Path) -> None:
    if competitors.find_interpreter(["llama_cpp", "gguf"]) is None:
        pytest.skip(f"llama-cpp-python: {competitors.HOW_TO_INSTALL['llama-cpp-python']}")
    expected, *results = measure(checkpoint, ["transformers resend", "llama-cpp-python"])
    assert expected.outputs is not None
    for result in results:
        assert result.outputs == expected.outputs, result.note


READ_BACK = """
import sys, gguf
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    print(tensor.name, *reversed(tensor.shape), float(tensor.data.sum(dtype="f8")))
"""


def test_gguf_file_holds_the_tensors_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    python = competitors.find_interpreter(["gguf"])
    if python is None:
        pytest.skip("gguf is not installed: pip install gguf")
    path = tmp_path / "tiny.gguf"
    command = [python, "-m", "continuo.bench.competitors.to_gguf", checkpoint, path]
    subprocess.run(command, check=True, cwd=competitors.ROOT)
    command = [python, "-c", READ_BACK, path]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tensors = {line.split()[0]: line.split()[1:] for line in output.splitlines()}
    assert len(tensors) == 3 + 11 * TINY["num_hidden_layers"]
    assert tensors["blk.1.ffn_down.weight"][:2] == ["32", "64"]
    weights = dict(iterate_tensors(checkpoint))
    total = weights["model.layers.1.mlp.down_proj.weight"].sum(dtype="f8")
    assert float(tensors["blk.1.ffn_down.weight"][2]) == pytest.approx(total, abs=1e-9)


def test_random_checkpoint_is_reproducible(checkpoint: Path, tmp_path: Path) -> None:
    random_checkpoints.save_checkpoint(TINY, tmp_path)
    name = "model.safetensors"
    assert (tmp_path / name).read_bytes() == (checkpoint / name).read_bytes()
    assert count_parameters(checkpoint) == sum(
        array.size for _, array in iterate_tensors(checkpoint)
    )


def test_workload_runs_sessions_in_turns_and_stops_at_the_limit() -> None:
    order: list[int] = []

    def generate(session: int, ids: Ids) -> Ids:
        order.append(session)
        return [session]

    workload = Workload("", "", "", 1, 1, [[[1], [2]], [[3], [4]]], 60.0)
    assert run_workload(SequentialBackend(generate), workload, "").outputs == [
        [[0], [0]],
        [[1], [1]],
    ]
    assert order == [0, 1, 0, 1]
    stopped = run_workload(SequentialBackend(generate), workload._replace(limit_s=0.0), "")
    assert stopped.outputs == [[], []]
