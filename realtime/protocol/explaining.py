"""What is wrong with a frame or a body, in words that name the field. Pure."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from realtime.errors import BadFrame
from realtime.limits import BODY_ELEMENTS_MAX

T = TypeVar("T")

Choices = Mapping[str, tuple[str, ...]]
"""By path, indices left out: what may stand where msgspec says only that a value is not one of the
allowed."""

_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_INVALID = re.compile(r"^Invalid (?:enum )?value (?P<value>.*)$", re.DOTALL)
_BELOW = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign>>=?) (?P<limit>\S+)$")
_ABOVE = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign><=?) (?P<limit>\S+)$")
_LENGTH = re.compile(r"^Expected `(?P<type>[^`]+)` of length (?P<sign>[<>]=) (?P<limit>\d+)$")
_TYPE = re.compile(r"^Expected `(?P<want>[^`]+)`(?:, got `(?P<got>[^`]+)`)?$")
_INDEX = re.compile(r"\[[^]]*\]")


def explain(problem: str, choices: Choices | None = None) -> tuple[str, str, str | None]:
    """msgspec's words to ours: (message, code, path of the field)."""
    path = ""
    if at := _AT.search(problem):
        path = at["path"].removeprefix("$").removeprefix(".")
        problem = problem[: at.start()]
    if match := _MISSING.match(problem):
        param = f"{path}.{match['field']}" if path else match["field"]
        return f"Missing required parameter: '{param}'.", "missing_required_parameter", param
    name = f"'{path}'" if path else "the frame"
    if match := _INVALID.match(problem):
        allowed = (choices or {}).get(_INDEX.sub("[]", path), ())
        listed = f" Supported values are: {', '.join(map(repr, allowed))}." if allowed else ""
        value = match["value"][:200]
        return f"Invalid value for {name}: {value}.{listed}", "invalid_value", path or None
    if match := _LENGTH.match(problem):
        more = match["sign"] == "<="
        kind = {"str": "string", "object": "object"}.get(match["type"], "array")
        unit = {"string": "characters", "object": "keys"}.get(kind, "elements")
        bound = "above_max_length" if more else "below_min_length"
        words = f"at {'most' if more else 'least'} {match['limit']} {unit}"
        return f"Invalid {name}: expected {words}.", f"{kind}_{bound}", path or None
    if match := _BELOW.match(problem) or _ABOVE.match(problem):
        kind = "integer" if match["type"].startswith("int") else "decimal"
        bound = "below_min_value" if match["sign"].startswith(">") else "above_max_value"
        words = f"expected a value {match['sign']} {match['limit']}"
        return f"Invalid {name}: {words}.", f"{kind}_{bound}", path or None
    if match := _TYPE.match(problem):
        got = f", but got {match['got']}" if match["got"] else ""
        want = match["want"].replace(" | ", " or ")
        return f"Invalid type for {name}: expected {want}{got}.", "invalid_type", path or None
    return f"Invalid {name}: {problem[:200]}.", "invalid_value", path or None


def elements(frame: str | bytes, limit: int) -> int:
    """About how many values it holds: a parser makes an object of each before it can refuse them.
    Texts are left out, where there are so many commas that `limit` may be reached."""
    text = frame if isinstance(frame, str) else frame.decode(errors="replace")
    commas = text.count(",")
    if commas < limit:
        return commas + 1
    text = text.replace("\\\\", "").replace('\\"', "")
    strings = text.count('"') // 2
    if strings > 2 * limit:  # keys and values
        return strings
    return "".join(text.split('"')[::2]).count(",") + 1


def packed_elements(frame: bytes, limit: int) -> int:
    """The same of a MessagePack frame. Keys are values there, so that twice the limit are looked
    for; what is no MessagePack counts as far as it goes."""
    if len(frame) <= 2 * limit:
        return 1
    at = seen = 0
    while at < len(frame) and seen <= 2 * limit:
        seen += 1
        at += _packed_bytes(frame, at)
    return seen if seen > 2 * limit else 1


_FIXED = (
    {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # integers
    | {0xCA: 4, 0xCB: 8}  # floats
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions
    | {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}  # arrays and maps: their length alone
)
"""Bytes behind the first one, by that."""
_SIZED = (
    {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # texts
    | {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)}  # bytes
    | {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}  # extensions
)
"""Bytes of a length, and of what stands between it and so many bytes more."""


def _packed_bytes(frame: bytes, at: int) -> int:
    """Of the value that begins there, without what it holds."""
    kind = frame[at]
    if 0xA0 <= kind <= 0xBF:
        return 1 + kind - 0xA0
    if sized := _SIZED.get(kind):
        wide, more = sized
        return 1 + wide + more + int.from_bytes(frame[at + 1 : at + 1 + wide], "big")
    return 1 + _FIXED.get(kind, 0)


def decoded(
    decoder: "msgspec.json.Decoder[T]", data: str | bytes, what: str, choices: Choices | None = None
) -> T:
    """Whatever the bytes of the `what` (frame, body), a value. Raises BadFrame."""
    count = elements(data, BODY_ELEMENTS_MAX)
    if count > BODY_ELEMENTS_MAX:
        raise BadFrame(
            f"The {what} holds {count:,} values; the limit is {BODY_ELEMENTS_MAX:,}.",
            code="frame_too_large",
        )
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message, code, param = explain(str(error), choices)
    except msgspec.DecodeError as error:
        message, code, param = f"The {what} is not valid JSON: {error}.", "invalid_json", None
    except UnicodeError:
        message, code, param = f"The {what} is not valid UTF-8.", "invalid_json", None
    except RecursionError:
        message, code, param = f"The {what} is nested too deeply.", "invalid_json", None
    raise BadFrame(message, code=code, param=param)
