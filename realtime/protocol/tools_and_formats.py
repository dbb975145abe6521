"""Decoding of tools, tool choice and output format, shared by the wire protocols. Pure; raises
Refusal for values that pass the type checks of msgspec but are invalid."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from continuo.engine import Grammar
from continuo.realtime.limits import TEXT_CHARS_MAX
from continuo.realtime.protocol.settings import Tool, ToolChoice
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    missing_parameter,
    unsupported_value,
)

JsonSchema = dict[str, object]


class FunctionDefinition(Protocol):
    @property
    def name(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def parameters(self) -> JsonSchema | None: ...
    @property
    def strict(self) -> bool | None: ...


def build_tools(functions: Iterable[tuple[str, FunctionDefinition]]) -> tuple[Tool, ...]:
    """Build tools from pairs of a field path (for errors) and a definition. Raises Refusal."""
    return tuple(_build_tool(where, function) for where, function in functions)


def _build_tool(where: str, function: FunctionDefinition) -> Tool:
    if function.name is None:
        raise missing_parameter(f"{where}.name")
    parameters = msgspec.json.encode(function.parameters or {}).decode()
    if len(parameters) > TEXT_CHARS_MAX:
        raise invalid_parameter(
            f"{where}.parameters",
            f"expected at most {TEXT_CHARS_MAX:,} characters.",
            code="string_above_max_length",
        )
    return Tool(
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=function.strict is True,
    )


def refuse_custom_tools(types: Iterable[str]) -> None:
    """Raise Refusal if a tool of a request, given by its type, is a custom tool, which the client
    expects to be called."""
    for n, kind in enumerate(types):
        if kind == "custom":
            raise unsupported_value(
                f"tools[{n}].type", "this server has no custom tools: use type 'function'"
            )


def choose_named_tool(name: str | None, tools: Sequence[Tool], param: str) -> ToolChoice:
    """Choose one tool by its name. Raises Refusal if no tool has that name."""
    if name is None:
        raise missing_parameter(param)
    if name not in {tool.name for tool in tools}:
        raise invalid_parameter(param, f"no tool is called {name!r}.")
    return ToolChoice("function", name)


def choose_required_tool(
    tools: Sequence[Tool], param: str, *, has_declared_tools: bool
) -> ToolChoice:
    """Require a call of any of `tools`. `has_declared_tools`: whether the request lists tools of
    any kind. If all of them are of ignored kinds, returns `auto`. Raises Refusal if none is
    listed."""
    if tools:
        return ToolChoice("required")
    if has_declared_tools:
        return ToolChoice()
    raise invalid_parameter(param, "'required', but there are no tools.")


def reconcile_tool_choice(choice: ToolChoice, tools: Sequence[Tool]) -> ToolChoice:
    """Reset an earlier choice if the tool that it names no longer exists."""
    is_stale = choice.mode == "function" and choice.name not in {tool.name for tool in tools}
    return ToolChoice() if is_stale else choice


def build_grammar(
    format_type: Literal["text", "json_object", "json_schema"],
    schema: JsonSchema | None,
    param: str,
) -> Grammar | None:
    """Build the grammar of an output format. Returns None for `text`. `param` is the path of the
    schema's field. Raises Refusal if a required schema is missing."""
    match format_type:
        case "text":
            return None
        case "json_object":
            return Grammar("json")
        case "json_schema":
            if schema is None:
                raise missing_parameter(param)
            return Grammar("json_schema", msgspec.json.encode(schema).decode())
