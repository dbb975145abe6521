"""Log-probabilities of the tokens of a response, attached to its text deltas."""

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from continuo.engine import OutputChunk
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ConversationEvent,
    OutputItemStarted,
    TextDelta,
)
from continuo.realtime.protocol.items import FunctionCallItem
from continuo.realtime.protocol.response import TokenLogprob

LOGPROB_MIN = -9999.0
"""Reported in place of lower values: minus infinity has no JSON."""


class LogprobTracker:
    """Assigns the tokens of each chunk of output to the text deltas that its text produces.

    A text delta gets the tokens since the one before, in order. Tokens of tool calls, and the stop
    token, belong to no text and are left out.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], hidden_ids: Collection[int] = ()
    ) -> None:
        """`hidden_ids`: ids that end the output and are no part of its text."""
        self._token_bytes = token_bytes
        self._hidden_ids = frozenset(hidden_ids)
        self._pending: list[TokenLogprob] = []
        self._of_items: dict[str, list[TokenLogprob]] = {}

    @property
    def by_item(self) -> dict[str, tuple[TokenLogprob, ...]]:
        """The tokens of each message so far, by the id of the item."""
        return {item_id: tuple(tokens) for item_id, tokens in self._of_items.items()}

    def add(self, chunk: OutputChunk) -> None:
        self._pending += read_logprobs(chunk, self._token_bytes, self._hidden_ids)

    def attach(self, events: Iterable[ConversationEvent]) -> Iterator[ConversationEvent]:
        """Yield the events that the tokens added so far have produced, with these tokens."""
        for event in events:
            match event:
                case TextDelta(item_id=item_id) if self._pending:
                    tokens, self._pending = tuple(self._pending), []
                    self._of_items.setdefault(item_id, []).extend(tokens)
                    yield msgspec.structs.replace(event, logprobs=tokens)
                case ArgumentsDelta() | OutputItemStarted(item=FunctionCallItem()):
                    self._pending = []
                    yield event
                case _:
                    yield event


def read_logprobs(
    chunk: OutputChunk, token_bytes: Callable[[int], bytes], hidden_ids: Collection[int]
) -> list[TokenLogprob]:
    """Return the tokens of a chunk but those in `hidden_ids`."""
    return [
        TokenLogprob(
            token_bytes(id),
            finite(logprobs.drawn),
            tuple((token_bytes(other), finite(value)) for other, value in logprobs.top),
        )
        for id, logprobs in zip(chunk.ids, chunk.logprobs or (), strict=False)
        if id not in hidden_ids
    ]


def finite(value: float) -> float:
    """Return a log-probability, or LOGPROB_MIN in place of a lower one."""
    return max(value, LOGPROB_MIN)
