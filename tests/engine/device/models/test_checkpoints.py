"""Tests of checkpoints: broken ones are refused in one line, complete ones are found and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from continuo.engine import available_memory
from continuo.engine.config import EngineConfig
from continuo.engine.device import weights
from continuo.engine.device.build import build_runner
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle

pytestmark = pytest.mark.torch


def ignore_progress(what: str, fraction: float) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a complete checkpoint in several shards."""
    oracle.FAMILIES["qwen2-windows"]().save_pretrained(tmp_path, max_shard_size="40KB")
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    index = json.loads((folder / weights.INDEX_FILE).read_text())["weight_map"]
    path = folder / index[name]
    tensors = load_file(path)
    tensors[name] = change(tensors[name])
    save_file(tensors, path)


def delete_tensor(folder: Path, name: str) -> None:
    index = json.loads((folder / weights.INDEX_FILE).read_text())
    path = folder / index["weight_map"].pop(name)
    (folder / weights.INDEX_FILE).write_text(json.dumps(index))
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def keep_only(folder: Path, *names: str) -> None:
    """Replace the files of a folder by empty ones, except for config.json."""
    for path in folder.iterdir():
        if path.name != "config.json" or names[0].endswith(".gguf"):
            path.unlink()
    for name in names:
        (folder / name).touch()


