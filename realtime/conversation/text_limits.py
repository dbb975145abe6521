"""Bounds on the text of a request, checked in characters before it is tokenized. Pure.

A text of n characters is at least n / (characters of the longest token) tokens. If these are more
than the context holds, the request is refused at no more cost than counting.
"""

import contextlib
from collections.abc import Generator, Iterable, Sequence

import msgspec

from continuo.engine import ChatTemplate, EngineReady, TooLong
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import REQUEST_CHARS_MAX
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.settings import GenerationSettings


class TextLimits(msgspec.Struct, frozen=True):
    context_tokens: int
    token_chars_max: int | None
    """Characters of the longest token; None if the tokenizer has no known bound."""

    @classmethod
    def for_model(cls, ready: EngineReady, template: ChatTemplate) -> "TextLimits":
        return cls(ready.max_model_len, template.token_chars_max)

    @property
    def request_tokens_max(self) -> int:
        """Tokens made for one request before it is refused: twice the context, because a template
        may shorten what it wrote before, and because the refusal of a request that is slightly too
        long contains its exact number of tokens."""
        return 2 * self.context_tokens

    def count_tokens_min(self, chars: int) -> int:
        """Compute the least number of tokens that a text of `chars` characters can have."""
        return 0 if self.token_chars_max is None else -(-chars // self.token_chars_max)

    def check(self, chars: int, param: str) -> None:
        """Check the total length of the texts of a request. Raises Refusal, which names `param`."""
        if chars > REQUEST_CHARS_MAX:
            raise Refusal(
                f"The texts of this request are {chars:,} characters together ('{param}'); the "
                f"limit is {REQUEST_CHARS_MAX:,}.",
                code="string_above_max_length",
                param=param,
            )
        if self.count_tokens_min(chars) > self.context_tokens:
            raise Refusal(
                f"'{param}' is {chars:,} characters of text, at least "
                f"{self.count_tokens_min(chars):,} "
                f"tokens; the context of the model holds {self.context_tokens:,} (max_model_len).",
                code="context_length_exceeded",
                param=param,
            )

    def check_head(self, settings: GenerationSettings, param_prefix: str) -> None:
        """Check instructions and tools. Raises Refusal, which names the larger of the two."""
        chars = count_head_chars(settings)
        longer = "instructions" if len(settings.instructions) * 2 >= chars else "tools"
        self.check(chars, param_prefix + longer)

    def check_input(self, settings: GenerationSettings, items: Sequence[Item], param: str) -> None:
        """Check instructions, tools and items. With truncation, each item has to fit, but not all
        of them together. Raises Refusal."""
        head = count_head_chars(settings)
        sizes = [count_chars(item) for item in items]
        if settings.truncation.mode == "disabled":
            self.check(head + sum(sizes), param)
            return
        if head + sum(sizes) > REQUEST_CHARS_MAX:
            self.check(head + sum(sizes), param)
        self.check(head + max(sizes, default=0), param)

    def check_response(self, settings: GenerationSettings, context: Sequence[Item]) -> None:
        """Check a response with a context of its own, which is never truncated. Raises Refusal."""
        self.check_head(settings, "response.")
        self.check(count_head_chars(settings) + sum(map(count_chars, context)), "response.input")

    def count_visible_items(self, items: Sequence[Item]) -> int:
        """Count the newest items that can be in the context window at most, with some margin."""
        tokens = 0
        for count, item in enumerate(reversed(items), 1):
            tokens += self.count_tokens_min(count_chars(item))
            if tokens > self.request_tokens_max:
                return count
        return len(items)


def inline_items(items: Iterable[Item | ItemReference]) -> list[Item]:
    """Return the items of a request that contain text themselves, without references."""
    return [item for item in items if not isinstance(item, ItemReference)]


@contextlib.contextmanager
def refuse_if_too_long(param: str, context_tokens: int) -> Generator[None]:
    """Turn TooLong into a Refusal that names the field `param`."""
    try:
        yield
    except TooLong as error:
        raise Refusal(
            f"'{param}': {error.message}; the context of the model holds {context_tokens:,} "
            "(max_model_len).",
            code="context_length_exceeded",
            param=param,
        ) from error
