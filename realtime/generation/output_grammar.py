"""Grammars that force tool calls and output formats, and the check that they can be enforced.
Pure."""

import asyncio

from continuo.engine import CallableTool, ChatTemplate, Grammar, ToolCallRules, find_schema_problem
from continuo.realtime.protocol.commands import FieldNames
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from continuo.realtime.protocol.validation import invalid_parameter


async def check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, names: FieldNames
) -> None:
    """Check that the schemas and the tool choice of the settings can be enforced. Each schema is
    compiled once, off the event loop. Raises Refusal."""
    named = settings.tool_choice.name is not None
    if settings.tools or named or settings.sampling.grammar is not None:
        await asyncio.to_thread(_check_enforceable, settings, template, names)


def build_grammar(settings: GenerationSettings, template: ChatTemplate) -> Grammar | None:
    """Build the grammar that the output must follow. Returns None if the output is unconstrained.
    Raises Refusal as `check_enforceable` does. Call `check_enforceable` first: it compiles the
    schemas off the event loop."""
    _check_enforceable(settings, template, FieldNames())
    choice, text_grammar = settings.tool_choice, settings.sampling.grammar
    if not _are_calls_constrained(settings):
        return text_grammar
    is_required = _is_call_required(settings)
    rules = ToolCallRules(
        is_required=is_required,
        allows_parallel=settings.parallel_tool_calls and choice.mode != "function",
        text_grammar=text_grammar,
    )
    tools = [
        _to_callable(tool, is_required=is_required)
        for tool in settings.tools
        if choice.name in (None, tool.name)
    ]
    return template.build_tool_grammar(tools, rules) or text_grammar


def _is_call_required(settings: GenerationSettings) -> bool:
    return bool(settings.tools) and settings.tool_choice.mode in ("required", "function")


def _are_calls_constrained(settings: GenerationSettings) -> bool:
    """Whether tool calls are allowed, but must follow a grammar."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return False
    is_free = settings.tool_choice.mode == "auto" and settings.parallel_tool_calls
    has_strict = any(tool.strict for tool in settings.tools)
    return not is_free or has_strict or settings.sampling.grammar is not None


def _check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, names: FieldNames
) -> None:
    for tool in settings.tools:
        problem = (
            find_schema_problem(tool.parameters)
            if tool.strict or _is_call_required(settings)
            else None
        )
        if problem is not None and tool.strict:
            raise invalid_parameter(
                names.tools,
                f"the parameters of the strict function {tool.name!r} cannot be enforced: "
                f"{problem}.",
                code="invalid_function_parameters",
            )
    choice = settings.tool_choice
    if choice.mode == "function" and choice.name not in {tool.name for tool in settings.tools}:
        raise invalid_parameter(names.named_tool, f"no tool is called {choice.name!r}.")
    grammar = settings.sampling.grammar
    if grammar is not None and grammar.kind == "json_schema":
        problem = find_schema_problem(grammar.source)
        if problem is not None:
            raise invalid_parameter(
                names.output_schema,
                f"it cannot be enforced: {problem}.",
                code="invalid_json_schema",
            )
    if settings.sampling.ignore_eos and (grammar is not None or _are_calls_constrained(settings)):
        raise invalid_parameter(
            names.ignore_eos, "output that follows a grammar or a forced call ends by itself."
        )
    if _is_call_required(settings) and template.tool_format is None:
        raise invalid_parameter(
            names.tool_choice,
            "this model's chat template has no known tool call format, so no call can be forced.",
            code="unsupported_value",
        )


def _to_callable(tool: Tool, *, is_required: bool) -> CallableTool:
    """Convert a tool for the grammar. The schema of a strict tool is always enforced. The schema of
    another tool is enforced only if a call is required and the schema can be enforced."""
    enforced = tool.strict or (is_required and find_schema_problem(tool.parameters) is None)
    return CallableTool(tool.name, tool.parameters) if enforced else CallableTool(tool.name)
