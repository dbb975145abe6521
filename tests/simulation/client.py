"""A person with a client that keeps to the protocol: asks under ids of its own, asks again what was
not answered, comes back after the last event it has seen, and notices what does not fit."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import ResumeRequest
from tests.simulation.network import End
from tests.simulation.replica import Fact
from tests.simulation.storage import Storage

Event = dict[str, Any]
AGAIN = {"store_unavailable", "engine_unavailable", "session_replaced", "server_error"}
"""Errors after which the same is asked again."""


class Asked:
    """A request, until it is answered."""

    def __init__(self, frame: Event, answered: Callable[[Event], bool]) -> None:
        self.frame = frame
        self.answered = answered
        self.sent = 0
        self.refused: str | None = None
        self.over = False


class Text:
    """An item of an answer, as it was told."""

    def __init__(self, response: str) -> None:
        self.response = response
        self.text = ""
        self.done = False


class Person:
    def __init__(
        self, name: str, chance: Random, dial: Callable[..., End | None], storage: Storage
    ) -> None:
        """`dial` connects to a gateway; None: it is not there. `storage` is not asked for anything
        but what it has promised, and lost."""
        self.name = name
        self.chance = chance
        self.session = ""
        self.last = ""
        self.items: dict[str, Event] = {}
        """Those that are whole."""
        self.order: list[str] = []
        """Of all."""
        self.texts: dict[str, Text] = {}
        self.responses: dict[str, Event | None] = {}
        """None: not over yet."""
        self.asks: dict[str, str] = {}
        """Of those that were accepted, the response."""
        self.kept: dict[str, str | None] = {}
        """Of items that were told when the store had them, the words; None: it was deleted."""
        self.lost: Counter[Fact] = Counter()
        """What the store has lost by failing over, as far as everything was told anew since."""
        self.edited = False
        """Whether history was changed behind an answer."""
        self.fatal: str | None = None
        """The code of the close after which it may not come back."""
        self.ended = False
        """Whether it wants its session to be over."""
        self._dial = dial
        self._storage = storage
        self._end: End | None = None
        self._entered = False
        self._outstanding: list[Asked] = []
        self._news = asyncio.Event()
        self._heard_s = 0.0
        self._n = 0
        self._again: set[str] = set()
        """Ids of requests that were sent more than once."""
        self._delta_ids: set[str] = set()
        self._anew: set[str] = set()
        """Responses that had ended and are told again, all of it (a snapshot)."""
        self._unkept: set[str] = set()
        """Responses whose end was told and is not in the store: it may be lost with a gateway."""
        self._sent_away = 0
        """How often a gateway took another one for the owner of the session."""

    @property
    def waits_for(self) -> str:
        """For whoever wonders why nothing comes."""
        asked = [asked.frame for asked in self._outstanding]
        open = [name for name, done in self.responses.items() if done is None]
        return f"{self.name} {self._entered=} {self._end is None} {asked} {open}"

    # ------------------------------------------------------------ asking

    def next(self, kind: str) -> str:
        self._n += 1
        return f"{kind}-{self.name}-{self._n}"

    async def ask(self, answered: Callable[[Event], bool], **frame: Any) -> str | None:
        """Returns when it is answered, whatever happens on the way: None, or an error's code."""
        asked = Asked({"event_id": self.next("ask"), **frame}, answered)
        self._outstanding.append(asked)
        self._send(asked)
        await self.until(lambda: asked.over)
        return asked.refused

    def _send(self, asked: Asked) -> None:
        if self._end is None or not self._entered:
            return
        asked.sent += 1
        if asked.sent > 1:
            self._again.add(asked.frame["event_id"])
        self._end.send(json.dumps(asked.frame))
        if self.chance.random() < 0.05:
            self._again.add(asked.frame["event_id"])
            self._end.send(json.dumps(asked.frame))

    async def say(self, text: str) -> None:
        name = self.next("item")
        content = [{"type": "input_text", "text": text}]
        item = {"id": name, "type": "message", "role": "user", "content": content}

        def answered(event: Event) -> bool:
            return event["type"] == "conversation.item.done" and event["item"]["id"] == name

        refused = await self.ask(answered, type="conversation.item.create", item=item)
        assert refused is None, f"{name}: {refused}"

    async def respond(self, tokens: int, **more: Any) -> str | None:
        """The id of the response, when it has begun. None: it was refused."""
        mark = self.next("mark")

        def answered(event: Event) -> bool:
            if event["type"] != "response.created":
                return False
            return (event["response"]["metadata"] or {}).get("ask") == mark

        response = {"max_output_tokens": tokens, "metadata": {"ask": mark}, **more}
        refused = await self.ask(answered, type="response.create", response=response)
        allowed = (None, "conversation_already_has_active_response", "response_already_created")
        assert refused in allowed, refused
        return self.asks.get(mark)

    async def cancel(self) -> None:
        def answered(event: Event) -> bool:
            return event["type"] == "response.done"

        await self.ask(answered, type="response.cancel")

    async def truncate(self, item: str, end: int) -> None:
        def answered(event: Event) -> bool:
            return event["type"] == "conversation.item.truncated" and event["item_id"] == item

        self.edited = True
        where = {"item_id": item, "content_index": 0, "audio_end_ms": 0, "text_end": end}
        await self.ask(answered, type="conversation.item.truncate", **where)

    async def delete(self, item: str) -> None:
        def answered(event: Event) -> bool:
            return event["type"] == "conversation.item.deleted" and event["item_id"] == item

        self.edited = True
        await self.ask(answered, type="conversation.item.delete", item_id=item)

    async def over(self, response: str) -> None:
        """Returns when a response is over, or was lost from sight."""
        await self.until(lambda: self.responses.get(response, {}) is not None)

    async def until(self, true: Callable[[], bool]) -> None:
        """Comes back to the session whenever it must, meanwhile."""
        loop = asyncio.get_running_loop()
        while not true():
            if self.fatal is not None:
                raise AssertionError(f"{self.name}: {self.fatal}")
            if self._end is None:
                await self._come()
                continue
            self._news.clear()
            patience_s = self.chance.uniform(2.5, 6.0)
            try:
                async with asyncio.timeout(patience_s):
                    await self._news.wait()
            except TimeoutError:
                if loop.time() - self._heard_s >= patience_s:
                    await self.drop()

    # ------------------------------------------------------------ coming and going

    async def drop(self) -> None:
        """Leaves this connection; what is on its way to the server may still arrive."""
        end, self._end = self._end, None
        if end is None:
            return
        end.on_data = end.on_lost = lambda what: None
        chance = self.chance.random()
        if chance < 0.4:
            end.close()
        elif chance < 0.7:
            end.link.sever(None, self.chance.uniform(0.0, 0.2))
        else:  # the server finds out by its pings
            end.open = False
            loop = asyncio.get_running_loop()
            context = end.peer.process.context
            loop.call_later(self.chance.uniform(1.0, 40.0), end.peer.end, context=context)

    async def _come(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))
        wish = ResumeRequest(self.session, self.last) if self.session else None
        end = self._dial(self.chance, wish)
        if end is None:
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))
            return
        self._end, self._entered = end, False
        self._heard_s = asyncio.get_running_loop().time()
        end.on_data = lambda frame: self._hear(end, json.loads(frame))
        end.on_lost = lambda why: self._lost(end, why)

    def _lost(self, end: End, why: Any) -> None:
        self._news.set()
        if end is not self._end:
            return
        self._end = None
        if why is None:
            return
        code, reason = why
        if code == CloseCode.SUPERSEDED and self._sent_away < self._hands_lost:
            self._sent_away += 1
            return
        if code not in (1001, 1011, 1012, 1013) and not self.ended:
            self.fatal = f"close {int(code)}: {reason}"
        if code == 1011:
            self.fatal = f"close 1011: {reason}"

    @property
    def _hands_lost(self) -> int:
        """How often the store has forgotten who has the session: it may take a gateway for its
        owner that slept since then."""
        return self._storage.replica.lost["owner", self.session]

    # ------------------------------------------------------------ hearing

    def _hear(self, end: End, event: Event) -> None:
        if end is not self._end:
            return
        self._heard_s = asyncio.get_running_loop().time()
        self._news.set()
        if self.session and event["type"] != "error":
            self.last = event["event_id"]
        try:
            self._take(event)
        except (AssertionError, KeyError) as error:
            self.fatal = self.fatal or f"{type(error).__name__} {error} at {event}"
        for asked in list(self._outstanding):
            if asked.answered(event) or self._is_refused(asked, event):
                asked.over = True
                self._outstanding.remove(asked)

    def _enter(self) -> None:
        self._entered = True
        for asked in self._outstanding:
            self._send(asked)

    def _is_refused(self, asked: Asked, event: Event) -> bool:
        if event["type"] != "error" or event["error"].get("event_id") != asked.frame["event_id"]:
            return False
        code = event["error"]["code"]
        if code in AGAIN:
            loop = asyncio.get_running_loop()
            loop.call_later(self.chance.uniform(0.1, 0.6), self._once_more, asked)
            return False
        asked.refused = code
        return True

    def _once_more(self, asked: Asked) -> None:
        if not asked.over:
            self._send(asked)

    def _take(self, event: Event) -> None:
        match event["type"]:
            case "session.created":
                assert not self.session, "a session is created once"
                self.session, self.last = event["session"]["id"], event["event_id"]
                self._enter()
            case "session.updated":
                resume = event["session"].get("resume")
                if resume is not None and not self._entered:
                    if resume["resumed"] == "snapshot":
                        self._forget()
                    self._enter()
            case "conversation.item.added":
                self._place(event["item"]["id"], event["previous_item_id"])
            case "conversation.item.done":
                self._place(event["item"]["id"], event["previous_item_id"])
                self._add(event["item"])
                if event["item"]["role"] == "user":
                    self.kept.setdefault(event["item"]["id"], _words(event["item"]))
            case "conversation.item.deleted":
                self.kept[event["item_id"]] = None
                self.items.pop(event["item_id"], None)
                if event["item_id"] in self.order:
                    self.order.remove(event["item_id"])
            case "conversation.item.truncated":
                if event.get("text_end") is not None:
                    self._cut(event["item_id"], event["text_end"])
            case "response.created":
                self._begin(event["response"])
            case "response.output_item.added":
                name = event["item"]["id"]
                assert name not in self.texts, f"{name} begins twice"
                self.texts[name] = Text(event["response_id"])
            case "response.output_text.delta":
                text = self.texts[event["item_id"]]
                assert not text.done, f"a delta behind the end of {event['item_id']}"
                assert event["event_id"] not in self._delta_ids, "a delta comes twice"
                self._delta_ids.add(event["event_id"])
                text.text += event["delta"]
            case "response.output_text.done":
                text = self.texts[event["item_id"]]
                assert text.text == event["text"], f"{text.text!r} is not {event['text']!r}"
                text.done = True
            case "response.done":
                self._over(event["response"])
            case "error":
                code = event["error"]["code"]
                assert code not in ("resume_gap", "idempotency_conflict", "server_error"), event
                gone = code in ("session_not_found", "session_expired", "session_ended")
                assert self.ended or not gone, event
            case _:
                pass

    def _forget(self) -> None:
        """All is told again."""
        self.items.clear()
        self.order.clear()
        self.texts.clear()
        self.responses = {name: done for name, done in self.responses.items() if done is not None}
        self._anew |= self.responses.keys()
        self.lost = Counter(self._storage.replica.lost)

    def _place(self, name: str, previous: str | None) -> None:
        """Also of one that is there already: what stands before it may have been told later."""
        if name in self.order:
            self.order.remove(name)
        self.order.insert(0 if previous is None else self.order.index(previous) + 1, name)

    def _add(self, item: Event) -> None:
        name = item["id"]
        known = self.items.get(name)
        if known is not None and not self.edited:
            assert known == item, f"{known} is not {item}"
        self.items[name] = item

    def _cut(self, name: str, end: int) -> None:
        part = self.items[name]["content"][0]
        part["text"] = part["text"][:end]
        if self.kept.get(name) is not None:
            self.kept[name] = part["text"]

    def _begin(self, response: Event) -> None:
        name = response["id"]
        mark = (response["metadata"] or {}).get("ask")
        assert mark is not None, "every response is asked for"
        before: str = self.asks.get(mark) or name
        assert before == name or self._is_lost(before), f"{mark} is answered twice"
        self.asks[mark] = name
        if name in self._anew and (name in self._unkept or self.lost["making", name]):
            self._anew.remove(name)
            self.responses[name] = None  # it may end otherwise
        self.responses.setdefault(name, None)

    def _is_lost(self, response: str) -> bool:
        """There was an answer, and there is none: another attempt at it may have come back."""
        fact = ("answer", response)
        return self.lost[fact] > 0 and fact not in self._storage.facts()

    def _over(self, response: Event) -> None:
        name = response["id"]
        assert name in self.responses, f"{name} ends and was never begun"
        before = self.responses[name]
        if before is not None:
            assert self._again or name in self._anew, f"{name} ends twice"
            assert before["status"] == response["status"], f"{name} ends twice, otherwise"
        self._anew.discard(name)
        self.responses[name] = response
        assert response["status"] in ("completed", "incomplete", "cancelled"), response
        for item in response["output"]:
            told = self.texts.get(item["id"])
            whole = _words(item)
            assert told is None or told.text == whole, f"{told.text!r} is not {whole!r}"
        self._keep(response)

    def _keep(self, response: Event) -> None:
        """What of it the store has now stays."""
        facts = self._storage.facts()
        if ("making", response["id"]) in facts:
            self._unkept.add(response["id"])
        else:
            self._unkept.discard(response["id"])
        for item in response["output"]:
            if facts.get(("item", item["id"])) == _words(item):
                self.kept.setdefault(item["id"], _words(item))


def _words(item: Event) -> str:
    return "".join(part.get("text", "") for part in item["content"])
