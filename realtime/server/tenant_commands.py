"""`continuo tenant usage | delete`: the usage of a tenant, and its removal from a store.

Both commands work on the store itself, while gateways use it or not. Gateways notice within seconds
that a tenant was deleted: they close its connections with 4003 and cancel its responses.
"""

import sys

import msgspec

from continuo.engine import escape_commands, print_line
from continuo.realtime.errors import SetupError
from continuo.realtime.store import (
    Store,
    StoreError,
    TenantHoldings,
    TenantUsage,
    delete_tenant,
    open_store,
)


class TenantReport(msgspec.Struct, frozen=True):
    """Output of `usage --json`."""

    tenant: str
    usage: TenantUsage
    holdings: TenantHoldings


async def print_usage(url: str, tenant: str, *, as_json: bool) -> None:
    """Raises SetupError."""
    store = await _open(url)
    try:
        usage = await store.tenants.read_usage(tenant)
        holdings = await store.tenants.measure(tenant)
    except StoreError as error:
        raise SetupError(f"--store: {error}") from None
    finally:
        await store.aclose()
    if as_json:
        print_line(msgspec.json.encode(TenantReport(tenant, usage, holdings)).decode())
        return
    rows = {
        "requests": usage.requests,
        "requests refused": usage.refused,
        "tokens computed": usage.computed_tokens,
        "tokens from cache": usage.cached_tokens,
        "tokens generated": usage.generated_tokens,
        "sessions": holdings.sessions,
        "stored responses": holdings.responses,
        "stored bytes": holdings.stored_bytes,
    }
    for name, amount in rows.items():
        print_line(f"{name:<18}{amount:>20,}")


async def delete(url: str, tenant: str, *, is_confirmed: bool) -> None:
    """Raises SetupError."""
    if not is_confirmed and not _confirm(tenant):
        raise SetupError("nothing was deleted")
    store = await _open(url)
    try:
        deleted = await delete_tenant(store, tenant)
    except StoreError as error:
        raise SetupError(f"not everything was deleted, repeat the command: {error}") from None
    finally:
        await store.aclose()
    print_line(
        f"Deleted {deleted.sessions:,} sessions and {deleted.responses:,} stored responses of "
        f"tenant '{tenant}', {deleted.stored_bytes:,} bytes, and its usage. If it still has a "
        "key, it can begin anew."
    )


def _confirm(tenant: str) -> bool:
    if not sys.stdin.isatty():
        raise SetupError("pass --yes to delete without a question")
    question = escape_commands(f"Delete everything of tenant '{tenant}'? [y/N] ")
    return input(question).strip().lower() == "y"


async def _open(url: str) -> Store:
    try:
        return await open_store(url)
    except StoreError as error:
        raise SetupError(f"--store: {error}") from None
