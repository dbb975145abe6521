"""Separate reasoning from text, and from calls, by the ids of a model's own tokens.

    tags       <think> reasoning </think> text
    Harmony    <|channel|>analysis<|message|> reasoning <|end|><|start|>assistant
               <|channel|>final<|message|> text
               <|channel|>commentary to=functions.f <|constrain|>json<|message|> arguments

Text that spells out such a token does not count as one. A splitter runs in the gateway, for what
clients get, and in the engine process, so that stop strings end a response only where they are in
its text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

ChannelKind = Literal["text", "reasoning", "call"]
_TAGS = (
    ("<think>", "</think>", ""),
    ("[THINK]", "[/THINK]", ""),
    ("<seed:think>", "</seed:think>", ""),
    ("<mm:think>", "</mm:think>", ""),
    ("<|START_THINKING|>", "<|END_THINKING|>", ""),
    ("<|channel>", "<channel|>", "thought\n"),
    ("<|inner_prefix|>", "<|inner_suffix|>", ""),
)
"""Tokens before and after reasoning, and the first line of the reasoning, by which some models name
it. For templates that do not show them: see `probe_reasoning_format`."""
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_CHANNEL_BREAK = "\ufdd0"
"""Separates two stretches of text, so that no stop string spans both. A noncharacter, which no stop
string may match."""


class OutputChannel(msgspec.Struct, frozen=True, eq=False):
    """A stretch of output. Two stretches are different objects, even if they are alike."""

    kind: ChannelKind
    name: str = ""
    """Name of the tool that is called; empty for other kinds."""


TEXT = OutputChannel("text")


class Segment(msgspec.Struct, frozen=True):
    """Consecutive ids of one channel."""

    channel: OutputChannel
    ids: list[int]
    is_markup: bool = False
    """Whether the ids are markup: they have no text."""


class ChannelSplitter(Protocol):
    def push(self, ids: Sequence[int]) -> list[Segment]:
        """Split the next ids of the output."""
        ...


class ReasoningFormat(msgspec.Struct, frozen=True):
    """The tokens by which a model separates reasoning from text."""

    begin: str
    end: str
    label: str = ""
    """First line of all reasoning, which is left out."""
    is_harmony: bool = False


HARMONY_REASONING = ReasoningFormat(
    "<|channel|>analysis<|message|>", "<|end|><|start|>assistant", is_harmony=True
)


def find_reasoning_format(tokenizer: Tokenizer) -> ReasoningFormat | None:
    """Find known tokens that separate reasoning from text in a vocabulary. Returns None if it has
    none."""
    if all(tokenizer.id_of(token) is not None for token in _HARMONY):
        return HARMONY_REASONING
    for begin, end, label in _TAGS:
        if tokenizer.id_of(begin) is not None and tokenizer.id_of(end) is not None:
            return ReasoningFormat(begin, end, label)
    return None


def is_reasoning_open(
    syntax: ReasoningFormat | None, tokenizer: Tokenizer, header: Sequence[int]
) -> bool:
    """Whether output that follows the ids `header`, which open the assistant's turn, begins within
    reasoning."""
    if syntax is None or syntax.is_harmony:
        return False
    marks = {tokenizer.id_of(syntax.begin): True, tokenizer.id_of(syntax.end): False}
    return next((marks[id] for id in reversed(header) if id in marks), False)


def make_splitter(
    syntax: ReasoningFormat | None, tokenizer: Tokenizer, *, starts_in_reasoning: bool
) -> ChannelSplitter | None:
    """Make the splitter of one turn. Returns None if all output is text."""
    if syntax is None:
        return None
    if syntax.is_harmony:
        return _HarmonySplitter(tokenizer)
    begin, end = tokenizer.id_of(syntax.begin), tokenizer.id_of(syntax.end)
    assert begin is not None, "the format was found in the vocabulary"
    assert end is not None, "the format was found in the vocabulary"
    return _TagSplitter(begin, end, is_reasoning=starts_in_reasoning)


class _TagSplitter:
    """Splits output at the ids of a begin and an end token."""

    def __init__(self, begin: int, end: int, *, is_reasoning: bool) -> None:
        self._begin = begin
        self._end = end
        self._channel = OutputChannel("reasoning") if is_reasoning else TEXT

    def push(self, ids: Sequence[int]) -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for at, id in enumerate(ids):
            if id != self._begin and (id != self._end or self._channel.kind != "reasoning"):
                continue
            if start < at:
                segments.append(Segment(self._channel, list(ids[start:at])))
            if id == self._begin and self._channel.kind != "reasoning":
                self._channel = OutputChannel("reasoning")
            segments.append(Segment(self._channel, [id], is_markup=True))
            if id == self._end:
                self._channel = OutputChannel("text")
            start = at + 1
        if start < len(ids):
            segments.append(Segment(self._channel, list(ids[start:])))
        return segments


class _HarmonySplitter:
    """Splits the messages of a Harmony conversation. The output begins within the header of a
    message, after the assistant's role."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = tokenizer.id_of("<|start|>")
        self._message = tokenizer.id_of("<|message|>")
        self._ends = {tokenizer.id_of(token) for token in _HARMONY_ENDS} - {None}
        self._header: list[int] | None = []
        """Ids of the header so far; None outside of headers."""
        self._channel = TEXT

    def push(self, ids: Sequence[int]) -> list[Segment]:
        segments: list[Segment] = []
        for id in ids:
            is_markup = self._header is not None or id == self._start or id in self._ends
            last = segments[-1] if segments else None
            if last and last.channel is self._channel and last.is_markup == is_markup:
                last.ids.append(id)
            else:
                segments.append(Segment(self._channel, [id], is_markup=is_markup))
            self._advance(id)
        return segments

    def _advance(self, id: int) -> None:
        if id == self._start:
            self._header, self._channel = [], OutputChannel("text")
        elif self._header is not None and id == self._message:
            self._channel, self._header = self._read_header(self._header), None
        elif self._header is not None:
            self._header.append(id)

    def _read_header(self, ids: Sequence[int]) -> OutputChannel:
        header = self._tokenizer.decode(ids, skip_special=False)
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            return OutputChannel("call", recipient[1])
        name = header.partition("<|channel|>")[2].strip()
        return OutputChannel("reasoning" if name.startswith("analysis") else "text")


