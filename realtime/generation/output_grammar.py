"""Grammars that force tool calls and output formats, and the check that they can be enforced.
Pure."""

import asyncio

import msgspec

from continuo.engine import (
    CallableTool,
    ChatTemplate,
    Grammar,
    ToolCallRules,
    find_grammar_problem,
    find_schema_problem,
)
from continuo.realtime.protocol.commands import FieldNames
from continuo.realtime.protocol.settings import GenerationSettings, ReasoningSettings, Tool
from continuo.realtime.protocol.validation import invalid_parameter


async def check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, names: FieldNames
) -> None:
    """Check that the schemas and the tool choice of the settings can be enforced. Each schema is
    compiled once, off the event loop. Raises Refusal."""
    named = settings.tool_choice.name is not None
    has_reasoning = settings.reasoning.effort not in ("default", "off")
    has_bound = settings.reasoning.tokens_max is not None
    if settings.tools or named or has_reasoning or has_bound or settings.sampling.grammar:
        await asyncio.to_thread(_check_enforceable, settings, template, names)


def without_idle_reasoning(
    settings: GenerationSettings, template: ChatTemplate
) -> GenerationSettings:
    """Return the settings without those of reasoning if the model does not reason: agents ask every
    model for an effort. A response then reports none."""
    if template.reasons or settings.reasoning.effort in ("default", "off"):
        return settings
    return msgspec.structs.replace(settings, reasoning=ReasoningSettings())


def build_grammar(
    settings: GenerationSettings, template: ChatTemplate, *, starts_in_reasoning: bool = False
) -> Grammar | None:
    """Build the grammar that the output must follow. `starts_in_reasoning`: as in `Sampling`.
    Returns None if the output is unconstrained. Raises Refusal as `check_enforceable` does. Call
    `check_enforceable` first: it compiles the schemas off the event loop."""
    _check_enforceable(settings, template, FieldNames())
    return template.build_reasoning_grammar(
        _build_body_grammar(settings, template),
        is_open=starts_in_reasoning,
        tokens_max=settings.reasoning.tokens_max,
    )


def _build_body_grammar(settings: GenerationSettings, template: ChatTemplate) -> Grammar | None:
    """Build the grammar of the output after the reasoning. Returns None if it is unconstrained."""
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
        _to_callable(tool, template, is_required=is_required)
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
    has_grammar = settings.sampling.grammar is not None
    return not is_free or has_strict or has_grammar or settings.reasoning.tokens_max is not None


def _check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, names: FieldNames
) -> None:
    if settings.tools and settings.tool_choice.mode != "none" and template.tool_format is None:
        raise invalid_parameter(
            names.tools,
            "this model's chat template writes tool calls in an unknown syntax, so that no call "
            "could be recognized.",
            code="unsupported_value",
        )
    for tool in settings.tools:
        problem = (
            _find_problem(tool, template) if tool.strict or _is_call_required(settings) else None
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
        _check_grammar(grammar, names.output_schema)
    if not template.can_reason_with(settings.reasoning.effort):
        effort = settings.reasoning.effort
        reason = (
            "this model's chat template cannot switch reasoning off."
            if effort == "none"
            else f"this model's chat template refuses {effort!r}."
        )
        raise invalid_parameter(names.reasoning_effort, reason, code="unsupported_value")
    has_bound = settings.reasoning.tokens_max is not None
    if settings.sampling.ignore_eos and (
        grammar is not None or has_bound or _are_calls_constrained(settings)
    ):
        raise invalid_parameter(
            names.ignore_eos, "output that follows a grammar or a forced call ends by itself."
        )


async def check_grammar(grammar: Grammar, param: str) -> None:
    """Check that a grammar can be enforced; it is compiled off the event loop. Raises Refusal."""
    await asyncio.to_thread(_check_grammar, grammar, param)


def _check_grammar(grammar: Grammar, param: str) -> None:
    problem = find_grammar_problem(grammar)
    if problem is not None:
        code = "invalid_json_schema" if grammar.kind == "json_schema" else "invalid_value"
        raise invalid_parameter(param, f"it cannot be enforced: {problem}.", code=code)


def _to_callable(tool: Tool, template: ChatTemplate, *, is_required: bool) -> CallableTool:
    """Convert a tool for the grammar. The schema of a strict tool is always enforced. The schema of
    another tool is enforced only if a call is required and the schema can be enforced."""
    enforced = tool.strict or (is_required and _find_problem(tool, template) is None)
    return CallableTool(tool.name, tool.parameters) if enforced else CallableTool(tool.name)


def _find_problem(tool: Tool, template: ChatTemplate) -> str | None:
    """Explain in one line why calls of a tool cannot follow its schema. Returns None if they
    can."""
    problem = find_schema_problem(tool.parameters)
    return problem or template.find_call_problem(CallableTool(tool.name, tool.parameters))
