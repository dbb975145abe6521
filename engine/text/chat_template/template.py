"""A conversation as ids, made from its new messages alone.

    head                message(None, m)    message("user", m)          answer("user")   sampled ...
    ├─ BOS, system, ────┼─ opening content ─┼─ rest? opening content ───┼─ rest? header ─┼─────────
       tools               closing             closing

How a chat template joins messages is found by trying (`Seams`). Some templates change what they
wrote before (Qwen3 drops old reasoning, Mistral moves tools and system text to the last question).
`extend` says from which message on, and gives the ids from there: an explicit rewind.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from continuo.engine.text.chat_template.message import (
    ChatMessage,
    ChatRole,
    ToolCall,
    ToolDefinition,
)
from continuo.engine.text.chat_template.probe import (
    PROBE_CALL,
    PROBE_SYSTEM,
    PROBE_TOOL_RESULT,
    PROBE_USER,
    TemplateProbe,
)
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.text.tool_format import ToolFormat, detect_format
from continuo.engine.text.tool_grammar import CallableTool, ToolCallRules, build_tool_grammar
from continuo.engine.wire.messages import Grammar

_PROBE_TOOL_DEFINITION: ToolDefinition = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "", "parameters": {"type": "object"}},
}


class ConversationExtension(msgspec.Struct, frozen=True):
    """What a conversation becomes when messages are added."""

    kept_messages: int
    """Messages of the history whose ids stay. Less than all: rewind to the end of these."""
    segments: list[list[int]]
    """The ids of each message from there on. Empty if they cannot be told from the next one's."""
    header: list[int]
    """What opens the assistant's turn, if that was asked for."""

    @property
    def ids(self) -> list[int]:
        """All that follows the kept messages."""
        return [id for segment in (*self.segments, self.header) for id in segment]


