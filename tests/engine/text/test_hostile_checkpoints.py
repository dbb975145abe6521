"""Files of a checkpoint that are too large, nested too deeply, or have impossible numbers: each is
refused in one line, before anything is computed or allocated by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continuo.engine import json_files
from continuo.engine.architectures.config import read_config
from continuo.engine.errors import ModelError
from continuo.engine.text.chat_template import jinja_program
from continuo.engine.text.chat_template.jinja_program import JinjaProgram
from continuo.engine.text.model_text import ModelText
from tests.realtime.conftest import chat_folder

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
}
NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "negative epsilon": ({"rms_norm_eps": -1}, "rms_norm_eps is -1; it must be at least 0"),
    "no base": ({"rope_theta": 0}, "rope_theta is 0; it must be more than 0"),
    "not a number": ({"rope_theta": float("nan")}, "rope_theta is nan, which is not finite"),
    "infinite factor": (
        {"rope_scaling": {"rope_type": "yarn", "factor": float("inf")}},
        "factor is inf, which is not finite",
    ),
    "negative factor": ({"rope_parameters": {"factor": -2.0}}, "factor is -2; it must be more"),
    "many layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1e+09"),
    "wide": ({"hidden_size": 10**12}, "hidden_size is 1e+12"),
    "no words": ({"vocab_size": 0}, "vocab_size is 0; it must be at least 1"),
    "long": ({"max_position_embeddings": 1 << 40}, "max_position_embeddings is"),
    "another field": ({"embedding_multiplier": float("inf")}, "embedding_multiplier is inf"),
    "one of a list": ({"mlp_multipliers": [1.0, float("nan")]}, "mlp_multipliers is nan"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_of_a_config_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = NUMBERS[name]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    with pytest.raises(ModelError) as error:
        read_config(tmp_path)
    assert f"{tmp_path / 'config.json'}: {message}" in error.value.message


@pytest.mark.torch
def test_infinite_time_step_is_allowed(tmp_path: Path) -> None:
    config = LLAMA | {"time_step_limit": [0.0, float("inf")]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path).hidden_size == 32


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("depth", [100, 200_000])
def test_nested_file_is_refused_by_name(name: str, depth: int, tmp_path: Path) -> None:
    folder = chat_folder(tmp_path)
    (folder / name).write_text('{"a":' * depth + "0" + "}" * depth)
    with pytest.raises(ModelError, match=name):
        ModelText(str(folder))


def test_large_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = chat_folder(tmp_path)
    monkeypatch.setattr(json_files, "JSON_BYTES_MAX", 10)
    with pytest.raises(ModelError, match="bytes; the limit is 10"):
        ModelText(str(folder))


def test_long_template_is_refused_unread(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path)
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelError, match="1,073,741,824 characters; the limit is 262,144"):
        ModelText(str(folder))


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 50_000,
        "{{" + "(" * 50_000 + "1" + ")" * 50_000 + "}}",
        "{{" + "[" * 400 + "]" * 400 + "}}",
        "{% if x %}" * 5_000 + "{% endif %}" * 5_000,
        "{{ " + "9" * 10_000 + " }}",
        "{{ x" + "|upper" * 20_000 + " }}",
        "{{ not " * 1 + "not " * 40_000 + "x }}",
        "x" * (jinja_program.SOURCE_CHARS_MAX + 1),
    ],
    ids=["open", "nested", "lists", "blocks", "digits", "filters", "operators", "long"],
)
def test_complex_template_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="chat template: "):
        JinjaProgram(source, {})
