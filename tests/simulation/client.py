"""SimulatedClient: a client of the Realtime API that checks every event it receives.

The client sends requests under its own event ids, retries unanswered requests, resumes after the
last event it received, and asserts that the events are consistent.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import ResumeRequest
from tests.simulation.network import Endpoint
from tests.simulation.replica import Fact
from tests.simulation.storage import SimulatedStore

JsonEvent = dict[str, Any]
RETRIED_CODES = {"store_unavailable", "engine_unavailable", "session_replaced", "server_error"}
"""Codes of errors after which a request is retried."""


class PendingRequest:
    """A request without a reply yet."""

    def __init__(self, frame: JsonEvent, is_answer: Callable[[JsonEvent], bool]) -> None:
        self.frame = frame
        self.is_answer = is_answer
        self.send_count = 0
        self.error_code: str | None = None
        self.is_done = False
        self.will_retry = False


class OutputText:
    """Text of an output item, as received in deltas."""

    def __init__(self, response: str) -> None:
        self.response_id = response
        self.text = ""
        self.is_done = False


class SimulatedClient:
    def __init__(
        self, name: str, rng: Random, dial: Callable[..., Endpoint | None], storage: SimulatedStore
    ) -> None:
        """`dial` connects to a gateway and returns None if the gateway is unreachable. `storage` is
        read only for the facts that are stored or were lost."""
        self.name = name
        self.rng = rng
        self.session_id = ""
        self.last_event_id = ""
        self.items: dict[str, JsonEvent] = {}
        """Completed items by id."""
        self.item_order: list[str] = []
        """Ids of all items in the order of the conversation."""
        self.output_texts: dict[str, OutputText] = {}
        self.responses: dict[str, JsonEvent | None] = {}
        """Ended responses by id; None while a response is open."""
        self.responses_by_mark: dict[str, str] = {}
        """Response id by the mark of the request that created the response."""
        self.stored_texts: dict[str, str | None] = {}
        """Text of the items that the store had when they were received; None: deleted."""
        self.lost_facts: Counter[Fact] = Counter()
        """Facts that the store had lost in failovers before the last snapshot."""
        self.has_edited_history = False
        """Whether an item before a response was truncated or deleted."""
        self.fatal_error: str | None = None
        """First violation: a failed assertion, or a close that forbids a reconnect."""
        self.has_ended_session = False
        """Whether the session was closed, deleted or left to expire."""
        self._dial = dial
        self._storage = storage
        self._endpoint: Endpoint | None = None
        self._is_ready = False
        self._pending: list[PendingRequest] = []
        self._changed = asyncio.Event()
        self._received_s = 0.0
        self._last_number = 0
        self._repeated: set[str] = set()
        """Event ids of the requests that were sent more than once."""
        self._delta_ids: set[str] = set()
        self._replayed: set[str] = set()
        """Responses that had ended before a snapshot, which sends them again."""
        self._open_before: set[str] = set()
        """Responses that were open before a snapshot which does not have them: a cancel that is
        repeated is answered with the end of one that has ended meanwhile."""
        self._unstored: set[str] = set()
        """Responses whose end was received but is not stored: a gateway's death may lose it."""
        self._superseded_count = 0
        """Number of closes as superseded because the store had lost a change of owner."""

    @property
    def pending_summary(self) -> str:
        """Summary of pending requests and open responses, for the message of a timeout."""
        requests = [pending.frame for pending in self._pending]
        open_responses = [name for name, done in self.responses.items() if done is None]
        return f"{self.name} {self._is_ready=} {self._endpoint is None} {requests} {open_responses}"

    # ------------------------------------------------------------ requests

    def next_id(self, kind: str) -> str:
        self._last_number += 1
        return f"{kind}-{self.name}-{self._last_number}"

    async def request(self, is_answer: Callable[[JsonEvent], bool], **frame: Any) -> str | None:
        """Send a request, again after each reconnect, until its reply. Returns its error code."""
        pending = PendingRequest({"event_id": self.next_id("ask"), **frame}, is_answer)
        self._pending.append(pending)
        self._send(pending)
        await self.wait_until(lambda: pending.is_done)
        return pending.error_code

    def _send(self, pending: PendingRequest) -> None:
        if self._endpoint is None or not self._is_ready:
            return
        pending.send_count += 1
        if pending.send_count > 1:
            self._repeated.add(pending.frame["event_id"])
        self._endpoint.send(json.dumps(pending.frame))
        if self.rng.random() < 0.05:
            self._repeated.add(pending.frame["event_id"])
            self._endpoint.send(json.dumps(pending.frame))

    async def send_message(self, text: str) -> None:
        name = self.next_id("item")
        content = [{"type": "input_text", "text": text}]
        item = {"id": name, "type": "message", "role": "user", "content": content}

        def is_answer(event: JsonEvent) -> bool:
            return event["type"] == "conversation.item.done" and event["item"]["id"] == name

        refused = await self.request(is_answer, type="conversation.item.create", item=item)
        assert refused is None, f"{name}: {refused}"

    async def start_response(self, tokens: int, **more: Any) -> str | None:
        """Request a response until it is created. Returns its id, or None if it was refused."""
        mark = self.next_id("mark")

        def is_answer(event: JsonEvent) -> bool:
            if event["type"] != "response.created":
                return False
            return (event["response"]["metadata"] or {}).get("ask") == mark

        response = {"max_output_tokens": tokens, "metadata": {"ask": mark}, **more}
        refused = await self.request(is_answer, type="response.create", response=response)
        allowed = (None, "conversation_already_has_active_response", "response_already_created")
        assert refused in allowed, refused
        return self.responses_by_mark.get(mark)

    async def cancel_response(self) -> None:
        def is_answer(event: JsonEvent) -> bool:
            return event["type"] == "response.done"

        await self.request(is_answer, type="response.cancel")

    async def truncate_item(self, item: str, end: int) -> None:
        def is_answer(event: JsonEvent) -> bool:
            return event["type"] == "conversation.item.truncated" and event["item_id"] == item

        self.has_edited_history = True
        position = {"item_id": item, "content_index": 0, "audio_end_ms": 0, "text_end": end}
        await self.request(is_answer, type="conversation.item.truncate", **position)

    async def delete_item(self, item: str) -> None:
        def is_answer(event: JsonEvent) -> bool:
            return event["type"] == "conversation.item.deleted" and event["item_id"] == item

        self.has_edited_history = True
        await self.request(is_answer, type="conversation.item.delete", item_id=item)

    async def wait_response(self, response: str) -> None:
        """Wait until a response has ended or is not known to this client any more."""
        await self.wait_until(lambda: self.responses.get(response, {}) is not None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`; reconnect when disconnected or after a while without an event."""
        loop = asyncio.get_running_loop()
        while not condition():
            if self.fatal_error is not None:
                raise AssertionError(f"{self.name}: {self.fatal_error}")
            if self._endpoint is None:
                await self._connect()
                continue
            self._changed.clear()
            patience_s = self.rng.uniform(2.5, 6.0)
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait()
            except TimeoutError:
                if loop.time() - self._received_s >= patience_s:
                    await self.disconnect()

    # ------------------------------------------------------------ connections

    async def disconnect(self) -> None:
        """Leave this connection: by a close, by a cut, or without notice to the server.

        Frames in flight to the server may still arrive.
        """
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            return
        endpoint.on_data = endpoint.on_lost = lambda data: None
        kind = self.rng.random()
        if kind < 0.4:
            endpoint.close()
        elif kind < 0.7:
            endpoint.link.sever(None, self.rng.uniform(0.0, 0.2))
        else:  # the server detects the loss by its pings
            endpoint.is_open = False
            loop = asyncio.get_running_loop()
            context = endpoint.peer.process.context
            loop.call_later(self.rng.uniform(1.0, 40.0), endpoint.peer.mark_closed, context=context)

    async def _connect(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        resume = ResumeRequest(self.session_id, self.last_event_id) if self.session_id else None
        endpoint = self._dial(self.rng, resume)
        if endpoint is None:
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
            return
        self._endpoint, self._is_ready = endpoint, False
        self._received_s = asyncio.get_running_loop().time()
        endpoint.on_data = lambda frame: self._receive(endpoint, json.loads(frame))
        endpoint.on_lost = lambda close: self._on_lost(endpoint, close)

    def _on_lost(self, endpoint: Endpoint, close: Any) -> None:
        self._changed.set()
        if endpoint is not self._endpoint:
            return
        self._endpoint = None
        if close is None:
            return
        code, reason = close
        if code == CloseCode.SUPERSEDED and self._superseded_count < self._owner_changes_lost:
            self._superseded_count += 1
            return
        if code not in (1001, 1011, 1012, 1013) and not self.has_ended_session:
            self.fatal_error = f"close {int(code)}: {reason}"
        if code == 1011:
            self.fatal_error = f"close 1011: {reason}"

    @property
    def _owner_changes_lost(self) -> int:
        """Number of lost changes of owner: a paused gateway may be taken for the owner again."""
        return self._storage.replica.lost_changes["owner", self.session_id]

    # ------------------------------------------------------------ events

    def _receive(self, endpoint: Endpoint, event: JsonEvent) -> None:
        if endpoint is not self._endpoint:
            return
        self._received_s = asyncio.get_running_loop().time()
        self._changed.set()
        if self.session_id and event["type"] != "error":
            self.last_event_id = event["event_id"]
        try:
            self._apply(event)
        except (AssertionError, KeyError) as error:
            self.fatal_error = self.fatal_error or f"{type(error).__name__} {error} at {event}"
        for pending in list(self._pending):
            if pending.is_answer(event) or self._is_refused(pending, event):
                pending.is_done = True
                self._pending.remove(pending)

    def _send_pending(self) -> None:
        self._is_ready = True
        for pending in self._pending:
            self._send(pending)

    def _is_refused(self, pending: PendingRequest, event: JsonEvent) -> bool:
        if event["type"] != "error" or event["error"].get("event_id") != pending.frame["event_id"]:
            return False
        code = event["error"]["code"]
        if code in RETRIED_CODES:
            if not pending.will_retry:  # sent twice, on two connections: retried once
                pending.will_retry = True
                loop = asyncio.get_running_loop()
                loop.call_later(self.rng.uniform(0.1, 0.6), self._retry, pending)
            return False
        pending.error_code = code
        return True

    def _retry(self, pending: PendingRequest) -> None:
        pending.will_retry = False
        if not pending.is_done:
            self._send(pending)

    def _apply(self, event: JsonEvent) -> None:
        match event["type"]:
            case "session.created":
                assert not self.session_id, "a session is created once"
                self.session_id, self.last_event_id = event["session"]["id"], event["event_id"]
                self._send_pending()
            case "session.updated":
                resume = event["session"].get("resume")
                if resume is not None and not self._is_ready:
                    if resume["resumed"] == "snapshot":
                        self._reset()
                    self._send_pending()
            case "conversation.item.added":
                self._insert(event["item"]["id"], event["previous_item_id"])
            case "conversation.item.done":
                self._insert(event["item"]["id"], event["previous_item_id"])
                self._add_item(event["item"])
                if event["item"]["role"] == "user":
                    self.stored_texts.setdefault(event["item"]["id"], _item_text(event["item"]))
            case "conversation.item.deleted":
                self.stored_texts[event["item_id"]] = None
                self.items.pop(event["item_id"], None)
                if event["item_id"] in self.item_order:
                    self.item_order.remove(event["item_id"])
            case "conversation.item.truncated":
                if event.get("text_end") is not None:
                    self._truncate_text(event["item_id"], event["text_end"])
            case "response.created":
                self._begin_response(event["response"])
            case "response.output_item.added":
                name = event["item"]["id"]
                assert name not in self.output_texts, f"{name} begins twice"
                self.output_texts[name] = OutputText(event["response_id"])
            case "response.output_text.delta":
                text = self.output_texts[event["item_id"]]
                assert not text.is_done, f"a delta after the end of {event['item_id']}"
                assert event["event_id"] not in self._delta_ids, "duplicate delta"
                self._delta_ids.add(event["event_id"])
                text.text += event["delta"]
            case "response.output_text.done":
                text = self.output_texts[event["item_id"]]
                assert text.text == event["text"], f"{text.text!r} is not {event['text']!r}"
                text.is_done = True
            case "response.done":
                self._end_response(event["response"])
            case "error":
                code = event["error"]["code"]
                assert code not in ("resume_gap", "idempotency_conflict", "server_error"), event
                has_ended = code in ("session_not_found", "session_expired", "session_ended")
                assert self.has_ended_session or not has_ended, event
            case _:
                pass

    def _reset(self) -> None:
        """Clear the state before a snapshot, which sends everything again."""
        self.items.clear()
        self.item_order.clear()
        self.output_texts.clear()
        self._open_before |= {name for name, done in self.responses.items() if done is None}
        self.responses = {name: done for name, done in self.responses.items() if done is not None}
        self._replayed |= self.responses.keys()
        self.lost_facts = Counter(self._storage.replica.lost_changes)

    def _insert(self, name: str, previous: str | None) -> None:
        """Insert or move an item: an item before it may have been received later."""
        if name in self.item_order:
            self.item_order.remove(name)
        self.item_order.insert(0 if previous is None else self.item_order.index(previous) + 1, name)

    def _add_item(self, item: JsonEvent) -> None:
        name = item["id"]
        known = self.items.get(name)
        if known is not None and not self.has_edited_history:
            assert known == item, f"{known} is not {item}"
        self.items[name] = item

    def _truncate_text(self, name: str, end: int) -> None:
        part = self.items[name]["content"][0]
        part["text"] = part["text"][:end]
        if self.stored_texts.get(name) is not None:
            self.stored_texts[name] = part["text"]

    def _begin_response(self, response: JsonEvent) -> None:
        name = response["id"]
        mark = (response["metadata"] or {}).get("ask")
        assert mark is not None, "a response without a request"
        previous: str = self.responses_by_mark.get(mark) or name
        assert previous == name or self._is_lost(previous), f"{mark} has two responses"
        self.responses_by_mark[mark] = name
        if name in self._replayed and (name in self._unstored or self.lost_facts["making", name]):
            self._replayed.remove(name)
            self.responses[name] = None  # its end may differ
        self.responses.setdefault(name, None)

    def _is_lost(self, response: str) -> bool:
        """Whether the store has lost this response, so that a retry may have created another."""
        fact = ("answer", response)
        return self.lost_facts[fact] > 0 and fact not in self._storage.read_facts()

    def _end_response(self, response: JsonEvent) -> None:
        name = response["id"]
        is_repeated = bool(self._repeated) and name in self._open_before
        assert name in self.responses or is_repeated, f"{name} ends without a beginning"
        previous = self.responses.get(name)
        if previous is not None:
            assert self._repeated or name in self._replayed, f"{name} ends twice"
            assert previous["status"] == response["status"], f"{name} ends twice, differently"
        self._replayed.discard(name)
        self.responses[name] = response
        assert response["status"] in ("completed", "incomplete", "cancelled"), response
        for item in response["output"]:
            received = self.output_texts.get(item["id"])
            text = _item_text(item)
            assert received is None or received.text == text, f"{received.text!r} is not {text!r}"
        self._record_stored(response)

    def _record_stored(self, response: JsonEvent) -> None:
        """Record the items of an ended response that the store has: they must not be lost."""
        facts = self._storage.read_facts()
        if ("making", response["id"]) in facts:
            self._unstored.add(response["id"])
        else:
            self._unstored.discard(response["id"])
        for item in response["output"]:
            if facts.get(("item", item["id"])) == _item_text(item):
                self.stored_texts.setdefault(item["id"], _item_text(item))


def _item_text(item: JsonEvent) -> str:
    return "".join(part.get("text", "") for part in item["content"])
