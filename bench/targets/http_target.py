"""A server's HTTP API, with streamed responses: any server that is compatible with OpenAI's.

chat        chat completions; the whole conversation is sent again each turn
responses   the Responses API; each response continues from the one before
"""

from contextlib import aclosing
from typing import Any

from continuo.bench.targets.http_client import HttpClient
from continuo.bench.targets.target import Ids, Output, Session, Target, Turn
from continuo.bench.targets.text_turn import ReceivedText, ToText, message

APIS = ("chat", "responses")


class HttpTarget(Target):
    """Opens a connection for each session. `base_url` ends in /v1. `extra_body`: fields of each
    request that the API does not have, such as `ignore_eos`. `model`: empty for the first one that
    the server lists."""

    def __init__(
        self,
        name: str,
        base_url: str,
        api: str,
        to_text: ToText,
        *,
        extra_body: dict[str, Any],
        api_key: str = "",
        model: str = "",
    ) -> None:
        self.name = name
        self._base_url = base_url
        self._session_class = _ChatSession if api == "chat" else _ResponsesSession
        self._to_text = to_text
        self._api_key = api_key
        self._extra_body = extra_body
        self._model = model

    async def __aenter__(self) -> "HttpTarget":
        if not self._model:
            client = HttpClient(self._base_url, self._api_key)
            self._model = (await client.get("/models"))["data"][0]["id"]
            client.close()
            self.note = self._model
        return self

    async def open(self, scope: str) -> Session:
        client = HttpClient(self._base_url, self._api_key)
        common = {"model": self._model, "stream": True, **self._extra_body}
        return self._session_class(client, self._to_text, common, scope)


class _HttpSession(Session):
    def __init__(
        self, client: HttpClient, to_text: ToText, common: dict[str, Any], scope: str
    ) -> None:
        self._client = client
        self._to_text = to_text
        self._common = common
        self._scope = scope

    async def close(self) -> None:
        self._client.close()


class _ChatSession(_HttpSession):
    def __init__(
        self, client: HttpClient, to_text: ToText, common: dict[str, Any], scope: str
    ) -> None:
        super().__init__(client, to_text, common, scope)
        self._messages = [{"role": "system", "content": scope}]

    async def turn(self, ids: Ids, output: Output) -> Turn:
        received, usage = await self._run(ids, output)
        self._messages.append({"role": "assistant", "content": received.text})
        details = usage.get("prompt_tokens_details") or {}
        return received.finish(
            usage.get("prompt_tokens"),
            details.get("cached_tokens"),
            usage.get("completion_tokens"),
        )

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        text, _ = await self._run(ids, output, received)
        self._client.close()
        self._messages.append({"role": "assistant", "content": text.text[:kept]})

    async def _run(
        self, ids: Ids, output: Output, stop_after: int | None = None
    ) -> tuple[ReceivedText, dict[str, Any]]:
        """Return the text and the usage of a response. `stop_after`: characters after which the
        rest is not read."""
        self._messages.append({"role": "user", "content": self._to_text(ids)})
        body = {
            **self._common,
            "messages": self._messages,
            "max_tokens": output.tokens,
            "temperature": output.temperature,
            "top_p": output.top_p,
            "stream_options": {"include_usage": True},
        }
        received, usage = ReceivedText(), dict[str, Any]()
        async with aclosing(self._client.stream("/chat/completions", body)) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    received.add(choice["delta"].get("content") or "")
                usage = chunk.get("usage") or usage
                if stop_after is not None and len(received.text) >= stop_after:
                    break
        return received, usage


class _ResponsesSession(_HttpSession):
    def __init__(
        self, client: HttpClient, to_text: ToText, common: dict[str, Any], scope: str
    ) -> None:
        super().__init__(client, to_text, common, scope)
        self._history: list[dict[str, Any]] = []
        self._previous: str | None = None

    async def turn(self, ids: Ids, output: Output) -> Turn:
        received, response = await self._run(ids, output)
        self._previous = response["id"]
        self._history.append(message("assistant", received.text))
        usage = response["usage"]
        details = usage.get("input_tokens_details") or {}
        return received.finish(
            usage["input_tokens"], details.get("cached_tokens"), usage["output_tokens"]
        )

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        text, _ = await self._run(ids, output, received)
        self._client.close()
        # A response that was cut cannot be continued: the next turn sends the history.
        self._previous = None
        self._history.append(message("assistant", text.text[:kept]))

    async def _run(
        self, ids: Ids, output: Output, stop_after: int | None = None
    ) -> tuple[ReceivedText, dict[str, Any]]:
        self._history.append(message("user", self._to_text(ids)))
        body = {
            **self._common,
            "instructions": self._scope,
            "input": self._history[-1:] if self._previous else self._history,
            "previous_response_id": self._previous,
            "max_output_tokens": output.tokens,
            "temperature": output.temperature,
            "top_p": output.top_p,
        }
        received, response = ReceivedText(), dict[str, Any]()
        async with aclosing(self._client.stream("/responses", body)) as events:
            async for event in events:
                match event["type"]:
                    case "response.output_text.delta":
                        received.add(event["delta"])
                    case "response.completed" | "response.incomplete":
                        response = event["response"]
                    case "response.failed" | "error":
                        raise RuntimeError(str(event))
                    case _:
                        pass
                if stop_after is not None and len(received.text) >= stop_after:
                    break
        return received, response
