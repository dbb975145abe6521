"""Answers as the libraries of the models' authors encode them: they are read, and rendered alike.

`official_outputs.json` holds what mistral-common and openai-harmony (both Apache-2.0) encode for
the same calls, from the end of the prompt to the token that ends the answer."""

import json
from pathlib import Path

import msgspec
import pytest

from continuo.engine import ChatMessage, ToolCall
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    ParsedChunk,
    ReasoningChunk,
    TextChunk,
)
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests import support
from tests.support.checkpoints import family_template, family_text


class OfficialCall(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, object]


class OfficialOutput(msgspec.Struct, frozen=True):
    family: str
    source: str
    output: str
    reasoning: str
    text: str
    calls: tuple[OfficialCall, ...]


_FILE = Path(support.__file__).parent / "official_outputs.json"
OUTPUTS = msgspec.json.decode(_FILE.read_bytes(), type=list[OfficialOutput])
SETTINGS = GenerationSettings(tools=(Tool(name="get_weather"), Tool(name="look_up")))
RENDERED_ALIKE = ("mistral_nemo", "devstral")
"""Families whose published template writes calls as the library does. That of Mistral Small 3.2
leaves the ids of calls out, and gpt-oss's leaves out `<|constrain|>`."""


def read(sample: OfficialOutput, size: int) -> tuple[str, str, list[OfficialCall]]:
    """Read an output in pieces of `size` tokens. Returns its reasoning, its text, and its calls."""
    text = family_text(sample.family)
    decoder = text.create_output_decoder()
    parser = make_output_parser(SETTINGS, family_template(sample.family))
    ids, parsed = text.encode(sample.output), list[ParsedChunk]()
    for at in range(0, len(ids), size):
        for segment in decoder.push(ids[at : at + size]):
            parsed += parser.push(segment.channel, segment.text)
    for segment in decoder.flush():
        parsed += parser.push(segment.channel, segment.text)
    parsed += parser.finish()
    names = [chunk.name for chunk in parsed if isinstance(chunk, CallStartChunk)]
    arguments, started = [""] * len(names), -1
    for chunk in parsed:
        started += isinstance(chunk, CallStartChunk)
        if isinstance(chunk, CallArgumentsChunk):
            arguments[started] += chunk.text
        assert chunk != CallEndChunk(is_complete=False)
    calls = [
        OfficialCall(name, json.loads(each)) for name, each in zip(names, arguments, strict=True)
    ]
    return (
        "".join(chunk.text for chunk in parsed if isinstance(chunk, ReasoningChunk)),
        "".join(chunk.text for chunk in parsed if isinstance(chunk, TextChunk)),
        calls,
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("at", range(len(OUTPUTS)))
def test_official_output_is_read(at: int, size: int) -> None:
    sample = OUTPUTS[at]
    assert read(sample, size) == (sample.reasoning, sample.text, list(sample.calls))


@pytest.mark.parametrize(
    "sample", [each for each in OUTPUTS if each.family in RENDERED_ALIKE and not each.text]
)
def test_calls_are_rendered_as_the_library_renders_them(sample: OfficialOutput) -> None:
    calls = tuple(
        ToolCall(
            name=call.name,
            arguments=json.dumps(call.arguments, ensure_ascii=False),
            id=f"call{at:05}",
        )
        for at, call in enumerate(sample.calls)
    )
    template, text = family_template(sample.family), family_text(sample.family)
    question = ChatMessage(role="user", content="?")
    ids = template.render([question, ChatMessage(role="assistant", tool_calls=calls)])
    start = ids.index(text.encode("[TOOL_CALLS]")[0])
    assert list(ids[start:-1]) == text.encode(sample.output)
