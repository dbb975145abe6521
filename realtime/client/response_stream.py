"""ResponseStream: one response as it is generated, and the calls of tools on the way to its text.

    text = await client.ask("hello")              the whole text
    async for delta in client.ask("hello"): ...   the text as it arrives

A model that calls tools is answered by the functions of these tools, and asked again, until it
answers with text: all of that is one stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, Protocol

from continuo.realtime.client.errors import (
    ConnectionClosedError,
    EventRefusedError,
    ResponseFailedError,
    ToolError,
)
from continuo.realtime.client.events import (
    FunctionCall,
    Item,
    JsonObject,
    Message,
    Response,
    ResponseError,
    ResponseStatus,
    StatusDetails,
    Usage,
)
from continuo.realtime.client.new_id import new_id
from continuo.realtime.client.outbox import retrieve_exception
from continuo.realtime.client.tools import Tool

TOOL_ROUNDS_MAX = 16
"""Number of responses with calls in a row after which the model is not allowed to call again."""


class ResponseSender(Protocol):
    """The part of a client that a stream uses."""

    def request_response(self, stream: "ResponseStream", event: JsonObject) -> Awaitable[object]:
        """Send `response.create`, and route the events of that response to `stream`."""
        ...

    def add_tool_output(self, call_id: str, output: str) -> Awaitable[str]: ...

    def truncate(self, item_id: str, chars: int) -> Awaitable[object]: ...

    def delete(self, item_id: str) -> Awaitable[object]: ...

    def cancel_response(self, response_id: str) -> Awaitable[object]: ...

    def output_after(self, item_id: str | None) -> list[Item]:
        """List the items after an item up to the next message of the user."""
        ...

    @property
    def last_item_id(self) -> str | None: ...


class ResponseStream:
    """A response. Await it for its text, or iterate over the text as it arrives; it proceeds in
    any case. Both raise EventRefusedError if the request was refused, ResponseFailedError, and
    ConnectionClosedError. A response that was cancelled or cut short returns the text it has."""

    def __init__(
        self,
        client: ResponseSender,
        settings: Mapping[str, Any],
        tools: Callable[[], Mapping[str, Tool]],
        after: Awaitable[object] | None = None,
    ) -> None:
        """`settings`: those of `response.create`. `tools`: returns the tools by name. `after`: what
        to wait for before the request is sent, such as the acceptance of a message."""
        self._client = client
        self._settings = dict(settings)
        self._tools = tools
        self._after = after
        self.text = ""
        """The text so far: of all responses up to here, if tools were called."""
        self.reasoning = ""
        """The reasoning so far, if the session includes `response.reasoning_text`."""
        self.response: Response | None = None
        """The last response that ended."""
        self.output: list[Item] = []
        """The items of all responses that ended."""
        self._text_before = ""
        """Text of the responses before the current one."""
        self._restarts = 0
        """How often the text of the current response began again, after a snapshot."""
        self._changed = asyncio.Event()
        self.response_id: str | None = None
        """Id of the current response, once it has been created."""
        self._request: JsonObject = {}
        self._anchor: str | None = None
        """The last item of the conversation when the current response was requested."""
        self._is_announced = False
        """Whether the server has announced the current response, after a snapshot again."""
        self._created = asyncio.Event()
        self._round: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._is_cancelled = False
        self._calling: list[asyncio.Task[str]] = []
        """The calls of tools that run."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._changed.set())

    # ---------------------------------------------------------------- reading

    def __await__(self) -> Generator[Any, None, str]:
        return asyncio.shield(self._task).__await__()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the text from its beginning. Text that the consumer is late for is merged.
        If the server had to generate the response again and the new text differs from what was
        iterated over, the iteration continues with all of the new text: `text` is always right."""
        shown, restarts = "", 0
        while True:
            self._changed.clear()
            text, has_ended = self.text, self._task.done()
            if restarts != self._restarts and (has_ended or not shown.startswith(text)):
                restarts = self._restarts
                shown = shown if text.startswith(shown) else ""
            if restarts == self._restarts and len(text) > len(shown):
                yield text[len(shown) :]
                shown = text
            elif has_ended:
                self._task.result()
                return
            else:
                await self._changed.wait()

    @property
    def status(self) -> ResponseStatus:
        return self.response.status if self._task.done() and self.response else "in_progress"

    @property
    def usage(self) -> Usage | None:
        """Usage of the last response that ended."""
        return self.response.usage if self.response else None

    @property
    def calls(self) -> list[FunctionCall]:
        """The calls that were requested so far."""
        return [item for item in self.output if isinstance(item, FunctionCall)]

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    # ---------------------------------------------------------------- interrupting

    async def cancel(self) -> str:
        """Cancel the response within one step of the model. Returns the text generated so far,
        which stays in the conversation. No effect on a response that has ended."""
        self._is_cancelled = True
        for call in self._calling:
            call.cancel()
        await self._wait_created()
        if not self._round.done() and self.response_id is not None:
            try:
                await self._client.cancel_response(self.response_id)
            except EventRefusedError as error:
                if error.code != "response_cancel_not_active":
                    raise
        return await self

    async def interrupt(self, keep: int) -> str:
        """Cancel the response, and keep only the first `keep` characters of its text in the
        conversation: what the user has read, or was played to him. Returns that text."""
        await self.cancel()
        left = keep
        for item in self.output:
            if not isinstance(item, Message):
                continue
            length = len(item.text)
            if 0 < left < length:
                await self._client.truncate(item.id, left)
            elif left <= 0:
                await self._client.delete(item.id)
            left -= length
        self.text = self.text[:keep]
        return self.text

    async def _wait_created(self) -> None:
        created = asyncio.ensure_future(self._created.wait())
        await asyncio.wait((created, self._task), return_when=asyncio.FIRST_COMPLETED)
        created.cancel()

    # ---------------------------------------------------------------- events, from the client

    def on_created(self, response: Response) -> None:
        """The server has created the response, or announces it again in a snapshot. After its end,
        which a server repeats for each request sent again, nothing changes."""
        if self._round.done():
            return
        self._restarts += self.response_id is not None
        self.response_id = response.id
        self._is_announced = True
        self.text = self._text_before
        self._created.set()

    def on_delta(self, delta: str) -> None:
        self.text += delta
        self._changed.set()

    def on_reasoning(self, delta: str) -> None:
        self.reasoning += delta

    def on_done(self, response: Response) -> None:
        """The response has ended."""
        if self._round.done():
            return
        self.response = response
        self.output += response.output
        text = self._text_before + _text_of(response.output)
        if text != self.text:
            self._restarts += not text.startswith(self.text)
            self.text = text
        self._changed.set()
        self._round.set_result(response)

    def expect_announcement(self) -> None:
        """Expect the server to announce the response again, if it is still in progress."""
        self._is_announced = False

    async def on_synchronized(self, *, is_new_session: bool) -> None:
        """Find out what became of the response, all missed events having been received."""
        if self._round.done() or self._is_announced or self.response_id is None:
            return
        if is_new_session:
            self._request = self._request | {"event_id": new_id("event")}
        try:
            await self._client.request_response(self, self._request)
        except EventRefusedError as error:
            self._on_refused_again(error)
        except ConnectionClosedError as error:
            self.fail(error)

    def _on_refused_again(self, error: EventRefusedError) -> None:
        """The server refuses to create the response again. If that is because it is over, its items
        are in the conversation."""
        output = self._client.output_after(self._anchor)
        if error.code == "response_already_created" and output:
            status = "completed" if all(i.status == "completed" for i in output) else "incomplete"
            response_id = self.response_id or ""
            self.on_done(Response(id=response_id, status=status, output=output))
        else:
            self.fail(error)

    def fail(self, error: Exception, *, is_expected: bool = False) -> None:
        """End the stream with an error. `is_expected`: asyncio does not log it if it is not
        read."""
        if is_expected:
            self._task.add_done_callback(retrieve_exception)
        self._round.add_done_callback(retrieve_exception)
        if not self._round.done():
            self._round.set_exception(error)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call `call` when the stream ends."""
        self._task.add_done_callback(lambda _: call())

    # ---------------------------------------------------------------- the rounds

    async def _run(self) -> str:
        if self._after is not None:
            await self._after
        for round_number in range(TOOL_ROUNDS_MAX + 1):
            is_last = round_number == TOOL_ROUNDS_MAX
            response = await self._respond({"tool_choice": "none"} if is_last else {})
            self._text_before = self.text
            tools = self._tools()
            calls = [item for item in response.output if isinstance(item, FunctionCall)]
            if not calls or not all(call.name in tools for call in calls):
                break
            await self._call_tools(calls, tools)
            if self._is_cancelled or response.status != "completed":
                break
            self._settings.pop("tool_choice", None)  # A forced call would be forced again.
        return self.text

    async def _respond(self, changed: JsonObject) -> Response:
        """Request a response and wait for its end. Raises ResponseFailedError."""
        if self._is_cancelled and self.response is not None:
            return self.response
        self._created.clear()
        self.response_id = None
        self._round = asyncio.get_running_loop().create_future()
        self._anchor = self._client.last_item_id
        self._request = {"type": "response.create", "event_id": new_id("event")}
        if settings := self._settings | changed:
            self._request["response"] = settings
        try:
            await self._client.request_response(self, self._request)
        except EventRefusedError as error:
            self._on_refused_again(error)
        response = await self._round
        if response.status == "failed":
            details = response.status_details or StatusDetails()
            error = details.error or ResponseError(message="The response failed.")
            raise ResponseFailedError(error.code or "failed", error.message, self.text)
        return response

    async def _call_tools(self, calls: list[FunctionCall], tools: Mapping[str, Tool]) -> None:
        """Call the functions of `calls`, all at once, and add their results to the conversation. An
        exception other than ToolError is raised after that."""
        self._calling = [asyncio.create_task(tools[one.name].call(one.arguments)) for one in calls]
        await asyncio.wait(self._calling)
        problem = None
        for call, called in zip(calls, self._calling, strict=True):
            error = None if called.cancelled() else called.exception()
            if called.cancelled():
                output = "The call was cancelled."
            elif isinstance(error, ToolError):
                output = str(error)
            elif error is not None:
                output, problem = "The tool failed.", error
            else:
                output = called.result()
            await self._client.add_tool_output(call.call_id, output)
        self._calling = []
        if problem is not None:
            raise problem


def _text_of(output: list[Item]) -> str:
    return "".join(item.text for item in output if isinstance(item, Message))
