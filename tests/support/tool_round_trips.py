"""Calls that every family of models writes in its own syntax, and reading them back.

A call is rendered by the family's chat template, as if the model had written it earlier in the
conversation. Its ids are then read as the output of a model, whole and in pieces.
"""

import json
from collections.abc import Sequence
from random import Random

import msgspec

from continuo.engine import ChatMessage, ToolCall
from continuo.engine.errors import BadRequest
from continuo.engine.text.tool_format import LiteralArguments
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    ParsedChunk,
)
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests.support.checkpoints import FAMILIES, family_template, family_text

Arguments = dict[str, object]


class Sample(msgspec.Struct, frozen=True):
    """Calls of one answer, each with its arguments."""

    calls: tuple[Arguments, ...]
    reasoning: str = ""


TEXTS = {
    "plain": "Rome",
    "escapes": 'two\nlines, a\ttab and "quotes"',
    "backslashes": r"\d+\.\w C:\dir",
    "doubled backslashes": r"\\host",
    "apostrophe": "it's 5 o'clock",
    "markup": "a < b && <b>c</b>",
    "CDATA": "<![CDATA[a]]>",
    "non-ASCII": "Grüße, 你好 😀 \u2028",
    "brackets": "f(a=[1, {2}], b), ]",
    "like a number": "012",
}
SAMPLES = {
    **{name: Sample(calls=({"text": text, "days": 3},)) for name, text in TEXTS.items()},
    "no arguments": Sample(calls=({},)),
    "nested": Sample(calls=({"all": [{"a": "b", "c": [1, True]}], "days": 3, "flag": False},)),
    "two calls": Sample(calls=({"text": "Rome", "days": 1}, {"text": "Oslo", "days": 2})),
    "after reasoning": Sample(calls=({"text": "Rome", "days": 3},), reasoning="It is warm.\nSo."),
}
"""Samples by name, the same for every family."""
CONTROL_TOKENS = "control tokens"
"""The sample whose argument has all control tokens of the family that it does not need itself."""
TYPES = {"text": "string", "days": "integer", "all": "array", "flag": "boolean"}
_SCHEMA = json.dumps(
    {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}}
)
FORMS = {
    "compact": ('{"all":', '[{"a":1,"b":[2,3]},"ü"]', "}"),
    "indented": ('{\n  "all": ', "[\n    1,\n    2\n  ]", "\n}"),
    "loose": ('{ "all" : ', "[ 1 ,2 ]", " }"),
    "numbers": ('{"all": ', "[1.50, 1e5, 2E+3]", "}"),
    "one number": ('{"all": ', "12.50", "}"),
    "repeated key": ('{"all": ', '{"a": 1, "b": 2, "a": 3}', "}"),
    "unsorted keys": ('{"all": ', '{"b": 1, "a": 2}', "}"),
    "some escapes": ('{"all": ', r'["\u00fc", "ü", "a\/b"]', "}"),
    "all in ASCII": ('{"all": ', r'["\u00fc"]', "}"),
}
"""Forms of arguments in JSON: the text before a value, the value, and the text after it. A format
that writes arguments one by one has the value alone."""
SETTINGS = GenerationSettings(tools=(Tool(name="look_up", parameters=_SCHEMA),))
QUESTION = ChatMessage(role="user", content="?")


def make_sample(family: str, name: str) -> Sample:
    if name != CONTROL_TOKENS:
        return SAMPLES[name]
    tokenizer = family_text(family)._tokenizer  # pyright: ignore[reportPrivateUsage]
    tokens = sorted(tokenizer._control_ids)  # pyright: ignore[reportPrivateUsage]
    return Sample(calls=({"text": "x".join(tokens), "days": 3},))


def make_answer(arguments: Sequence[str], reasoning: str = "") -> ChatMessage:
    """Make the message of an answer from the arguments of its calls."""
    calls = tuple(
        ToolCall(name="look_up", arguments=text, id=f"call{at:05}")
        for at, text in enumerate(arguments)
    )
    return ChatMessage(role="assistant", tool_calls=calls, reasoning=reasoning)


class Output(msgspec.Struct, frozen=True):
    """The output of a model, within the conversation that its answer is part of."""

    conversation: list[int]
    start: int
    end: int
    in_reasoning: bool
    """Whether the output begins within reasoning."""

    @property
    def ids(self) -> list[int]:
        return self.conversation[self.start : self.end]


