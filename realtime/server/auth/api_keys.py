"""API keys and their tenants.

A keys file has one `KEY = TENANT` per line; quotes around either are allowed, and `#` begins a
comment. A tenant may have several keys. Keys of `--api-key` belong to the tenant "default".
"""

from collections.abc import Iterable
from pathlib import Path

from continuo.realtime.errors import SetupError

DEFAULT_TENANT = "default"


def default_tenant_keys(keys: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(keys, DEFAULT_TENANT)


def read_keys_file(path: Path) -> dict[str, str]:
    """Return the tenants by API key. Raises SetupError, whose message never contains a key."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SetupError(f"--api-keys-file {path}: cannot be read ({reason})") from None
    tenants: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        key, equals, tenant = (part.strip().strip("\"'") for part in text.partition("="))
        where = f"--api-keys-file {path}, line {number}"
        if not (key and equals and tenant):
            raise SetupError(f"{where}: expected KEY = TENANT")
        if tenants.get(key, tenant) != tenant:
            raise SetupError(f"{where}: this key belongs to another tenant")
        tenants[key] = tenant
    if not tenants:
        raise SetupError(f"--api-keys-file {path}: the file has no key")
    return tenants
