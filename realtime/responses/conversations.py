"""Stored conversations, as far as responses read and extend them."""

from typing import Protocol

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import AppendResponse


class StoredConversations(Protocol):
    async def extend(self, conversation_id: str, tenant: str) -> None:
        """Let a conversation expire no sooner than a resume window from now. Closes no connection.
        Raises Refusal, also for a conversation of another tenant."""
        ...

    async def read(self, conversation_id: str, tenant: str) -> Conversation:
        """Return a conversation, without a takeover and without a later expiry. Raises Refusal,
        also for a conversation of another tenant."""
        ...

    async def append(self, conversation_id: str, tenant: str, command: AppendResponse) -> None:
        """Append a response, all of it or nothing. Raises Refusal."""
        ...


class ConversationLocks:
    """The conversations in which this gateway generates a response: at most one at a time."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str]] = set()

    def acquire(self, tenant: str, conversation_id: str | None) -> None:
        """Lock a conversation; None: there is none. Raises Refusal if it is locked."""
        if conversation_id is None:
            return
        if (tenant, conversation_id) in self._held:
            raise Refusal(
                "Another response is being generated in this conversation. Please retry in a few "
                "seconds.",
                code="conversation_locked",
                param="conversation",
            )
        self._held.add((tenant, conversation_id))

    def release(self, tenant: str, conversation_id: str | None) -> None:
        """Release a conversation; idempotent."""
        self._held.discard((tenant, conversation_id or ""))


def last_response_id(conversation: Conversation) -> str | None:
    """Return the id of the newest response of a conversation that was sampled."""
    ids = (span.response_id for span in reversed(conversation.spans))
    return next((id for id in ids if id is not None), None)


def has_same_items(one: Conversation, other: Conversation) -> bool:
    return [*one.items_with_reasoning()] == [*other.items_with_reasoning()]
