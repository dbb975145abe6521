"""CommandContext: what the handler of a command may use, and the path of its edit.

idempotency key ──▶ state table ──▶ handler ──▶ Edit ──▶ unit of work ──▶ events
 (session.execute)                  (commands/)          (store, engine)
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from continuo.engine import GrammarTrials, ModelText
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.protocol.events import ConversationEvent, ItemAdded
from continuo.realtime.protocol.items import Item
from continuo.realtime.session.active_responses import ActiveResponses
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.session.state import StateMachine, Trigger
from continuo.realtime.session.unit_of_work import Edit, UnitOfWork
from continuo.realtime.store import IdempotentRequest
from continuo.realtime.tenants.rate_limits import TenantRateLimits, is_server_fault

C = TypeVar("C")

_RESULT_BYTES_MAX = 255
"""Length to which a recorded result is cut."""


class SessionParts(NamedTuple):
    """The parts of a session that commands use."""

    unit_of_work: UnitOfWork
    active_responses: ActiveResponses
    idempotency_keys: IdempotencyKeys
    model_text: ModelText
    grammar_trials: GrammarTrials
    tenant_rate_limits: TenantRateLimits
    text_limits: TextLimits


class CommandContext:
    """A command that is being executed: its session, its idempotent request and its timeout."""

    def __init__(
        self, parts: SessionParts, request: IdempotentRequest | None, timeout: asyncio.Timeout
    ) -> None:
        """`request`: None if the client gave the command no idempotency key. `timeout`: of the
        command."""
        self.unit_of_work = parts.unit_of_work
        self.active_responses = parts.active_responses
        self.model_text = parts.model_text
        self.grammar_trials = parts.grammar_trials
        self.text_limits = parts.text_limits
        self.rate_limits = parts.tenant_rate_limits
        self._keys = parts.idempotency_keys
        self.request = request
        self._timeout = timeout

    @property
    def conversation(self) -> Conversation:
        return self.unit_of_work.conversation

    @property
    def state_machine(self) -> StateMachine:
        return self.unit_of_work.state_machine

    def emit_unlogged(self, event: ConversationEvent) -> None:
        """Send an event to the client that asks for it, without a place in the event log."""
        self.unit_of_work.event_log.emit_unlogged(event)

    def emit_item(self, item: Item) -> None:
        """Send an item of the conversation as if it were just added."""
        previous = self.unit_of_work.previous_item_id(self.conversation, item.id)
        self.emit_unlogged(ItemAdded(item, previous))

    # ------------------------------------------------------------ effects

    async def apply(self, edit: Edit) -> None:
        """Apply an edit and record its result under the idempotency key. Raises Refusal,
        EngineError and StoreError; then nothing has changed."""
        await self.write_pending_results()
        await self.unit_of_work.apply(edit, self._request_with(edit.result))
        self.record(edit.result)

    async def write_pending_results(self) -> None:
        """Write the recorded results that the store lacks. Raises StoreError."""
        await self._keys.write_pending(self.unit_of_work.record_request)

    def record(self, result: str) -> None:
        """Record a result that was written together with its change."""
        if (request := self._request_with(result)) is not None:
            self._keys.record(request)

    def record_unwritten(self, result: str) -> None:
        """Record the result of a command that writes nothing; it is written before the next
        change."""
        if (request := self._request_with(result)) is not None:
            self._keys.record_unwritten(request)

    def _request_with(self, result: str) -> IdempotentRequest | None:
        if self.request is None:
            return None
        return msgspec.structs.replace(self.request, result=result.encode()[:_RESULT_BYTES_MAX])

    # ------------------------------------------------------------ rate limits

    def charge_request(self) -> AbstractContextManager[None]:
        """Context manager for the start of a response: charges a request to the tenant's rate
        limit, and refunds it after a fault of the server."""
        return self.rate_limits.charge_request(self._is_server_fault)

    def charge_text(self, chars: int) -> AbstractContextManager[None]:
        """Context manager for the tokenization of a text of `chars` characters. If it is refused
        or cancelled, charges the text to the tenant's rate limit."""
        return self.rate_limits.charge_text(
            chars, self.text_limits.request_tokens_max, self._is_server_fault
        )

    def _is_server_fault(self, error: BaseException) -> bool:
        """Whether the command failed by a fault of the server; a timeout counts as one."""
        if isinstance(error, asyncio.CancelledError):
            return self._timeout.expired()
        return is_server_fault(error)


class CommandHandler(NamedTuple, Generic[C]):
    """How the commands of one type are executed."""

    trigger: Trigger | None
    """Trigger that the state table must allow. None: the handler decides which one."""
    execute: Callable[[CommandContext, C], Awaitable[None]]
    """Raises Refusal, EngineError and StoreError."""
    replay: Callable[[CommandContext, C, str], bool]
    """Emits the recorded result of a retried command. Returns False if the command may run again:
    because it is naturally idempotent, or because a takeover has lost its effect. Raises
    Refusal."""


AnyHandler = CommandHandler[Any]
