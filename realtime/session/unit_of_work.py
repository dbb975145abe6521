"""History: a session's conversation; the engine's log and the store's, brought up to it; and what
was said of it.

conversation ─┬─ as it stands ──────────────── strand: firm ─────────── ledger: entries
              └─ draft: words not yet final ── strand: provisional ──── ledger: behind them
                                               (without what may still change)

A change goes to both at once. It is told when the store has it; what either refuses, neither keeps.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Required, TypedDict, TypeVar

import msgspec

from continuo.engine import EngineError, EngineLost, TooLong
from continuo.realtime.conversation.context_window import Window
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import stable
from continuo.realtime.conversation.text_limits import named
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import Transcript
from continuo.realtime.generation.engine_session import Strand
from continuo.realtime.generation.tokenizer_threads import LayoutThreads
from continuo.realtime.persistence.event_codec import event_of
from continuo.realtime.persistence.session_codec import Asked, Words, pack_asked, pieces_of
from continuo.realtime.persistence.session_writer import Ledger, News, Whole
from continuo.realtime.protocol.events import AnswerEnded, AnswerStarted, Rewind, Tell
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Answer
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.store import Begun, Once, StaleFence, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")
Edit = Callable[[Conversation], Conversation]
Tells = Callable[[Conversation, Rewind | None], Sequence[Tell]]


class Origin(msgspec.Struct, frozen=True):
    """What a fork begins with."""

    settings: Settings
    conversation: Conversation
    strand: Strand | None = None
    """Where its KV is, if that is known here."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        conversation: Conversation,
        at: str | None,
        strand: Strand | None = None,
    ) -> "Origin":
        """As the conversation was after an item (None: as it is). Raises Refusal."""
        if at is not None:
            find_whole(conversation, at, "item_fork_invalid_item_id")
        return cls(settings, conversation.upto(at), strand)


class Change(TypedDict, total=False):
    """How an edit is made, see `History.change`."""

    param: Required[str]
    tells: Required[Tells]
    chars: int
    draft: str
    settings: Settings
    window: Window


class Saved(msgspec.Struct, frozen=True):
    """What a session goes on with."""

    settings: Settings
    conversation: Conversation
    draft: tuple[Words, ...] = ()
    epoch: int = 0