def find_output(family: str, conversation: list[int]) -> Output:
    """Find the output in a conversation: from the header to the ending of the last message."""
    template = family_template(family)
    prompt = template.render([QUESTION], add_generation_prompt=True)
    pairs = zip(conversation, prompt, strict=False)
    shorter = min(len(conversation), len(prompt))
    start = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    ending, end = template.encode_ending([]), len(conversation)
    if ending and conversation[-len(ending) :] == ending:
        end -= len(ending)
    return Output(conversation, start, end, template.opens_reasoning(prompt[:start]))


def write(family: str, sample: Sample) -> Output | None:
    """Render a sample as the family's template does. Returns None if the template refuses it."""
    answer = make_answer(list(map(json.dumps, sample.calls)), sample.reasoning)
    try:
        return find_output(family, family_template(family).render([QUESTION, answer]))
    except BadRequest:
        return None


def write_form(family: str, name: str) -> Output | None:
    """Write a form of arguments in place of those that the family's template renders. Returns None
    if the family does not write JSON there."""
    form, template = FORMS[name], family_template(family)
    named = template.tool_format.named if template.tool_format else None
    if named is not None and isinstance(named.arguments, LiteralArguments):
        return None
    renderer = template._renderer  # pyright: ignore[reportPrivateUsage]
    text = renderer.render([QUESTION, make_answer(['{"all": ["zq9"]}'])])
    for usual, written in (('{"all": ["zq9"]}', "".join(form)), ('["zq9"]', form[1])):
        if usual in text:
            tokenizer = family_text(family)._tokenizer  # pyright: ignore[reportPrivateUsage]
            return find_output(family, tokenizer.encode_marked(text.replace(usual, written)))
    return None


def read(family: str, output: Output, cuts: Sequence[int] = ()) -> list[str]:
    """Read an output that arrives in pieces, cut at the offsets `cuts`. Returns the arguments of
    its calls."""
    decoder = family_text(family).create_output_decoder(starts_in_reasoning=output.in_reasoning)
    parser = make_output_parser(SETTINGS, family_template(family))
    parsed, ids = list[ParsedChunk](), output.ids
    for start, end in zip((0, *cuts), (*cuts, len(ids)), strict=True):
        for segment in decoder.push(ids[start:end]):
            parsed += parser.push(segment.channel, segment.text)
    for segment in decoder.flush():
        parsed += parser.push(segment.channel, segment.text)
    parsed += parser.finish()
    calls: list[str] = []
    for chunk in parsed:
        match chunk:
            case CallStartChunk():
                calls.append("")
            case CallArgumentsChunk(text=text):
                calls[-1] += text
            case CallEndChunk(is_complete=False):
                calls[-1] += "…"
            case _:
                pass
    return calls


def _decode(arguments: str) -> Arguments:
    try:
        return json.loads(arguments)
    except ValueError:
        return {"": arguments}


def renders_again(family: str, output: Output, arguments: Sequence[str], reasoning: str) -> bool:
    """Whether the arguments, put back into the conversation, have the ids of the output."""
    answer = make_answer(arguments, reasoning)
    return family_template(family).render([QUESTION, answer]) == output.conversation


def comes_back(family: str, name: str, random: Random, cuts: int) -> bool | None:
    """Whether the calls of a sample come back as they were, whole, token by token, and cut `cuts`
    times at random places, and have the same ids when they are rendered again. Returns None if the
    template refuses the sample."""
    sample = make_sample(family, name)
    output = write(family, sample)
    if output is None:
        return None
    count = len(output.ids)
    ways: list[Sequence[int]] = [(), range(1, count)]
    for _ in range(cuts):
        ways.append(sorted(random.sample(range(1, count), min(3, count - 1))))
    found = [read(family, output, way) for way in ways]
    return all(tuple(map(_decode, calls)) == sample.calls for calls in found) and all(
        renders_again(family, output, calls, sample.reasoning) for calls in found
    )


def form_comes_back(family: str, name: str) -> bool | None:
    """Whether arguments in a form of JSON have the same ids when they are rendered again. Returns
    None if the family does not write JSON there."""
    output = write_form(family, name)
    return output and renders_again(family, output, read(family, output), "")


FORMATS = tuple(name for name in FAMILIES if name != "odd_calls")
"""The families whose calls can be read."""
NAMES = (*SAMPLES, CONTROL_TOKENS)
REWRITTEN = (
    "all in ASCII",
    "a client that writes arguments anew with Python's `json.dumps` sends this form, so the "
    "template writes the characters themselves, as models do",
)
"""The form that templates write in their own way, with the reason."""
AMBIGUOUS = {
    ("lfm2_5", "doubled backslashes"): "the template writes them raw; they are read as Python's",
    ("gpt_oss", "two calls"): "the template writes the first call alone",
}
"""Samples that cannot come back from what the template writes, by family and name, with the
reason."""
