"""Endpoints beside a response: its input items, the length of a prompt, its cancellation; and the
endpoint of embeddings, which the server does not have."""

from typing import Any

from tests.support.web_servers import UMBRELLA, RunningServer

HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "three"},
    {"role": "user", "content": "four"},
]


async def create(server: RunningServer, **body: Any) -> dict[str, Any]:
    body = {"max_output_tokens": 4, **body}
    status, response = await server.request("POST", "/v1/responses", body)
    assert status == 200, response
    return response


async def test_input_items_of_a_response_are_listed_in_pages(server: RunningServer) -> None:
    response = await create(server, input=HISTORY)
    path = f"/v1/responses/{response['id']}/input_items"
    status, page = await server.request("GET", f"{path}?order=asc")
    assert (status, page["object"], page["has_more"]) == (200, "list", False)
    types = [item["type"] for item in page["data"]]
    assert types == ["message", "message", "function_call", "function_call_output", "message"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    assert page["data"][1]["content"][0]["type"] == "output_text"
    _, newest = await server.request("GET", f"{path}?limit=2")
    assert newest["data"] == page["data"][:2:-1]
    assert newest["has_more"]
    _, older = await server.request("GET", f"{path}?limit=3&after={newest['last_id']}")
    assert older["data"] == page["data"][2::-1]
    assert not older["has_more"]


async def test_input_items_of_a_continuation_are_its_own(server: RunningServer) -> None:
    first = await create(server, input="one")
    second = await create(server, input="two", previous_response_id=first["id"])
    _, page = await server.request("GET", f"/v1/responses/{second['id']}/input_items")
    (item,) = page["data"]
    assert item["content"][0]["text"] == "two"


async def test_input_items_are_refused_precisely(server: RunningServer) -> None:
    response = await create(server, input="one")
    path = f"/v1/responses/{response['id']}/input_items"
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit")):
        status, body = await server.request("GET", f"{path}?{query}")
        assert (status, body["error"]["param"]) == (400, param)
    assert (await server.request("GET", f"{path}?order=up"))[1]["error"]["param"] == "order"
    assert (await server.request("GET", f"{path}?after=x"))[1]["error"]["param"] == "after"
    for hidden, headers in ((path, UMBRELLA), ("/v1/responses/resp_x/input_items", {})):
        status, _ = await server.request("GET", hidden, None, headers or UMBRELLA)
        assert status == 404
    unstored = await create(server, input="one", store=False)
    status, _ = await server.request("GET", f"/v1/responses/{unstored['id']}/input_items")
    assert status == 404


async def test_input_tokens_are_those_of_the_response(server: RunningServer) -> None:
    body = {"input": HISTORY, "instructions": "be kind"}
    status, counted = await server.request("POST", "/v1/responses/input_tokens", body)
    assert (status, counted["object"]) == (200, "response.input_tokens")
    response = await create(server, **body)
    assert counted["input_tokens"] == response["usage"]["input_tokens"]
    more = {"input": "x", "previous_response_id": response["id"]}
    _, counted = await server.request("POST", "/v1/responses/input_tokens", more)
    continued = await create(server, **more)
    assert counted["input_tokens"] == continued["usage"]["input_tokens"]


async def test_cancelled_background_response_is_cancelled(server: RunningServer) -> None:
    long = {"input": "hello", "ignore_eos": True, "max_output_tokens": 300, "background": True}
    started = await create(server, **long)
    path = f"/v1/responses/{started['id']}"
    status, cancelled = await server.request("POST", f"{path}/cancel")
    assert (status, cancelled["status"]) == (200, "cancelled")
    assert cancelled["incomplete_details"] is None
    assert (await server.request("GET", path))[1] == cancelled


async def test_embeddings_name_another_server(server: RunningServer) -> None:
    status, body = await server.request("POST", "/v1/embeddings", {"input": "x", "model": "demo"})
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert "text-embeddings-inference" in body["error"]["message"]
