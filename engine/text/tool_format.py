"""How model families write tool calls."""

import re

import msgspec


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes calls."""

    name: str
    marker: str
    """Opens a call, or a list of them."""
    close_marker: str = ""
    is_array: bool = False
    """Whether calls stand in a JSON array behind the marker."""
    allows_bare: bool = False
    """Whether a call may also be the whole answer, without marker."""
    args_marker: str = ""
    """Parts the name from its arguments where they are not one JSON object."""


HERMES = ToolFormat(name="hermes", marker="<tool_call>", close_marker="</tool_call>")


LLAMA3 = ToolFormat(name="llama3", marker="<|python_tag|>", allows_bare=True)


MISTRAL = ToolFormat(name="mistral", marker="[TOOL_CALLS]", is_array=True)


MISTRAL_ARGS = ToolFormat(name="mistral_args", marker="[TOOL_CALLS]", args_marker="[ARGS]")


def detect_format(written: str, name: str) -> ToolFormat | None:
    """The format in which a template wrote an assistant's message with a call of tool `name`."""
    for format in (HERMES, MISTRAL_ARGS, MISTRAL):
        if format.marker in written and format.args_marker in written:
            return format
    bare = rf'\{{\s*"name":\s*"{re.escape(name)}",\s*"(parameters|arguments)"'
    return LLAMA3 if re.search(bare, written) else None
