"""A turn's frames of ids become text and reasoning, as a client gets them."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.sampling import Sampling
from continuo.engine.wire.messages import TurnTokens
from continuo.realtime.generation.output_parser import ParsedChunk, ReasoningChunk, TextChunk
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests.support.checkpoints import family_template, family_text
from tests.support.reasoning_outputs import (
    ANSWER,
    OUTPUTS,
    PROMPT_OPENS,
    REASONING_FAMILIES,
    THOUGHT,
)

SETTINGS = (GenerationSettings(), GenerationSettings(tools=(Tool(name="get_weather"),)))


def parse(
    name: str, frames: Sequence[list[int]], stop: tuple[str, ...], settings: GenerationSettings
) -> tuple[str, str]:
    """Read a turn whose ids arrive in frames. Returns its reasoning and its text."""
    decoder = family_text(name).create_output_decoder(starts_in_reasoning=name in PROMPT_OPENS)
    turn = TurnStream("t", "s", decoder, Sampling(stop=stop))
    for frame in frames:
        turn.put(TurnTokens("s", "t", turn.received, frame))
    turn.end("stop")
    parser, parsed = make_output_parser(settings, family_template(name)), list[ParsedChunk]()

    def collect(chunk: OutputChunk) -> None:
        parsed.extend(parser.push(chunk.channel, chunk.text))

    asyncio.run(turn.consume(collect))
    parsed += parser.finish()
    assert all(isinstance(chunk, ReasoningChunk | TextChunk) for chunk in parsed)
    return (
        "".join(chunk.text for chunk in parsed if isinstance(chunk, ReasoningChunk)),
        "".join(chunk.text for chunk in parsed if isinstance(chunk, TextChunk)),
    )


@given(
    st.sampled_from(REASONING_FAMILIES),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.sampled_from(SETTINGS),
    st.sampled_from([(), ("warm",), ("Rome", "yes."), ("yes.It", "never")]),
)
@pytest.mark.long
def test_thought_and_answer_are_apart_however_ids_arrive(
    name: str, sizes: list[int], settings: GenerationSettings, stop: tuple[str, ...]
) -> None:
    """A stop string that is in the thought, or begins in it, changes neither."""
    ids, frames = family_text(name).encode(OUTPUTS[name]), list[list[int]]()
    while ids:
        size = sizes[len(frames) % len(sizes)]
        frames.append(ids[:size])
        ids = ids[size:]
    assert parse(name, frames, stop, settings) == (THOUGHT, ANSWER)
