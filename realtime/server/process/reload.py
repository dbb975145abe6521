"""Reload of a running gateway: keys, limits of tenants, allowed origins and the certificate.

The settings are read again on SIGHUP, and when one of their files has changed. If they are not
valid, the previous ones stay in force, and the log says why. All other options take effect at the
next start.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterable

from starlette.datastructures import State

from continuo.realtime.errors import SetupError
from continuo.realtime.server import logging_setup
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.config.settings import (
    GatewaySettings,
    SettingsSource,
    load_access_policy,
)
from continuo.realtime.server.process.certificate import load_certificate, make_server_tls
from continuo.realtime.tenants.tenants import Tenants

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
"""Interval at which the files are examined."""
RELOADABLE = frozenset(
    {"tenants", "api_keys_file", "allowed_origins", "ssl_certfile", "ssl_keyfile", "limits"}
)
"""Fields of GatewaySettings that a reload can change; of `limits`, RELOADABLE_LIMITS."""
RELOADABLE_LIMITS = frozenset(
    {"requests_per_minute", "tokens_per_minute", "operations_per_second", "held_bytes_max"}
)
"""Defaults of the limits of a tenant."""

FileStamp = tuple[int, int, int] | None
"""Inode, time of the last change and size of a file; None if it cannot be examined."""


class Reloader:
    def __init__(
        self,
        source: SettingsSource,
        settings: GatewaySettings,
        state: State,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`state`: state of the application. `tls`: the context of the server, which is changed in
        place."""
        self._source = source
        self._settings = settings
        self._authenticator: Authenticator = state.authenticator
        self._open_connections: OpenConnections = state.open_connections
        self._tenants: Tenants = state.tenants
        self._tls = tls
        self._stamps = self._stamp_files()
        """Stamps of the files that are in force; taken here, so that no later change is missed."""

    async def run(self, requested: asyncio.Event) -> None:
        """Reload whenever `requested` is set, or a file has changed."""
        while True:
            try:
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await requested.wait()
            except TimeoutError:
                pass
            found = self._stamp_files()
            if not requested.is_set() and found == self._stamps:
                continue
            requested.clear()
            self._stamps = found
            try:
                self.reload()
            except SetupError as error:
                log.error("nothing was reloaded, the previous settings stay in force: %s", error)

    def reload(self) -> None:
        """Read the settings again, and apply what can change. Raises SetupError; then nothing has
        changed."""
        settings = self._source.read()
        policy = load_access_policy(settings)
        if policy.requires_key != self._authenticator.policy.requires_key:
            raise SetupError("whether a key is required can change only at a start")
        if self._tls is not None and settings.ssl_certfile is not None:
            make_server_tls(settings.ssl_certfile, settings.ssl_keyfile)
            load_certificate(self._tls, settings.ssl_certfile, settings.ssl_keyfile)
        logging_setup.replace_keys(policy.plain_keys)
        self._authenticator.replace_policy(policy)
        self._tenants.replace_limits(policy.limits_of)
        closed = self._open_connections.close_revoked(self._authenticator.is_valid)
        log.warning(
            "reloaded: %d keys of %d tenants; %d connections closed, because their key was revoked",
            len(policy.keys),
            len({key.tenant for key in policy.keys.values()}),
            closed,
        )
        for name in _unreloadable_changes(self._settings, settings):
            log.warning("the change of --%s takes effect at the next start", name)
        self._settings = settings

    def _stamp_files(self) -> list[FileStamp]:
        settings = self._settings
        files = (
            self._source.config_file,
            settings.api_keys_file,
            settings.ssl_certfile,
            settings.ssl_keyfile,
        )
        return [_stamp(file) for file in files if file is not None]


def _stamp(file: str) -> FileStamp:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _unreloadable_changes(old: GatewaySettings, new: GatewaySettings) -> Iterable[str]:
    for before, after, reloadable in (
        (old, new, RELOADABLE),
        (old.limits, new.limits, RELOADABLE_LIMITS),
    ):
        for name in before.__struct_fields__:
            if name not in reloadable and getattr(before, name) != getattr(after, name):
                yield name.replace("_", "-")
