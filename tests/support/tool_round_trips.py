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
SETTINGS = GenerationSettings(tools=(Tool(name="look_up", parameters=_SCHEMA),))
QUESTION = ChatMessage(role="user", content="?")


def make_sample(family: str, name: str) -> Sample:
    if name != CONTROL_TOKENS:
        return SAMPLES[name]
    tokenizer = family_text(family)._tokenizer  # pyright: ignore[reportPrivateUsage]
    tokens = sorted(tokenizer._control_ids)  # pyright: ignore[reportPrivateUsage]
    return Sample(calls=({"text": "x".join(tokens), "days": 3},))


def write(family: str, sample: Sample) -> tuple[list[int], bool] | None:
    """Render a sample as the family's template does. Returns the ids of the output, and whether it
    begins within reasoning; None if the template refuses the sample."""
    template = family_template(family)
    calls = tuple(
        ToolCall(name="look_up", arguments=json.dumps(arguments), id=f"call{at:05}")
        for at, arguments in enumerate(sample.calls)
    )
    answer = ChatMessage(role="assistant", tool_calls=calls, reasoning=sample.reasoning)
    try:
        whole = template.render([QUESTION, answer])
        prompt = template.render([QUESTION], add_generation_prompt=True)
    except BadRequest:
        return None
    pairs = zip(whole, prompt, strict=False)
    start = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(whole), len(prompt)))
    ending = template.encode_ending([])
    end = len(whole) - len(ending) if ending and whole[-len(ending) :] == ending else len(whole)
    return whole[start:end], template.opens_reasoning(prompt[:start])


def read(family: str, ids: Sequence[int], cuts: Sequence[int], *, in_reasoning: bool) -> Sample:
    """Read an output that arrives in pieces, cut at the offsets `cuts`."""
    decoder = family_text(family).create_output_decoder(starts_in_reasoning=in_reasoning)
    parser = make_output_parser(SETTINGS, family_template(family))
    parsed = list[ParsedChunk]()
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
    return Sample(calls=tuple(map(_decode, calls)))


def _decode(arguments: str) -> Arguments:
    try:
        return json.loads(arguments)
    except ValueError:
        return {"": arguments}


def comes_back(family: str, name: str, random: Random, cuts: int) -> bool | None:
    """Whether the calls of a sample come back as they were: whole, token by token, and cut `cuts`
    times at random places. Returns None if the template refuses the sample."""
    sample = make_sample(family, name)
    written = write(family, sample)
    if written is None:
        return None
    ids, in_reasoning = written
    ways: list[Sequence[int]] = [(), range(1, len(ids))]
    for _ in range(cuts):
        ways.append(sorted(random.sample(range(1, len(ids)), min(3, len(ids) - 1))))
    return all(
        read(family, ids, way, in_reasoning=in_reasoning).calls == sample.calls for way in ways
    )


FORMATS = tuple(name for name in FAMILIES if name != "odd_calls")
"""The families whose calls can be read."""
NAMES = (*SAMPLES, CONTROL_TOKENS)
AMBIGUOUS = {
    ("gemma4", CONTROL_TOKENS): "the token that ends a string ends this one too",
    ("lfm2_5", "apostrophe"): "the template writes strings without escapes, in single quotes",
    ("lfm2_5", "doubled backslashes"): "the template writes them raw; they are read as Python's",
    ("gpt_oss", "two calls"): "the template writes the first call alone",
}
"""Samples that cannot come back from what the template writes, by family and name, with the
reason."""
