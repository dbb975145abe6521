"""Names that users, clients, other versions and other tools depend on.

names.json: options with their environment and config keys, error and close codes, fields of
`/v1/stats`, of events and of stored values, keys in Redis, the schema of SQLite, keys of the page
in the browser's storage. Fields are described as in `shapes`, in their order: the digest of a
client event under an idempotency key depends on it.
"""

import ast
import asyncio
import json
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continuo.engine.errors import ERRORS_BY_CODE
from continuo.realtime.persistence.session_codec import StoredRequest, StoredState
from continuo.realtime.protocol import realtime_api, responses_api
from continuo.realtime.protocol.close_codes import EXPLANATIONS
from continuo.realtime.protocol.events import ResponseEvent
from continuo.realtime.protocol.responses_api import ResponseCancel, ResponseCreate, ResponseSteer
from continuo.realtime.server.config.options import COMMAND_GROUPS, ENVIRONMENT_PREFIX, OPTIONS
from continuo.realtime.server.http.stats_routes import ServerStats
from continuo.realtime.server.process.engine_discovery import Announcement
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.store import ResponseCheckpoint, keys, open_store
from tests.frozen.shapes import shape_of

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "data" / "names.json"
_STORAGE_KEY = re.compile(r"""['"`](continuo\.[\w.]+)""")


def current() -> dict[str, Any]:
    return {
        "options": _options(),
        "error codes": _error_codes(),
        "engine error codes": {
            code: kind.is_retryable for code, kind in sorted(ERRORS_BY_CODE.items())
        },
        "close codes": {
            str(int(code)): "reconnect" if retry else "stop"
            for code, (_, retry) in sorted(EXPLANATIONS.items())
        },
        "stats": shape_of(ServerStats),
        "status of a session": shape_of(SessionStatus),
        "client events": {
            "realtime": shape_of(realtime_api.ClientEvent),
            "responses": [
                shape_of(kind) for kind in (ResponseCreate, ResponseSteer, ResponseCancel)
            ],
        },
        "server events": {
            "realtime": shape_of(realtime_api.ServerEvent),
            "responses": shape_of(responses_api.ServerEvent),
        },
        "stored": {
            "state of a session": shape_of(StoredState),
            "request of a response": shape_of(StoredRequest),
            "response under way": shape_of(ResponseCheckpoint),
            "recording of a response": shape_of(ResponseEvent),
            "engine that is announced": shape_of(Announcement),
        },
        "redis": _redis_keys(),
        "sqlite": asyncio.run(_sqlite_schema()),
        "browser storage": sorted(_storage_keys()),
    }


def _options() -> dict[str, Any]:
    options = {
        f"--{option.name}": {
            "environment": option.environment_variable,
            "config": option.key,
            "kind": option.kind,
            "group": option.group,
            "choices": list(option.choices),
        }
        for option in OPTIONS
    }
    groups = {command: list(groups) for command, groups in COMMAND_GROUPS.items()}
    return {"config file": f"{ENVIRONMENT_PREFIX}CONFIG", "groups of commands": groups, **options}


def _error_codes() -> list[str]:
    """The frozen codes that still occur in the source, and those given as an argument or attribute
    `code` in it.

    Codes in tables of the source were added to the file by hand.
    """
    nodes = [node for module in _sources() for node in ast.walk(module)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    recorded: list[str] = frozen()["error codes"] if FILE.exists() else []
    given = {code for node in nodes for code in _codes(node)}
    return sorted(given | {code for code in recorded if code in texts})


def _sources() -> Iterator[ast.Module]:
    """Yield the syntax trees of the product's Python files."""
    for folder in ("engine", "realtime"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield ast.parse(file.read_text())


def _codes(node: ast.AST) -> Iterator[str]:
    match node:
        case (
            ast.keyword(arg="code", value=value)
            | ast.Assign(targets=[ast.Name(id="code")], value=value)
        ):
            yield from _strings(value)
        case ast.AnnAssign(target=ast.Name(id="code"), value=ast.expr() as value):
            yield from _strings(value)
        case _:
            pass


def _strings(value: ast.expr) -> Iterator[str]:
    """Yield a constant string, or those in both branches of a conditional expression."""
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp(body=body, orelse=other):
            yield from _strings(body)
            yield from _strings(other)
        case _:
            pass


def _redis_keys() -> dict[str, Any]:
    return {
        "of a session": list(keys.session_keys("SESSION")),
        "of a stored response": keys.response_key("RESPONSE"),
        "of a tenant": list(keys.tenant_keys("TENANT")),
        "deleted tenants": keys.TENANTS_DELETED_KEY,
        "of an engine": keys.engine_key("HOST:PORT"),
        "engines": keys.ENGINES_KEY,
        "epoch": keys.EPOCH_KEY,
        "deadlines": keys.DEADLINES_KEY,
        "layout": keys.LAYOUT_KEY,
        "probes": list(keys.PROBE_KEYS),
    }


async def _sqlite_schema() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        await (await open_store(f"sqlite:///{file}")).aclose()
        return schema_of(file)


def schema_of(file: Path) -> dict[str, Any]:
    db = sqlite3.connect(file)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql <> '' ORDER BY name")
        return {"user_version": version, **{name: " ".join(sql.split()) for name, sql in rows}}
    finally:
        db.close()


def _storage_keys() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "web/src"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name.endswith((".ts", ".html"))]
    return {
        key for file in files if file.exists() for key in _STORAGE_KEY.findall(file.read_text())
    }


def frozen() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def write() -> None:
    FILE.write_text(json.dumps(current(), indent=1) + "\n")
