"""Flows of keys, models, forks and closing."""
# pyright: reportMissingImports=false

from collections.abc import Awaitable
from typing import Any

from openai import APIStatusError
from websockets.exceptions import InvalidStatus

from tests.clients.flows import OTHER_KEY
from tests.clients.flows.connections import Client, RealtimeConnection, flow


@flow
async def an_unknown_model(client: Client) -> None:
    api = client.api()
    async with api.realtime.connect(model="gpt-9") as sdk:
        connection = RealtimeConnection(sdk, client)
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'demo'" in error["message"]
        assert await connection.close_code() == 1008


@flow
async def client_secrets_open_sessions(client: Client) -> None:
    api = client.api()
    secret = await api.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "instructions": "Be kind.", "max_output_tokens": 3},
    )
    assert secret.value.startswith("ek_")
    assert secret.session.id.startswith("sess_")
    async with client.connect_realtime(key=secret.value) as connection:
        await connection.send(type="session.update", session={"type": "realtime"})
        session = (await connection.expect("session.updated"))["session"]
        assert session["instructions"] == "Be kind."
        assert (await connection.run_turn("hello"))["usage"]["output_tokens"] <= 3
    request = client.api(secret.value).realtime.client_secrets.create()
    assert await _refusal(request) == "ephemeral_key", "a client secret creates no further secrets"


@flow
async def session_close_ends_the_session(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.run_turn("hello", max_output_tokens=2)
        await connection.send(type="session.close")
        assert (await connection.expect("session.closed"))["reason"] == "client_request"
        assert await connection.close_code() == 1000


@flow
async def a_session_is_looked_at_and_ended(client: Client) -> None:
    api = client.api()
    async with client.connect_realtime() as connection:
        await connection.run_turn("hello", max_output_tokens=2)
        path = f"/realtime/sessions/{connection.session}"
        status: Any = await api.get(path, cast_to=object)
        assert (status["id"], status["items"], status["state"]) == (connection.session, 2, "idle")
        deleted: Any = await api.delete(path, cast_to=object)
        assert deleted["deleted"]
        assert await connection.close_code() == 4003
    assert await _refusal(api.get(path, cast_to=object)) == "session_not_found"


@flow
async def what_is_another_tenants_is_unknown(client: Client) -> None:
    ours, theirs = client.api(), client.api(OTHER_KEY)
    response = await ours.responses.create(model="demo", input="hello", max_output_tokens=2)
    body: Any = {"model": "demo", "input": "and?", "previous_response_id": response.id}
    async with client.connect_realtime() as connection:
        path = f"/realtime/sessions/{connection.session}"
        for request, code in (
            (theirs.get(path, cast_to=object), "session_not_found"),
            (theirs.delete(path, cast_to=object), "session_not_found"),
            (theirs.responses.retrieve(response.id), "response_not_found"),
            (theirs.responses.delete(response.id), "response_not_found"),
            (theirs.responses.create(**body), "previous_response_not_found"),
        ):
            assert await _refusal(request) == code
        await connection.check_usable()
    assert (await ours.responses.retrieve(response.id)).id == response.id


async def _refusal(request: Awaitable[object]) -> str | None:
    try:
        await request
    except APIStatusError as error:
        return error.code
    raise AssertionError("the request was not refused")


@flow
async def a_fork_goes_on_from_an_item(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = await connection.add_message("My name is Ada. Remember it.")
        await connection.run_turn("What is the capital of France?", max_output_tokens=8)
        async with client.connect_realtime(fork=connection.session, at=first["item"]["id"]) as fork:
            assert fork.session != connection.session
            assert (await fork.expect("conversation.item.added"))["item"] == first["item"]
            await fork.expect("conversation.item.done")
            usage = (await fork.run_turn("And of Italy?", max_output_tokens=8))["usage"]
            cached = usage["input_token_details"]["cached_tokens"]
            assert usage["input_tokens"] - 24 < cached, "KV is shared"
        await connection.check_usable()


@flow
async def a_wrong_key(client: Client) -> None:
    status = None
    try:
        async with client.connect_realtime(key="sk-wrong"):
            pass
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == 401


@flow
async def a_wrong_key_for_responses(client: Client) -> None:
    api, status = client.api("sk-wrong"), None
    try:
        async with api.responses.connect():
            pass
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == 401


@flow
async def models_are_listed(client: Client) -> None:
    api = client.api()
    models = [model.id async for model in api.models.list()]
    assert models == ["demo"]
    assert (await api.models.retrieve("demo")).id == "demo"
