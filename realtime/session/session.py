"""Session: does what the table says, against the engine's door and the store.

One Ask at a time (`do`); an answer runs beside, in a task of its own. All it says goes through its
transcript to whoever is attached. Limits are checked before anything changes; a Refusal means that
nothing has.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Unpack, assert_never

import msgspec

from continuo.engine import EngineError, EngineLost, SessionInfo, UnknownSession
from continuo.engine import StaleFence as OtherFront
from continuo.realtime.conversation.context_window import Window
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.item_truncation import shortened, spoken
from continuo.realtime.conversation.rendering import chars_of, chars_of_head
from continuo.realtime.conversation.text_limits import TextBounds, written
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import Position
from continuo.realtime.event_log.event_log import Gap, Listener
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.engine_session import Strand
from continuo.realtime.generation.error_mapping import no_answer, not_kept, refusal_of
from continuo.realtime.generation.output_grammar import vet
from continuo.realtime.limits import TEXT_CHARS_MAX, Limits
from continuo.realtime.persistence.token_journal import Scribe
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    Ask,
    Cancel,
    ClearText,
    CommitText,
    Configure,
    DropItem,
    FetchItem,
    ReplaceText,
    Respond,
    TextBuffer,
    TruncateItem,
)
from continuo.realtime.protocol.events import (
    AnswerStarted,
    Configured,
    ItemAdded,
    ItemDropped,
    ItemFetched,
    ItemTruncated,
    Opened,
    Resume,
    Resumed,
    Rewind,
    Tell,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.protocol.items import ROOT, MessageItem, Part
from continuo.realtime.protocol.response import Residency
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.rate_limit import Allowance, is_ours
from continuo.realtime.session.active_responses import Answers
from continuo.realtime.session.idempotency import say_again
from continuo.realtime.session.idempotency_keys import Requests
from continuo.realtime.session.state import Action, Event, Standing, State
from continuo.realtime.session.status import KV, Status
from continuo.realtime.session.unit_of_work import Change, Edit, History, Origin
from continuo.realtime.store import Answer, Once, StaleFence, StoreError

log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""How long a resumed client waits to be told where its KV is."""


