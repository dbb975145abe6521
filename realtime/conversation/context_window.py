"""Truncation of a conversation that is longer than the model's context. Pure.

    ├─ instructions, tools ─┼─ out of window ─┼─ kept: 80 % of the context ─┼─ reserve ─┤

Removing items from the window shifts all tokens after them, so that their KV is computed again.
Therefore many items are removed at once, before the context is full, and never while a response is
being generated.
"""

import msgspec

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.protocol.settings import Truncation

RESPONSE_RESERVE = 1 / 10
"""Share of the context that truncation leaves free for a response."""


class ContextWindow(msgspec.Struct, frozen=True):
    context_tokens: int
    truncation: Truncation

    def overflows(self, conversation: Conversation) -> bool:
        """Whether `fit` moves items out of window."""
        return (
            self.truncation.mode != "disabled"
            and not conversation.has_open_response
            and conversation.length > self._bound(conversation)
        )

    def _bound(self, conversation: Conversation) -> int:
        bound = self.context_tokens - int(self.context_tokens * RESPONSE_RESERVE)
        if self.truncation.after_instructions is not None:
            bound = min(bound, len(conversation.head.ids) + self.truncation.after_instructions)
        return bound

    def fit(self, conversation: Conversation) -> Conversation:
        """Move the oldest items out of window if the conversation is too long. Returns the
        conversation unchanged while a response is open, or if truncation is disabled."""
        if not self.overflows(conversation):
            return conversation
        head, bound = len(conversation.head.ids), self._bound(conversation)
        if self.truncation.mode == "auto":
            target = int(self.context_tokens * self.truncation.ratio)
        else:
            target = head + int((bound - head) * self.truncation.ratio)
        return conversation.without_oldest(min(target, bound))

    def allows_change(self, old: Conversation, new: Conversation) -> bool:
        """Whether an edit from `old` to `new` is allowed by its length: `new` fits the context, or
        is no longer than `old`, or, with truncation, can be made to fit once the open response has
        ended."""
        if new.length <= max(self.context_tokens, old.length):
            return True
        if self.truncation.mode == "disabled" or not new.has_open_response:
            return False
        # `fit` is called when the response has ended. The added items must fit beside the head.
        return new.length - old.length + len(new.head.ids) <= self.context_tokens
