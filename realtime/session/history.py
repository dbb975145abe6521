"""History: a session's conversation, and the engine's log brought up to it.

conversation ─┬─ as it stands ──────────────── strand: firm
              └─ draft: words not yet final ── strand: provisional, without what may still change
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from engine import EngineError, EngineLost
from realtime.errors import Refusal
from realtime.protocol.core import Item, Settings
from realtime.session.conversation import Conversation
from realtime.session.rendering import stable
from realtime.session.strand import Strand
from realtime.session.window import Window

log = logging.getLogger(__name__)


class Origin(msgspec.Struct, frozen=True):
    """What a fork begins with."""

    settings: Settings
    conversation: Conversation
    strand: Strand


class History:
    """What does not fit into `window` any more is dropped, oldest first. Texts of more than
    `off_loop_chars` are tokenised on a thread, so that nobody's delta waits for them."""

    def __init__(
        self, conversation: Conversation, strand: Strand, window: Window, off_loop_chars: int
    ) -> None:
        self.conversation = conversation
        self.strand = strand
        self.draft: str = ""
        """The input text buffer."""
        self.window = window
        self._off_loop_chars = off_loop_chars

    async def change(
        self,
        edit: Callable[[Conversation], Conversation],
        *,
        push: bool,
        param: str,
        chars: int = 0,
        draft: str | None = None,
        window: Window | None = None,
    ) -> None:
        """Edits the conversation, if it fits, with `draft` the words that are not final, and with
        `window` what is seen. What the engine refuses is not done."""
        window = window or self.window
        draft = self.draft if draft is None else draft
        while True:
            old = self.conversation
            new = await self.beside(chars, lambda now=old: window.fitted(edit(now)))
            if self.conversation is old:
                break
        if not window.holds(old, new):
            raise _too_long(old, new, window.limit, param)
        if push:
            await self._sync(new, draft)
        self.conversation, self.draft, self.window = new, draft, window

    async def push(self) -> None:
        """What came while an answer was made goes to the engine now; the next push heals a
        failure. So does what must be computed again because the oldest items are dropped."""
        self.conversation = self.window.fitted(self.conversation)
        try:
            await self._sync(self.conversation, self.draft)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self.strand.forget()
            log.warning("session %s: push failed: %s", self.strand.session, error.message)

    def find(self, item_id: str, code: str) -> Item:
        item = self.conversation.find(item_id)
        if item is None:
            raise Refusal(
                f"The item with id '{item_id}' does not exist.", code=code, param="item_id"
            )
        return item

    def find_whole(self, item_id: str, code: str) -> Item:
        item = self.find(item_id, code)
        if self.conversation.is_open(item_id):
            raise Refusal(
                f"The item with id '{item_id}' is still being made; cancel the response first.",
                code=code,
                param="item_id",
            )
        return item

    async def beside(self, chars: int, make: Callable[[], Conversation]) -> Conversation:
        if chars > self._off_loop_chars:
            return await asyncio.to_thread(make)
        return make()

    async def _sync(self, conversation: Conversation, draft: str) -> None:
        limit = self.window.limit
        if conversation.length > limit:
            return
        if draft:
            said = stable(draft)
            ahead = await self.beside(len(draft), lambda: conversation.drafted(said))
            if ahead.length <= limit:
                *firm, last = ahead.all_spans
                await self.strand.sync(firm, draft=last.ids)
                return
        await self.strand.sync(conversation.all_spans, draft=())


def _too_long(old: Conversation, new: Conversation, limit: int, param: str) -> Refusal:
    return Refusal(
        f"'{param}' adds {new.length - old.length:,} tokens to the {old.length:,} of the "
        f"conversation; together {new.length:,} are over the context of the model, which holds "
        f"{limit:,} (max_model_len).",
        code="context_length_exceeded",
        param=param,
    )
