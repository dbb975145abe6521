"""The keys file with tenants, scopes, expiry and limits."""

import hashlib
import re
import time
from pathlib import Path

import msgspec
import pytest

from continuo.realtime.errors import SetupError
from continuo.realtime.limits import TenantLimits
from continuo.realtime.registry.access import (
    ALL_SCOPES,
    TENANT_SCOPES,
    Credentials,
    key_id_of,
    make_secret,
)
from continuo.realtime.server.auth.access_policy import AccessPolicy, read_keys_file
from continuo.realtime.server.config.settings import load_access_policy, make_serve_settings

KEYS = """
[defaults]
requests_per_minute = 600

[tenants.acme]
running_responses_max = 8
retention_s = 3600.5

[[keys]]
key = "key-one"
tenant = "acme"

[[keys]]
key_sha256 = "{digest}"
tenant = "umbrella"
scopes = ["read", "admin"]
expires = 2999-01-01T00:00:00Z

[[keys]]
key = "key-old"
tenant = "acme"
expires = 2020-01-01T00:00:00+02:00
""".replace("{digest}", hashlib.sha256(b"key-two").hexdigest())


def read(folder: Path, text: str) -> AccessPolicy:
    file = folder / "keys.toml"
    file.write_text(text)
    return read_keys_file(file)


def test_file_of_the_documentation_is_accepted(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs/limits.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert set(read(tmp_path, example).tenants) == {"acme"}


def test_keys_have_tenant_scopes_and_expiry(tmp_path: Path) -> None:
    policy = read(tmp_path, KEYS)
    one, two = (policy.find(key, time.time()) for key in ("key-one", "key-two"))
    assert one is not None
    assert two is not None
    assert (one.tenant, one.scopes) == ("acme", TENANT_SCOPES)
    assert (two.tenant, two.scopes) == ("umbrella", {"read", "admin"})
    assert policy.find("key-two", two.expires_s) is None, "expired"
    assert policy.find("key-old", time.time()) is None, "expired"
    assert policy.find("key-old", 0) is not None
    assert policy.plain_keys == ("key-one", "key-old"), "the text of the other is unknown"


def test_limits_of_a_tenant_are_its_own_then_those_of_its_token_then_the_defaults(
    tmp_path: Path,
) -> None:
    policy = read(tmp_path, KEYS)
    acme = TenantLimits(requests_per_minute=600, running_responses_max=8, retention_s=3600.5)
    assert policy.limits_of("acme") == acme
    assert policy.limits_of("umbrella") == TenantLimits(requests_per_minute=600)
    claimed = {"requests_per_minute": 5, "running_responses_max": 100}
    assert policy.limits_of("acme", claimed) == msgspec.structs.replace(acme, requests_per_minute=5)
    assert policy.limits_of("other", claimed) == TenantLimits(
        requests_per_minute=5, running_responses_max=100
    )


def test_options_and_keys_file_are_merged(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    options = {"api_keys_file": str(tmp_path / "keys.toml"), "api_key": ["mine"]}
    policy = load_access_policy(
        make_serve_settings({**options, "tokens_per_minute": 7, "requests_per_minute": 1})
    )
    mine = policy.find("mine", time.time())
    assert mine is not None
    assert (mine.tenant, mine.scopes) == ("default", ALL_SCOPES)
    expected = TenantLimits(
        requests_per_minute=600,
        tokens_per_minute=7,
        operations_per_second=10_000,
        held_bytes_max=4 << 30,
    )
    assert policy.limits_of("default") == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[keys]]\ntenant = 'a'", "key 1: expected either key or key_sha256"),
        (
            "[[keys]]\nkey = 'secret-1'\nkey_sha256 = '" + "0" * 64 + "'\ntenant = 'a'",
            "key 1: expected either key or key_sha256",
        ),
        ("[[keys]]\nkey = 'secret-1'\ntenant = 'a'\n" * 2, "key 2: the same key as an earlier"),
        ("[[keys]]\nkey = 'secret-1'", "missing required field `tenant`"),
        ("[[keys]]\nkey = 'secret-1'\ntenant = ''", r"keys\[0\].tenant"),
        ("[[keys]]\nkey = 'secret-1'\ntenant = 'a'\nscopes = ['write']", r"keys\[0\].scopes"),
        ("[[keys]]\nkey = 'secret-1'\ntenant = 'a'\nexpires = 2027-01-01T00:00:00", "timezone"),
        ("[[keys]]\nkey_sha256 = 'abc'\ntenant = 'a'", r"keys\[0\].key_sha256"),
        ("[tenants.a]\nconnections = 1", "unknown field `connections`"),
        ("[tenants.a]\nconnections_max = -1", r"connections_max"),
        ("[defaults]\nretention_s = -1", r"retention_s"),
        ("[[keys]\nkey = 'secret-1'", "not TOML"),
        ("[other]\n", "unknown field `other`"),
    ],
)
def test_invalid_tables_are_refused_without_quoting_a_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(SetupError, match=problem) as caught:
        read(tmp_path, text)
    assert "secret-1" not in str(caught.value)


def test_session_records_the_key_and_the_client_secret_that_began_it() -> None:
    for digest in (b"", b"c" * 32):
        for key_id in (b"", b"k" * 8):
            credentials = Credentials("acme", client_secret_digest=digest, key_id=key_id)
            assert key_id_of(make_secret("token", credentials)) == key_id