UP = "model.layers.1.mlp.up_proj.weight"
WAY_OUT = (
    "use the unquantized checkpoint in safetensors, on a CPU with --quantization int8, or a GGUF "
    "file"
)
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "GGUF files": (
        lambda f: keep_only(f, "model-q4_k_m.gguf", "mmproj-f16.gguf"),
        "has only GGUF files: name one of them, as in --model {folder}/model-q4_k_m.gguf",
    ),
    "GGUF files beside a config": (
        lambda f: (keep_only(f, "a.bin"), (f / "b.gguf").touch()),
        "has no weights in safetensors: name its GGUF file, as in --model {folder}/b.gguf",
    ),
    "pickled weights": (
        lambda f: keep_only(f, "pytorch_model.bin"),
        "has its weights in pytorch_model.bin, which is not read: use a checkpoint in safetensors",
    ),
    "config of text": (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be"),
    "config of a list": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "unknown type": (
        lambda f: edit_config(f, model_type="warp", architectures=["WarpForCausalLM"]),
        "WarpForCausalLM cannot run here: transformers has no model of type 'warp'; use a model of "
        "another architecture, such as Qwen3ForCausalLM or LlamaForCausalLM",
    ),
    "code of its own": (
        lambda f: edit_config(
            f, model_type="warp", auto_map={"AutoConfig": "warp.WarpConfig"}, architectures=["Warp"]
        ),
        "Warp cannot run here: it needs the code of its repository, which is not executed; use",
    ),
    "no index": (lambda f: (f / weights.INDEX_FILE).unlink(), "neither model.safetensors nor"),
    "empty index": (lambda f: (f / weights.INDEX_FILE).write_text("{}"), "no weight_map"),
    "no shard": (
        lambda f: (f / "model-00002-of-00009.safetensors").unlink(),
        "shard model-00002-of-00009.safetensors is missing",
    ),
    "half a shard": (
        lambda f: truncate(f / "model-00002-of-00009.safetensors"),
        "model-00002-of-00009.safetensors: cannot be read",
    ),
    "half the first shard": (
        lambda f: truncate(f / "model-00001-of-00009.safetensors"),
        "model-00001-of-00009.safetensors: cannot be read",
    ),
    "no tensor": (lambda f: delete_tensor(f, UP), f"tensor {UP} is missing"),
    "wrong shape": (
        lambda f: edit_tensor(f, UP, lambda x: x[:3].clone()),
        f"{UP} has shape [3, 48], but the config requires [80, 48]",
    ),
    "integers": (lambda f: edit_tensor(f, UP, lambda x: x.to(torch.int8)), WAY_OUT),
    "quantized": (
        lambda f: edit_config(f, quantization_config={"quant_method": "gptq", "bits": 4}),
        f"its weights are quantized (gptq), which is not supported; {WAY_OUT}",
    ),
    "quantized in an unnamed way": (
        lambda f: edit_config(f, quantization_config={"bits": 4}),
        f"its weights are quantized, which is not supported; {WAY_OUT}",
    ),
    "layer type": (
        lambda f: edit_config(f, layer_types=["chunked_attention"] * 3),
        "chunked_attention",
    ),
    "rope type": (
        lambda f: edit_config(f, rope_parameters={"rope_type": "corkscrew", "rope_theta": 1e4}),
        "corkscrew",
    ),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_broken_checkpoint_is_refused_with_a_one_line_error(folder: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises(ModelError) as refused:
        build_runner(
            EngineConfig(model=str(folder), device="cpu", num_gpu_blocks_override=4),
            ignore_progress,
        )
    assert message.replace("{folder}", str(folder)) in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "options", [{"kv_cache_memory_bytes": 10**16}, {"kv_offloading_size": 1e7}]
)
def test_kv_pages_beyond_memory_are_refused(folder: Path, options: dict[str, Any]) -> None:
    config = EngineConfig(model=str(folder), device="cpu", max_model_len=16, **options)
    with pytest.raises(ModelError, match=r"no memory for .* KV pages") as refused:
        build_runner(config, ignore_progress)
    assert "\n" not in refused.value.message


def test_kv_pages_beyond_available_memory_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool takes its memory later, when no error could be reported."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1000 kB\n")
    monkeypatch.setattr(available_memory, "ROOT", tmp_path)
    config = EngineConfig(model=str(folder), device="cpu", kv_cache_memory_bytes=1_000_000)
    build_runner(config, ignore_progress)
    config = msgspec.structs.replace(config, kv_cache_memory_bytes=1_100_000)
    with pytest.raises(ModelError, match=r"no memory for .* KV pages"):
        build_runner(config, ignore_progress)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_gpu_blocks_override": 4}, "max_model_len is 64, not the model's 512"),
        ({"num_gpu_blocks_override": 4, "max_model_len": 64}, None),
        ({"num_gpu_blocks_override": 32}, None),
    ],
)
def test_pool_that_shortens_sessions_is_logged(
    folder: Path, options: dict[str, Any], message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    edit_config(folder, max_position_embeddings=512)
    build_runner(EngineConfig(model=str(folder), device="cpu", **options), ignore_progress)
    warnings = [record.getMessage() for record in caplog.records if "max_model_len" in record.msg]
    assert len(warnings) == (message is not None)
    assert message is None or warnings[0].startswith(message)


def test_complete_checkpoint_reports_metadata_and_progress(folder: Path) -> None:
    fractions: list[float] = []
    config = EngineConfig(model=str(folder), device="cpu", num_gpu_blocks_override=4)
    runner, loaded = build_runner(config, lambda what, fraction: fractions.append(fraction))
    assert (loaded.architecture, loaded.device, loaded.dtype) == (
        "Qwen2ForCausalLM",
        "cpu",
        "float32",
    )
    assert loaded.folder == str(folder)
    assert loaded.load_s > 0
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert runner.geometry.vocab_size == oracle.VOCAB_SIZE
    assert runner.geometry.max_model_len == 64


def test_every_parameter_is_filled_with_its_tensor(folder: Path) -> None:
    config = EngineConfig(model=str(folder), device="cpu", num_gpu_blocks_override=4)
    runner, _ = build_runner(config, ignore_progress)
    index = json.loads((folder / weights.INDEX_FILE).read_text())["weight_map"]
    slots = runner.model.weight_targets(set(index))  # pyright: ignore[reportAttributeAccessIssue]
    assert set(slots) == set(index)
    for name, slot in slots.items():
        assert torch.equal(slot.tensor, load_file(folder / index[name])[name]), name


@pytest.mark.parametrize(
    ("stored", "requested", "used"),
    [
        ("bfloat16", "auto", "float32"),
        ("float16", "auto", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_dtype_on_cpu_follows_option_and_checkpoint(
    tmp_path: Path, stored: str, requested: str, used: str
) -> None:
    oracle.FAMILIES["qwen3"]().to(getattr(torch, stored)).save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, requested, num_gpu_blocks_override=4)
    assert runner.pool.keys[0].dtype == getattr(torch, used)


def test_auto_dtype_on_cpu_is_bf16_for_large_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("continuo.engine.device.build.CPU_FP32_PARAMETERS_MAX", 1000)
    oracle.FAMILIES["qwen3"]().to(torch.float16).save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, "auto", num_gpu_blocks_override=4)
    assert runner.pool.keys[0].dtype == torch.bfloat16


def test_missing_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        weights.resolve(str(tmp_path / "nowhere"), None, ignore_progress)
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        weights.resolve("two words", None, ignore_progress)


def test_uncached_hub_id_is_refused_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    download = huggingface_hub.snapshot_download

    def offline(model: str, **options: object) -> str:
        return download(model, **(options | {"cache_dir": tmp_path, "local_files_only": True}))  # pyright: ignore

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match="someone/something: not in the local cache"):
        weights.resolve("someone/something", None, ignore_progress)


def test_cached_hub_id_is_resolved_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is found in the ordinary cache, without a network."""
    import huggingface_hub

    snapshot = tmp_path / "models--someone--something" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--someone--something" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    download = huggingface_hub.snapshot_download

    def offline(model: str, **options: object) -> str:
        return download(model, **(options | {"cache_dir": tmp_path, "local_files_only": True}))  # pyright: ignore

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert weights.resolve("someone/something", None, ignore_progress) == snapshot
