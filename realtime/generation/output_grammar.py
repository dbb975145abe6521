"""Grammars that force tool calls and output formats, and which of them can be enforced. Pure."""

import asyncio

from continuo.engine import CallableTool, ChatTemplate, Grammar, ToolCallRules, find_schema_problem
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.settings import GenerationSettings, Tool


async def check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, param_prefix: str
) -> None:
    """Raises Refusal, which names its field behind `where`, if the settings want what cannot be
    enforced. Compiles each schema beside the event loop, once."""
    named = settings.tool_choice.name is not None
    if settings.tools or named or settings.sampling.grammar is not None:
        await asyncio.to_thread(_check_enforceable, settings, template, param_prefix)


def build_grammar(settings: GenerationSettings, template: ChatTemplate) -> Grammar | None:
    """What an answer must look like; None: anything. Raises Refusal as `vet` does, which is best
    asked before."""
    _check_enforceable(settings, template, "")
    choice, answer = settings.tool_choice, settings.sampling.grammar
    if not _are_calls_constrained(settings):
        return answer
    must = _is_call_required(settings)
    several = settings.parallel_tool_calls and choice.mode != "function"
    tools = [tool for tool in settings.tools if choice.name in (None, tool.name)]
    asked = ToolCallRules(is_required=must, allows_parallel=several, text_grammar=answer)
    return (
        template.build_tool_grammar([_make_callee(tool, must) for tool in tools], asked) or answer
    )


def _is_call_required(settings: GenerationSettings) -> bool:
    return bool(settings.tools) and settings.tool_choice.mode in ("required", "function")


def _are_calls_constrained(settings: GenerationSettings) -> bool:
    """Whether calls may be made, and not just as the model likes."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return False
    free = settings.tool_choice.mode == "auto" and settings.parallel_tool_calls
    strict = any(tool.strict for tool in settings.tools)
    return not free or strict or settings.sampling.grammar is not None


def _check_enforceable(
    settings: GenerationSettings, template: ChatTemplate, param_prefix: str
) -> None:
    for tool in settings.tools:
        problem = (
            find_schema_problem(tool.parameters)
            if tool.strict or _is_call_required(settings)
            else None
        )
        if problem is not None and tool.strict:
            raise Refusal(
                f"Invalid '{param_prefix}tools': the parameters of the strict function "
                f"{tool.name!r} "
                f"cannot be enforced: {problem}.",
                code="invalid_function_parameters",
                param=f"{param_prefix}tools",
            )
    choice = settings.tool_choice
    if choice.mode == "function" and choice.name not in {tool.name for tool in settings.tools}:
        raise Refusal(
            f"Invalid '{param_prefix}tool_choice.name': no tool is called {choice.name!r}.",
            code="invalid_value",
            param=f"{param_prefix}tool_choice.name",
        )
    wanted = settings.sampling.grammar
    if wanted is not None and wanted.kind == "json_schema":
        problem = find_schema_problem(wanted.source)
        if problem is not None:
            raise Refusal(
                f"Invalid '{param_prefix}text.format.schema': it cannot be enforced: {problem}.",
                code="invalid_json_schema",
                param=f"{param_prefix}text.format.schema",
            )
    if settings.sampling.ignore_eos and (wanted is not None or _are_calls_constrained(settings)):
        raise Refusal(
            f"Invalid '{param_prefix}ignore_eos': what follows a schema, or calls as it must, "
            "ends.",
            code="invalid_value",
            param=f"{param_prefix}ignore_eos",
        )
    if _is_call_required(settings) and template.tool_format is None:
        raise Refusal(
            f"Invalid '{param_prefix}tool_choice': this model's chat template shows no way "
            "to call tools, so no call can be forced.",
            code="unsupported_value",
            param=f"{param_prefix}tool_choice",
        )


def _make_callee(tool: Tool, is_required: bool) -> CallableTool:
    """A strict tool's schema is enforced always, another's where a call is forced and it can be."""
    enforced = tool.strict or (is_required and find_schema_problem(tool.parameters) is None)
    return CallableTool(tool.name, tool.parameters) if enforced else CallableTool(tool.name)
