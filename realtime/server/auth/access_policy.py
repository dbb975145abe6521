"""The access policy: API keys with their tenants and scopes, and the limits of tenants.

`--api-keys-file` names a TOML file:

    [defaults]                              limits of tenants that set none
    requests_per_minute = 600

    [tenants.acme]                          limits of one tenant: fields of `TenantLimits`
    running_responses_max = 8

    [[keys]]
    key = "sk-..."                          or key_sha256 = "...", the SHA-256 digest of the key
    tenant = "acme"
    scopes = ["converse", "read"]           the default; "admin" must be named
    expires = 2027-01-01T00:00:00Z          default: never

A file without a table is a list of `KEY = TENANT` lines; quotes around either are allowed, and `#`
begins a comment. Such keys have all scopes and never expire. A tenant may have several keys. Keys
of `--api-key` belong to the tenant "default".
"""

import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from continuo.realtime.errors import SetupError
from continuo.realtime.limits import TenantLimits
from continuo.realtime.registry.access import ALL_SCOPES, KEY_ID_BYTES, TENANT_SCOPES, Scope

DEFAULT_TENANT = "default"
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


class ApiKey(msgspec.Struct, frozen=True):
    """An API key without its text. `id`: the beginning of its digest."""

    id: bytes
    tenant: str
    scopes: frozenset[Scope] = ALL_SCOPES
    expires_s: float = math.inf
    """Unix time at which the key expires."""


class AccessPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The keys and limits that are in force until the next reload."""

    keys: dict[bytes, ApiKey] = {}
    """API keys by their SHA-256 digest. The lookup by a digest reveals nothing about the keys by
    its duration. Empty: no key is required, unless there are tokens."""
    requires_token: bool = False
    """Whether a client without an API key must show a JSON Web Token."""
    defaults: dict[str, int | float] = {}
    """Limits of tenants that set none, by field of `TenantLimits`."""
    tenants: dict[str, dict[str, int | float]] = {}
    """Limits by tenant, then by field of `TenantLimits`."""
    allowed_origins: frozenset[str] = frozenset()
    """Web origins whose pages may connect, in lower case."""
    plain_keys: tuple[str, ...] = ()
    """Text of the keys, as far as it is known, for redaction in logs."""

    @property
    def requires_key(self) -> bool:
        return bool(self.keys) or self.requires_token

    @property
    def tenant_count(self) -> int:
        """Number of tenants that have a key; 2 or more if tokens are accepted."""
        return len({key.tenant for key in self.keys.values()}) + 2 * self.requires_token

    def find(self, key: str, now_s: float) -> ApiKey | None:
        """Find an API key by its text. Returns None if the key is unknown or has expired."""
        found = self.keys.get(_digest(key))
        return found if found is not None and found.expires_s > now_s else None

    def limits_of(
        self, tenant: str, claimed: Mapping[str, int | float] | None = None
    ) -> TenantLimits:
        """Return the limits of a tenant: those of its table, else those that its token claims, else
        the defaults. Raises msgspec.ValidationError for an unknown or invalid claim."""
        merged = {**self.defaults, **(claimed or {}), **self.tenants.get(tenant, {})}
        return msgspec.convert(merged, TenantLimits)


def plain_policy(
    tenants: Mapping[str, str],
    allowed_origins: frozenset[str] = frozenset(),
    defaults: Mapping[str, int | float] | None = None,
) -> AccessPolicy:
    """Make a policy of keys with all scopes, from the tenants by key."""
    keys = [_make_key(_digest(key), tenant) for key, tenant in tenants.items()]
    return AccessPolicy(
        keys=dict(keys),
        defaults=dict(defaults or {}),
        allowed_origins=allowed_origins,
        plain_keys=tuple(tenants),
    )


def default_tenant_keys(keys: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(keys, DEFAULT_TENANT)


def read_keys_file(path: Path) -> AccessPolicy:
    """Read `--api-keys-file`. Raises SetupError, whose message never contains a key."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SetupError(f"--api-keys-file {path}: cannot be read ({reason})") from None
    policy = _parse_tables(path, text) if _TABLE.search(text) else _parse_lines(path, text)
    if not policy.keys and not policy.tenants and not policy.defaults:
        raise SetupError(f"--api-keys-file {path}: the file has no key")
    return policy


def merge(file: AccessPolicy, plain: AccessPolicy) -> AccessPolicy:
    """Return the policy of a keys file and that of the other options together. A key of the options
    has the tenant that they give it; a default of the file replaces theirs."""
    return msgspec.structs.replace(
        plain,
        keys={**file.keys, **plain.keys},
        defaults={**plain.defaults, **file.defaults},
        tenants=file.tenants,
        plain_keys=(*file.plain_keys, *plain.plain_keys),
    )


def _parse_lines(path: Path, text: str) -> AccessPolicy:
    tenants: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        key, equals, tenant = (part.strip().strip("\"'") for part in content.partition("="))
        where = f"--api-keys-file {path}, line {number}"
        if not (key and equals and tenant):
            raise SetupError(f"{where}: expected KEY = TENANT")
        if tenants.get(key, tenant) != tenant:
            raise SetupError(f"{where}: this key belongs to another tenant")
        tenants[key] = tenant
    return plain_policy(tenants)


class _KeyTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(min_length=1)]
    key: Annotated[str, Meta(min_length=1)] | None = None
    key_sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    scopes: frozenset[Scope] = TENANT_SCOPES
    expires: Annotated[datetime, Meta(tz=True)] | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    defaults: dict[str, int | float] = {}
    tenants: dict[str, dict[str, int | float]] = {}
    keys: list[_KeyTable] = []


def _parse_tables(path: Path, text: str) -> AccessPolicy:
    where = f"--api-keys-file {path}"
    try:
        parsed = msgspec.convert(tomllib.loads(text), _File)
        for limits in ({}, *parsed.tenants.values()):
            msgspec.convert({**parsed.defaults, **limits}, TenantLimits)
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{where}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise SetupError(f"{where}: {error}") from None
    keys: dict[bytes, ApiKey] = {}
    for number, table in enumerate(parsed.keys, 1):
        if (table.key is None) == (table.key_sha256 is None):
            raise SetupError(f"{where}, key {number}: expected either key or key_sha256")
        digest = _digest(table.key) if table.key else bytes.fromhex(table.key_sha256 or "")
        if digest in keys:
            raise SetupError(f"{where}, key {number}: the same key as an earlier one")
        expires_s = math.inf if table.expires is None else table.expires.timestamp()
        keys |= [_make_key(digest, table.tenant, table.scopes, expires_s)]
    return AccessPolicy(
        keys=keys,
        defaults=parsed.defaults,
        tenants=parsed.tenants,
        plain_keys=tuple(table.key for table in parsed.keys if table.key),
    )


def _make_key(
    digest: bytes,
    tenant: str,
    scopes: frozenset[Scope] = ALL_SCOPES,
    expires_s: float = math.inf,
) -> tuple[bytes, ApiKey]:
    return digest, ApiKey(digest[:KEY_ID_BYTES], tenant, scopes, expires_s)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
