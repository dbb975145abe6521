"""Grammars that force tool calls and output formats, and which of them can be enforced. Pure."""

import asyncio

from continuo.engine import Asked, Callee, ChatTemplate, Grammar, schema_problem
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.settings import Settings, Tool


async def vet(settings: Settings, template: ChatTemplate, where: str) -> None:
    """Raises Refusal, which names its field behind `where`, if the settings want what cannot be
    enforced. Compiles each schema beside the event loop, once."""
    named = settings.tool_choice.name is not None
    if settings.tools or named or settings.sampling.grammar is not None:
        await asyncio.to_thread(_vet, settings, template, where)


def grammar_of(settings: Settings, template: ChatTemplate) -> Grammar | None:
    """What an answer must look like; None: anything. Raises Refusal as `vet` does, which is best
    asked before."""
    _vet(settings, template, "")
    choice, answer = settings.tool_choice, settings.sampling.grammar
    if not _calls_are_bound(settings):
        return answer
    must = _must_call(settings)
    several = settings.parallel_tool_calls and choice.mode != "function"
    tools = [tool for tool in settings.tools if choice.name in (None, tool.name)]
    asked = Asked(must=must, several=several, answer=answer)
    return template.calling([_callee(tool, must) for tool in tools], asked) or answer


def _must_call(settings: Settings) -> bool:
    return bool(settings.tools) and settings.tool_choice.mode in ("required", "function")


def _calls_are_bound(settings: Settings) -> bool:
    """Whether calls may be made, and not just as the model likes."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return False
    free = settings.tool_choice.mode == "auto" and settings.parallel_tool_calls
    strict = any(tool.strict for tool in settings.tools)
    return not free or strict or settings.sampling.grammar is not None


def _vet(settings: Settings, template: ChatTemplate, where: str) -> None:
    for tool in settings.tools:
        problem = schema_problem(tool.parameters) if tool.strict or _must_call(settings) else None
        if problem is not None and tool.strict:
            raise Refusal(
                f"Invalid '{where}tools': the parameters of the strict function {tool.name!r} "
                f"cannot be enforced: {problem}.",
                code="invalid_function_parameters",
                param=f"{where}tools",
            )
    choice = settings.tool_choice
    if choice.mode == "function" and choice.name not in {tool.name for tool in settings.tools}:
        raise Refusal(
            f"Invalid '{where}tool_choice.name': no tool is called {choice.name!r}.",
            code="invalid_value",
            param=f"{where}tool_choice.name",
        )
    wanted = settings.sampling.grammar
    if wanted is not None and wanted.kind == "json_schema":
        problem = schema_problem(wanted.source)
        if problem is not None:
            raise Refusal(
                f"Invalid '{where}text.format.schema': it cannot be enforced: {problem}.",
                code="invalid_json_schema",
                param=f"{where}text.format.schema",
            )
    if settings.sampling.ignore_eos and (wanted is not None or _calls_are_bound(settings)):
        raise Refusal(
            f"Invalid '{where}ignore_eos': what follows a schema, or calls as it must, ends.",
            code="invalid_value",
            param=f"{where}ignore_eos",
        )
    if _must_call(settings) and template.tool_format is None:
        raise Refusal(
            f"Invalid '{where}tool_choice': this model's chat template shows no way to call tools, "
            "so no call can be forced.",
            code="unsupported_value",
            param=f"{where}tool_choice",
        )


def _callee(tool: Tool, must: bool) -> Callee:
    """A strict tool's schema is enforced always, another's where a call is forced and it can be."""
    enforced = tool.strict or (must and schema_problem(tool.parameters) is None)
    return Callee(tool.name, tool.parameters) if enforced else Callee(tool.name)
