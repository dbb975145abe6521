"""Bounds on the text of a request, checked in characters before it is tokenized. Pure.

A text of n characters is at least n / L tokens, where L is the number of characters of the longest
token. If that is more than the context holds, the request is refused without being tokenized.
"""

import contextlib
from collections.abc import Generator, Iterable, Sequence

import msgspec

from continuo.engine import ChatTemplate, EngineReady, TooLong
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.errors import Refusal, context_length_exceeded
from continuo.realtime.limits import REQUEST_CHARS_MAX, TOOL_DEPTH_MAX
from continuo.realtime.protocol.commands import CreateSessionResponse, FieldNames
from continuo.realtime.protocol.complexity_limits import count_depth
from continuo.realtime.protocol.items import FunctionCallItem, Item, ItemReference
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.protocol.validation import invalid_parameter


class TextLimits(msgspec.Struct, frozen=True):
    context_tokens: int
    token_chars_max: int | None
    """Characters of the longest token; None if the tokenizer has no known bound."""

    @classmethod
    def for_model(cls, ready: EngineReady, template: ChatTemplate) -> "TextLimits":
        return cls(ready.max_model_len, template.token_chars_max)

    @property
    def request_tokens_max(self) -> int:
        """Maximum number of tokens of one request; above it, tokenization stops and the request is
        refused. Twice the context, for two reasons: a chat template may shorten earlier messages,
        and the refusal of a request that is only slightly too long contains its exact number of
        tokens."""
        return 2 * self.context_tokens

    def count_tokens_min(self, chars: int) -> int:
        """Compute the least number of tokens that a text of `chars` characters can have."""
        return 0 if self.token_chars_max is None else -(-chars // self.token_chars_max)

    def check(self, chars: int, param: str) -> None:
        """Check texts of `chars` characters in total against the context of the model. Raises
        Refusal, which names the field `param`."""
        if chars > REQUEST_CHARS_MAX:
            raise Refusal(
                f"The texts of this request are {chars:,} characters together ('{param}'); the "
                f"limit is {REQUEST_CHARS_MAX:,}.",
                code="string_above_max_length",
                param=param,
            )
        if self.count_tokens_min(chars) > self.context_tokens:
            raise context_length_exceeded(
                self.context_tokens,
                f"'{param}' is {chars:,} characters of text, at least "
                f"{self.count_tokens_min(chars):,} tokens.",
                param,
            )

    def check_head(self, settings: GenerationSettings, names: FieldNames) -> None:
        """Check instructions and tools. Raises Refusal, which names the larger of the two, or the
        tools if one is nested too deeply."""
        for tool in settings.tools:
            depth = count_depth(tool.parameters)
            if depth > TOOL_DEPTH_MAX:
                raise invalid_parameter(
                    names.tools,
                    f"the parameters of the function {tool.name!r} have {depth} objects and arrays "
                    f"within each other; the limit is {TOOL_DEPTH_MAX}.",
                    code="invalid_function_parameters",
                )
        chars = count_head_chars(settings)
        is_mostly_instructions = len(settings.instructions) * 2 >= chars
        self.check(chars, names.instructions if is_mostly_instructions else names.tools)

    def check_input(self, settings: GenerationSettings, items: Sequence[Item], param: str) -> None:
        """Check instructions, tools and items of a request. With truncation, each single item has
        to fit together with instructions and tools; without it, all items have to. Raises
        Refusal, also for a call whose arguments are nested too deeply."""
        check_call_depths(items, param)
        head = count_head_chars(settings)
        sizes = [count_chars(item) for item in items]
        if settings.truncation.mode == "disabled":
            self.check(head + sum(sizes), param)
            return
        if head + sum(sizes) > REQUEST_CHARS_MAX:
            self.check(head + sum(sizes), param)
        self.check(head + max(sizes, default=0), param)

    def check_response(self, settings: GenerationSettings, context: Sequence[Item]) -> None:
        """Check the settings of a session's response and its own input items (`context`), which are
        never truncated. Raises Refusal."""
        names = CreateSessionResponse.field_names
        check_call_depths(context, names.input)
        self.check_head(settings, names)
        self.check(count_head_chars(settings) + sum(map(count_chars, context)), names.input)

    def count_visible_items(self, items: Sequence[Item]) -> int:
        """Return an upper bound on the number of newest items that the context window can hold,
        estimated from their length in characters."""
        tokens = 0
        for count, item in enumerate(reversed(items), 1):
            tokens += self.count_tokens_min(count_chars(item))
            if tokens > self.request_tokens_max:
                return count
        return len(items)


def inline_items(items: Iterable[Item | ItemReference]) -> list[Item]:
    """Return the items of a request without its references to existing items."""
    return [item for item in items if not isinstance(item, ItemReference)]


def check_call_depths(items: Iterable[Item], param: str) -> None:
    """Raise Refusal if the arguments of a call are nested too deeply for a chat template."""
    for item in items:
        if isinstance(item, FunctionCallItem):
            depth = count_depth(item.arguments)
            if depth > TOOL_DEPTH_MAX:
                raise invalid_parameter(
                    param,
                    f"the arguments of the call '{item.call_id[:200]}' have {depth} objects and "
                    f"arrays within each other; the limit is {TOOL_DEPTH_MAX}.",
                )


@contextlib.contextmanager
def refuse_if_too_long(param: str, context_tokens: int) -> Generator[None]:
    """Turn TooLong into a Refusal that names the field `param`."""
    try:
        yield
    except TooLong as error:
        raise context_length_exceeded(
            context_tokens, f"'{param}': {error.message}.", param
        ) from error
