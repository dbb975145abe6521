"""Grammars that force tool calls and output formats, and the check that they can be enforced."""

from collections.abc import Set

import msgspec

from continuo.engine import (
    Busy,
    CallableTool,
    ChatTemplate,
    Grammar,
    GrammarTrials,
    ToolCallRules,
    build_joint_grammar,
)
from continuo.realtime.generation.error_mapping import map_engine_error
from continuo.realtime.protocol.commands import FieldNames
from continuo.realtime.protocol.settings import GenerationSettings, ReasoningSettings, Tool
from continuo.realtime.protocol.validation import invalid_parameter


async def check_enforceable(
    settings: GenerationSettings,
    template: ChatTemplate,
    names: FieldNames,
    grammar_trials: GrammarTrials,
) -> frozenset[str]:
    """Check that the schemas and the tool choice of the settings can be enforced. Each schema is
    tried once. Returns the names of the tools whose schemas are enforced. Raises Refusal."""
    if settings.tools and settings.tool_choice.mode != "none" and template.tool_format is None:
        raise invalid_parameter(
            names.tools,
            "this model's chat template writes tool calls in an unknown syntax, so that no call "
            "could be recognized.",
            code="unsupported_value",
        )
    enforced = await _find_enforceable_tools(settings, template, names, grammar_trials)
    choice = settings.tool_choice
    if choice.mode == "function" and choice.name not in {tool.name for tool in settings.tools}:
        raise invalid_parameter(names.named_tool, f"no tool is called {choice.name!r}.")
    grammar = settings.sampling.grammar
    if grammar is not None and grammar.kind != "json":
        await check_grammar(grammar, names.output_schema, grammar_trials)
    _check_reasoning(settings, template, names)
    return await _drop_optional_if_costly(settings, enforced, names, grammar_trials)


def without_idle_reasoning(
    settings: GenerationSettings, template: ChatTemplate
) -> GenerationSettings:
    """Return the settings without those of reasoning if the model does not reason: agents ask every
    model for an effort. A response then reports none."""
    if template.reasons or settings.reasoning.effort in ("default", "off"):
        return settings
    return msgspec.structs.replace(settings, reasoning=ReasoningSettings())


def build_grammar(
    settings: GenerationSettings,
    template: ChatTemplate,
    enforced_tools: Set[str],
    *,
    starts_in_reasoning: bool = False,
) -> Grammar | None:
    """Build the grammar that the output must follow. `enforced_tools`: from `check_enforceable`.
    `starts_in_reasoning`: as in `Sampling`. Returns None if the output is unconstrained."""
    return template.build_reasoning_grammar(
        _build_body_grammar(settings, template, enforced_tools),
        is_open=starts_in_reasoning,
        tokens_max=settings.reasoning.tokens_max,
    )


def _build_body_grammar(
    settings: GenerationSettings, template: ChatTemplate, enforced_tools: Set[str]
) -> Grammar | None:
    """Build the grammar of the output after the reasoning. Returns None if it is unconstrained."""
    choice, text_grammar = settings.tool_choice, settings.sampling.grammar
    if not _are_calls_constrained(settings):
        return text_grammar
    rules = ToolCallRules(
        is_required=_is_call_required(settings),
        allows_parallel=settings.parallel_tool_calls and choice.mode != "function",
        text_grammar=text_grammar,
    )
    tools = [
        CallableTool(tool.name, tool.parameters)
        if tool.name in enforced_tools
        else CallableTool(tool.name)
        for tool in _callable_tools(settings)
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


def _callable_tools(settings: GenerationSettings) -> list[Tool]:
    name = settings.tool_choice.name
    return [tool for tool in settings.tools if name in (None, tool.name)]


async def _find_enforceable_tools(
    settings: GenerationSettings,
    template: ChatTemplate,
    names: FieldNames,
    grammar_trials: GrammarTrials,
) -> frozenset[str]:
    """Return the names of the tools whose schemas are enforced if they do not cost too much in one
    output: those of strict tools, and if a call is required, all that can be. Raises Refusal if
    that of a strict tool cannot be."""
    enforced = set[str]()
    for tool in settings.tools:
        if not tool.strict and not _is_call_required(settings):
            continue
        problem = await _find_problem(Grammar("json_schema", tool.parameters), grammar_trials)
        if problem is None:
            problem = template.find_call_problem(CallableTool(tool.name, tool.parameters))
        if problem is None:
            enforced.add(tool.name)
        elif tool.strict:
            raise invalid_parameter(
                names.tools,
                f"the parameters of the strict function {tool.name!r} cannot be enforced: "
                f"{problem}.",
                code="invalid_function_parameters",
            )
    return frozenset(enforced)


async def _drop_optional_if_costly(
    settings: GenerationSettings,
    enforced: frozenset[str],
    names: FieldNames,
    grammar_trials: GrammarTrials,
) -> frozenset[str]:
    """Return the tools whose schemas can be enforced in one output: all of `enforced`, or else
    those that are strict. Raises Refusal if not even those can be."""
    if await _find_joint_problem(settings, enforced, grammar_trials) is None:
        return enforced
    strict = enforced.intersection(tool.name for tool in settings.tools if tool.strict)
    problem = await _find_joint_problem(settings, strict, grammar_trials)
    if problem is None:
        return strict
    raise invalid_parameter(
        names.tools,
        f"the parameters of all strict functions cannot be enforced in one response: {problem}.",
        code="invalid_function_parameters",
    )


async def _find_joint_problem(
    settings: GenerationSettings, enforced: Set[str], grammar_trials: GrammarTrials
) -> str | None:
    if not _are_calls_constrained(settings):
        return None
    schemas = [tool.parameters for tool in _callable_tools(settings) if tool.name in enforced]
    grammar = settings.sampling.grammar
    if schemas and grammar is not None and grammar.kind == "json_schema":
        schemas.append(grammar.source)
    if len(schemas) < 2:
        return None
    return await _find_problem(build_joint_grammar(schemas), grammar_trials)


def _check_reasoning(
    settings: GenerationSettings, template: ChatTemplate, names: FieldNames
) -> None:
    if not template.can_reason_with(settings.reasoning.effort):
        effort = settings.reasoning.effort
        reason = (
            "this model's chat template cannot switch reasoning off."
            if effort == "none"
            else f"this model's chat template refuses {effort!r}."
        )
        raise invalid_parameter(names.reasoning_effort, reason, code="unsupported_value")
    has_grammar = settings.sampling.grammar is not None
    has_bound = settings.reasoning.tokens_max is not None
    if settings.sampling.ignore_eos and (
        has_grammar or has_bound or _are_calls_constrained(settings)
    ):
        raise invalid_parameter(
            names.ignore_eos, "output that follows a grammar or a forced call ends by itself."
        )


async def check_grammar(grammar: Grammar, param: str, grammar_trials: GrammarTrials) -> None:
    """Check that a grammar can be enforced. Raises Refusal."""
    problem = await _find_problem(grammar, grammar_trials)
    if problem is not None:
        code = "invalid_json_schema" if grammar.kind == "json_schema" else "invalid_value"
        raise invalid_parameter(param, f"it cannot be enforced: {problem}.", code=code)


async def _find_problem(grammar: Grammar, grammar_trials: GrammarTrials) -> str | None:
    try:
        return await grammar_trials.find_problem(grammar)
    except Busy as error:
        raise map_engine_error(error) from None
