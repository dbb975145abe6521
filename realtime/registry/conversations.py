"""Conversations: sessions that are used by their id, with a connection or without."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.replay import EmittedEvent
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.commands import AppendResponse
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry, assume_alive
from continuo.realtime.session.session import Session


class Conversations:
    """The conversations of all tenants. Implements `responses.conversations`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @asynccontextmanager
    async def use(
        self, conversation_id: str, credentials: Credentials, *, keep_connection: bool = False
    ) -> AsyncGenerator[Session, None]:
        """Yield the session of a conversation, to change it: the one that has a connection here, or
        else one that is resumed, and parked again afterwards. Raises Refusal.

        `keep_connection`: whether to refuse with `connection_lost` if the session has a connection
        at another gateway, which is closed otherwise."""
        connected = self._registry.find_connected(conversation_id, credentials.tenant)
        if connected is not None:
            yield connected
            return
        close = make_close()
        session = await self._registry.resume(
            ResumeRequest(conversation_id),
            discard,
            credentials,
            close,
            _never_answer if keep_connection else assume_alive,
        )
        try:
            yield session
        finally:
            await asyncio.shield(self._registry.park(session, close))

    async def extend(self, conversation_id: str, tenant: str) -> None:
        with refusing_unknown(conversation_id, "conversation"):
            try:
                async with self.use(conversation_id, Credentials(tenant), keep_connection=True):
                    pass
            except Refusal as refusal:
                if refusal.code != "connection_lost":
                    raise

    async def read(self, conversation_id: str, tenant: str) -> Conversation:
        with refusing_unknown(conversation_id, "conversation"):
            return (await self._registry.read(conversation_id, tenant)).conversation

    async def append(self, conversation_id: str, tenant: str, command: AppendResponse) -> None:
        with refusing_unknown(conversation_id, "conversation"):
            async with self.use(conversation_id, Credentials(tenant)) as session:
                await session.execute(command)


@contextmanager
def refusing_unknown(conversation_id: str, param: str) -> Generator[None]:
    """Turn the refusal of an unknown session into that of an unknown conversation. `param`: the
    parameter that names it."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code not in ("session_not_found", "session_expired", "session_ended"):
            raise
        raise conversation_not_found(conversation_id, param) from refusal


def conversation_not_found(conversation_id: str, param: str = "conversation_id") -> Refusal:
    return Refusal(
        f"Conversation with id '{conversation_id[:200]}' not found. It may have expired.",
        code="conversation_not_found",
        param=param,
    )


async def _never_answer() -> bool:
    return False


def discard(_event: EmittedEvent) -> None:
    """Listener of a session that is used without a connection."""


def make_close() -> Callable[[CloseCode, str], None]:
    """Make a `close_connection`, which identifies a request as the holder of its session."""

    def close(_code: CloseCode, _reason: str) -> None:
        pass

    return close
