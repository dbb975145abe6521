"""The computed sizes of a model are those of the model that the engine builds."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.architectures.config import read_config
from continuo.engine.architectures.families import read_shape
from continuo.engine.architectures.listing import read_model_size
from continuo.engine.architectures.sizes import ModelSize
from continuo.engine.config import BUNDLED_MODEL, Quantization
from continuo.engine.device.kv_sizing import measure_sessions
from continuo.engine.device.models.decoder import Decoder, empty_tensor
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.weights import list_tensors
from continuo.engine.errors import ModelError
from continuo.engine.local_checkpoint import find_local_checkpoint
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, GEMMA4_MIXTURE, GEMMA4_SHARED, Architecture

pytestmark = pytest.mark.torch

NATIVE = [row for row in ARCHITECTURES if row.way in ("C", "torch")]
META = empty_tensor(torch.bfloat16, torch.device("meta"))


def measure(folder: Path) -> ModelSize:
    size = read_model_size(folder)
    assert size is not None
    return size


def check(folder: Path) -> None:
    """Compare what is computed for a checkpoint with our decoder of it."""
    config, tensors = read_config(folder), list_tensors(folder)
    shape = read_shape(config, tensors)
    assert shape is not None
    model = Decoder(shape, config.get_text_config(), 256, META)
    size = measure(folder)
    assert size.parameters == sum(prod(x.shape) for x in model.weight_targets(tensors).values())
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        assert size.session_memory(name) == measure_sessions(model.memory, dtype)


@pytest.mark.parametrize("row", NATIVE, ids=lambda row: row.name)
def test_sizes_are_those_of_the_model(row: Architecture, tmp_path: Path) -> None:
    row.make().save_pretrained(tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("differences", [GEMMA4_SHARED, GEMMA4_MIXTURE])
def test_shared_keys_and_mixtures_beside_an_mlp_are_counted(
    differences: dict[str, Any], tmp_path: Path
) -> None:
    oracle.small_model("Gemma4Text", **differences).save_pretrained(tmp_path)
    check(tmp_path)


def test_sizes_of_the_bundled_model() -> None:
    folder = find_local_checkpoint(BUNDLED_MODEL)
    assert folder is not None
    check(folder)
    assert measure(folder).cpu_dtype == "float32"


def test_head_that_config_json_does_not_mention_is_found_among_the_tensors(tmp_path: Path) -> None:
    [row] = [row for row in NATIVE if row.name == "LlavaForConditionalGeneration"]
    row.make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    check(tmp_path)
    untied = measure(tmp_path).parameters
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8)
    assert measure(tmp_path).parameters < untied


def test_model_that_runs_through_transformers_has_no_size(tmp_path: Path) -> None:
    oracle.small_model("Arcee").save_pretrained(tmp_path)
    assert read_model_size(tmp_path) is None


def test_model_that_is_refused_is_refused_with_the_reason(tmp_path: Path) -> None:
    [row] = [row for row in ARCHITECTURES if row.name == "T5ForConditionalGeneration"]
    row.make().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="T5ForConditionalGeneration cannot run here: it has"):
        read_model_size(tmp_path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_memory_of_weights_is_what_the_c_code_holds(
    quantization: Quantization | None, is_tied: bool, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    oracle.small_model(
        "Qwen3", tie_word_embeddings=is_tied, vocab_size=256, **sizes
    ).save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, "float32", quantization=quantization)
    assert isinstance(runner, NativeRunner)
    kept = [x for x in runner._decoder._model._keepalive if isinstance(x, torch.Tensor)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    # The norm of queries and keys is held for each head.
    expected = measure(tmp_path).weights_bytes("float32", quantization)
    assert sum(storages.values()) == pytest.approx(expected, rel=0.01)


def test_mixtures_and_what_runs_in_torch_take_as_much_memory_quantized(tmp_path: Path) -> None:
    for name in ("MixtralForCausalLM", "GraniteMoeHybridForCausalLM", "Gemma4ForCausalLM"):
        [row] = [row for row in NATIVE if row.name == name]
        row.make().save_pretrained(tmp_path)
        size = measure(tmp_path)
        assert size.weights_bytes("bfloat16", "int4") == size.weights_bytes("bfloat16")
