"""Tool calls: parsing them from the text of a model, and enforcing them by grammars."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import Grammar, Sampling, ToolParser
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.output_grammar import build_grammar, check_enforceable
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    OutputParser,
    ParsedChunk,
    PlainTextParser,
    TextChunk,
)
from continuo.realtime.generation.tool_calls import ToolCallParser, make_text_parser
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice
from tests.support.checkpoints import family_template
from tests.support.grammar_trials import TrialsHere

OUTPUT = 'Let me see. <tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}\n</tool_call>'
TOOLS = (Tool(name="look"),)


def join_chunks(chunks: list[ParsedChunk]) -> list[ParsedChunk]:
    """Join consecutive chunks of one kind."""
    result: list[ParsedChunk] = []
    for chunk in chunks:
        match (result[-1] if result else None), chunk:
            case TextChunk(text=start), TextChunk(text=text):
                result[-1] = TextChunk(start + text)
            case CallArgumentsChunk(text=start), CallArgumentsChunk(text=text):
                result[-1] = CallArgumentsChunk(start + text)
            case _:
                result.append(chunk)
    return result


def parse(parser: OutputParser, text: str, cuts: list[int]) -> list[ParsedChunk]:
    bounds = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    chunks: list[ParsedChunk] = []
    for start, end in itertools.pairwise(bounds):
        chunks += parser.push(text[start:end])
    return join_chunks([*chunks, *parser.finish()])


@given(st.lists(st.integers(0, 200)))
def test_call_is_found_however_the_text_is_split(cuts: list[int]) -> None:
    parser = make_text_parser(GenerationSettings(tools=TOOLS), family_template("qwen2_5"))
    assert isinstance(parser, ToolCallParser)
    assert parse(parser, OUTPUT, cuts) == [
        TextChunk("Let me see."),
        CallStartChunk("look"),
        CallArgumentsChunk('{"at": "Rome"}'),
        CallEndChunk(),
    ]


def test_call_cut_off_ends_incomplete() -> None:
    parser = make_text_parser(GenerationSettings(tools=TOOLS), family_template("qwen2_5"))
    assert parse(parser, OUTPUT[:60], [])[-1] == CallEndChunk(is_complete=False)


@pytest.mark.parametrize(
    "settings",
    [GenerationSettings(), GenerationSettings(tools=TOOLS, tool_choice=ToolChoice("none"))],
)
def test_output_without_tools_is_plain_text(settings: GenerationSettings) -> None:
    parser = make_text_parser(settings, family_template("qwen2_5"))
    assert isinstance(parser, PlainTextParser)
    assert parse(parser, OUTPUT, []) == [TextChunk(OUTPUT)]


def test_output_in_an_unknown_syntax_of_calls_is_plain_text() -> None:
    parser = make_text_parser(GenerationSettings(tools=TOOLS), family_template("odd_calls"))
    assert parse(parser, OUTPUT, [3, 20]) == [TextChunk(OUTPUT)]
    assert parse(ToolCallParser(ToolParser(None)), "x", []) == [TextChunk("x")]


# ---------------------------------------------------------------- enforced by grammars

STRICT = Tool(name="look", parameters='{"type": "object", "not": {}}', strict=True)
LOOSE = Tool(name="look", parameters='{"type": "object", "not": {}}')
PAIR = (Tool(name="look", parameters='{"type": "object"}'), Tool(name="listen"))
SCHEMA = Grammar("json_schema", '{"type": "array"}')
QWEN = family_template("qwen2_5")


async def checked_grammar(settings: GenerationSettings) -> Grammar | None:
    names = ConfigureSession.field_names
    return build_grammar(
        settings, QWEN, await check_enforceable(settings, QWEN, names, TrialsHere())
    )


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(),
        GenerationSettings(tools=PAIR),
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("none"), parallel_tool_calls=False),
        GenerationSettings(tool_choice=ToolChoice("required")),
    ],
)
async def test_unconstrained_settings_have_no_grammar(settings: GenerationSettings) -> None:
    assert await checked_grammar(settings) is None


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("required")),
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "listen")),
        GenerationSettings(tools=PAIR, parallel_tool_calls=False),
        GenerationSettings(
            tools=(Tool(name="look", parameters='{"type": "object"}', strict=True),)
        ),
        GenerationSettings(tools=PAIR, sampling=Sampling(grammar=SCHEMA)),
        GenerationSettings(tools=(LOOSE,), tool_choice=ToolChoice("required")),
    ],
)
async def test_forced_strict_or_structured_settings_have_a_grammar(
    settings: GenerationSettings,
) -> None:
    grammar = await checked_grammar(settings)
    assert grammar is not None
    assert "look" in grammar.source or settings.tool_choice.name == "listen"


async def test_grammar_of_a_named_tool_allows_no_other_tool() -> None:
    grammar = await checked_grammar(
        GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "listen"))
    )
    assert grammar is not None
    assert "listen" in grammar.source
    assert "look" not in grammar.source


async def test_response_without_tool_calls_follows_its_own_schema() -> None:
    sampling = Sampling(grammar=SCHEMA)
    assert await checked_grammar(GenerationSettings(sampling=sampling)) is SCHEMA
    none = GenerationSettings(tools=PAIR, tool_choice=ToolChoice("none"), sampling=sampling)
    assert await checked_grammar(none) is SCHEMA


def costly_tools(count: int, *, strict: bool) -> tuple[Tool, ...]:
    """Tools of which each takes 2 MiB to enforce."""
    argument = '{"type": "integer", "multipleOf": %d}'
    return tuple(
        Tool(
            name=f"tool_{n}",
            parameters='{"properties": {"n": %s}}' % (argument % (4_000 + n)),
            strict=strict,
        )
        for n in range(count)
    )


async def test_strict_tools_that_cost_too_much_together_are_refused() -> None:
    assert await checked_grammar(GenerationSettings(tools=costly_tools(2, strict=True)))
    with pytest.raises(Refusal, match=r"all strict functions .* the limit is 8"):
        await checked_grammar(GenerationSettings(tools=costly_tools(8, strict=True)))


async def test_tools_that_need_not_be_enforced_are_not_if_they_cost_too_much_together() -> None:
    tools = (
        *costly_tools(8, strict=False),
        Tool(name="exact", parameters='{"required": ["a"]}', strict=True),
    )
    settings = GenerationSettings(tools=tools, tool_choice=ToolChoice("required"))
    grammar = await checked_grammar(settings)
    assert grammar is not None
    assert "multipleOf" not in grammar.source
    assert "required" in grammar.source


@pytest.mark.parametrize(
    ("settings", "template", "param"),
    [
        (GenerationSettings(tools=(STRICT,)), "qwen2_5", "session.tools"),
        (
            GenerationSettings(tools=PAIR, tool_choice=ToolChoice("required")),
            "odd_calls",
            "session.tools",
        ),
        (GenerationSettings(tools=PAIR), "odd_calls", "session.tools"),
        (
            GenerationSettings(
                tools=(
                    Tool(
                        name="look",
                        parameters='{"properties": {"at": {"type": "string", "format": "time"}}}',
                        strict=True,
                    ),
                )
            ),
            "qwen3_5",
            "session.tools",
        ),
        (
            GenerationSettings(tools=PAIR, tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            GenerationSettings(tool_choice=ToolChoice("function", "gone")),
            "qwen2_5",
            "session.tool_choice.name",
        ),
        (
            GenerationSettings(sampling=Sampling(grammar=Grammar("json_schema", '{"not": {}}'))),
            "qwen2_5",
            "session.text.format.schema",
        ),
        (
            GenerationSettings(sampling=Sampling(grammar=SCHEMA, ignore_eos=True)),
            "qwen2_5",
            "session.ignore_eos",
        ),
        (
            GenerationSettings(
                tools=PAIR,
                tool_choice=ToolChoice("required"),
                sampling=Sampling(ignore_eos=True),
            ),
            "qwen2_5",
            "session.ignore_eos",
        ),
    ],
)
async def test_unenforceable_settings_are_refused(
    settings: GenerationSettings, template: str, param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        await check_enforceable(
            settings, family_template(template), ConfigureSession.field_names, TrialsHere()
        )
    assert caught.value.param == param
