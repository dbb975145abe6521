"""Memory that the event log holds for an event: its texts, as Python holds them. Pure."""

import sys
from typing import assert_never

from continuo.realtime.protocol.events import (
    ConversationEvent,
    ItemAdded,
    ResponseEnded,
    ResponseStarted,
)
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.response import Response, TokenLogprob
from continuo.realtime.protocol.settings import GenerationSettings

_EVENT_OVERHEAD_BYTES = 200
"""The structs of an event, and its short strings."""
_LOGPROB_BYTES = 150
"""A token with its log-probability: a struct or tuple, a number and some bytes."""


def count_event_bytes(event: ConversationEvent) -> int:
    """Estimate the memory of a logged event. Texts that the conversation still has count too: they
    may be deleted there."""
    match event:
        case ItemAdded(item=item):
            return _EVENT_OVERHEAD_BYTES + _count_item_bytes(item)
        case ResponseStarted(response=response) | ResponseEnded(response=response):
            return _EVENT_OVERHEAD_BYTES + _count_response_bytes(response)
        case _:
            return _EVENT_OVERHEAD_BYTES


def count_settings_bytes(settings: GenerationSettings) -> int:
    """Estimate the memory of the texts of settings."""
    grammar = settings.sampling.grammar
    return (
        sys.getsizeof(settings.instructions)
        + sys.getsizeof(settings.extras)
        + (0 if grammar is None else sys.getsizeof(grammar.source))
        + sum(
            sys.getsizeof(tool.description or "") + sys.getsizeof(tool.parameters)
            for tool in settings.tools
        )
    )


def _count_response_bytes(response: Response) -> int:
    return sum(map(_count_item_bytes, response.items)) + sum(
        map(_count_logprob_bytes, response.logprobs.values())
    )


def _count_logprob_bytes(tokens: tuple[TokenLogprob, ...]) -> int:
    return sum(_LOGPROB_BYTES * (1 + len(token.top)) for token in tokens)


def _count_item_bytes(item: Item) -> int:
    match item:
        case MessageItem(parts=parts):
            return sum(sys.getsizeof(part.text) for part in parts)
        case FunctionCallItem(arguments=arguments):
            return sys.getsizeof(arguments)
        case FunctionCallOutputItem(output=output):
            return sys.getsizeof(output)
        case ReasoningItem(text=text):
            return sys.getsizeof(text)
        case _:
            assert_never(item)
