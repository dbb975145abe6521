"""Write tools and tool calls as text, for chat templates that do not. Pure.

A template may leave out the tools, the calls of earlier messages, or the results. What it leaves
out is put into the contents of messages: tools into the system message, with instructions to call
them, and results into messages of the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from continuo.engine.text.tool_format import (
    Arguments,
    JsonArguments,
    LiteralArguments,
    ToolFormat,
)
from continuo.engine.text.written_json import write_json

_INSTRUCTIONS = """\
You may call functions to assist with the user query. The available functions, one in each line:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments in exactly this form:
{example}
The result of each call follows."""


def write_tool_prompt(tool_format: ToolFormat, tools: Sequence[object]) -> str:
    """Write the instructions of the system message for tools."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = write_calls(tool_format, [("function_name", {"argument_name": "value"})])
    return _INSTRUCTIONS.format(tools="\n".join(lines), example=example)


def write_tool_result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


def write_calls(
    tool_format: ToolFormat, calls: Sequence[tuple[str, object]], content: str = ""
) -> str:
    """Write the text of a message with calls: pairs of a name and its decoded arguments."""
    named = tool_format.named
    if named is None:
        texts = [
            write_json({tool_format.name_key: name, tool_format.arguments_key: arguments})
            for name, arguments in calls
        ]
        marker, close = tool_format.marker, tool_format.close_marker
        if tool_format.is_array:
            return f"{content}{marker}[{', '.join(texts)}]{close}"
        if tool_format.allows_bare:
            return content + "; ".join(texts)
        space = "\n" if content else ""
        return content + space + "\n".join(f"{marker}\n{text}\n{close}" for text in texts)
    marker = "" if tool_format.allows_bare else tool_format.marker
    texts = [
        f"{name}{named.name_end}{_write_arguments(named.arguments, arguments)}{named.end}"
        for name, arguments in calls
    ]
    if named.next_begin:
        listed = named.next_begin.join(texts)
        return f"{content}{marker}{named.begin}{listed}{tool_format.close_marker}"
    begin = marker + named.begin
    space = "\n" if content and not begin else ""
    return content + space + named.separator.join(begin + text for text in texts)


def _write_arguments(syntax: Arguments, arguments: object) -> str:
    pairs = dict[str, object](arguments) if isinstance(arguments, Mapping) else {}  # type: ignore[arg-type]
    if isinstance(syntax, JsonArguments):
        return write_json(cast("object", arguments if pairs else {}))
    if isinstance(syntax, LiteralArguments):
        written = (
            f"{key}{syntax.assign}{_write_literal(value, syntax.quote)}"
            for key, value in pairs.items()
        )
        return syntax.separator.join(written) + syntax.close
    return "".join(
        f"{syntax.key_open}{key}{syntax.key_end}{value}{syntax.value_close}"
        if isinstance(value, str)
        else f"{syntax.key_open}{key}{syntax.key_end_other}{write_json(value)}{syntax.value_close}"
        for key, value in pairs.items()
    )


def _write_literal(value: object, quote: str) -> str:
    """Write a value as a Python literal. Strings are written as in JSON, unless the format has
    quotes of its own, within which nothing is escaped."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, list):
        items: list[object] = list(value)  # type: ignore[arg-type]
        return f"[{', '.join(_write_literal(item, quote) for item in items)}]"
    if isinstance(value, Mapping):
        pairs = dict[str, object](value)  # type: ignore[arg-type]
        inner = (f"{json.dumps(key)}: {_write_literal(item, quote)}" for key, item in pairs.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, str) and len(quote) > 1:
        return f"{quote}{value}{quote}"
    return write_json(value)