class ChatTemplate:
    """Append-stable rendering: a conversation is the concatenation of segments, each made from new
    messages alone. Control tokens come from the template only, never from what people write."""

    is_append_stable: bool
    """Whether `head`, `message` and `answer` are exact. False: the template changes what it wrote
    before, or looks further back than one message; `extend` is exact all the same."""
    supports_tools: bool
    """Whether tools given to the template appear in what it writes."""
    tool_format: ToolFormat | None
    """How the model writes calls; None: the template does not show it."""

    def __init__(
        self, renderer: TemplateRenderer, tokenizer: Tokenizer, stop_ids: Sequence[int]
    ) -> None:
        """Raises ModelError if it is no template of conversations."""
        self._renderer = renderer
        self._tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = tuple(stop_ids)
        self._probe = TemplateProbe(renderer, tokenizer)
        self._is_short_view_exact: bool | None = None
        """Whether `_short_view` is exact; None: not probed yet."""
        self._is_question_view_exact = self._probe_question_view()
        self.is_append_stable = self._probe_append_stability()
        self.supports_tools = "probe_tool" in (
            renderer.try_render([PROBE_USER], [_PROBE_TOOL_DEFINITION]) or ""
        )
        called = (renderer.try_render([PROBE_USER, PROBE_CALL]) or "").partition(
            PROBE_USER.content
        )[2]
        self.tool_format = detect_format(called, PROBE_CALL.tool_calls[0].name)

    @property
    def token_chars_max(self) -> int | None:
        """See `Tokenizer`."""
        return self._tokenizer.token_chars_max

    def build_tool_grammar(
        self, tools: Sequence[CallableTool], rules: ToolCallRules
    ) -> Grammar | None:
        """The grammar of an answer that may or must call one of `tools`; None if the template does
        not show how the model calls. Raises SchemaError."""
        if self.tool_format is None:
            return None
        return build_tool_grammar(self.tool_format, tools, self._tokenizer.id_of, rules)

    # --- the exact way ---

    def extend(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage] = (),
        tools: Sequence[ToolDefinition] = (),
        *,
        with_header: bool = False,
        is_sampled: bool = False,
    ) -> ConversationExtension:
        """What a conversation of `history` becomes when `new` is added, and with `answer` the
        header of the assistant's turn: exactly the ids that rendering the whole would give.

        A system message is the first of `history` or `new`. `sampled`: the last message of the
        history was drawn by the model behind the header, and closed with `ending`; its ids stay as
        they are unless the template revises it. Looks back only to the last user message, unless
        the template depends on more. A message the template refuses at this place (two questions
        in a row, where it wants them to alternate) stands as after another one.
        """
        for skipped, front, view in self._iter_views(history, new):
            found = self._extend_view(view, new, tools, with_header, is_sampled)
            if found is None:
                break
            if found.kept_messages > front or not skipped:
                return msgspec.structs.replace(found, kept_messages=found.kept_messages + skipped)
        return self._extend_one_by_one(history, new, tools, with_header)

    def find_first_revised(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        is_sampled: bool = False,
    ) -> int | None:
        """The first message of `history` whose ids change when `new` is added; None: none does."""
        keep = self.extend(history, new, tools, is_sampled=is_sampled).kept_messages
        return keep if keep < len(history) else None

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The whole conversation at once: slow and obvious, what the segments must add up to.
        Raises BadRequest if the template refuses it."""
        text = self._renderer.render(messages, tools, add_generation_prompt)
        return self._tokenizer.encode_marked(text)

    # --- one segment at a time, in a time that does not depend on the conversation: exact if
    # `append_stable`, but for the border between the results of several calls ---

    def encode_head(self, system: str | None, tools: Sequence[ToolDefinition] = ()) -> list[int]:
        """What stands before the first message (BOS, system message, tools); the beginning of any
        conversation with them, so that it can be computed before anything is said."""
        return self._tokenizer.encode_marked(self._probe.render_head(system, tools))

    def encode_message(
        self,
        previous: ChatRole | None,
        message: ChatMessage,
        *,
        system: str | None = None,
        tools: Sequence[ToolDefinition] = (),
    ) -> list[int]:
        """A whole message as it stands after one of role `previous` (None: right after the head;
        then `system` and `tools` are what the head was given: some templates write them into the
        first message). Raises BadRequest if the template has no place for such a message."""
        if previous is None:
            text = self._probe.render_first(message, system, tools)
        else:
            text = self._probe.render_after(previous, message)
        return self._tokenizer.encode_marked(
            self._probe.strip_unsettled(text, message.role), is_continuation=True
        )

    def encode_header(self, previous: ChatRole | None) -> list[int]:
        """The header that opens the assistant's turn."""
        return self._tokenizer.encode(
            self._probe.render_after(previous or "user", None), is_continuation=True
        )

    def encode_ending(self, sampled: Sequence[int]) -> list[int]:
        """What is still missing after these sampled ids to close the assistant's message, before
        the next segment."""
        closing = self._tokenizer.encode(self._probe.closing("assistant"), is_continuation=True)
        for length in range(min(len(closing), len(sampled)), 0, -1):
            if list(sampled[-length:]) == closing[:length]:
                return closing[length:]
        if not sampled or sampled[-1] not in self.stop_ids:
            return closing
        # Another stop id (end of text, end of a tool call) has taken the terminator's place.
        stops = [at for at, id in enumerate(closing) if id in self.stop_ids]
        return closing[stops[0] + 1 :] if stops else closing

    # --- extending ---

    def _iter_views(
        self, history: Sequence[ChatMessage], new: Sequence[ChatMessage]
    ) -> Iterator[tuple[int, int, Sequence[ChatMessage]]]:
        """Ever longer views of the history: (messages left out, messages in front of those, what is
        seen). A new question may change all that follows the one before, so it sees all of that;
        anything else is laid out in a time that does not depend on how many calls there were."""
        lead, question = _find_last_question(history)
        asks = any(message.role == "user" for message in new)
        short = None
        if not asks and self._can_use_short_view(len(history)):
            short = _short_view(history, lead, question)
        if short is not None and self._renderer.try_render([*short[0], *new]) is not None:
            view, front = short
            yield len(history) - len(view), front, view
        if self._is_question_view_exact and question is not None:
            yield question - lead, lead, [*history[:lead], *history[question:]]
        yield 0, lead, history

    def _extend_view(
        self,
        past: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        answer: bool,
        sampled: bool,
    ) -> ConversationExtension | None:
        """None: the template refuses the conversation."""
        whole = self._render_settled([*past, *new], tools, answer)
        if whole is None:
            return None
        keep, start = len(past), self._find_kept_sampled(past, tools, whole) if sampled else None
        if start is None:
            logged = past[:-1] if sampled else past
            keep, start = self._find_kept(logged, tools, whole)
        return self._encode_segments([*past, *new], keep, tools, whole, start)

    def _find_kept(
        self, logged: Sequence[ChatMessage], tools: Sequence[ToolDefinition], whole: str
    ) -> tuple[int, int]:
        """How many messages of what was written before stand in `whole` as they were, and where
        they end in it."""
        was = self._render_settled(logged, tools) or ""
        return next(
            (keep, len(before))
            for keep in range(len(logged), -1, -1)
            if (before := self._render_settled(logged[:keep], tools)) is not None
            and was.startswith(before)
            and self._is_clean_prefix(before, whole)
        )

    def _find_kept_sampled(
        self, past: Sequence[ChatMessage], tools: Sequence[ToolDefinition], whole: str
    ) -> int | None:
        """Where a last message that was sampled ends in `whole`, if that holds it, and all before
        it, unchanged: as it would be written now, or as it was said, word for word."""
        before, answer = past[:-1], past[-1]
        if not whole.startswith(self._render_settled(before, tools) or ""):
            return None
        written = self._render_settled(past, tools)
        header = self._render_settled(before, tools, answer=True) or ""
        said = (
            header
            + self._renderer.mark_lookalikes(answer.content)
            + self._probe.closing("assistant")
        )
        for text in (written, said):
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
        """The ids of whole[start:], parted where one message ends and the next begins."""
        segments: list[list[int]] = []
        for end in range(keep + 1, len(messages) + 1):
            upto = self._render_settled(messages[:end], tools)
            stop = len(upto) if upto is not None and self._is_clean_prefix(upto, whole) else start
            segments.append(
                self._tokenizer.encode_marked(whole[start:stop], is_continuation=start > 0)
            )
            start = max(start, stop)
        rest = self._tokenizer.encode_marked(whole[start:], is_continuation=start > 0)
        return ConversationExtension(kept_messages=keep, segments=segments, header=rest)

    def _is_clean_prefix(self, before: str, whole: str) -> bool:
        """Whether `before` begins `whole`, in text and in ids."""
        return whole.startswith(before) and self._tokenizer.splits_cleanly_at(whole, len(before))

    def _render_settled(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], answer: bool = False
    ) -> str | None:
        """The text of a conversation as far as it is certain whatever follows. None: refused."""
        if not messages:
            return self._probe.render_after("user", None) if answer else ""
        text = self._renderer.try_render(messages, tools, answer)
        return (
            text if text is None or answer else self._probe.strip_unsettled(text, messages[-1].role)
        )

    def _extend_one_by_one(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        answer: bool,
    ) -> ConversationExtension:
        """For conversations the template refuses as a whole."""
        previous: ChatRole | None = history[-1].role if history else None
        system: str | None = None
        segments: list[list[int]] = []
        for message in new:
            if previous is None and message.role == "system" and system is None:
                system = message.content
                segments.append(self.encode_head(system, tools))
                continue
            head = self.encode_head(None, tools) if previous is None and system is None else []
            segments.append(
                head + self.encode_message(previous, message, system=system, tools=tools)
            )
            previous = message.role
        header = self.encode_header(previous) if answer else []
        return ConversationExtension(kept_messages=len(history), segments=segments, header=header)

    def _probe_question_view(self) -> bool:
        """Whether looking back to the last user message gives what looking at everything gives."""
        self._is_question_view_exact = True
        return all(
            self.extend(past, new, tools) == self._extend_view(past, new, tools, False, False)
            for past, new, tools in self._iter_probes()
        )

    def probe_short_view(self) -> None:
        """Find out now, in some tenths of a second, what a first long history would have to wait
        for."""
        self._can_use_short_view(LONG_HISTORY_MESSAGES)

    def _can_use_short_view(self, messages: int) -> bool:
        """Whether the short view of a history of so many messages is exact, and worth knowing."""
        if self._is_short_view_exact is None and messages >= LONG_HISTORY_MESSAGES:
            self._is_short_view_exact = self._probe_short_view()
        return self._is_short_view_exact or False

    def _probe_short_view(self) -> bool:
        """Whether of a long run of calls and results behind a question the last few are enough."""
        self._is_short_view_exact = True
        return all(
            self.extend(past, new, tools, with_header=answer, is_sampled=sampled)
            == self._extend_view(past, new, tools, answer, sampled)
            for past, new, tools in self._iter_probes_of(_iter_probe_runs(), _omits_messages)
            for answer, sampled in _iter_extension_modes(past)
        )

    def _probe_append_stability(self) -> bool:
        for past, new, tools in self._iter_probes():
            before, message = past[-1].role, new[0]
            if before == "system" or message.role == "assistant":
                continue
            found = self.extend(past, new, tools, is_sampled=before == "assistant")
            if found.kept_messages < len(past) or found.ids != self.encode_message(before, message):
                return False
        return True

    def _iter_probes(
        self,
    ) -> Iterator[tuple[Sequence[ChatMessage], Sequence[ChatMessage], Sequence[ToolDefinition]]]:
        yield from self._iter_probes_of(_iter_probe_conversations())

    def _iter_probes_of(
        self,
        conversations: Iterable[tuple[ChatMessage, ...]],
        wanted: Callable[[Sequence[ChatMessage], ChatMessage], bool] = lambda past, new: True,
    ) -> Iterator[tuple[Sequence[ChatMessage], Sequence[ChatMessage], Sequence[ToolDefinition]]]:
        """History, new message and tools, of those that the template allows, where `wanted`."""
        for messages in conversations:
            ats = [at for at in range(1, len(messages)) if wanted(messages[:at], messages[at])]
            for tools in ((), (_PROBE_TOOL_DEFINITION,)):
                for at in ats:
                    if self._renderer.try_render(messages[: at + 1], tools) is not None:
                        yield messages[:at], messages[at : at + 1], tools