class Session:
    def __init__(
        self,
        session_id: str,
        door: Door,
        limits: Limits,
        scribe: Scribe,
        history: History,
        allowance: Allowance,
        *,
        scope: str = "",
        left: bool = False,
    ) -> None:
        """`left`: it was begun elsewhere, or before this process."""
        self.id = session_id
        self._door = door
        self._limits = limits
        self._allowance = allowance
        self._standing = Standing()
        self._history = history
        self._transcript = history.transcript
        self._texts = TextBounds.of(door.ready, history.conversation.template)
        self._requests = Requests(history.ledger, all_here=not left)
        self._paused = False
        self._once: Once | None = None
        """The client's id of what is being done."""
        self._until_s: float | None = None
        """On the clock of the event loop: when what is being done is given up."""
        self._answers = Answers(
            session_id,
            door,
            scribe,
            history,
            limits,
            allowance,
            scope,
            self._standing,
        )

    @property
    def settings(self) -> Settings:
        return self._history.settings

    @property
    def conversation(self) -> Conversation:
        return self._history.conversation

    @property
    def state(self) -> State:
        return self._standing.state

    # ------------------------------------------------------------ who listens

    async def start(self, listener: Listener, resume: Resume | None = None) -> None:
        """Says what there is already; a fork has items. Raises Refusal."""
        self._transcript.attach(listener)
        if self.conversation.spans:
            await self._kept(self._history.write_all())
        self._transcript.open(Opened(self.settings, resume))
        previous = None
        for item in self.conversation.items():
            self._transcript.record(ItemAdded(item, previous))
            previous = item.id

    async def resume(self, listener: Listener, since: Position | None, resume: Resume) -> None:
        """Says what was missed since a position, or everything if that cannot be told exactly, then
        all that comes. Raises Refusal."""
        kv = await self._residency()
        await self._unpause()
        resume = msgspec.structs.replace(resume, kv=kv)
        if since is not None:
            exact = Resumed(self.settings, msgspec.structs.replace(resume, resumed="exact"))
            try:
                self._transcript.go_on(listener, since, exact, self.conversation.previous)
            except Gap:
                pass
            else:
                return
        await self._kept(self._history.step_epoch())
        epoch = self._transcript.epoch
        resume = msgspec.structs.replace(resume, resumed="snapshot", epoch=epoch)
        self._transcript.snapshot(listener, self._everything(resume))

    def _everything(self, resume: Resume) -> Iterator[Tell]:
        yield Resumed(self.settings, resume)
        previous = None
        for item in self.conversation.items():
            if not self.conversation.is_open(item.id):  # that one is told behind the one before it
                yield ItemAdded(item, previous)
                previous = item.id
        if self._history.draft:
            yield TextAppended(len(self._history.draft))
        for answering in self._answers:
            yield AnswerStarted(answering.answer)

    def aside(self) -> str:
        """An event id for what is said now and is no part of the conversation."""
        return self._transcript.now.aside().event_id()

    def detach(self) -> None:
        """Nobody listens; what runs goes on."""
        self._transcript.detach()

    def watch(self, replaced: Callable[[], None], gap: Callable[[], None]) -> None:
        """`replaced` is called when another gateway turns out to own the session, `gap` when what a
        client has seen turns out not to be what is said here."""
        self._history.ledger.on_replaced = replaced
        self._transcript.on_gap = gap

    def unwatch(self) -> None:
        """Neither is called any more, nor kept."""
        self.watch(_nothing, _nothing)

    def when_quiet(self, act: Callable[[], None]) -> None:
        """`act` is called when no answer is being made: at once if none is."""
        self._answers.when_none(act)

    @property
    def epoch(self) -> str:
        """Of the positions told."""
        return self._transcript.epoch

    @property
    def fence(self) -> int:
        """Our right to it."""
        return self._history.ledger.lease.fence

    async def take(self) -> None:
        """Anew, though it is ours: who was about to take it over for an earlier connection of the
        same client, and is late, finds it changed. Raises StoreError."""
        await self._history.ledger.take()

    async def hold(self, for_s: float, *, parked: bool) -> None:
        """In the store. Raises StoreError."""
        await self._history.ledger.hold(for_s, parked=parked)

    async def confirm(self) -> None:
        """Returns if it is still ours in the store. Raises StoreError."""
        await self._history.ledger.confirm()

    @property
    def lost(self) -> bool:
        """Whether the store is found to have lost the session, and must be given it again."""
        return self._history.ledger.lost

    async def give_again(self) -> None:
        """Write all of it, though nothing has changed. Raises StoreError."""
        await self._history.write_all()

    async def _residency(self) -> Residency:
        """Where the KV is now."""
        strand = self._history.strand
        try:
            async with asyncio.timeout(_LOOK_S):
                info = await self._door.info(strand.session)
        except (EngineError, TimeoutError):
            info = None
        return KV.of(self.conversation, info).residency

    async def _kept(self, write: Awaitable[None]) -> None:
        """Raises Refusal where the store does."""
        try:
            await write
        except StoreError as error:
            raise self._refused(error) from error

    def _refused(self, error: StoreError) -> Refusal:
        if isinstance(error, StaleFence):
            self._history.ledger.on_replaced()
        return not_kept(error)

    def fork(self, at: str | None) -> Origin:
        """What a session begins with that shares this one's history and KV up to and including an
        item (None: all). Raises Refusal."""
        return Origin.of(self.settings, self.conversation, at, self._history.strand)

    async def do(self, ask: Ask, once: Once | None = None) -> None:
        """`once`: the client's id for it; under the same id the same is done once. Raises
        Refusal."""
        try:
            async with asyncio.timeout(self._limits.ask_s_max) as timeout:
                self._until_s = timeout.when()
                if once is not None:
                    result = await self._requests.result(once)
                    if result is not None and self._say_again(ask, result):
                        return
                self._once = once
                await self._do(ask)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self._forget_strand()
            if isinstance(error, OtherFront):
                self._history.ledger.on_replaced()
            raise refusal_of(error) from error
        except StoreError as error:
            raise self._refused(error) from error
        except TimeoutError:
            self._forget_strand()
            raise no_answer(self._limits.ask_s_max) from None
        finally:
            self._once = None

    def _is_ours(self, error: BaseException) -> bool:
        """Whether the present command failed by a fault of the server; a timeout counts as one."""
        if isinstance(error, asyncio.CancelledError) and self._until_s is not None:
            return asyncio.get_running_loop().time() >= self._until_s
        return is_ours(error)

    def _text(self, chars: int) -> AbstractContextManager[None]:
        """Around the tokenisation of so much text."""
        return self._allowance.text(chars, self._texts.tokens_max, self._is_ours)

    def _forget_strand(self) -> None:
        """It is not known what the engine has done. While an answer is being made nothing else is
        asked of it."""
        if self._answers.main is None:
            self._history.strand.forget()

    async def status(self) -> Status:
        """How it is. Raises Refusal."""
        try:
            async with asyncio.timeout(self._limits.ask_s_max):
                info = await self._door.info(self._history.strand.session)
        except TimeoutError:
            raise no_answer(self._limits.ask_s_max) from None
        except UnknownSession:
            info = None
        except EngineError as error:
            raise refusal_of(error) from error
        return self.status_with({} if info is None else {info.session: info})

    def status_with(self, infos: Mapping[str, SessionInfo]) -> Status:
        """How it is, by what the engine says of its sessions."""
        info = infos.get(self._history.strand.session)
        return Status.of(self.state.value, self.conversation, info)

    async def close(self) -> None:
        """Ends it: it was never there. Stops what runs, within a step. Never raises; where engine
        or store do not answer, they are told when they are back, or let go of it in time."""
        await self._release()
        try:
            await self._history.ledger.close()
        except StoreError as error:
            log.warning("session %s stays in the store until its time is over: %s", self.id, error)

    async def leave(self, *, taken: bool = False) -> None:
        """Lets go of it here: it goes on from the store. Never raises. `taken`: somebody else has
        it; what is being made only pauses in the engine, since they may not have come there yet to
        go on with it."""
        await self._answers.flush()
        self._history.ledger.leave()
        self.detach()
        if not (taken and list(self._answers)):
            await self._release()
            return
        self._standing.step(Event.CLOSE)
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._limits.close_s_max):
                await self._answers.pause()
        self._answers.give_up()

    async def _release(self) -> None:
        """Stops what runs, and lets go of the engine."""
        self._standing.step(Event.CLOSE)
        strands = {self._history.strand, *(answering.strand for answering in self._answers)}
        try:
            async with asyncio.timeout(self._limits.close_s_max):
                await self._answers.stop()
                await _release(strands)
        except TimeoutError:
            log.warning("session %s: closed without the engine, which does not answer", self.id)
            self._answers.give_up()
            self._releasing = asyncio.create_task(_release(strands), name=f"release {self.id}")

    async def pause(self) -> None:
        """What is being made pauses until somebody listens again."""
        self._paused = True
        with contextlib.suppress(EngineError):
            await self._answers.pause()

    async def _unpause(self) -> None:
        if self._paused:
            self._paused = False
            with contextlib.suppress(EngineError):
                await self._answers.resume()

    # ------------------------------------------------------------ asks

    async def _do(self, ask: Ask) -> None:
        match ask:
            case Configure(settings=settings):
                await self._configure(settings)
            case AddItem():
                await self._add(ask)
            case FetchItem(item_id=item_id):
                self._standing.may(Event.LOOK)
                item = self._history.find(item_id, "item_retrieve_invalid_item_id")
                self._transcript.aside(ItemFetched(item))
            case DropItem(item_id=item_id):
                self._standing.may(Event.EDIT)
                self._history.find_whole(item_id, "item_delete_invalid_item_id")
                await self._change(
                    lambda now: now.drop(item_id),
                    tells=lambda now, rewind: [ItemDropped(item_id, rewind)],
                    param="item_id",
                )
            case TruncateItem():
                await self._truncate(ask)
            case Respond():
                await self._respond(ask)
            case Cancel(answer_id=answer_id):
                await self._cancel(answer_id)
            case AppendText() | ReplaceText() | ClearText() | CommitText():
                await self._draft(ask)
            case _:
                assert_never(ask)

    async def _configure(self, settings: Settings) -> None:
        self._standing.may(Event.CONFIGURE)
        self._texts.check_head(settings, "session.")
        was = self.settings
        chars = chars_of_head(settings)
        replaced = (settings.instructions, settings.tools) != (was.instructions, was.tools)
        with self._text(chars if replaced else 0):
            await vet(settings, self.conversation.template, "session.")
            await self._change(
                lambda now: now.configured(settings),
                tells=lambda now, rewind: [Configured(settings, rewind)],
                settings=settings,
                window=Window(self._door.ready.max_model_len, settings.truncation),
                param="session.instructions",
                chars=chars,
            )
        if replaced:
            self._allowance.charge(len(self.conversation.head.ids))

    def _pushes(self) -> bool:
        """Whether what changes now goes to the engine at once."""
        return Action.PUSH in self._standing.may(Event.EDIT)

    async def _truncate(self, ask: TruncateItem) -> None:
        self._standing.may(Event.LOOK)
        code = "item_truncate_invalid_item_id"
        item = self._history.find(ask.item_id, code)
        end = ask.text_end
        told = ItemTruncated(ask.item_id, ask.content_index, ask.audio_end_ms, end)
        spoken(item)
        if end is not None:
            if self.state is State.CANCELLING and self.conversation.is_open(ask.item_id):
                await self._answers.settled()
            self._standing.may(Event.EDIT)
            item = spoken(self._history.find_whole(ask.item_id, code))
            short = shortened(item, ask, end)
            if short is not item:
                await self._change(
                    lambda now: now.truncate(short, self._door.text),
                    tells=lambda now, rewind: [msgspec.structs.replace(told, rewind=rewind)],
                    param="text_end",
                    chars=chars_of(short),
                )
                return
        self._transcript.aside(told)

    async def _draft(self, ask: TextBuffer) -> None:
        self._standing.may(Event.EDIT)
        match ask:
            case AppendText(text=text):
                await self._set_draft(self._history.draft + text)
            case ReplaceText(text=text):
                await self._set_draft(text)
            case ClearText():
                await self._change(
                    _same,
                    tells=lambda now, rewind: [TextCleared()],
                    param="text",
                    draft="",
                )
            case CommitText(item_id=item_id):
                text = self._history.draft
                if not text.strip():
                    raise Refusal(
                        "Error committing input text buffer: it is empty.",
                        code="input_text_buffer_commit_empty",
                    )
                part = Part("input_text", text)
                item = MessageItem(id=item_id, role="user", parts=(part,))

                def tells(now: Conversation, rewind: Rewind | None) -> list[Tell]:
                    previous = now.previous(item_id)
                    return [
                        TextCommitted(item_id, previous),
                        ItemAdded(item, previous, rewind),
                    ]

                self._texts.check(len(text), "text")
                with self._text(len(text)):
                    await self._change(
                        lambda now: now.add(item),
                        item_id,
                        tells=tells,
                        param="text",
                        chars=len(text),
                        draft="",
                    )
            case _:
                assert_never(ask)

    async def _set_draft(self, text: str) -> None:
        if len(text) > TEXT_CHARS_MAX:
            raise Refusal(
                f"The input text buffer would hold {len(text):,} characters; it holds "
                f"{TEXT_CHARS_MAX:,}.",
                code="string_above_max_length",
                param="text",
            )
        self._texts.check(len(text), "text")
        told = TextAppended(len(text))
        with self._text(len(text)):
            await self._change(_same, tells=lambda now, rewind: [told], param="text", draft=text)

    async def _add(self, ask: AddItem) -> None:
        item, after = ask.item, ask.after
        self._standing.may(Event.EDIT)
        known = self.conversation.find(item.id)
        if known is not None and known != item:
            raise Refusal(
                f"Error adding item: an item with id '{item.id}' already exists.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        if after is not None and after != ROOT and self.conversation.find(after) is None:
            raise Refusal(
                f"Error adding item: the previous item with id '{after}' does not exist.",
                code="item_create_invalid_previous_item_id",
                param="previous_item_id",
            )
        if known is not None:
            self._transcript.aside(ItemAdded(item, self.conversation.previous(item.id)))
            return
        self._texts.check(chars_of(item), "item")
        with self._text(chars_of(item)):
            await self._change(
                lambda now: now.add(item, after),
                item.id,
                tells=lambda now, rewind: [ItemAdded(item, now.previous(item.id), rewind)],
                param="item",
                chars=chars_of(item),
            )

    async def _respond(self, ask: Respond) -> None:
        event = Event.RESPOND_APART if ask.apart else Event.RESPOND
        self._standing.may(event)
        context = written(ask.context or ())
        chars = chars_of_head(ask.settings) + sum(map(chars_of, context))
        with self._allowance.request(self._is_ours), self._text(chars):
            self._texts.check_response(ask.settings, context)
            await vet(ask.settings, self.conversation.template, "response.")
            await self._requests.settle(self._history.remember)
            answer_id = await self._answers.begin(ask, self._once)
        self._standing.step(event)  # another one may have ended meanwhile
        self._done(answer_id)

    async def _cancel(self, answer_id: str | None) -> None:
        try:
            stopped = await self._stop(answer_id)
        except Refusal:
            self._owe("")
            raise
        self._owe(stopped)

    async def _stop(self, answer_id: str | None) -> str:
        """Gives the id of the answer. Raises Refusal where there is none."""
        apart = None if answer_id is None else self._answers.apart(answer_id)
        if apart is not None:
            await apart.cancel()
            return apart.answer.id
        running = self._answers.main
        if answer_id is not None and running is not None and answer_id != running.answer.id:
            raise Refusal(
                f"Cancellation failed: response '{answer_id}' is not active.",
                code="response_cancel_not_active",
                param="response_id",
            )
        self._standing.step(Event.CANCEL)
        assert running is not None, "answering is what the state says"
        await running.cancel()
        return running.answer.id

    def go_on(self, answers: Sequence[Answer]) -> None:
        """With what was being made when the session was left."""
        self._answers.go_on(answers)
        if self._answers.main is not None:
            self._standing.state = State.ANSWERING

    # ------------------------------------------------------------ asked twice

    async def _change(self, edit: Edit, result: str = "", **more: Unpack[Change]) -> None:
        """`result`: what to remember of it, should it be asked again."""
        await self._requests.settle(self._history.remember)
        once = self._once
        if once is not None:
            self._once = once = msgspec.structs.replace(once, result=result.encode()[:255])
        await self._history.change(edit, push=self._pushes, once=once, **more)
        self._done(result)

    def _done(self, result: str) -> None:
        if self._once is not None:
            self._requests.done(msgspec.structs.replace(self._once, result=result.encode()[:255]))

    def _say_again(self, ask: Ask, result: bytes) -> bool:
        return say_again(ask, result.decode(errors="ignore"), self._history, self._answers)

    def _owe(self, result: str) -> None:
        """It has changed nothing that is written: the store hears of it before it changes again."""
        if self._once is not None:
            self._requests.owe(msgspec.structs.replace(self._once, result=result.encode()))


async def _release(strands: Iterable[Strand]) -> None:
    for strand in strands:
        with contextlib.suppress(EngineError):
            await strand.close()


def _nothing() -> None:
    pass


def _same(conversation: Conversation) -> Conversation:
    return conversation
