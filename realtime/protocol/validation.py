"""Error messages for invalid frames and bodies, which name the invalid field. Pure."""

import re
from collections.abc import Mapping
from typing import TypeVar, get_args

import msgspec

from continuo.realtime.errors import BadFrame, Refusal

T = TypeVar("T")

AllowedValues = Mapping[str, tuple[str, ...]]
"""Allowed values of fields for which msgspec's error does not list them. The key is the path of the
field with its indices removed, as in `item.content[].type`."""

_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_INVALID = re.compile(r"^Invalid (?:enum )?value (?P<value>.*)$", re.DOTALL)
_BELOW = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign>>=?) (?P<limit>\S+)$")
_ABOVE = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign><=?) (?P<limit>\S+)$")
_LENGTH = re.compile(r"^Expected `(?P<type>[^`]+)` of length (?P<sign>[<>]=) (?P<limit>\d+)$")
_TYPE = re.compile(r"^Expected `(?P<expected>[^`]+)`(?:, got `(?P<got>[^`]+)`)?$")
_INDEX = re.compile(r"\[[^]]*\]")


def list_tags(union: object) -> tuple[str, ...]:
    """Return the tags of a union of tagged structs, in their order."""
    return tuple(str(kind.__struct_config__.tag) for kind in get_args(union))


def missing_parameter(param: str) -> Refusal:
    return Refusal(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )


def invalid_parameter(param: str, reason: str, *, code: str = "invalid_value") -> Refusal:
    return Refusal(f"Invalid '{param}': {reason}", code=code, param=param)


def unsupported_parameter(param: str, instead: str) -> Refusal:
    message = f"'{param}' is not supported by this server: {instead}."
    return Refusal(message, code="unsupported_parameter", param=param)


def unsupported_value(param: str, reason: str) -> Refusal:
    return Refusal(f"Unsupported '{param}': {reason}.", code="unsupported_value", param=param)


def explain(
    problem: str, allowed_values: AllowedValues | None = None
) -> tuple[str, str, str | None]:
    """Translate the text of a msgspec error to (message, code, path of the field); the path is None
    if the error concerns the whole frame."""
    path = ""
    if at := _AT.search(problem):
        path = at["path"].removeprefix("$").removeprefix(".")
        problem = problem[: at.start()]
    if match := _MISSING.match(problem):
        param = f"{path}.{match['field']}" if path else match["field"]
        return f"Missing required parameter: '{param}'.", "missing_required_parameter", param
    name = f"'{path}'" if path else "the frame"
    if match := _INVALID.match(problem):
        allowed = (allowed_values or {}).get(_INDEX.sub("[]", path), ())
        listed = f" Supported values are: {', '.join(map(repr, allowed))}." if allowed else ""
        value = match["value"][:200]
        return f"Invalid value for {name}: {value}.{listed}", "invalid_value", path or None
    if match := _LENGTH.match(problem):
        is_max = match["sign"] == "<="
        kind = {"str": "string", "object": "object"}.get(match["type"], "array")
        unit = {"string": "characters", "object": "keys"}.get(kind, "elements")
        bound = "above_max_length" if is_max else "below_min_length"
        expected = f"at {'most' if is_max else 'least'} {match['limit']} {unit}"
        return f"Invalid {name}: expected {expected}.", f"{kind}_{bound}", path or None
    if match := _BELOW.match(problem) or _ABOVE.match(problem):
        kind = "integer" if match["type"].startswith("int") else "decimal"
        bound = "below_min_value" if match["sign"].startswith(">") else "above_max_value"
        expected = f"a value {match['sign']} {match['limit']}"
        return f"Invalid {name}: expected {expected}.", f"{kind}_{bound}", path or None
    if match := _TYPE.match(problem):
        got = f", but got {match['got']}" if match["got"] else ""
        expected = match["expected"].replace(" | ", " or ")
        return f"Invalid type for {name}: expected {expected}{got}.", "invalid_type", path or None
    return f"Invalid {name}: {problem[:200]}.", "invalid_value", path or None


def decode_json(
    decoder: "msgspec.json.Decoder[T]",
    data: str | bytes,
    label: str,
    allowed_values: AllowedValues | None = None,
) -> T:
    """Decode a frame or body; `label` names it in errors. Raises BadFrame, and nothing else, for
    data that are not valid."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message, code, param = explain(str(error), allowed_values)
    except msgspec.DecodeError as error:
        message, code, param = f"The {label} is not valid JSON: {error}.", "invalid_json", None
    except UnicodeError:
        message, code, param = f"The {label} is not valid UTF-8.", "invalid_json", None
    except RecursionError:
        message, code, param = f"The {label} is nested too deeply.", "invalid_json", None
    raise BadFrame(message, code=code, param=param)
