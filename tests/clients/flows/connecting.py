"""Keys, models, and the end of a session."""
# pyright: reportMissingImports=false

from openai import AsyncOpenAI, PermissionDeniedError
from websockets.exceptions import InvalidStatus

from tests.clients.flows.talk import Client, Talk, flow


@flow
async def an_unknown_model(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    async with api.realtime.connect(model="gpt-9") as connection:
        talk = Talk(connection, client)
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'demo'" in error["message"]
        assert await talk.closed() == 1008


@flow
async def client_secrets_open_sessions(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    secret = await api.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "instructions": "Be kind.", "max_output_tokens": 3},
    )
    assert secret.value.startswith("ek_")
    assert secret.session.id.startswith("sess_")
    async with client.talk(key=secret.value) as talk:
        await talk.send(type="session.update", session={"type": "realtime"})
        session = (await talk.expect("session.updated"))["session"]
        assert session["instructions"] == "Be kind."
        assert (await talk.ask("hello"))["usage"]["output_tokens"] <= 3
    code = None
    try:
        browser = AsyncOpenAI(base_url=client.url, api_key=secret.value)
        await browser.realtime.client_secrets.create()
    except PermissionDeniedError as denied:
        code = denied.code
    assert code == "ephemeral_key", "a secret makes no secrets"


@flow
async def session_close_ends_the_session(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=2)
        await talk.send(type="session.close")
        assert (await talk.expect("session.closed"))["reason"] == "client_request"
        assert await talk.closed() == 1000


@flow
async def a_wrong_key(client: Client) -> None:
    status = None
    try:
        async with client.talk(key="sk-wrong"):
            pass
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == 401


@flow
async def a_wrong_key_for_responses(client: Client) -> None:
    api, status = AsyncOpenAI(base_url=client.url, api_key="sk-wrong"), None
    try:
        async with api.responses.connect():
            pass
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == 401


@flow
async def models_are_listed(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    models = [model.id async for model in api.models.list()]
    assert models == ["demo"]
    assert (await api.models.retrieve("demo")).id == "demo"
