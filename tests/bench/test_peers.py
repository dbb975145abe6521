"""Peers answer the same prompts with the same ids, each in its own process."""

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
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    random_checkpoints.save_checkpoint(TINY, folder)
    return folder


def measure(folder: Path, names: list[str]) -> list[competitors.CompetitorResult]:
    return competitors.measure(
        folder, sessions=2, turns=2, ids_in=3, ids_out=4, prompts=PROMPTS, names=names, threads=1
    )


def test_transformers_says_the_same_with_and_without_a_cache(tiny: Path) -> None:
    modes = ["transformers resend", "transformers session-cache"]
    resend, kept = measure(tiny, modes)
    assert (resend.mode, kept.mode) == ("resend", "session-cache")
    assert resend.mean_all_ms is not None, resend.note
    assert kept.mean_last10_ms is not None, kept.note
    assert resend.has_equal_outputs is None, "nothing to compare the first one with"
    assert kept.has_equal_outputs is True, kept.note
    assert resend.outputs is not None
    assert len({id for session in resend.outputs for turn in session for id in turn}) > 4


def test_a_peer_that_is_not_installed_says_how_to_install_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competitors, "find_interpreter", lambda needs: None)
    for result in measure(tiny, ["llama-cpp-python"]):
        assert result.mean_all_ms is None
        assert "not installed: python3 -m venv .venv-peers" in result.note


def test_a_peer_that_fails_says_why(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = competitors.COMPETITORS[0]._replace(module="continuo.bench.competitors.nowhere")
    monkeypatch.setattr(competitors, "COMPETITORS", (broken,))
    (result,) = measure(tiny, ["transformers resend"])
    assert result.mean_all_ms is None
    assert result.note.startswith("failed (1): ")
    assert "nowhere" in result.note


def test_llama_cpp_says_what_transformers_says(tiny: Path) -> None:
    if competitors.find_interpreter(["llama_cpp", "gguf"]) is None:
        pytest.skip(f"llama-cpp-python: {competitors.HOW_TO_INSTALL['llama-cpp-python']}")
    expected, *results = measure(tiny, ["transformers resend", "llama-cpp-python"])
    assert expected.outputs is not None
    for result in results:
        assert result.outputs == expected.outputs, result.note


READ_BACK = """
import sys, gguf
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    print(tensor.name, *reversed(tensor.shape), float(tensor.data.sum(dtype="f8")))
"""


def test_the_gguf_file_holds_the_checkpoint(tiny: Path, tmp_path: Path) -> None:
    python = competitors.find_interpreter(["gguf"])
    if python is None:
        pytest.skip("gguf is not installed: pip install gguf")
    path = tmp_path / "tiny.gguf"
    command = [python, "-m", "continuo.bench.competitors.to_gguf", tiny, path]
    subprocess.run(command, check=True, cwd=competitors.ROOT)
    command = [python, "-c", READ_BACK, path]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {line.split()[0]: line.split()[1:] for line in answer.splitlines()}
    assert len(found) == 3 + 11 * TINY["num_hidden_layers"]
    assert found["blk.1.ffn_down.weight"][:2] == ["32", "64"]
    weights = dict(iterate_tensors(tiny))
    total = weights["model.layers.1.mlp.down_proj.weight"].sum(dtype="f8")
    assert float(found["blk.1.ffn_down.weight"][2]) == pytest.approx(total, abs=1e-9)


def test_a_checkpoint_is_the_same_each_time(tiny: Path, tmp_path: Path) -> None:
    random_checkpoints.save_checkpoint(TINY, tmp_path)
    name = "model.safetensors"
    assert (tmp_path / name).read_bytes() == (tiny / name).read_bytes()
    assert count_parameters(tiny) == sum(array.size for _, array in iterate_tensors(tiny))


def test_clients_wait_for_each_other_and_stop_at_the_limit() -> None:
    order: list[int] = []

    def answer(session: int, ids: Ids) -> Ids:
        order.append(session)
        return [session]

    job = Workload("", "", "", 1, 1, [[[1], [2]], [[3], [4]]], 60.0)
    assert run_workload(SequentialBackend(answer), job, "").outputs == [[[0], [0]], [[1], [1]]]
    assert order == [0, 1, 0, 1]
    stopped = run_workload(SequentialBackend(answer), job._replace(limit_s=0.0), "")
    assert stopped.outputs == [[], []]
