# pyright: basic
"""The reader of config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from continuo.engine import json_files
from continuo.engine.architectures.config_fields import check_fields
from continuo.engine.architectures.config_schemas import read_by_schema
from continuo.engine.architectures.refusals import quantized_checkpoint, unsupported_architecture
from continuo.engine.errors import ModelError, first_line
from continuo.engine.number_ranges import check_numbers


def read_config(folder: Path) -> Any:
    """Read the config of a checkpoint folder, with the attributes of transformers' class of its
    type. Raises ModelError."""
    path = folder / "config.json"
    values = read_json(path)
    check_numbers(path, values)
    config = read_by_schema(values) or _read_by_transformers(path, values)
    if (method := find_quantization(values)) is not None:
        raise quantized_checkpoint(folder, method)
    check_fields(path, values)
    return config


def find_quantization(values: dict[str, Any]) -> str | None:
    """Return how the weights of a checkpoint are quantized, by its config.json; "" if it does not
    name the method. Returns None if they are not quantized, or in MXFP4, which is decoded."""
    match values.get("quantization_config"):
        case {"quant_method": "mxfp4"}:
            return None
        case {"quant_method": str(method)}:
            return method
        case dict(others) if others:
            return ""
        case _:
            return None


def _read_by_transformers(path: Path, values: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig  # noqa: PLC0415 - slow to import

    model_type = values.get("model_type")
    if isinstance(model_type, str) and model_type not in CONFIG_MAPPING:
        architecture = (values.get("architectures") or [model_type])[0]
        reason = (
            "it needs the code of its repository, which is not executed"
            if "auto_map" in values
            else f"transformers has no model of type {model_type!r}"
        )
        raise unsupported_architecture(path.parent, architecture, reason)
    try:
        return AutoConfig.from_pretrained(path.parent, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{path}: {first_line(error)}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file that must exist. Raises ModelError."""
    value = json_files.read_json(path)
    if value is None:
        raise ModelError(f"{path.parent}: {path.name} is missing")
    return value
