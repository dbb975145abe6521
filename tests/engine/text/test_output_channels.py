"""Reasoning apart from text, whatever the frames in which the ids of an output arrive."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.text import OutputDecoder
from continuo.engine.text.output_channels import SpokenTextDecoder
from tests.support.checkpoints import family_template, family_text
from tests.support.reasoning_outputs import PROMPT_OPENS, REASONING_FAMILIES, markup_around

WORDS = st.sampled_from(
    [
        *("so", " it", "\n", "é", "世", "😀", "👩\u200d👧", "1"),
        *("<think>", "</think>", "[/THINK]", "<|end|>", "<channel|>", "<|channel|>final"),
    ]
)
"""Words of thoughts and answers. Some have characters of several tokens, others spell the markup,
which is text unless the model draws its token."""
THOUGHTS = st.lists(WORDS, min_size=1, max_size=6).map("".join)
FRAMES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


class Output(msgspec.Struct):
    """An output of the family `name` as ids, with what is in it, without the space at the ends."""

    name: str
    ids: list[int]
    reasoning: list[str]
    text: list[str]
    is_cut_off: bool
    """Whether an id is missing at the end of the first thought, within a character."""

    def decode(self, frames: Sequence[int]) -> tuple[list[str], list[str], list[int], str]:
        """Decode the ids in frames of these sizes, which repeat. Returns the reasoning and the
        text, by channel; the ids; and the text alone, as stop strings are searched in it."""
        decoder, spoken = self._make_decoder(), SpokenTextDecoder(self._make_decoder())
        by_channel: dict[int, tuple[str, str]] = {}
        channels: list[object] = []
        ids, alone = list[int](), ""
        for frame in _cut(self.ids, frames):
            for segment in decoder.push(frame):
                channels.append(segment.channel)  # keeps its identity from being used again
                key = id(segment.channel)
                before = by_channel.get(key, (segment.channel.kind, ""))
                by_channel[key] = (before[0], before[1] + segment.text)
                ids += segment.ids
            alone += spoken.push(frame)
        for segment in decoder.flush():
            key = id(segment.channel)
            by_channel[key] = (by_channel[key][0], by_channel[key][1] + segment.text)
        thoughts = [text for kind, text in by_channel.values() if kind == "reasoning"]
        texts = [text for kind, text in by_channel.values() if kind == "text" and text.strip()]
        return thoughts, texts, ids, alone

    def _make_decoder(self) -> OutputDecoder:
        return family_text(self.name).create_output_decoder(
            starts_in_reasoning=self.name in PROMPT_OPENS
        )


def _cut(ids: Sequence[int], frames: Sequence[int]) -> Iterator[Sequence[int]]:
    start, turn = 0, 0
    while start < len(ids):
        size = frames[turn % len(frames)]
        yield ids[start : start + size]
        start, turn = start + size, turn + 1


@st.composite
def outputs(draw: st.DrawFn) -> Output:
    """Draw an output of one or two thoughts, the last of which may have no answer after it."""
    name = draw(st.sampled_from(REASONING_FAMILIES))
    text, syntax = family_text(name), family_template(name).reasoning_format
    assert syntax is not None
    before, after = markup_around(name)
    ids, reasoning, answers = list[int](), list[str](), list[str]()
    is_cut_off = False
    for turn in range(draw(st.integers(1, 2))):
        thought, answer = draw(THOUGHTS), draw(st.one_of(THOUGHTS, st.just("")))
        if turn:
            before = f"{'<|end|><|start|>assistant' if syntax.is_harmony else ''}{syntax.begin}"
            before += syntax.label
        thought_ids = text.encode_untrusted(thought)
        if not turn and text.decode(thought_ids[-1:]) == "\ufffd":
            thought_ids, is_cut_off = thought_ids[:-1], True
        ids += text.encode(before) + thought_ids
        reasoning.append(thought)
        if turn and not answer:
            break
        ids += text.encode(after) + text.encode_untrusted(answer)
        answers.append(answer)
    return Output(name, ids, reasoning, answers, is_cut_off)


@given(outputs(), FRAMES)
@pytest.mark.long
def test_no_byte_of_a_thought_is_in_the_text(output: Output, frames: list[int]) -> None:
    thoughts, texts, ids, alone = output.decode(frames)
    syntax = family_template(output.name).reasoning_format
    assert syntax is not None
    assert ids == output.ids
    assert [text.strip() for text in texts] == [
        answer.strip() for answer in output.text if answer.strip()
    ]
    label = syntax.label.strip()
    found = [thought.strip().removeprefix(label).strip() for thought in thoughts]
    expected = [thought.strip() for thought in output.reasoning]
    assert found[1:] == expected[1:]
    if output.is_cut_off:
        assert found[0].rstrip("\ufffd").strip() == expected[0][:-1].strip()
    else:
        assert found[:1] == expected[:1]
    assert alone.replace("\ufdd0", "").strip() == "".join(texts).strip()


@given(outputs(), FRAMES)
@pytest.mark.long
def test_frames_change_nothing(output: Output, frames: list[int]) -> None:
    assert output.decode(frames) == output.decode([len(output.ids)])


@given(THOUGHTS, FRAMES)
def test_end_token_outside_of_reasoning_begins_none(answer: str, frames: list[int]) -> None:
    text = family_text("seed_oss")
    end = text.encode("</seed:think>")
    assert len(end) == 1
    ids = text.encode_untrusted(answer) + end + text.encode_untrusted(answer)
    output = Output("seed_oss", ids, [], [answer], is_cut_off=False)
    assert output.decode(frames)[0] == []