LONG_HISTORY_MESSAGES = 32
"""A history of fewer is laid out from all of it, until the template is probed."""
_SHORT_VIEW_TAIL = 2
"""Messages at the end of a history that a short view holds."""


def _find_last_question(history: Sequence[ChatMessage]) -> tuple[int, int | None]:
    """How many system messages stand in front, and where the last user's message is behind the
    first message; None: there is none."""
    lead = 1 if history and history[0].role == "system" else 0
    ats = range(len(history) - 1, lead, -1)
    return lead, next((at for at in ats if history[at].role == "user"), None)


def _omits_messages(past: Sequence[ChatMessage], new: ChatMessage) -> bool:
    """Whether a short view of the past leaves messages out."""
    return new.role != "user" and _short_view(past, *_find_last_question(past)) is not None


def _short_view(
    history: Sequence[ChatMessage], lead: int, question: int | None
) -> tuple[list[ChatMessage], int] | None:
    """The last user's message (else the first one), the last of the assistant's before the end, and
    the end; and how many messages stand before the end. None: that is all there is."""
    end = len(history) - _SHORT_VIEW_TAIL
    begins = lead if question is None else question
    ats = range(end - 1, begins, -1)
    caller = next((at for at in ats if history[at].role == "assistant"), None)
    front = [*range(lead), begins, *([] if caller is None else [caller])]
    if end <= begins + len(front) - lead:
        return None
    return [*(history[at] for at in front), *history[end:]], len(front)


