"""Routes of sessions and client secrets.

    POST   /v1/realtime/client_secrets   mint a client secret, with the settings of its sessions
    GET    /v1/realtime/sessions/ID      status of a session, and where its KV is held
    DELETE /v1/realtime/sessions/ID      end a session

The session may be in this process, on another gateway, or in the store only. It belongs to its
tenant: the id of another tenant's session is refused like an unknown id. A client secret gives
access only to sessions created with it, or to a session whose `resume_token` is in the query; other
ids are refused like unknown ids.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.realtime_api import (
    Encoder,
    SessionIn,
    decode_session_settings,
)
from continuo.realtime.protocol.validation import explain
from continuo.realtime.registry.access import Access, Credentials
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.client_secrets import ClientSecrets
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.request_body import read_body


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetime of a client secret in a request: `seconds` from its creation."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = 600


class ClientSecretIn(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/realtime/client_secrets`."""

    expires_after: ExpiresAfter | None = None
    session: SessionIn | None = None


class SessionRoutes:
    """Routes of sessions and client secrets."""

    def __init__(
        self,
        registry: Registry,
        authenticator: Authenticator,
        secrets: ClientSecrets,
        limits: Limits,
        model: str,
    ) -> None:
        """Args:
        registry: finds, lists and deletes sessions.
        authenticator: names the tenant of a request.
        secrets: mints client secrets.
        limits: on bodies and lists.
        model: name of the model in replies.
        """
        self._registry = registry
        self._authenticator = authenticator
        self._secrets = secrets
        self._limits = limits
        self._model = model

    def routes(self) -> list[Route]:
        one = "/v1/realtime/sessions/{id}"
        return [
            Route("/v1/realtime/client_secrets", self.mint, methods=["POST"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
        ]

    async def mint(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        try:
            requested = _decode_client_secret(
                await read_body(request, self._limits.frame_bytes_max) or b"{}"
            )
            default_settings = self._registry.settings
            settings = default_settings
            if requested.session is not None:
                settings = decode_session_settings(
                    requested.session, default_settings, default_settings
                )
                self._registry.text_limits.check_head(settings, ConfigureSession.field_names)
            seconds = (requested.expires_after or ExpiresAfter()).seconds
            tenant = self._registry.tenants.of(credentials.tenant)
            with tenant.rate_limits.charge_request():
                secret = self._secrets.mint(tenant.name, settings, seconds, credentials.key_id)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        session = Encoder(generate_id("sess"), self._model).encode_session(settings)
        return replies.json_response(
            {"value": secret.value, "expires_at": secret.expires_at, "session": session}
        )

    async def get(self, request: Request) -> Response:
        credentials = replies.authenticate(self._authenticator, request, "read")
        if isinstance(credentials, Response):
            return credentials
        session_id: str = request.path_params["id"]
        try:
            status = await self._registry.status(
                session_id, credentials.tenant, access_of(credentials, request)
            )
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if status is None:
            return _not_found(session_id)
        return replies.json_response(
            {"id": session_id, "object": "realtime.session", **status.fields()}
        )

    async def delete(self, request: Request) -> Response:
        credentials = replies.authenticate(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        session_id: str = request.path_params["id"]
        try:
            deleted = await self._registry.delete(
                session_id, credentials.tenant, access_of(credentials, request)
            )
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if not deleted:
            return _not_found(session_id)
        return replies.json_response(
            {"id": session_id, "object": "realtime.session", "deleted": True}
        )


def access_of(credentials: Credentials, request: Request) -> Access:
    """Return the access that a request proves: by its key, and by `resume_token` in its query."""
    return Access.of(credentials, request.query_params.get("resume_token"))


def _not_found(session_id: str) -> Response:
    message = f"The session with id '{session_id[:200]}' does not exist."
    return replies.error_response(404, "session_not_found", message, "id")


def _decode_client_secret(body: bytes) -> ClientSecretIn:
    try:
        return msgspec.json.decode(body, type=ClientSecretIn)
    except msgspec.ValidationError as error:
        message, code, param = explain(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message, code, param = "The body is not valid JSON.", "invalid_json", None
    raise Refusal(message, code=code, param=param)
