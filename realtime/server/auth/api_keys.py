"""API keys, and whose they are.

A keys file has one key a line, `KEY = TENANT`; quotes around either are allowed, `#` begins a
comment. Several keys may be one tenant's. Keys of `--api-key` are those of the tenant "default".
"""

from collections.abc import Iterable
from pathlib import Path

from continuo.realtime.errors import SetupError

DEFAULT_TENANT = "default"


def default_tenant_keys(keys: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(keys, DEFAULT_TENANT)


def read_keys_file(path: Path) -> dict[str, str]:
    """Tenants by key. Raises SetupError, which never shows a key."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SetupError(f"--api-keys-file {path}: cannot be read ({reason})") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        key, equals, tenant = (part.strip().strip("\"'") for part in text.partition("="))
        where = f"--api-keys-file {path}, line {number}"
        if not (key and equals and tenant):
            raise SetupError(f"{where}: expected KEY = TENANT")
        if found.get(key, tenant) != tenant:
            raise SetupError(f"{where}: this key is another tenant's already")
        found[key] = tenant
    if not found:
        raise SetupError(f"--api-keys-file {path}: there is no key in it")
    return found
