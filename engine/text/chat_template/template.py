"""Tokenize a conversation incrementally: the ids of new messages, from those messages alone.

    encode_head         encode_message      encode_message              encode_header    sampled ...
                        (None, m)           ("user", m)                 ("user")
    ├─ BOS, system, ────┼─ opening content ─┼─ unsettled? opening ──────┼─ unsettled? ───┼─────────
       tools               closing             content closing             header

How a chat template joins messages is found by experiment (`TemplateProbe`). Some templates revise
text they rendered before (Qwen3 drops old reasoning, Mistral moves tools and system text to the
last user message). For these, `extend` returns an explicit rewind: how many messages keep their
ids, and the new ids after those.

`extend` renders a view of the history in place of the whole history, so that its time depends
little on the length of the conversation. A view is a list of some messages of the history:

    history         s u a u a u a t a t a t a t     (system, user, assistant, tool result)
    question view   s         u a t a t a t a t     from the last user message on
    short view      s         u         a   a t     without most of the tool calls and results

A view is exact if the ids of new messages after the view are those after the whole history. Whether
a template's views are exact is tested with test conversations; `extend` uses only exact views.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec

from continuo.engine.resident_cache import CacheSize
from continuo.engine.sampling import Grammar
from continuo.engine.text.chat_template.extension import (
    ConversationExtension,
    Extender,
    find_last_question,
    short_view,
)
from continuo.engine.text.chat_template.message import (
    ChatMessage,
    ChatRole,
    ToolDefinition,
)
from continuo.engine.text.chat_template.probe import (
    TemplateProbe,
)
from continuo.engine.text.chat_template.reasoning_probe import EffortSetting
from continuo.engine.text.chat_template.reasoning_variants import ReasoningVariants
from continuo.engine.text.chat_template.renderer import PROBE_TOOL, TemplateRenderer
from continuo.engine.text.chat_template.view_probe import (
    iter_extension_modes,
    iter_probe_conversations,
    iter_probes,
    iter_run_probes,
)
from continuo.engine.text.output_channels import ReasoningFormat, is_reasoning_open
from continuo.engine.text.reasoning_grammar import build_reasoning_grammar
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.text.tool_format import ToolFormat
from continuo.engine.text.tool_grammar import (
    CallableTool,
    ToolCallRules,
    build_tool_grammar,
    find_call_problem,
)

log = logging.getLogger(__name__)

LONG_HISTORY_MESSAGES = 32
"""Minimum number of messages of the history that triggers the test whether a template's short view
is exact (see `short_view`). Before that test, no history is rendered by its short view."""


class ChatTemplate:
    """A chat template that tokenizes a conversation segment by segment.

    Control tokens come from the template only, never from the contents of messages.
    """

    is_append_stable: bool
    """Whether `encode_head`, `encode_message` and `encode_header` return the same ids as rendering
    the whole conversation. False if the template revises text of earlier messages, or depends on
    more than one previous message; `extend` is exact nevertheless."""
    tool_format: ToolFormat | None
    """The syntax of tool calls; None if the template renders calls in an unknown syntax."""

    reasoning_format: ReasoningFormat | None
    """The tokens around reasoning; None if the vocabulary has none."""

    def __init__(
        self,
        renderer: TemplateRenderer,
        tokenizer: Tokenizer,
        stop_ids: Sequence[int],
        *,
        variants: "ReasoningVariants[ChatTemplate] | None" = None,
    ) -> None:
        """Probe the template. `variants`: those of which this is one; without, it is the base of
        its own. Raises ModelError if it does not render conversations."""
        self._variants = variants or ReasoningVariants(renderer, self)
        self.reasoning_format = renderer.reasoning_format
        self._renderer = renderer
        self._tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = tuple(stop_ids)
        self._probe = TemplateProbe(renderer, tokenizer)
        self._extender = Extender(renderer, tokenizer, self._probe)
        self._is_short_view_exact: bool | None = None
        """Whether the short view of a history (see `short_view`) is exact: new messages get the
        same ids after it as after the whole history. None: not tested yet."""
        self._has_needed_longer_view = False
        """Whether a view was exact but not enough: all of its messages were revised."""
        self._is_question_view_exact = self._probe_question_view()
        self.is_append_stable = self._probe_append_stability()
        self.tool_format = renderer.tool_format

    @property
    def renders_from_last_question(self) -> bool:
        """Whether `extend` renders no message before the last user message but the system message,
        as far as is known. If not, its time grows with the length of the conversation."""
        return self._is_question_view_exact and not self._has_needed_longer_view

    @property
    def renderings_size(self) -> CacheSize:
        """Size of the caches of rendered texts, of this template and all its variants."""
        sizes = [renderer.renderings_size for renderer in self._variants.renderers]
        return CacheSize(*map(sum, zip(*sizes, strict=True)))

    # --- reasoning ---

    @property
    def reasons(self) -> bool:
        """Whether the model reasons, as far as its template shows."""
        return self._variants.reasons

    def can_reason_with(self, effort: EffortSetting) -> bool:
        """Whether the template can set an effort. Any effort will do for a model that does not
        reason, as far as its template shows."""
        return self._variants.can_set(effort)

    def for_effort(self, effort: EffortSetting) -> "ChatTemplate":
        """Return the template with its options set for an effort; the same object each time. An
        effort that the template cannot set has no effect. The first call for an effort takes tenths
        of a second."""
        return self._variants.get(effort, self._create_variant)

    def _create_variant(self, renderer: TemplateRenderer) -> "ChatTemplate":
        return ChatTemplate(renderer, self._tokenizer, self.stop_ids, variants=self._variants)

    def prepare(self) -> None:
        """Test the template and its variant without reasoning, which every session uses, and log
        what of it is not supported. Call when the template is loaded; otherwise the first session
        waits some tenths of a second."""
        if self._renderer.marks_reasoning_by_words:
            log.warning(
                "the reasoning of this model is part of its text: its chat template marks it by "
                "words, not by tokens"
            )
        for variant in (self, self.for_effort("off")):
            variant.probe_short_view()
            variant.renders_messages_like(self)

    def renders_messages_like(self, other: "ChatTemplate") -> bool:
        """Whether both render all messages alike, so that only headers differ."""
        return self is other or self.probe_texts == other.probe_texts

    @cached_property
    def probe_texts(self) -> tuple[str | None, ...]:
        """The test conversations as rendered, without and with a tool; None where refused."""
        return tuple(
            self._renderer.try_render(messages, tools)
            for messages in iter_probe_conversations()
            for tools in ((), (PROBE_TOOL,))
        )

    def opens_reasoning(self, header: Sequence[int]) -> bool:
        """Whether the header `header` opens the reasoning, so that the output begins within it."""
        return is_reasoning_open(self.reasoning_format, self._tokenizer, header)

    def build_reasoning_grammar(
        self, body: Grammar | None, *, is_open: bool, tokens_max: int | None
    ) -> Grammar | None:
        """Build the grammar of a response that may reason before its body: at most `tokens_max`
        tokens, after which the end of the reasoning is forced. `body` None: any text. `is_open`:
        the header has opened the reasoning. Returns `body` if the vocabulary has no tokens around
        reasoning."""
        if self.reasoning_format is None or (body is None and tokens_max is None):
            return body
        return build_reasoning_grammar(
            self.reasoning_format,
            body,
            self._tokenizer.split_added_tokens,
            is_open=is_open,
            tokens_max=tokens_max,
        )

    @property
    def token_chars_max(self) -> int | None:
        """Maximum number of characters that one token can stand for. None if no such bound is
        known. See `Tokenizer.token_chars_max`."""
        return self._tokenizer.token_chars_max

    def build_tool_grammar(
        self, tools: Sequence[CallableTool], rules: ToolCallRules
    ) -> Grammar | None:
        """Build the grammar of a response that may or must call `tools`.

        Returns None if the template does not reveal the syntax of calls. Raises SchemaError.
        """
        if self.tool_format is None:
            return None
        return build_tool_grammar(
            self.tool_format, tools, self._tokenizer.split_added_tokens, rules
        )

    def find_call_problem(self, tool: CallableTool) -> str | None:
        """Explain in one line why calls of a tool cannot follow its schema in this template's
        syntax of calls. Returns None if they can, or if the template does not reveal the syntax."""
        if self.tool_format is None:
            return None
        return find_call_problem(self.tool_format, tool, self._tokenizer.split_added_tokens)

    # --- exact for every template ---

    def extend(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage] = (),
        tools: Sequence[ToolDefinition] = (),
        *,
        with_header: bool = False,
        is_sampled: bool = False,
    ) -> ConversationExtension:
        """Add the messages `new` to the conversation `history`, and with `with_header` the header
        of the assistant's turn. The ids are exactly those of rendering the whole conversation.

        A system message must be the first of the conversation. `is_sampled`: the last message of
        the history was sampled after the header and closed with `encode_ending`; its sampled ids
        are kept unless the template revises the message. Renders the history only from its last
        user message on, unless the template depends on more. A message that the template refuses in
        this position (a second user message in a row, where roles must alternate) is rendered as if
        it followed a message of another role.
        """
        for skipped, leading, view in self._iter_views(history, new):
            found = self._extender.extend_view(
                view, new, tools, with_header=with_header, is_sampled=is_sampled
            )
            if found is None:
                break
            if found.kept_messages > leading or not skipped:
                return msgspec.structs.replace(found, kept_messages=found.kept_messages + skipped)
            self._has_needed_longer_view = True
        return self._extend_one_by_one(history, new, tools, with_header=with_header)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Tokenize the whole conversation at once: the slow reference that tokenizing by segments
        must match.

        Raises BadRequest if the template refuses the conversation.
        """
        text = self._renderer.render(messages, tools, add_generation_prompt=add_generation_prompt)
        return self._tokenizer.encode_marked(text)

    # --- one segment at a time, in a time independent of the conversation's length: exact if
    # `is_append_stable`, except for consecutive results of several calls ---

    def encode_head(self, system: str | None, tools: Sequence[ToolDefinition] = ()) -> list[int]:
        """Tokenize the head: BOS, system message, tools.

        Every conversation with this system message and these tools begins with these ids, so their
        KV can be computed before the first message.
        """
        return self._tokenizer.encode_marked(self._probe.render_head(system, tools))

    def encode_message(
        self,
        previous: ChatRole | None,
        message: ChatMessage,
        *,
        system: str | None = None,
        tools: Sequence[ToolDefinition] = (),
    ) -> list[int]:
        """Tokenize a whole message that follows a message of role `previous`.

        `previous` None: directly after the head; `system` and `tools` are then those of the head,
        because some templates write them into the first message. Raises BadRequest if the template
        refuses such a message in every position.
        """
        if previous is None:
            text = self._probe.render_first(message, system, tools)
        else:
            text = self._probe.render_after(previous, message)
        return self._tokenizer.encode_marked(
            self._probe.strip_unsettled(text, message.role), is_continuation=True
        )

    def encode_header(self, previous: ChatRole | None) -> list[int]:
        """Tokenize the header that opens the assistant's turn."""
        return self._tokenizer.encode(
            self._probe.render_after(previous or "user", None), is_continuation=True
        )

    def encode_ending(self, sampled: Sequence[int]) -> list[int]:
        """Return the ids that close the assistant's message after its ids `sampled`, without
        closing ids that the model has already sampled."""
        closing = self._tokenizer.encode(self._probe.closing("assistant"), is_continuation=True)
        for length in range(min(len(closing), len(sampled)), 0, -1):
            if list(sampled[-length:]) == closing[:length]:
                return closing[length:]
        if not sampled or sampled[-1] not in self.stop_ids:
            return closing
        # Another stop id (end of text, end of a tool call) replaced the terminator.
        stops = [at for at, id in enumerate(closing) if id in self.stop_ids]
        return closing[stops[0] + 1 :] if stops else closing

    # --- extending ---

    def _iter_views(
        self, history: Sequence[ChatMessage], new: Sequence[ChatMessage]
    ) -> Iterator[tuple[int, int, Sequence[ChatMessage]]]:
        """Yield the views of the history that `extend` may render in place of the whole history,
        the shortest first; the last one is the whole history.

        Yields (number of messages that the view omits, number of messages of the view before the
        gap, view). The question view begins with the last user message, because a template may
        revise everything after that message when another user message is added. If no user message
        is added, the short view comes first: its length does not depend on the number of tool
        calls.
        """
        system_messages, question = find_last_question(history)
        adds_question = any(message.role == "user" for message in new)
        short = None
        if not adds_question and self._can_use_short_view(len(history)):
            short = short_view(history, system_messages, question)
        if short is not None and self._renderer.try_render([*short[0], *new]) is not None:
            view, leading = short
            yield len(history) - len(view), leading, view
        if self._is_question_view_exact and question is not None:
            view = [*history[:system_messages], *history[question:]]
            yield question - system_messages, system_messages, view
        yield 0, system_messages, history

    def _extend_one_by_one(
        self,
        history: Sequence[ChatMessage],
        new: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        with_header: bool,
    ) -> ConversationExtension:
        """Tokenize each new message separately, for conversations that the template refuses as a
        whole."""
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
        header = self.encode_header(previous) if with_header else []
        return ConversationExtension(kept_messages=len(history), segments=segments, header=header)

    def _probe_question_view(self) -> bool:
        """Test whether the question view (the history from its last user message on) is exact:
        whether new messages get the same ids after it as after the whole history."""
        self._is_question_view_exact = True
        return all(
            self.extend(past, new, tools)
            == self._extender.extend_view(past, new, tools, with_header=False, is_sampled=False)
            for past, new, tools in iter_probes(self._renderer)
        )

    def probe_short_view(self) -> None:
        """Test whether the short view is exact for this template, and keep the result for `extend`.
        Call when the template is loaded; otherwise the first conversation with a long history waits
        some tenths of a second for this test."""
        self._can_use_short_view(LONG_HISTORY_MESSAGES)

    def _can_use_short_view(self, messages: int) -> bool:
        """Whether the short view may replace a history of `messages` messages, because it is exact.
        Tests that when the first long history is extended; short histories do not gain from the
        view."""
        if self._is_short_view_exact is None and messages >= LONG_HISTORY_MESSAGES:
            self._is_short_view_exact = self._probe_short_view()
        return self._is_short_view_exact or False

    def _probe_short_view(self) -> bool:
        """Test whether the short view is exact: whether new messages get the same ids after it as
        after the whole history. The test histories have long runs of tool calls and results."""
        self._is_short_view_exact = True
        return all(
            self.extend(past, new, tools, with_header=with_header, is_sampled=is_sampled)
            == self._extender.extend_view(
                past, new, tools, with_header=with_header, is_sampled=is_sampled
            )
            for past, new, tools in iter_run_probes(self._renderer)
            for with_header, is_sampled in iter_extension_modes(past)
        )

    def _probe_append_stability(self) -> bool:
        for past, new, tools in iter_probes(self._renderer):
            before, message = past[-1].role, new[0]
            if before == "system" or message.role == "assistant":
                continue
            found = self.extend(past, new, tools, is_sampled=before == "assistant")
            if found.kept_messages < len(past) or found.ids != self.encode_message(before, message):
                return False
        return True
