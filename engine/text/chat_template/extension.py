"""Extension of a conversation: the ids of new messages after a history, or a view of it.

The whole is rendered, and the text of the messages that it keeps unchanged is cut off. What a view
is, see `template`.
"""

from collections.abc import Sequence

import msgspec

from continuo.engine.text.chat_template.message import ChatMessage, ToolDefinition
from continuo.engine.text.chat_template.probe import TemplateProbe
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_SHORT_VIEW_TAIL = 2
"""Number of messages at the end of a history that its short view always contains (see
`short_view`)."""


class ConversationExtension(msgspec.Struct, frozen=True):
    """The change of a conversation's ids when messages are added."""

    kept_messages: int
    """Number of messages of the history, from its beginning, whose ids stay the same. If this is
    less than all, the caller rewinds the token log to the end of these messages."""
    segments: list[list[int]]
    """Ids of each message after the kept ones, one list per message. If the ids of a message cannot
    be separated from those of the next one, its list is empty, and the next list (or `header`)
    contains both."""
    header: list[int]
    """The ids that open the assistant's turn, if requested."""

    @property
    def ids(self) -> list[int]:
        """Ids after the kept messages: those of all `segments`, then `header`."""
        return [id for segment in (*self.segments, self.header) for id in segment]


class Extender:
    """Renders a history, or a view of it, together with new messages, and finds the ids of what is
    new."""

    def __init__(
        self, renderer: TemplateRenderer, tokenizer: Tokenizer, probe: TemplateProbe
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._probe = probe

    def extend_view(
        self,
        past: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        with_header: bool,
        is_sampled: bool,
    ) -> ConversationExtension | None:
        """Extend `past`, the history or a view of it, by the messages `new`: render both together,
        and find the ids after the kept messages of `past`. The options are those of `extend`.
        Returns None if the template refuses this conversation."""
        whole = self.render_settled([*past, *new], tools, with_header=with_header)
        if whole is None:
            return None
        keep, start = len(past), self._find_kept_sampled(past, tools, whole) if is_sampled else None
        if start is None:
            rendered_past = past[:-1] if is_sampled else past
            keep, start = self._find_kept(rendered_past, tools, whole)
        return self._encode_segments([*past, *new], keep, tools, whole, start)

    def _find_kept(
        self, past: Sequence[ChatMessage], tools: Sequence[ToolDefinition], whole: str
    ) -> tuple[int, int]:
        """Count the messages of `past` that appear unchanged in `whole`.

        Returns the count and the offset in `whole` at which those messages end.
        """
        text = self.render_settled(past, tools) or ""
        return next(
            (keep, len(before))
            for keep in range(len(past), -1, -1)
            if (before := self.render_settled(past[:keep], tools)) is not None
            and text.startswith(before)
            and self._is_clean_prefix(before, whole)
        )

    def _find_kept_sampled(
        self, past: Sequence[ChatMessage], tools: Sequence[ToolDefinition], whole: str
    ) -> int | None:
        """Find where the last message of `past`, which was sampled, ends in `whole`.

        Returns None unless `whole` contains all of `past` unchanged, with the sampled message
        either as the template renders it now or exactly as it was sampled.
        """
        before, message = past[:-1], past[-1]
        before_text = self.render_settled(before, tools) or ""
        if not whole.startswith(before_text):
            return None
        rendered = self.render_settled(past, tools)
        sampled = None
        if message.reasoning and self._renderer.reasoning_format is not None:
            if message.reasoning not in (rendered or "")[len(before_text) :]:
                rendered = None  # the template leaves out the reasoning, which was sampled
        else:
            header = self.render_settled(before, tools, with_header=True) or ""
            sampled = (
                header
                + self._renderer.mark_lookalikes(message.content)
                + self._probe.closing("assistant")
            )
        for text in (rendered, sampled):
            if text is not None and self._is_clean_prefix(text, whole):
                return len(text)
        return None

    def _encode_segments(
        self,
        messages: Sequence[ChatMessage],
        keep: int,
        tools: Sequence[ToolDefinition],
        whole: str,
        start: int,
    ) -> ConversationExtension:
        """Tokenize whole[start:], the text after the first `keep` messages, into one segment per
        message and the header."""
        segments: list[list[int]] = []
        for end in range(keep + 1, len(messages) + 1):
            upto = self.render_settled(messages[:end], tools)
            stop = len(upto) if upto is not None and self._is_clean_prefix(upto, whole) else start
            segments.append(
                self._tokenizer.encode_marked(whole[start:stop], is_continuation=start > 0)
            )
            start = max(start, stop)
        rest = self._tokenizer.encode_marked(whole[start:], is_continuation=start > 0)
        return ConversationExtension(kept_messages=keep, segments=segments, header=rest)

    def _is_clean_prefix(self, before: str, whole: str) -> bool:
        """Whether `before` is a prefix of `whole`, in text and in ids."""
        return whole.startswith(before) and self._tokenizer.splits_cleanly_at(whole, len(before))

    def render_settled(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        with_header: bool = False,
    ) -> str | None:
        """Render a conversation without the ending of its last message that depends on the next
        message.

        Returns None if the template refuses the conversation.
        """
        if not messages:
            return self._probe.render_after("user", None) if with_header else ""
        text = self._renderer.try_render(messages, tools, add_generation_prompt=with_header)
        if text is None or with_header:
            return text
        return self._probe.strip_unsettled(text, messages[-1].role)


def find_last_question(history: Sequence[ChatMessage]) -> tuple[int, int | None]:
    """Find where the question view of a history begins. Returns the number of leading system
    messages (0 or 1), and the index of the last user message, or None if no messages before it
    could be left out: the history has no user message but the first message after the system
    message."""
    system_messages = 1 if history and history[0].role == "system" else 0
    indices = range(len(history) - 1, system_messages, -1)
    return system_messages, next((at for at in indices if history[at].role == "user"), None)


def short_view(
    history: Sequence[ChatMessage], system_messages: int, question: int | None
) -> tuple[list[ChatMessage], int] | None:
    """Build the short view of a history: the part that `extend` renders if no user message is
    added.

    The view consists of the leading system message, the last user message (index `question`; None:
    the first message instead), the last assistant message before the tail, and the tail (the last
    _SHORT_VIEW_TAIL messages). Returns the view, and the number of its messages before the tail;
    None if the view would omit no message.
    """
    tail = len(history) - _SHORT_VIEW_TAIL
    start = system_messages if question is None else question
    indices = range(tail - 1, start, -1)
    caller = next((at for at in indices if history[at].role == "assistant"), None)
    leading = [*range(system_messages), start, *([] if caller is None else [caller])]
    if tail <= start + len(leading) - system_messages:
        return None
    return [*(history[at] for at in leading), *history[tail:]], len(leading)
