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
from continuo.realtime.conversation.context_window import Window
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import chars_of, chars_of_head
from continuo.realtime.conversation.text_limits import TextBounds, named, written
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.error_mapping import check_engine
from continuo.realtime.generation.output_grammar import vet
from continuo.realtime.generation.prompt import Prompt, prompt_of, warm_up_of
from continuo.realtime.generation.tokenizer_threads import LayoutThreads
from continuo.realtime.ids import fresh
from continuo.realtime.limits import REQUEST_CHARS_MAX, Limits
from continuo.realtime.protocol.commands import GoOn
from continuo.realtime.protocol.events import AnswerEnded
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Answer, AnswerError
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.rate_limit import Rates
from continuo.realtime.responses.archive import Keeper
from continuo.realtime.responses.continuations import Lineage, Point
from continuo.realtime.responses.event_stream import Recording
from continuo.realtime.responses.run import Making, Visitor
from continuo.realtime.store import Store, StoreError

log = logging.getLogger(__name__)
ITEM_CHARS = 16
"""Cost of laying out an item besides its text, in characters of text."""
T = TypeVar("T")


class _Origin(msgspec.Struct, frozen=True):
    """What an answer goes on from. `begin` gives the conversation for these settings."""

    begin: Callable[[Settings], Conversation]
    point: Point | None = None
    parent: str | None = None
    """The answer whose kept history is that of the conversation; None: there is none."""


