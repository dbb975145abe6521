"""Responses: answers that each go on from another one. One session core, without a session.

    ask ──▶ conversation up to the other answer, and the input ──▶ prompt ──▶ a line of the lineage
                                                                    │
    recording ◀── told ── answering ◀───────────────────────────────┘

An answer is recorded while it is made, for whoever follows it. When it has ended one can go on
from it: in memory, where its conversation and its engine session are; and from the store, if it is
kept.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from continuo.engine import ChatTemplate
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.conversation.text_limits import TextLimits, inline_items, refuse_if_too_long
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.generation.error_mapping import require_engine
from continuo.realtime.generation.output_grammar import check_enforceable
from continuo.realtime.generation.prompt import Prompt, build_prompt, build_warm_up_prompt
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import REQUEST_CHARS_MAX, Limits
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.events import ResponseEnded
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Response, ResponseError
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.rate_limit import RateLimits
from continuo.realtime.responses.archive import ResponseArchive
from continuo.realtime.responses.continuations import ContinuationPoint, Continuations
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester, ResponseRun
from continuo.realtime.store import Store, StoreError

log = logging.getLogger(__name__)
ITEM_OVERHEAD_CHARS = 16
"""Cost of laying out an item besides its text, in characters of text."""
T = TypeVar("T")


class _PromptSource(msgspec.Struct, frozen=True):
    """What an answer goes on from. `begin` gives the conversation for these settings."""

    make_conversation: Callable[[GenerationSettings], Conversation]
    continuation: ContinuationPoint | None = None
    parent: str | None = None
    """The answer whose kept history is that of the conversation; None: there is none."""


class ResponseService:
    def __init__(
        self,
        engine: EnginePort,
        template: ChatTemplate,
        settings: GenerationSettings,
        limits: Limits,
        cache_scope_of: Callable[[str], str],
        store: Store | None = None,
        rate_limits: RateLimits | None = None,
        tokenizer_threads: TokenizerThreads | None = None,
    ) -> None:
        """`settings` are those of an answer that wishes nothing; `scope` names where a tenant's KV
        is shared."""
        self.settings = settings
        self.limits = limits
        self._rate_limits = rate_limits or RateLimits(limits)
        self.continuations = Continuations(engine, limits)
        self._engine = engine
        self._template = template
        self._cache_scope_of = cache_scope_of
        self._archive = ResponseArchive(store, limits.stored_response_ttl_s)
        self._runs: dict[str, ResponseRun] = {}
        self._connections: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokenization_lock = asyncio.Lock()
        self._tokenizer_threads = tokenizer_threads or TokenizerThreads(limits.off_loop_chars_min)
        self._text_limits = TextLimits.for_model(engine.ready, template)

    async def create(self, command: CreateResponse, requester: Requester) -> ResponseRun:
        """Returns when it has begun. Raises Refusal; then nothing has changed."""
        require_engine(self._engine)
        allowance, tokens_max = (
            self._rate_limits.for_tenant(requester.tenant),
            self._text_limits.request_tokens_max,
        )
        items = inline_items(command.input)
        chars = count_head_chars(command.settings) + sum(map(count_chars, items))
        with allowance.charge_request():
            self._text_limits.check_head(command.settings, "")
            self._text_limits.check_input(command.settings, items, "input")
            with allowance.charge_text(chars, tokens_max):
                origin = await self._find_source(command.previous_response_id, requester)
                prompt, given = await self._build_prompt(command, origin, chars)
        answer = Response(
            id=generate_id("resp"),
            conversation=None,
            settings=command.settings,
            metadata=command.metadata,
            previous=command.previous_response_id,
            kept=command.store,
            created_s=int(time.time()),
        )
        line = self.continuations.branch(
            origin.continuation, answer.id, self._cache_scope_of(requester.tenant)
        )
        making = ResponseRun(command, requester, answer, prompt, line)
        self._runs[answer.id] = making
        making.event_stream.on_abandoned = lambda: self._on_abandoned(making)
        self._spawn(self._run(making, origin.parent, given))
        return making

    def find_run(self, response_id: str, requester: Requester) -> ResponseRun | None:
        """None, too, if it is somebody else's."""
        making = self._runs.get(response_id)
        if making is None or making.requester.tenant != requester.tenant:
            return None
        shared = making.command.store or making.requester.connection == requester.connection
        return making if shared else None

    async def find_event_stream(self, response_id: str, requester: Requester) -> EventStream | None:
        """Of an answer that is being made, or is kept. Raises Refusal."""
        making = self.find_run(response_id, requester)
        if making is not None:
            return making.event_stream
        try:
            return await self._archive.load_event_stream(response_id, requester.tenant)
        except StoreError as error:
            raise _store_unavailable() from error

    async def delete(self, response_id: str, requester: Requester) -> bool:
        """Whether it was there; it cannot be gone on from any more. Raises Refusal."""
        making = self.find_run(response_id, requester)
        if making is not None:
            await making.cancel()
            await making.ended.wait()
        known = (
            self.continuations.find(response_id, requester.tenant, requester.connection) is not None
        )
        try:
            kept = await self._archive.delete(response_id, requester.tenant)
        except StoreError as error:
            raise _store_unavailable() from error
        if known:
            self.continuations.remove(response_id)
        return known or kept

    def open_connection(self) -> str:
        """A connection is there; its name."""
        connection = generate_id("conn")
        self._connections.add(connection)
        return connection

    def close_connection(self, connection: str) -> None:
        """It is gone, and with it what only it could go on from."""
        self._connections.discard(connection)
        self.continuations.close_connection(connection)

    async def close(self) -> None:
        """Ends all that is being made."""
        for making in list(self._runs.values()):
            await making.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=self.limits.close_timeout_s)
            for task in left:
                task.cancel()
        await self.continuations.close()

    # ------------------------------------------------------------ before

    async def _find_source(self, previous: str | None, requester: Requester) -> _PromptSource:
        if previous is None:
            return _PromptSource(lambda settings: Conversation.start(self._template, settings))
        making = self.find_run(previous, requester)
        if making is not None:
            await making.ended.wait()
        point = self.continuations.find(previous, requester.tenant, requester.connection)
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

    async def _build_prompt(
        self, command: CreateResponse, source: _PromptSource, chars: int
    ) -> tuple[Prompt, tuple[Item, ...]]:
        """And the input, which is `chars` long with instructions and tools. Raises Refusal."""
        window = ContextWindow(self._engine.ready.max_model_len, command.settings.truncation)
        items = command.input
        ready = self._engine.ready

        def make() -> tuple[Prompt, tuple[Item, ...]]:
            before = source.make_conversation(command.settings)
            given = tuple(_resolve_reference(item, before) for item in items)
            conversation = self._with_input(before, given, window)
            if not command.generate:
                return build_warm_up_prompt(conversation, ready, "input"), given
            return build_prompt(conversation, command.settings, ready, "input"), given

        await check_enforceable(command.settings, self._template, "")
        if source.continuation is not None:
            chars += source.continuation.conversation.length
        elif command.previous_response_id is not None:
            chars = REQUEST_CHARS_MAX  # from the store: not known
        with refuse_if_too_long("input", ready.max_model_len):
            return await self._run_tokenization(chars + ITEM_OVERHEAD_CHARS * len(items), make)

    def _with_input(
        self, before: Conversation, items: Sequence[Item], context_window: ContextWindow
    ) -> Conversation:
        """Raises TooLong; but with truncation, what does not fit is dropped, oldest first."""
        if context_window.truncation.mode == "disabled":
            return before.with_items(items, self._text_limits.request_tokens_max)
        seen = self._text_limits.count_visible_items(items)
        if seen < len(items):
            before = before.with_items_out_of_window(items[: len(items) - seen])
        return context_window.fit(before.with_items(items[len(items) - seen :]))

    async def _run_tokenization(self, chars: int, work: Callable[[], T]) -> T:
        """What takes a millisecond or so is done on the event loop, but one in a round of it: a
        client may ask for many at once. What takes longer is done on a layout thread."""
        if self._tokenizer_threads.needs_thread(chars):
            return await self._tokenizer_threads.run(chars, work)
        async with self._tokenization_lock:
            done = work()
            await asyncio.sleep(0)
        return done

    # ------------------------------------------------------------ while it is made

    async def _run(self, run: ResponseRun, parent: str | None, items: tuple[Item, ...]) -> None:
        try:
            answer, sampled = await run.run()
            made = await self._commit_response(run, answer, sampled)
        except Exception:
            log.exception("response %s", run.id)
            failure = ResponseError("server_error", "The server had a fault.")
            answer = msgspec.structs.replace(
                run.event_stream.response, status="failed", error=failure
            )
            made, sampled = run.prompt.conversation, []
            run.branch.engine_session.invalidate()
        if run.command.store:
            own = [Span((item,)) for item in items]
            if answer.items:
                own.append(Span(answer.items, response_id=answer.id, sampled_ids=tuple(sampled)))
            spans = own if parent is not None or answer.previous is None else made.spans
            told = [*run.event_stream.events, ResponseEnded(answer)]
            model = self._engine.ready.digest
            kept = await self._archive.put(run.requester.tenant, parent, spans, answer, told, model)
            answer = msgspec.structs.replace(answer, kept=kept)
        self._finish(run, made, answer)

    async def _commit_response(
        self, run: ResponseRun, response: Response, sampled: Sequence[int]
    ) -> Conversation:
        """The conversation with the answer in it. What stands before all items is gone through once
        more for that."""
        before = run.prompt.conversation

        def settle() -> Conversation:
            return before.open_response(response.id).commit_response(
                response.id, response.items, sampled
            )

        return await self._run_tokenization(before.length, settle)

    def _finish(self, run: ResponseRun, conversation: Conversation, response: Response) -> None:
        """It has ended; from now on one can go on from it, if anybody may."""
        visitor, keep, line = run.requester, run.command.store, run.branch
        self._rate_limits.for_tenant(visitor.tenant).charge_usage(response.usage)
        if keep or visitor.connection in self._connections:
            owner = None if keep else visitor.connection
            point = ContinuationPoint(
                response.id,
                conversation,
                line,
                tenant=visitor.tenant,
                connection=owner,
                is_stored=response.kept,
            )
            self.continuations.add(point)
        else:
            self.continuations.abandon(line)
        del self._runs[response.id]
        run.event_stream.append(ResponseEnded(response))
        run.ended.set()

    def _on_abandoned(self, run: ResponseRun) -> None:
        """Nobody follows it. What is kept may be asked for again; what is not ends now."""
        if run.command.background and run.command.store:
            return
        if not run.command.store:
            self._spawn(run.cancel())
            return

        def give_up() -> None:
            if not run.event_stream.follower_count:
                self._spawn(run.cancel())

        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.unread_response_grace_s, give_up)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _resolve_reference(item: Item | ItemReference, before: Conversation) -> Item:
    if not isinstance(item, ItemReference):
        return item
    known = before.find(item.item_id)
    if known is None:
        raise Refusal(
            f"Item with id '{item.item_id}' not found.",
            code="item_reference_invalid_item_id",
            param="input",
        )
    return known


def _store_unavailable() -> Refusal:
    """The cause is for the operator: it stands in the log."""
    return Refusal(
        "The store cannot be used now. Nothing has changed: try again.",
        code="store_unavailable",
        kind="server_error",
    )
