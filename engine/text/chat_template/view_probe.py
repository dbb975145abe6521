"""Test conversations that prove whether the views of a chat template are exact.

`ChatTemplate` extends each from a view and from the whole history: a view is exact if the ids are
always the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from continuo.engine.text.chat_template.extension import find_last_question, short_view
from continuo.engine.text.chat_template.message import ChatMessage, ToolCall, ToolDefinition
from continuo.engine.text.chat_template.probe import PROBE_CALL, PROBE_SYSTEM, PROBE_TOOL_RESULT
from continuo.engine.text.chat_template.renderer import PROBE_TOOL, TemplateRenderer

Probe = tuple[Sequence[ChatMessage], Sequence[ChatMessage], Sequence[ToolDefinition]]
"""A history, new messages, and tools."""


def iter_probes(renderer: TemplateRenderer) -> Iterator[Probe]:
    return _iter_probes_of(renderer, iter_probe_conversations(), lambda _past, _new: True)


def iter_run_probes(renderer: TemplateRenderer) -> Iterator[Probe]:
    """Yield the probes of the short view: histories with long runs of tool calls and results."""
    return _iter_probes_of(renderer, _iter_probe_runs(), _omits_messages)


def _iter_probes_of(
    renderer: TemplateRenderer,
    conversations: Iterable[tuple[ChatMessage, ...]],
    is_relevant: Callable[[Sequence[ChatMessage], ChatMessage], bool],
) -> Iterator[Probe]:
    """Cut each conversation into a history and one new message; yield (history, [new message],
    tools), with and without tools, for every cut that is relevant and that the template
    accepts."""
    for messages in conversations:
        cuts = [at for at in range(1, len(messages)) if is_relevant(messages[:at], messages[at])]
        for tools in ((), (PROBE_TOOL,)):
            for at in cuts:
                if renderer.try_render(messages[: at + 1], tools) is not None:
                    yield messages[:at], messages[at : at + 1], tools


def _omits_messages(past: Sequence[ChatMessage], new: ChatMessage) -> bool:
    """Whether the message `new` can be added to a short view of the history `past`: `new` is not a
    user message, and the short view is shorter than `past`."""
    return new.role != "user" and short_view(past, *find_last_question(past)) is not None


def iter_extension_modes(past: Sequence[ChatMessage]) -> Iterator[tuple[bool, bool]]:
    """Yield the values of the options (with_header, is_sampled) of `ChatTemplate.extend` that are
    valid for the history `past`: `is_sampled` requires that its last message is the assistant's."""
    for is_sampled in (False, True) if past[-1].role == "assistant" else (False,):
        yield False, is_sampled
        yield True, is_sampled


def _iter_probe_runs() -> Iterator[tuple[ChatMessage, ...]]:
    """Yield test conversations with long runs of tool calls and results; all contents differ."""

    def call(*numbers: int) -> ChatMessage:
        tool_calls = tuple(
            ToolCall(name=f"look{n}", arguments=f'{{"a": {n}}}', id=f"call{n:05}") for n in numbers
        )
        return ChatMessage(role="assistant", tool_calls=tool_calls)

    def result(n: int) -> ChatMessage:
        return ChatMessage(role="tool", content=f"found {n}", tool_call_id=f"call{n:05}")

    plain = [
        ChatMessage(role=role, content=f"said {at}")
        for at, role in enumerate(("user", "assistant", "user", "assistant"))
    ]
    reasoning = ChatMessage(role="assistant", content="<think>\nreason\n</think>\n\nsaid 9")
    reasoned_apart = ChatMessage(role="assistant", content="said 9", reasoning="reason")
    sequential = [message for n in range(4) for message in (call(n), result(n))]
    parallel = [call(*range(5)), *(result(n) for n in range(5))]
    mixed, reasoned = [*parallel, *sequential], [reasoning, *sequential]
    apart = [reasoned_apart, *sequential]
    for run in (sequential, parallel, mixed, reasoned, apart, [plain[1]] * 5):
        for before in ([], plain[:1], plain[:3]):
            yield (*before, *run, plain[3], plain[2])
            yield (PROBE_SYSTEM, *before, *run, plain[3])


def iter_probe_conversations() -> Iterator[tuple[ChatMessage, ...]]:
    """Yield test conversations, long enough to show which earlier messages a template depends on;
    all contents differ."""
    plain = [
        ChatMessage(role=role, content=f"said {at}")
        for at, role in enumerate(("user", "assistant", "user", "assistant", "user", "assistant"))
    ]
    reasoning = ChatMessage(role="assistant", content="<think>\nreason\n</think>\n\nsaid 3")
    with_calls = [*plain[:3], PROBE_CALL, PROBE_TOOL_RESULT, *plain[3:]]
    with_calls_twice = [plain[0], PROBE_CALL, PROBE_TOOL_RESULT, plain[1], *with_calls[2:]]
    apart = ChatMessage(role="assistant", content="said 3", reasoning="reason")
    for messages in (
        plain,
        [*plain[:3], reasoning, *plain[4:]],
        [*plain[:3], apart, *plain[4:]],
        with_calls,
        with_calls_twice,
    ):
        yield tuple(messages)
        yield (PROBE_SYSTEM, *messages)
