"""The syntax of tool calls, by model family."""

import re

import msgspec


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The syntax in which a model writes tool calls."""

    name: str
    marker: str
    """Text that opens a call, or a list of calls."""
    close_marker: str = ""
    """Text that closes a call; empty if the format has none."""
    is_array: bool = False
    """Whether the marker is followed by a JSON array of calls."""
    allows_bare: bool = False
    """Whether a call may also be the whole response, without a marker."""
    args_marker: str = ""
    """Text between a call's name and its arguments, in formats that do not write both as one JSON
    object; else empty."""


HERMES = ToolFormat(name="hermes", marker="<tool_call>", close_marker="</tool_call>")


LLAMA3 = ToolFormat(name="llama3", marker="<|python_tag|>", allows_bare=True)


MISTRAL = ToolFormat(name="mistral", marker="[TOOL_CALLS]", is_array=True)


MISTRAL_ARGS = ToolFormat(name="mistral_args", marker="[TOOL_CALLS]", args_marker="[ARGS]")


def detect_format(written: str, name: str) -> ToolFormat | None:
    """Detect the format from `written`, a rendered assistant message that calls tool `name`.

    Returns None if the format is unknown.
    """
    for candidate in (HERMES, MISTRAL_ARGS, MISTRAL):
        if candidate.marker in written and candidate.args_marker in written:
            return candidate
    bare = rf'\{{\s*"name":\s*"{re.escape(name)}",\s*"(parameters|arguments)"'
    return LLAMA3 if re.search(bare, written) else None
