"""What of a conversation the model sees when it is longer than its context. Pure.

    ├─ instructions, tools ─┼─ dropped ─┼─ kept: 80 % of the context ────┼─ room ─┤

Dropping moves all that follows, so it is computed again: a good piece goes at once, and before the
context is quite full, while nobody waits.
"""

import msgspec

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.protocol.settings import Truncation

RESPONSE_RESERVE = 1 / 10
"""Of the context, left for an answer before anything is dropped."""


class ContextWindow(msgspec.Struct, frozen=True):
    context_tokens: int
    """Tokens of context."""
    truncation: Truncation

    def fit(self, conversation: Conversation) -> Conversation:
        """Without its oldest items, if it had become too long."""
        if self.truncation.mode == "disabled" or conversation.has_open_response:
            return conversation
        head = len(conversation.head.ids)
        bound = self.context_tokens - int(self.context_tokens * RESPONSE_RESERVE)
        if self.truncation.after_instructions is not None:
            bound = min(bound, head + self.truncation.after_instructions)
        if conversation.length <= bound:
            return conversation
        if self.truncation.mode == "auto":
            target = int(self.context_tokens * self.truncation.ratio)
        else:
            target = head + int((bound - head) * self.truncation.ratio)
        return conversation.without_oldest(min(target, bound))

    def allows_change(self, old: Conversation, new: Conversation) -> bool:
        """Whether the old conversation may become the new one."""
        if new.length <= max(self.context_tokens, old.length):
            return True
        if self.truncation.mode == "disabled" or not new.has_open_response:
            return False
        # It is fitted when the answer has ended; what is new must fit beside the instructions.
        return new.length - old.length + len(new.head.ids) <= self.context_tokens
