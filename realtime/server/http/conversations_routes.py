"""Routes of the Conversations API. A conversation is a session without a connection.

    POST             /v1/conversations                  create a conversation, with items
    GET, POST        /v1/conversations/ID               describe one, set its metadata
    DELETE           /v1/conversations/ID               delete one
    GET, POST        /v1/conversations/ID/items         list items in pages, add items
    GET, DELETE      /v1/conversations/ID/items/ITEM    one item

A conversation expires like a parked session: `--resume-window-s` after its last change or
connection. It can be continued over the Realtime API, as the session with its id. A GET takes no
session over.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import AddItems, ConfigureSession, DeleteItem
from continuo.realtime.protocol.conversations_api import (
    CreateConversation,
    CreateItems,
    Record,
    UpdateConversation,
    decode_body,
    decode_new_items,
    encode_conversation,
    read_record,
    write_record,
)
from continuo.realtime.protocol.responses_api import encode_item_page
from continuo.realtime.protocol.responses_api.encoder import encode_input_item
from continuo.realtime.registry.access import Access, Credentials
from continuo.realtime.registry.access import Scope as KeyScope
from continuo.realtime.registry.conversations import (
    Conversations,
    conversation_not_found,
    discard,
    make_close,
    refusing_unknown,
)
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.pagination import select_page
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.session.session import Session
from continuo.realtime.session.unit_of_work import SessionOrigin

Handler = Callable[[Request, Credentials], Awaitable[object]]


class ConversationsRoutes:
    """Routes of the Conversations API."""

    def __init__(self, registry: Registry, authenticator: Authenticator, limits: Limits) -> None:
        self._registry = registry
        self._conversations = Conversations(registry)
        self._authenticator = authenticator
        self._limits = limits

    def routes(self) -> list[Route]:
        one, items = "/v1/conversations/{id}", "/v1/conversations/{id}/items"
        handlers: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/conversations", self.create),
            ("GET", one, self.get),
            ("POST", one, self.update),
            ("DELETE", one, self.delete),
            ("GET", items, self.list_items),
            ("POST", items, self.create_items),
            ("GET", f"{items}/{{item}}", self.get_item),
            ("DELETE", f"{items}/{{item}}", self.delete_item),
        ]
        return [
            Route(
                path,
                self._serve(handler, "read" if method == "GET" else "converse"),
                methods=[method],
            )
            for method, path, handler in handlers
        ]

    def _serve(self, handler: Handler, scope: KeyScope) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that responds with the result of `handler`, or with its Refusal."""

        async def serve(request: Request) -> Response:
            credentials = replies.authenticate_full_key(self._authenticator, request, scope)
            if isinstance(credentials, Response):
                return credentials
            try:
                with refusing_unknown(request.path_params.get("id", ""), "conversation_id"):
                    return replies.json_response(await handler(request, credentials))
            except Refusal as refusal:
                return replies.refusal_response(refusal)

        return serve

    # ------------------------------------------------------------ conversations

    async def create(self, request: Request, credentials: Credentials) -> object:
        body = decode_body(await self._read_body(request), CreateConversation)
        items = decode_new_items(body.items or [], generate_id)
        record = Record(created_at=int(time.time()), metadata=body.metadata or {})
        settings = write_record(self._registry.settings, record)
        conversation_id, close = generate_id("conv"), make_close()
        session = await self._registry.open(
            discard,
            conversation_id,
            msgspec.structs.replace(credentials, settings=settings),
            close,
        )
        try:
            await session.execute(AddItems(items))
        except BaseException:
            await asyncio.shield(self._registry.close(session))
            raise
        await self._registry.park(session, close)
        return encode_conversation(conversation_id, record)

    async def get(self, request: Request, credentials: Credentials) -> object:
        found = await self._read(request, credentials)
        return encode_conversation(request.path_params["id"], read_record(found.settings))

    async def update(self, request: Request, credentials: Credentials) -> object:
        body = decode_body(await self._read_body(request), UpdateConversation)
        async with self._session(request, credentials) as session:
            record = msgspec.structs.replace(
                read_record(session.settings), metadata=body.metadata or {}
            )
            await session.execute(ConfigureSession(write_record(session.settings, record)))
            return encode_conversation(session.id, record)

    async def delete(self, request: Request, credentials: Credentials) -> object:
        conversation_id: str = request.path_params["id"]
        access = Access.of(credentials)
        if not await self._registry.delete(conversation_id, credentials.tenant, access):
            raise conversation_not_found(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    # ------------------------------------------------------------ items

    async def list_items(self, request: Request, credentials: Credentials) -> object:
        found = await self._read(request, credentials)
        page, has_more = select_page(list(found.conversation.items()), request.query_params)
        return encode_item_page(page, has_more=has_more)

    async def create_items(self, request: Request, credentials: Credentials) -> object:
        body = decode_body(await self._read_body(request), CreateItems)
        items = decode_new_items(body.items, generate_id)
        async with self._session(request, credentials) as session:
            await session.execute(AddItems(items))
            return encode_item_page(items, has_more=False)

    async def get_item(self, request: Request, credentials: Credentials) -> object:
        found = await self._read(request, credentials)
        item = found.conversation.find(request.path_params["item"])
        if item is None:
            raise _item_not_found(request.path_params["item"])
        return encode_input_item(item)

    async def delete_item(self, request: Request, credentials: Credentials) -> object:
        item_id: str = request.path_params["item"]
        async with self._session(request, credentials) as session:
            if session.conversation.find(item_id) is None:
                raise _item_not_found(item_id)
            await session.execute(DeleteItem(item_id))
            return encode_conversation(session.id, read_record(session.settings))

    # ------------------------------------------------------------ sessions

    def _session(
        self, request: Request, credentials: Credentials
    ) -> AbstractAsyncContextManager[Session]:
        """Return the session of a conversation, to change it."""
        return self._conversations.use(request.path_params["id"], credentials)

    async def _read(self, request: Request, credentials: Credentials) -> SessionOrigin:
        """Read a conversation without a takeover. Raises Refusal."""
        access = Access.of(credentials)
        return await self._registry.read(request.path_params["id"], credentials.tenant, access)

    async def _read_body(self, request: Request) -> bytes:
        return await read_body(request, self._limits.response_frame_bytes_max) or b"{}"


def _item_not_found(item_id: str) -> Refusal:
    return Refusal(
        f"Item with id '{item_id[:200]}' not found.", code="item_not_found", param="item_id"
    )