class History:
    """The history of a session. Items that do not fit into `window` are dropped, oldest first. Long
    texts are tokenised on the threads of `layout`."""

    def __init__(
        self,
        saved: Saved,
        strand: Strand,
        ledger: Ledger,
        transcript: Transcript,
        window: Window,
        layout: LayoutThreads,
    ) -> None:
        self.settings = saved.settings
        self.conversation: Conversation = saved.conversation
        self.strand = strand
        self.ledger = ledger
        self.transcript = transcript
        self.window: Window = window
        self._words = saved.draft
        self.draft: str = "".join(words.text for words in saved.draft)
        """The input text buffer."""
        self.epoch = saved.epoch
        self.begun: dict[str, Begun] = {}
        """Answers being made."""
        self._layout = layout
        self._lock = asyncio.Lock()
        """One change at a time: what is written and told has an order."""

    # ------------------------------------------------------------ changes

    async def change(
        self,
        edit: Edit,
        *,
        push: Callable[[], bool],
        param: str,
        tells: Tells,
        chars: int = 0,
        draft: str | None = None,
        settings: Settings | None = None,
        window: Window | None = None,
        once: Once | None = None,
    ) -> None:
        """Edits the conversation, if it fits, with `draft` the words that are not final, and with
        `window` what is seen; `tells` says what there is to tell then, of the new conversation and
        how far it rewinds the old one; `push` whether the engine hears of it now. Raises Refusal,
        EngineError and StoreError; then nothing is done."""
        window = window or self.window
        while True:
            old = self.conversation
            with named(param, window.limit):
                new = await self.beside(chars, old, lambda now=old: window.fitted(edit(now)))
            async with self._lock:
                if self.conversation is not old:
                    continue
                if not window.holds(old, new):
                    raise _too_long(old, new, window.limit, param)
                draft = self.draft if draft is None else draft
                words = self._words_of(draft)
                rewind = new.rewound(old)
                told = tells(new, rewind)
                whole = self._whole(new, words, settings or self.settings, told)
                news = News(state=settings is not None, once=once)
                await self._write_and_push(whole, news, (new, draft) if push() else None)
                while self.conversation is not old:  # an answer being made has shown an item
                    old = self.conversation
                    new = await self.beside(chars, old, lambda now=old: window.fitted(edit(now)))
                    told = tells(new, rewind)
                    self.ledger.retell(self.transcript.next)
                self.conversation, self.window = new, window
                self.draft, self._words = draft, words
                self.settings = settings or self.settings
                self._tell(told)
                return

    async def begin(
        self, answer: Answer, asked: Asked, seed: int, prompt: int, once: Once | None = None
    ) -> None:
        """An answer to `prompt` tokens is being made; one of the conversation has its place at the
        end of it. Raises StoreError."""
        async with self._lock:
            new, entry = self.conversation, None
            if answer.conversation is not None:
                new, entry = new.open(answer.id), len(pieces_of(new, ()))
            asked = msgspec.structs.replace(asked, number=self.transcript.next)
            begun = Begun(
                id=answer.id, seed=seed, prompt=prompt, entry=entry, body=pack_asked(asked)
            )
            told = (AnswerStarted(answer),)
            whole = self._whole(new, self._words, self.settings, told)
            await self._write(whole, News(begin=begun, once=once))
            if entry is not None:  # else it may have changed: one of its own has shown an item
                self.conversation = new
            self.begun[answer.id] = begun
            self._tell(told)

    def gone_on(self, begun: Begun, asked: Asked) -> None:
        """An answer that was being made is being made again."""
        self.begun[begun.id] = begun
        self.transcript.begin(begun.id, asked.number)

    async def begin_again(self, begun: Begun, asked: Asked, prompt: int) -> None:
        """An answer whose ids so far are of another model is made from its beginning: what the
        store has of it is replaced. Raises StoreError."""
        async with self._lock:
            body = pack_asked(asked)
            begun = msgspec.structs.replace(begun, prompt=prompt, body=body)
            whole = self._whole(self.conversation, self._words, self.settings, ())
            await self._write(whole, News(again=begun))
            self.begun[begun.id] = begun

    async def end(self, answer: Answer, sampled: Sequence[int]) -> None:
        """An answer has been made. It is told even if the store cannot be written, which is done
        with the next change then."""
        async with self._lock:
            begun = self.begun.pop(answer.id)
            new = self.conversation
            if begun.entry is not None:
                now = new
                new = await self.beside(
                    0, now, lambda: now.settle(answer.id, answer.items, sampled)
                )
            told = (AnswerEnded(answer),)
            whole = self._whole(new, self._words, self.settings, told)
            try:
                await self._write(whole, News(end=answer.id))
            except StaleFence:
                raise
            except StoreError as error:
                log.warning("the end of %s is not written yet: %s", answer.id, error)
            if begun.entry is not None:  # else it may have changed, as in `begin`
                self.conversation = new
            self._tell(told)

    async def step_epoch(self) -> None:
        """Positions told before mean nothing any more. Raises StoreError."""
        async with self._lock:
            # A fence is never the same again, even in a store that has lost this step.
            self.epoch = max(self.epoch + 1, self.ledger.lease.fence)
            whole = self._whole(self.conversation, self._words, self.settings, ())
            await self._write(whole, News(epoch=True))
            self.transcript.epoch = wire_epoch(self.ledger.lease.store, self.epoch)

    async def write_all(self) -> None:
        """What a session begins with, or could not be written before. Raises StoreError."""
        async with self._lock:
            whole = self._whole(self.conversation, self._words, self.settings, ())
            await self._write(whole, News())

    async def remember(self, once: Once) -> None:
        """That this was asked; nothing changes by it. Raises Conflict, StoreError."""
        async with self._lock:
            whole = self._whole(self.conversation, self._words, self.settings, ())
            await self._write(whole, News(once=once))

    async def _write(self, whole: Whole, news: News) -> None:
        """Raises StoreError."""
        await self.ledger.write(whole, news)
        self.strand.fenced(self.ledger.lease.fence)

    async def _write_and_push(
        self, whole: Whole, news: News, push: tuple[Conversation, str] | None
    ) -> None:
        writing = asyncio.ensure_future(self._write(whole, news))
        if push is not None:
            try:
                await self._sync(*push)
            except BaseException:
                await self._take_back(writing, news)
                raise
        try:
            await writing
        except StoreError:
            if push is not None:
                await self.push()
            raise

    async def _take_back(self, writing: "asyncio.Future[None]", news: News) -> None:
        """The engine has refused what is being written."""
        with contextlib.suppress(StoreError):
            await writing
            old = self._whole(self.conversation, self._words, self.settings, ())
            await self._write(old, News(state=True, undone=news.once))

    def _tell(self, told: Sequence[Tell]) -> None:
        for tell in told:
            self.transcript.record(tell)

    def _whole(
        self,
        conversation: Conversation,
        words: tuple[Words, ...],
        settings: Settings,
        told: Sequence[Tell],
    ) -> Whole:
        def events(number: int) -> list[bytes]:
            records = [*self.transcript.since(number), *self.transcript.drafted(told)]
            return [event_of(record) for record in records]

        return Whole(
            pieces=pieces_of(conversation, words),
            settings=settings,
            epoch=self.epoch,
            first=self.transcript.first,
            next=self.transcript.next + len(told),
            events=events,
            begun=tuple(self.begun.values()),
        )

    def _words_of(self, draft: str) -> tuple[Words, ...]:
        """The text buffer in pieces: what is new is one."""
        if draft == self.draft:
            return self._words
        if self._words and draft.startswith(self.draft):
            return (*self._words, Words(draft[len(self.draft) :]))
        return (Words(draft),) if draft else ()

    # ------------------------------------------------------------ the engine

    async def push(self) -> None:
        """What came while an answer was made goes to the engine now; the next push heals a
        failure. So does what must be computed again because the oldest items are dropped."""
        old, window = self.conversation, self.window
        new = await self.beside(0, old, lambda: window.fitted(old))
        if self.conversation is old:
            self.conversation = new
        try:
            await self._sync(self.conversation, self.draft)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self.strand.forget()
            log.warning("session %s: push failed: %s", self.strand.session, error.message)

    async def beside(self, chars: int, old: Conversation, make: Callable[[], T]) -> T:
        """Run `make` and return its result, which lays out `chars` new characters, and perhaps all
        of the old conversation anew."""
        return await self._layout.run(chars + old.length, make)

    async def _sync(self, conversation: Conversation, draft: str) -> None:
        limit = self.window.limit
        if conversation.length > limit:
            return
        if draft:
            said = stable(draft)
            ahead = None
            with contextlib.suppress(TooLong):
                ahead = await self.beside(
                    len(draft), conversation, lambda: conversation.drafted(said)
                )
            if ahead is not None and ahead.length <= limit:
                *firm, last = ahead.all_spans
                await self.strand.sync(firm, draft=last.ids)
                return
        await self.strand.sync(conversation.all_spans, draft=())

    # ------------------------------------------------------------ looking

    def find(self, item_id: str, code: str) -> Item:
        return find(self.conversation, item_id, code)

    def find_whole(self, item_id: str, code: str) -> Item:
        return find_whole(self.conversation, item_id, code)


def find(conversation: Conversation, item_id: str, code: str) -> Item:
    """Raises Refusal where there is none."""
    item = conversation.find(item_id)
    if item is None:
        raise Refusal(f"The item with id '{item_id}' does not exist.", code=code, param="item_id")
    return item


def find_whole(conversation: Conversation, item_id: str, code: str) -> Item:
    """Raises Refusal, too, where it is still being made."""
    item = find(conversation, item_id, code)
    if conversation.is_open(item_id):
        raise Refusal(
            f"The item with id '{item_id}' is still being made; cancel the response first.",
            code=code,
            param="item_id",
        )
    return item


def wire_epoch(store: str, epoch: int) -> str:
    """Of the positions clients are told: other ones in another store."""
    return f"{store[:8]}{epoch:02x}"


def _too_long(old: Conversation, new: Conversation, limit: int, param: str) -> Refusal:
    return Refusal(
        f"'{param}' adds {new.length - old.length:,} tokens to the {old.length:,} of the "
        f"conversation; together {new.length:,} are over the context of the model, which holds "
        f"{limit:,} (max_model_len).",
        code="context_length_exceeded",
        param=param,
    )