class DecodedSegment(msgspec.Struct, frozen=True, gc=False):
    """Consecutive ids of one channel, and the text that they complete."""

    channel: OutputChannel
    ids: list[int]
    text: str


class OutputDecoder:
    """Decodes the output of one turn, channel by channel."""

    def __init__(self, detokenizer: Detokenizer, splitter: ChannelSplitter | None) -> None:
        self._detokenizer = detokenizer
        self._splitter = splitter
        self._channel = TEXT

    @property
    def is_text_alone(self) -> bool:
        """Whether all output is text, so that `push_text` may be used in place of `push`."""
        return self._splitter is None

    def push_text(self, ids: Sequence[int]) -> str:
        return self._detokenizer.push(ids)

    def push(self, ids: Sequence[int]) -> Iterator[DecodedSegment]:
        if self._splitter is None:
            yield DecodedSegment(TEXT, list(ids), self._detokenizer.push(ids))
            return
        for segment in self._splitter.push(ids):
            if segment.channel is not self._channel or segment.is_markup:
                yield from self.flush()
            self._channel = segment.channel
            text = "" if segment.is_markup else self._detokenizer.push(segment.ids)
            yield DecodedSegment(segment.channel, segment.ids, text)

    def flush(self) -> Iterator[DecodedSegment]:
        """Yield the text held back because it ends within a character."""
        if rest := self._detokenizer.flush():
            yield DecodedSegment(self._channel, [], rest)


class SpokenTextDecoder:
    """Decodes only the text of the output, without reasoning and calls."""

    def __init__(self, decoder: OutputDecoder) -> None:
        self._decoder = decoder
        self._channel: OutputChannel | None = None

    def push(self, ids: Sequence[int]) -> str:
        pieces: list[str] = []
        for segment in self._decoder.push(ids):
            if segment.channel.kind == "text" and segment.text:
                if self._channel not in (None, segment.channel):
                    pieces.append(_CHANNEL_BREAK)
                self._channel = segment.channel
                pieces.append(segment.text)
        return "".join(pieces)
