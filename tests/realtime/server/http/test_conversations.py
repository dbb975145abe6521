"""The Conversations API on the null device: items, pages, metadata, and the session behind it."""

from typing import Any

import pytest

from tests.support.clients import connect_realtime
from tests.support.web_servers import UMBRELLA, RunningServer

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "three"},
]


async def create(server: RunningServer, **body: Any) -> dict[str, Any]:
    status, conversation = await server.request("POST", "/v1/conversations", body)
    assert status == 200, conversation
    return conversation


async def list_items(server: RunningServer, conversation: str, query: str = "order=asc") -> Any:
    status, page = await server.request("GET", f"/v1/conversations/{conversation}/items?{query}")
    assert status == 200, page
    return page


async def test_items_are_added_listed_and_deleted(server: RunningServer) -> None:
    id = (await create(server, items=ITEMS[:2]))["id"]
    path = f"/v1/conversations/{id}/items"
    status, added = await server.request("POST", path, {"items": ITEMS[2:]})
    assert (status, [item["type"] for item in added["data"]]) == (
        200,
        ["function_call", "function_call_output"],
    )
    page = await list_items(server, id)
    assert len(page["data"]) == 4
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    newest = await list_items(server, id, "limit=1")
    assert (newest["data"], newest["has_more"]) == (page["data"][-1:], True)
    one = page["data"][1]
    assert await server.request("GET", f"{path}/{one['id']}") == (200, one)
    assert (await server.request("DELETE", f"{path}/{one['id']}"))[1]["id"] == id
    assert (await server.request("GET", f"{path}/{one['id']}"))[0] == 404
    assert len((await list_items(server, id))["data"]) == 3


async def test_metadata_is_kept_and_updated(server: RunningServer) -> None:
    created = await create(server, metadata={"topic": "a"})
    path = f"/v1/conversations/{created['id']}"
    assert await server.request("GET", path) == (200, created)
    status, updated = await server.request("POST", path, {"metadata": {"topic": "b"}})
    assert (status, updated) == (200, {**created, "metadata": {"topic": "b"}})
    assert (await server.request("GET", path))[1] == updated


async def test_conversation_continues_as_a_session(server: RunningServer) -> None:
    id = (await create(server, items=ITEMS[:1]))["id"]
    async with connect_realtime(f"{server.url}?session_id={id}") as client:
        await client.wait_for("conversation.item.added")
        await client.start_response(max_output_tokens=4)
        await client.wait_for("rate_limits.updated")
        page = await list_items(server, id)
        assert [item["role"] for item in page["data"]] == ["user", "assistant"]
        await server.request("POST", f"/v1/conversations/{id}/items", {"items": ITEMS[:1]})
        assert (await client.wait_for("conversation.item.added"))["item"]["role"] == "user"
    assert len((await list_items(server, id))["data"]) == 3


async def test_refused_items_leave_the_conversation_unchanged(server: RunningServer) -> None:
    id = (await create(server, items=ITEMS[:1]))["id"]
    path = f"/v1/conversations/{id}/items"
    long = {"role": "user", "content": "x" * 500}
    status, body = await server.request("POST", path, {"items": [ITEMS[0], long]})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert len((await list_items(server, id))["data"]) == 1
    status, body = await server.request("POST", path, {"items": []})
    assert (status, body["error"]["param"]) == (400, "items")
    status, body = await server.request("POST", path, {"items": [{"type": "x"}]})
    assert (status, body["error"]["param"]) == (400, "items[0].type")


async def test_more_items_than_the_context_holds_are_added_in_one_request(
    server: RunningServer,
) -> None:
    """The oldest ones leave the context, as if each was added by itself."""
    items = [{"role": "user", "content": f"message {n}"} for n in range(100)]
    id = (await create(server, items=items[:50]))["id"]
    status, added = await server.request("POST", f"/v1/conversations/{id}/items", {"items": items})
    assert (status, len(added["data"])) == (200, 100)
    page = await list_items(server, id, "limit=100")
    assert (len(page["data"]), page["has_more"]) == (100, True)
    assert [item["id"] for item in page["data"][::-1]] == [item["id"] for item in added["data"]]
    body = {"input": "and?", "max_output_tokens": 4, "conversation": id, "truncation": "auto"}
    status, response = await server.request("POST", "/v1/responses", body)
    assert (status, response["error"]) == (200, None)


async def test_items_that_are_there_already_stay_once(server: RunningServer) -> None:
    id = (await create(server, items=ITEMS[:1]))["id"]
    path = f"/v1/conversations/{id}/items"
    (known,) = (await list_items(server, id))["data"]
    new = {"role": "user", "content": "new"}
    status, added = await server.request("POST", path, {"items": [known, new]})
    assert status == 200, added
    other = {**known, "content": [{"type": "input_text", "text": "other"}]}
    for refused in ([new, other], [{**new, "id": "msg_a"}, {**new, "id": "msg_a"}]):
        status, body = await server.request("POST", path, {"items": refused})
        assert (status, body["error"]["code"]) == (400, "item_create_duplicate_item_id")
    page = await list_items(server, id)
    assert [item["content"][0]["text"] for item in page["data"]] == ["one", "new"]
    assert page["data"][0]["id"] == known["id"]


@pytest.mark.parametrize(
    ("method", "tail"), [("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/items")]
)
async def test_conversation_of_another_tenant_is_unknown(
    server: RunningServer, method: str, tail: str
) -> None:
    id = (await create(server))["id"]
    for path, headers in ((f"{id}{tail}", UMBRELLA), (f"conv_x{tail}", UMBRELLA)):
        status, body = await server.request(method, f"/v1/conversations/{path}", {}, headers)
        assert (status, body["error"]["code"]) == (404, "conversation_not_found")


async def test_deleted_conversation_is_unknown(server: RunningServer) -> None:
    id = (await create(server))["id"]
    status, body = await server.request("DELETE", f"/v1/conversations/{id}")
    assert (status, body["deleted"]) == (200, True)
    assert (await server.request("GET", f"/v1/conversations/{id}"))[0] == 404
