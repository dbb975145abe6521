"""Tests of competitors: each, in its own process, returns the same ids for the same prompts."""

import math
import subprocess
from pathlib import Path

import pytest

from continuo.bench import random_checkpoints, turns
from continuo.bench.competitors.checkpoint import count_parameters, iterate_tensors
from continuo.bench.competitors.turn_server import Ids, Request, SequentialBackend, TurnServer
from continuo.bench.targets.competitor_target import (
    COMPETITORS,
    ROOT,
    Competitor,
    CompetitorError,
    CompetitorTarget,
    find_interpreter,
)
from continuo.bench.targets.target import Output, Prompts

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
}
TINY_HYBRID = {
    **TINY,
    "num_hidden_layers": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
PROMPTS: Prompts = [[[7, 300, 21], [9, 9, 4000]], [[1, 2, 3], [4, 5, 6]]]
TRANSFORMERS, LLAMA_CPP = COMPETITORS["transformers"], COMPETITORS["llama.cpp"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    random_checkpoints.save_checkpoint(TINY, folder)
    return folder


@pytest.fixture(autouse=True)
def converted_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "continuo.bench.targets.competitor_target.CACHE_FOLDER"
    monkeypatch.setattr(name, tmp_path)


def make_target(
    folder: Path, competitor: Competitor, mode: str, dtype: str = "float32"
) -> CompetitorTarget:
    return CompetitorTarget("peer", competitor, mode, folder, dtype, threads=1)


async def measure(folder: Path, competitor: Competitor, mode: str) -> list[list[Ids | str]]:
    """Return the outputs of all turns, and of a session with an interruption at the end."""
    async with make_target(folder, competitor, mode) as target:
        assert await turns.run_sessions(target, PROMPTS, Output(4), limit_s=0.0) == [[], []]
        run = await turns.run_sessions(target, PROMPTS, Output(4))
        for turn in (turn for session in run for turn in session):
            assert turn.start_s < turn.token_s[0] <= turn.token_s[-1]
        await target.resize(1, 64)
        session = await target.open("")
        await session.interrupted_turn([5, 6, 7], Output(8), received=4, kept=2)
        after = await session.turn([8, 9], Output(4))
        if target.keeps_kv:
            computed = 2 if target.can_cut else 7
            assert (after.prompt_tokens, after.computed_tokens) == (7, computed)
        if competitor == TRANSFORMERS:
            with pytest.raises(CompetitorError, match=r"failed \(1\): "):
                await session.turn([5000], Output(1))  # outside of the vocabulary: the process dies
            with pytest.raises(CompetitorError, match=r"failed \(1\): "):
                await target.resize(1, 64)
    return [[turn.output for turn in each] for each in run] + [[after.output]]


async def test_competitors_output_is_equal_with_and_without_sessions(checkpoint: Path) -> None:
    resend = await measure(checkpoint, TRANSFORMERS, "resend")
    drawn = {id for session in resend for output in session for id in output}
    assert len(drawn) > 4
    assert await measure(checkpoint, TRANSFORMERS, "session-cache") == resend
    if find_interpreter(LLAMA_CPP.required_modules) is not None:
        assert await measure(checkpoint, LLAMA_CPP, "slots") == resend


async def test_llama_cpp_computes_a_hybrid_as_transformers_does(tmp_path: Path) -> None:
    if find_interpreter(LLAMA_CPP.required_modules) is None:
        pytest.skip(f"llama.cpp: {LLAMA_CPP.how_to_install}")
    folder = tmp_path / "hybrid"
    folder.mkdir()
    random_checkpoints.save_checkpoint(TINY_HYBRID, folder)
    resend = await measure(folder, TRANSFORMERS, "resend")
    assert len({id for session in resend for output in session for id in output}) > 4
    assert await measure(folder, LLAMA_CPP, "slots") == resend


async def test_error_of_a_missing_competitor_says_how_to_install_it(checkpoint: Path) -> None:
    missing = LLAMA_CPP._replace(required_modules=("no_such_module",))
    with pytest.raises(CompetitorError, match=r"not installed: python3 -m venv \.venv-peers"):
        await make_target(checkpoint, missing, "slots").__aenter__()


async def test_error_of_a_failed_competitor_has_the_cause(checkpoint: Path) -> None:
    broken = TRANSFORMERS._replace(module="continuo.bench.competitors.nowhere")
    with pytest.raises(CompetitorError, match=r"failed \(1\): .*nowhere"):
        await make_target(checkpoint, broken, "resend").__aenter__()


async def test_quantised_weights_are_fewer_bytes_a_step(checkpoint: Path) -> None:
    if find_interpreter(LLAMA_CPP.required_modules) is None:
        pytest.skip(f"llama.cpp: {LLAMA_CPP.how_to_install}")
    sizes: list[float] = []
    for dtype in ("float32", "q8_0"):
        async with make_target(checkpoint, LLAMA_CPP, "slots", dtype) as target:
            [[turn]] = await turns.run_sessions(target, [[[1, 2, 3]]], Output(4, 0.8, 0.95))
            assert len(turn.output) == 4
            assert target.step_bytes is not None
            sizes.append(target.step_bytes)
    assert 0.2 < sizes[1] / sizes[0] < 0.3


READ_BACK = """
import sys, gguf
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    print(tensor.name, *reversed(tensor.shape), float(tensor.data.sum(dtype="f8")))
"""


def test_gguf_file_holds_the_tensors_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    python = find_interpreter(("gguf",))
    if python is None:
        pytest.skip("gguf is not installed: pip install gguf")
    path = tmp_path / "tiny.gguf"
    command = [python, "-m", "continuo.bench.competitors.to_gguf", checkpoint, path]
    subprocess.run(command, check=True, cwd=ROOT)
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


def test_turn_server_runs_turns_in_order_and_keeps_the_beginning_of_a_context() -> None:
    contexts: list[tuple[int, Ids]] = []

    def generate(request: Request, context: Ids) -> list[tuple[int, float]]:
        contexts.append((request.session, list(context)))
        return [(90 + n, 0.5) for n in range(request.tokens)]

    class Backend(SequentialBackend):
        version = ""
        step_bytes: float | None = None

    replies: list[dict[str, object]] = []
    server = TurnServer(Backend(generate), replies.append)
    server.receive([{"resize": [2, 64]}])
    rest = {"tokens": 2, "temperature": 0.0, "top_p": 1.0, "sent_s": 0.0, "until_s": math.inf}
    server.receive(
        [
            {"session": 1, "kept": 0, "ids": [1, 2], **rest},
            {"session": 1, "kept": 3, "ids": [4], **rest},  # begins after the one before
            {"session": 1, "kept": 6, "ids": [5], **rest, "until_s": 0.0},  # too late
        ]
    )
    server.receive([{"session": 0, "kept": 0, "ids": [3], **rest}])
    while server.is_busy:
        server.step()
    assert contexts == [(1, [1, 2]), (0, [3]), (1, [1, 2, 90, 4])]
    assert [reply.get("session") for reply in replies] == [None, 1, 0, 1, 1]
    assert replies[1]["ids"] == [90, 91]
    assert replies[1]["token_s"] == [0.5, 0.5]
    assert replies[1]["begin_s"] != 0.0, "the server was idle when it was received"
    assert replies[2]["begin_s"] == 0.0, "the server was busy since it was sent"
    assert replies[4]["ids"] == []