def _iter_extension_modes(past: Sequence[ChatMessage]) -> Iterator[tuple[bool, bool]]:
    """How a conversation may be extended: (with a header, behind sampled ids)."""
    for sampled in (False, True) if past[-1].role == "assistant" else (False,):
        yield False, sampled
        yield True, sampled


def _iter_probe_runs() -> Iterator[tuple[ChatMessage, ...]]:
    """Long runs of calls and results, every content different."""

    def call(*numbers: int) -> ChatMessage:
        made = tuple(
            ToolCall(name=f"look{n}", arguments=f'{{"a": {n}}}', id=f"call{n:05}") for n in numbers
        )
        return ChatMessage(role="assistant", tool_calls=made)

    def result(n: int) -> ChatMessage:
        return ChatMessage(role="tool", content=f"found {n}", tool_call_id=f"call{n:05}")

    said = [
        ChatMessage(role=role, content=f"said {at}")
        for at, role in enumerate(("user", "assistant", "user", "assistant"))
    ]
    thought = ChatMessage(role="assistant", content="<think>\nreason\n</think>\n\nsaid 9")
    in_turn = [message for n in range(4) for message in (call(n), result(n))]
    at_once = [call(*range(5)), *(result(n) for n in range(5))]
    for run in (in_turn, at_once, [*at_once, *in_turn], [thought, *in_turn], [said[1]] * 5):
        for before in ([], said[:1], said[:3]):
            yield (*before, *run, said[3], said[2])
            yield (PROBE_SYSTEM, *before, *run, said[3])


def _iter_probe_conversations() -> Iterator[tuple[ChatMessage, ...]]:
    """Conversations long enough to show what a template depends on, every content different."""
    said = [
        ChatMessage(role=role, content=f"said {at}")
        for at, role in enumerate(("user", "assistant", "user", "assistant", "user", "assistant"))
    ]
    thought = ChatMessage(role="assistant", content="<think>\nreason\n</think>\n\nsaid 3")
    with_calls = [*said[:3], PROBE_CALL, PROBE_TOOL_RESULT, *said[3:]]
    for messages in (said, [*said[:3], thought, *said[4:]], with_calls):
        yield tuple(messages)
        yield (PROBE_SYSTEM, *messages)
