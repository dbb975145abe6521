"""Response service: creates, continues, finds, cancels and deletes responses outside of sessions.

    CreateResponse ──▶ conversation of the previous response, and the input ──▶ prompt ──▶ branch
                                                                                             │
    event stream ◀── events ── generation ◀──────────────────────────────────────────────────┘

Any number of readers may follow the event stream of a response. A response that has ended can be
continued from memory, which holds its conversation and its engine session, and from the response
archive, if it is stored.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from continuo.engine import ChatTemplate, EngineClient, SessionGroup
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.new_items import (
    append_items,
    check_new_items,
    drop_known_items,
)
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.conversation.text_limits import TextLimits, inline_items, refuse_if_too_long
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import require_engine
from continuo.realtime.generation.output_grammar import check_enforceable, without_idle_reasoning
from continuo.realtime.generation.prompt import Prompt, build_prompt, build_warm_up_prompt
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import REQUEST_CHARS_MAX, Limits
from continuo.realtime.protocol.commands import AppendResponse, CreateResponse
from continuo.realtime.protocol.events import ResponseEnded
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Response, ResponseError
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.protocol.validation import unsupported_parameter
from continuo.realtime.responses.archive import ResponseArchive
from continuo.realtime.responses.continuations import ContinuationPoint, Continuations
from continuo.realtime.responses.conversations import (
    ConversationLocks,
    StoredConversations,
    has_same_items,
    last_response_id,
)
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester, ResponseRun
from continuo.realtime.store import Store, StoreError, StoreUnavailable
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.tenants import Tenants

log = logging.getLogger(__name__)
ITEM_OVERHEAD_CHARS = 16
"""Cost of tokenizing an item without its text, as the number of characters that cost the same."""
_STORE_RETRY_INTERVAL_S = 0.2
"""Pause between two attempts to store a response."""
T = TypeVar("T")


class _PromptSource(msgspec.Struct, frozen=True):
    """The history that a new response continues. `make_conversation` builds the conversation of
    that history under the settings of the new response."""

    make_conversation: Callable[[GenerationSettings], Conversation]
    continuation: ContinuationPoint | None = None
    parent: str | None = None
    """Id of the stored response at the end of this history, or of the conversation that it is; None
    if the history is empty or not stored."""


class ResponseService:
    """The responses of all tenants and connections of this process."""

    def __init__(  # noqa: PLR0913 - one argument per part of the gateway that responses use
        self,
        engine: EngineClient,
        template: ChatTemplate,
        settings: GenerationSettings,
        limits: Limits,
        group_of: Callable[[str], SessionGroup],
        store: Store | None = None,
        tenants: Tenants | None = None,
        tokenizer_threads: TokenizerThreads | None = None,
        conversations: StoredConversations | None = None,
    ) -> None:
        """Args:
        engine: all engines of the gateway, shared with the registry.
        template: renders the conversations; that of the engine's model.
        settings: defaults of a response.
        limits: the same for all responses; those per tenant come from `tenants`.
        group_of: returns the group of a tenant, the same as for its sessions.
        store: where responses with `store` are kept. None: none outlives this process.
        tenants: limits and usage by tenant, shared with the registry. None: tenants with the limits
            of `limits`.
        tokenizer_threads: those of the registry. None: threads of its own.
        conversations: the stored conversations that requests may name. None: there are none.
        """
        self.settings = settings
        self.limits = limits
        self._tenants = tenants or Tenants(limits)
        self.continuations = Continuations(engine, limits)
        self._engine = engine
        self._template = template
        self._group_of = group_of
        self._archive = ResponseArchive(store, self._stored_response_ttl_s)
        self._conversations = conversations
        self._conversation_locks = ConversationLocks()
        self._runs: dict[str, ResponseRun] = {}
        self._connections: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokenization_lock = asyncio.Lock()
        self._tokenizer_threads = tokenizer_threads or TokenizerThreads(limits.off_loop_chars_min)
        self._text_limits = TextLimits.for_model(engine.ready, template)

    def ledger_of(self, tenant: str) -> TenantLedger:
        return self._tenants.of(tenant).ledger

    async def count_input_tokens(self, command: CreateResponse, requester: Requester) -> int:
        """Return the length of the prompt of a response, which is not started. Raises Refusal."""
        with self._tenants.of(requester.tenant).rate_limits.charge_request():
            _, prompt, _ = await self._prepare(command, requester)
        return prompt.length

    async def _prepare(
        self, command: CreateResponse, requester: Requester
    ) -> tuple[_PromptSource, Prompt, tuple[Item, ...]]:
        """Return the history that a response continues, its prompt, and the items of its input that
        are not in the history. Charges the text to the rate limits if that fails. Raises
        Refusal."""
        rate_limits = self._tenants.of(requester.tenant).rate_limits
        tokens_max = self._text_limits.request_tokens_max
        items = inline_items(command.input)
        chars = count_head_chars(command.settings) + sum(map(count_chars, items))
        self._text_limits.check_head(command.settings, command.field_names)
        self._text_limits.check_input(command.settings, items, command.field_names.input)
        with rate_limits.charge_text(chars, tokens_max):
            source = await self._find_source(command, requester)
            prompt, new_items = await self._build_prompt(command, source, chars)
        return source, prompt, new_items

    async def create(self, command: CreateResponse, requester: Requester) -> ResponseRun:
        """Start a response and return its run. Raises Refusal; then nothing has changed."""
        require_engine(self._engine)
        if command.store and not self._archive.is_available:
            raise _store_unavailable()
        settings = without_idle_reasoning(command.settings, self._template)
        command = msgspec.structs.replace(command, settings=settings)
        tenant = self._tenants.of(requester.tenant)
        with tenant.rate_limits.charge_request():
            self._conversation_locks.acquire(tenant.name, command.conversation_id)
            try:
                if self._conversations is not None and command.conversation_id is not None:
                    await self._conversations.extend(command.conversation_id, tenant.name)
                source, prompt, new_items = await self._prepare(command, requester)
                await self._tenants.follow(tenant.name)
                turn_slot = tenant.turns.enter()
            except BaseException:
                self._conversation_locks.release(tenant.name, command.conversation_id)
                raise
        command = msgspec.structs.replace(command, input=new_items)
        response = Response(
            id=generate_id("resp"),
            conversation=command.conversation_id,
            settings=command.settings,
            metadata=command.metadata,
            previous=command.previous_response_id,
            is_stored=command.store,
            created_s=int(time.time()),
        )
        branch = self.continuations.branch(
            source.continuation, response.id, self._group_of(requester.tenant)
        )
        run = ResponseRun(
            command,
            requester,
            response,
            prompt,
            branch,
            turn_slot,
            partial(self._on_abandoned, response.id),
            self._engine.text.token_bytes.of,
        )
        self._runs[response.id] = run
        self._spawn(self._run(run, source.parent, new_items))
        return run

    def _stored_response_ttl_s(self, tenant: str) -> float:
        return self._tenants.of(tenant).retained_s(self.limits.stored_response_ttl_s)

    def find_run(self, response_id: str, requester: Requester) -> ResponseRun | None:
        """Find an active response. Returns None if it is not found, if it belongs to another
        tenant, or if it is not stored and belongs to another connection."""
        run = self._runs.get(response_id)
        if run is None or run.requester.tenant != requester.tenant:
            return None
        shared = run.command.store or run.requester.connection == requester.connection
        return run if shared else None

    async def find_event_stream(self, response_id: str, requester: Requester) -> EventStream | None:
        """Find the event stream of an active or stored response. Returns None if it is not found.
        Raises Refusal if the store is unavailable."""
        run = self.find_run(response_id, requester)
        if run is not None:
            return run.event_stream
        try:
            return await self._archive.load_event_stream(response_id, requester.tenant)
        except StoreError as error:
            raise _store_unavailable() from error

    async def find_input(self, response_id: str, requester: Requester) -> tuple[Item, ...] | None:
        """Find the input items of an active or stored response. Returns None if it is not found.
        Raises Refusal if the store is unavailable."""
        run = self.find_run(response_id, requester)
        if run is not None:
            return tuple(inline_items(run.command.input))
        try:
            return await self._archive.load_input(response_id, requester.tenant)
        except StoreError as error:
            raise _store_unavailable() from error

    async def delete(self, response_id: str, requester: Requester) -> bool:
        """Delete a response, after cancelling it if it is active, so that it cannot be continued.

        Returns False if it was not found. Raises Refusal if the store is unavailable.
        """
        run = self.find_run(response_id, requester)
        if run is not None:
            await run.cancel()
            await run.ended.wait()
        was_in_memory = await self._find_point(response_id, requester) is not None
        try:
            was_stored = await self._archive.delete(response_id, requester.tenant)
        except StoreError as error:
            raise _store_unavailable() from error
        if was_in_memory:
            self.continuations.remove(response_id)
        return was_in_memory or was_stored

    def open_connection(self) -> str:
        """Register a connection and return its id."""
        connection = generate_id("conn")
        self._connections.add(connection)
        return connection

    def close_connection(self, connection: str) -> None:
        """Remove a connection, and the continuation points that only this connection could use."""
        self._connections.discard(connection)
        self.continuations.close_connection(connection)

    def close_tenant(self, tenant: str) -> None:
        """Cancel the responses of a deleted tenant, none of which can be continued any more."""
        for run in list(self._runs.values()):
            if run.requester.tenant == tenant:
                self._spawn(self._cancel_and_delete(run))
        self.continuations.close_tenant(tenant)

    async def _cancel_and_delete(self, run: ResponseRun) -> None:
        with contextlib.suppress(Refusal):
            await self.delete(run.id, run.requester)

    async def close(self) -> None:
        """Cancel all active responses and close the engine sessions."""
        for run in list(self._runs.values()):
            await run.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=self.limits.close_timeout_s)
            for task in left:
                task.cancel()
        await self.continuations.close()

    # ------------------------------------------------------------ prompt

    async def _find_source(self, command: CreateResponse, requester: Requester) -> _PromptSource:
        if command.conversation_id is not None:
            return await self._find_conversation(command, command.conversation_id, requester)
        previous = command.previous_response_id
        if previous is None:
            return _PromptSource(lambda settings: Conversation.start(self._template, settings))
        run = self.find_run(previous, requester)
        if run is not None:
            await run.ended.wait()
        point = await self._find_point(previous, requester)
        if point is not None:
            parent = previous if point.is_stored else None
            return _PromptSource(
                lambda settings: point.conversation.with_settings(settings), point, parent
            )
        try:
            spans = await self._archive.load_history(
                previous, requester.tenant, self._engine.ready.digest
            )
        except StoreError as error:
            raise _store_unavailable() from error
        if spans is None:
            raise Refusal(
                f"Previous response with id '{previous[:200]}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return _PromptSource(
            lambda settings: Conversation.start(self._template, settings).with_spans(spans),
            parent=previous,
        )

    async def _find_point(self, response_id: str, requester: Requester) -> ContinuationPoint | None:
        """Find the continuation point of a response. A stored response that no longer exists in the
        store, because it has expired or was deleted at another gateway, is removed from memory and
        not found."""
        point = self.continuations.find(response_id, requester.tenant, requester.connection)
        if point is None or point.store_epoch is None:
            return point
        if await self._archive.exists(response_id, point.store_epoch):
            return point
        self.continuations.remove(response_id)
        return None

    async def _find_conversation(
        self, command: CreateResponse, conversation_id: str, requester: Requester
    ) -> _PromptSource:
        """Find the history of a stored conversation. If its last response is a continuation point,
        the new response continues in that branch, whose KV has all of the conversation that was not
        edited since. Raises Refusal."""
        if self._conversations is None:
            raise unsupported_parameter("conversation", "this server stores no conversations")
        stored = await self._conversations.read(conversation_id, requester.tenant)
        conversation = stored.without_open_responses()
        new_items = drop_known_items(conversation, inline_items(command.input))
        check_new_items(conversation, new_items, command.field_names.input)
        last = last_response_id(conversation)
        point = None if last is None else await self._find_point(last, requester)
        if point is None:
            return _PromptSource(conversation.with_settings, parent=conversation_id)
        if has_same_items(point.conversation, conversation):
            conversation = point.conversation
        return _PromptSource(conversation.with_settings, point, conversation_id)

    async def _build_prompt(
        self, command: CreateResponse, source: _PromptSource, chars: int
    ) -> tuple[Prompt, tuple[Item, ...]]:
        """Return the prompt, and the input without the items that are in the history already, like
        those of references.

        `chars`: length of input, instructions and tools, in characters. Raises Refusal.
        """
        context_window = ContextWindow(
            self._engine.ready.max_model_len, command.settings.truncation
        )
        items, param = command.input, command.field_names.input
        ready = self._engine.ready

        def build() -> tuple[Prompt, tuple[Item, ...]]:
            before = source.make_conversation(command.settings)
            resolved = [_resolve_reference(item, before, param) for item in items]
            new_items = drop_known_items(before, resolved)
            conversation = self._with_input(before, new_items, context_window)
            if not command.generate:
                return build_warm_up_prompt(conversation, ready, param), new_items
            prompt = build_prompt(conversation, command.settings, enforced_tools, ready, param)
            return prompt, new_items

        enforced_tools = await check_enforceable(
            command.settings, self._template, command.field_names, self._engine.grammar_trials
        )
        if source.continuation is not None:
            chars += source.continuation.conversation.length
        elif source.parent is not None:
            chars = REQUEST_CHARS_MAX  # in the store: its length is unknown
        with refuse_if_too_long(param, ready.max_model_len):
            return await self._run_tokenization(chars + ITEM_OVERHEAD_CHARS * len(items), build)

    def _with_input(
        self, before: Conversation, items: Sequence[Item], context_window: ContextWindow
    ) -> Conversation:
        """Append the input to the conversation `before`. If the result does not fit the context,
        the oldest items move out of window; with truncation disabled, raises TooLong."""
        appended = append_items(before, items, self._text_limits, context_window.truncation)
        return context_window.fit(appended)

    async def _run_tokenization(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work`, which tokenizes `chars` characters: on a thread if these are many, else on
        the event loop.

        Work on the event loop takes about a millisecond. At most one such call runs per round of
        the event loop, because a client may send many requests at once.
        """
        if self._tokenizer_threads.needs_thread(chars):
            return await self._tokenizer_threads.run(chars, work)
        async with self._tokenization_lock:
            result = work()
            await asyncio.sleep(0)
        return result

    # ------------------------------------------------------------ run

    async def _run(self, run: ResponseRun, parent: str | None, items: tuple[Item, ...]) -> None:
        try:
            response, sampled = await run.run()
            conversation = await self._commit_response(run, response, sampled)
            response = await self._add_to_conversation(run, response, sampled)
        except Exception:
            log.exception("response %s failed", run.id)
            failure = ResponseError("server_error", "The server had a fault.")
            response = msgspec.structs.replace(
                run.event_stream.response, status="failed", error=failure
            )
            conversation, sampled = run.prompt.conversation, []
        can_continue = True
        if run.command.store:
            own = [Span((item,)) for item in items]
            if response.items:
                own.append(
                    Span(
                        response.items,
                        response_id=response.id,
                        sampled_ids=tuple(sampled),
                        effort=response.settings.reasoning.effort,
                    )
                )
            spans = own if parent is not None or response.previous is None else conversation.spans
            try:
                response = await self._store_response(run, parent, spans, response)
            except StoreError as error:
                log.warning("response %s is not stored: %s", response.id, error)
                response, can_continue = _as_not_stored(response), False
        self._finish(run, conversation, response, can_continue=can_continue)

    async def _store_response(
        self, run: ResponseRun, parent: str | None, spans: Sequence[Span], response: Response
    ) -> Response:
        """Store a response that has ended, and return it as stored. Tries again while the store is
        unavailable, for `response_store_timeout_s`. Raises StoreError."""
        events = [*run.event_stream.events, ResponseEnded(response)]
        tenant, model = run.requester.tenant, self._engine.ready.digest
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.limits.response_store_timeout_s
        while True:
            try:
                is_stored = await self._archive.put(tenant, parent, spans, response, events, model)
                return msgspec.structs.replace(response, is_stored=is_stored)
            except StoreUnavailable:
                if loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(_STORE_RETRY_INTERVAL_S)

    async def _add_to_conversation(
        self, run: ResponseRun, response: Response, sampled: Sequence[int]
    ) -> Response:
        """Add the input and output of a response to its conversation, if it has one, and if the
        response was not cancelled and has not failed. Returns the response, which has failed if
        that is refused."""
        conversation_id = run.command.conversation_id
        if conversation_id is None or response.status not in ("completed", "incomplete"):
            return response
        assert self._conversations is not None, "the conversation was read"
        command = AppendResponse(
            response_id=response.id,
            input=tuple(inline_items(run.command.input)),
            output=response.items,
            sampled_ids=tuple(sampled),
            effort=response.settings.reasoning.effort,
        )
        try:
            await self._conversations.append(conversation_id, run.requester.tenant, command)
        except Refusal as refusal:
            error = ResponseError(refusal.code, f"It was not added: {refusal.message}")
            return msgspec.structs.replace(response, status="failed", reason=None, error=error)
        return response

    async def _commit_response(
        self, run: ResponseRun, response: Response, sampled: Sequence[int]
    ) -> Conversation:
        """Return the conversation with the response committed to it.

        A commit takes time in proportion to the part of the conversation that is rendered again; if
        that is long, the commit runs on a thread.
        """
        before = run.prompt.conversation

        def commit() -> Conversation:
            return before.open_response(response.id).commit_response(
                response.id, response.items, sampled, response.settings.reasoning.effort
            )

        return await self._run_tokenization(before.rendered_length, commit)

    def _finish(
        self,
        run: ResponseRun,
        conversation: Conversation,
        response: Response,
        *,
        can_continue: bool,
    ) -> None:
        """End the run: charge the usage, add the continuation point if the response may be
        continued, and emit ResponseEnded. `can_continue`: False for a response that was to be
        stored and is not."""
        requester, is_shared, branch = run.requester, run.command.store, run.branch
        run.turn_slot.release()
        self._conversation_locks.release(requester.tenant, run.command.conversation_id)
        self._tenants.of(requester.tenant).rate_limits.charge_usage(response.usage)
        if can_continue and (is_shared or requester.connection in self._connections):
            connection = None if is_shared else requester.connection
            point = ContinuationPoint(
                response.id,
                conversation,
                branch,
                tenant=requester.tenant,
                connection=connection,
                store_epoch=self._archive.epoch if response.is_stored else None,
            )
            self.continuations.add(point)
        else:
            self.continuations.abandon(branch, conversation, requester.tenant)
        del self._runs[response.id]
        run.event_stream.append(ResponseEnded(response))
        run.ended.set()

    def start_cancel(self, run: ResponseRun) -> None:
        """Cancel a response, without waiting for its end."""
        self._spawn(run.cancel())

    def _on_abandoned(self, response_id: str) -> None:
        """Cancel a response without readers: at once if it is not stored, else after a grace,
        because a reader may return. A background response continues."""
        run = self._runs.get(response_id)
        if run is None or (run.command.background and run.command.store):
            return
        if not run.command.store:
            self.start_cancel(run)
            return

        def cancel_if_unread() -> None:
            if not run.event_stream.follower_count:
                self.start_cancel(run)

        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.unread_response_grace_s, cancel_if_unread)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _resolve_reference(item: Item | ItemReference, before: Conversation, param: str) -> Item:
    if not isinstance(item, ItemReference):
        return item
    found = before.find(item.item_id)
    if found is None:
        raise Refusal(
            f"Item with id '{item.item_id}' not found.",
            code="item_reference_invalid_item_id",
            param=param,
        )
    return found


def _as_not_stored(response: Response) -> Response:
    """Return a response that was to be stored, and has failed because it is not: its id cannot be
    continued or read later."""
    error = ResponseError("store_unavailable", "The store cannot be used now: try again.")
    return msgspec.structs.replace(
        response, status="failed", reason=None, error=error, is_stored=False
    )


def _store_unavailable() -> Refusal:
    """Return the Refusal for a store error, without the cause."""
    return Refusal(
        "The store cannot be used now. Nothing has changed: try again.",
        code="store_unavailable",
        kind="server_error",
    )