class Responses:
    def __init__(
        self,
        door: Door,
        template: ChatTemplate,
        settings: Settings,
        limits: Limits,
        scope: Callable[[str], str],
        store: Store | None = None,
        rates: Rates | None = None,
        layout: LayoutThreads | None = None,
    ) -> None:
        """`settings` are those of an answer that wishes nothing; `scope` names where a tenant's KV
        is shared."""
        self.settings = settings
        self.limits = limits
        self._rates = rates or Rates(limits)
        self.lineage = Lineage(door, limits)
        self._door = door
        self._template = template
        self._scope = scope
        self._keeper = Keeper(store, limits.kept_s)
        self._makings: dict[str, Making] = {}
        self._connections: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._laying = asyncio.Lock()
        self._layout = layout or LayoutThreads(limits.off_loop_chars)
        self._texts = TextBounds.of(door.ready, template)

    async def begin(self, ask: GoOn, visitor: Visitor) -> Making:
        """Returns when it has begun. Raises Refusal; then nothing has changed."""
        check_engine(self._door)
        allowance, tokens_max = self._rates.of(visitor.tenant), self._texts.tokens_max
        items = written(ask.input)
        chars = chars_of_head(ask.settings) + sum(map(chars_of, items))
        with allowance.request():
            self._texts.check_head(ask.settings, "")
            self._texts.check_input(ask.settings, items, "input")
            with allowance.text(chars, tokens_max):
                origin = await self._origin(ask.previous, visitor)
                prompt, given = await self._prompt(ask, origin, chars)
        answer = Answer(
            id=fresh("resp"),
            conversation=None,
            settings=ask.settings,
            metadata=ask.metadata,
            previous=ask.previous,
            kept=ask.keep,
            created_s=int(time.time()),
        )
        line = self.lineage.branch(origin.point, answer.id, self._scope(visitor.tenant))
        making = Making(ask, visitor, answer, prompt, line)
        self._makings[answer.id] = making
        making.recording.on_left = lambda: self._left(making)
        self._spawn(self._make(making, origin.parent, given))
        return making

    def making(self, id: str, visitor: Visitor) -> Making | None:
        """None, too, if it is somebody else's."""
        making = self._makings.get(id)
        if making is None or making.visitor.tenant != visitor.tenant:
            return None
        shared = making.ask.keep or making.visitor.connection == visitor.connection
        return making if shared else None

    async def recording(self, id: str, visitor: Visitor) -> Recording | None:
        """Of an answer that is being made, or is kept. Raises Refusal."""
        making = self.making(id, visitor)
        if making is not None:
            return making.recording
        try:
            return await self._keeper.recording(id, visitor.tenant)
        except StoreError as error:
            raise _unavailable() from error

    async def delete(self, id: str, visitor: Visitor) -> bool:
        """Whether it was there; it cannot be gone on from any more. Raises Refusal."""
        making = self.making(id, visitor)
        if making is not None:
            await making.cancel()
            await making.ended.wait()
        known = self.lineage.find(id, visitor.tenant, visitor.connection) is not None
        try:
            kept = await self._keeper.forget(id, visitor.tenant)
        except StoreError as error:
            raise _unavailable() from error
        if known:
            self.lineage.forget(id)
        return known or kept

    def enter(self) -> str:
        """A connection is there; its name."""
        connection = fresh("conn")
        self._connections.add(connection)
        return connection

    def leave(self, connection: str) -> None:
        """It is gone, and with it what only it could go on from."""
        self._connections.discard(connection)
        self.lineage.leave(connection)

    async def close(self) -> None:
        """Ends all that is being made."""
        for making in list(self._makings.values()):
            await making.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=self.limits.close_s_max)
            for task in left:
                task.cancel()
        await self.lineage.close()

    # ------------------------------------------------------------ before

    async def _origin(self, previous: str | None, visitor: Visitor) -> _Origin:
        if previous is None:
            return _Origin(lambda settings: Conversation.start(self._template, settings))
        making = self.making(previous, visitor)
        if making is not None:
            await making.ended.wait()
        point = self.lineage.find(previous, visitor.tenant, visitor.connection)
        if point is not None:
            parent = previous if point.kept else None
            return _Origin(lambda settings: point.conversation.configured(settings), point, parent)
        try:
            spans = await self._keeper.history(previous, visitor.tenant, self._door.ready.digest)
        except StoreError as error:
            raise _unavailable() from error
        if spans is None:
            raise Refusal(
                f"Previous response with id '{previous[:200]}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return _Origin(
            lambda settings: Conversation.start(self._template, settings).with_spans(spans),
            parent=previous,
        )

    async def _prompt(
        self, ask: GoOn, origin: _Origin, chars: int
    ) -> tuple[Prompt, tuple[Item, ...]]:
        """And the input, which is `chars` long with instructions and tools. Raises Refusal."""
        window = Window(self._door.ready.max_model_len, ask.settings.truncation)
        items = ask.input
        ready = self._door.ready

        def make() -> tuple[Prompt, tuple[Item, ...]]:
            before = origin.begin(ask.settings)
            given = tuple(_resolved(item, before) for item in items)
            conversation = self._with_input(before, given, window)
            if not ask.generate:
                return warm_up_of(conversation, ready, "input"), given
            return prompt_of(conversation, ask.settings, ready, "input"), given

        await vet(ask.settings, self._template, "")
        if origin.point is not None:
            chars += origin.point.conversation.length
        elif ask.previous is not None:
            chars = REQUEST_CHARS_MAX  # from the store: not known
        with named("input", ready.max_model_len):
            return await self._laid(chars + ITEM_CHARS * len(items), make)

    def _with_input(
        self, before: Conversation, given: Sequence[Item], window: Window
    ) -> Conversation:
        """Raises TooLong; but with truncation, what does not fit is dropped, oldest first."""
        if window.truncation.mode == "disabled":
            return before.with_items(given, self._texts.tokens_max)
        seen = self._texts.in_sight(given)
        if seen < len(given):
            before = before.overflowed(given[: len(given) - seen])
        return window.fitted(before.with_items(given[len(given) - seen :]))

    async def _laid(self, chars: int, work: Callable[[], T]) -> T:
        """What takes a millisecond or so is done on the event loop, but one in a round of it: a
        client may ask for many at once. What takes longer is done on a layout thread."""
        if self._layout.takes(chars):
            return await self._layout.run(chars, work)
        async with self._laying:
            done = work()
            await asyncio.sleep(0)
        return done

    # ------------------------------------------------------------ while it is made

    async def _make(self, making: Making, parent: str | None, given: tuple[Item, ...]) -> None:
        try:
            answer, sampled = await making.make()
            made = await self._settled(making, answer, sampled)
        except Exception:
            log.exception("response %s", making.id)
            failure = AnswerError("server_error", "The server had a fault.")
            answer = msgspec.structs.replace(
                making.recording.answer, status="failed", error=failure
            )
            made, sampled = making.prompt.conversation, []
            making.line.strand.forget()
        if making.ask.keep:
            own = [Span((item,)) for item in given]
            if answer.items:
                own.append(Span(answer.items, answer=answer.id, sampled=tuple(sampled)))
            spans = own if parent is not None or answer.previous is None else made.spans
            told = [*making.recording.told, AnswerEnded(answer)]
            model = self._door.ready.digest
            kept = await self._keeper.keep(
                making.visitor.tenant, parent, spans, answer, told, model
            )
            answer = msgspec.structs.replace(answer, kept=kept)
        self._settle(making, made, answer)

    async def _settled(
        self, making: Making, answer: Answer, sampled: Sequence[int]
    ) -> Conversation:
        """The conversation with the answer in it. What stands before all items is gone through once
        more for that."""
        before = making.prompt.conversation

        def settle() -> Conversation:
            return before.open(answer.id).settle(answer.id, answer.items, sampled)

        return await self._laid(before.length, settle)

    def _settle(self, making: Making, made: Conversation, answer: Answer) -> None:
        """It has ended; from now on one can go on from it, if anybody may."""
        visitor, keep, line = making.visitor, making.ask.keep, making.line
        self._rates.of(visitor.tenant).spend(answer.usage)
        if keep or visitor.connection in self._connections:
            owner = None if keep else visitor.connection
            point = Point(
                answer.id, made, line, tenant=visitor.tenant, owner=owner, kept=answer.kept
            )
            self.lineage.add(point)
        else:
            self.lineage.give_up(line)
        del self._makings[answer.id]
        making.recording.tell(AnswerEnded(answer))
        making.ended.set()

    def _left(self, making: Making) -> None:
        """Nobody follows it. What is kept may be asked for again; what is not ends now."""
        if making.ask.background and making.ask.keep:
            return
        if not making.ask.keep:
            self._spawn(making.cancel())
            return

        def give_up() -> None:
            if not making.recording.followers:
                self._spawn(making.cancel())

        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.unfollowed_s_max, give_up)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _resolved(item: Item | ItemReference, before: Conversation) -> Item:
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


def _unavailable() -> Refusal:
    """The cause is for the operator: it stands in the log."""
    return Refusal(
        "The store cannot be used now. Nothing has changed: try again.",
        code="store_unavailable",
        kind="server_error",
    )
