"""The reader of the JSON files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from continuo.engine.errors import ModelError, first_line

JSON_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a JSON file that is read whole."""
NESTING_MAX = 64
"""Maximum depth of objects and arrays in each other."""


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file. Returns None if there is no such file. Raises ModelError."""
    try:
        size = path.stat().st_size
        if size > JSON_BYTES_MAX:
            raise ModelError(f"{path}: it has {size:,} bytes; the limit is {JSON_BYTES_MAX:,}")
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return cast("dict[str, Any]", value)


def parse_json(text: str | bytes) -> object:
    """Parse JSON. Raises ValueError, also if the text is nested deeper than NESTING_MAX."""
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(NESTING_MAX):
        level = [item for each in level for item in _containers_in(each)]
        if not level:
            return value
    raise ValueError(f"it is nested too deeply; the limit is {NESTING_MAX} levels")


def _containers_in(value: object) -> list[object]:
    """Return the objects and arrays that are items of a value."""
    items: Iterable[object] = ()
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).values()
    elif isinstance(value, list):
        items = cast("list[object]", value)
    return [item for item in items if isinstance(item, (dict, list))]
