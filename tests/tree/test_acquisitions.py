"""Each place that acquires something (an entry of a set, a count that also falls) names what
releases it: a test that fails the operation at each await, or why no failure can come between."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine/client", "engine/server", "engine/upstream", "realtime")
CLIENT_LIBRARY = ROOT / "realtime/client"
"""Left out: it is in the process of its user."""
RELEASES = {"clear", "discard", "pop", "popleft", "remove"}

TASKS = "the task removes itself when it is done"
SYNC = "a method without an await adds and removes; the owner is a state machine: "

RELEASED_BY = {
    "engine/client/grammar_trials.py _served": "test_wait_for_a_trial_that_fails",
    "engine/client/router.py _pending": "test_opening_of_a_token_session_that_fails",
    "engine/server/listener.py _clients": "test_admission_of_a_gateway_that_fails",
    "engine/upstream/backend.py _running_turns": SYNC + "`end_turn` follows each `begin_turn`",
    "engine/upstream/backend.py _tasks": TASKS,
    "engine/upstream/slots.py _requests": SYNC + "`SlotContent` of each request",
    "realtime/completions/token_sessions.py _tasks": TASKS,
    "realtime/completions/token_turns.py register": "test_turns_on_raw_prompts_that_fail",
    "realtime/event_log/event_log.py _bytes": SYNC + "events leave the log from its front",
    "realtime/persistence/session_writer.py _revoked_keys": SYNC + "a write takes all of them",
    "realtime/registry/open_sessions.py _tasks": TASKS,
    "realtime/responses/continuations.py _cache": "test_creation_of_a_response_that_fails",
    "realtime/responses/continuations.py _close_tasks": TASKS,
    "realtime/responses/continuations.py point_count": SYNC + "counts the points of `_cache`",
    "realtime/responses/conversation_memory.py count": SYNC + "a point or branch holds it",
    "realtime/responses/conversations.py _held": "test_creation_of_a_response_that_fails",
    "realtime/responses/event_stream.py follower_count": ("test_reader_of_events_that_fails"),
    "realtime/responses/service.py _connections": "test_responses_connection_that_fails",
    "realtime/responses/service.py _tasks": TASKS,
    "realtime/responses/service.py continuations": "test_creation_of_a_response_that_fails",
    "realtime/server/auth/open_connections.py _connections": "test_connection_that_fails",
    "realtime/server/hardening/guards.py _unread": SYNC + "it ends with its connection",
    "realtime/server/hardening/read_turns.py _waiting": SYNC + "a lost connection withdraws",
    "realtime/server/process/engine_discovery.py fleet": SYNC + "what is announced now, is added",
    "realtime/session/active_responses.py _tasks": TASKS,
    "realtime/tenants/ledger.py connections": "test_connection_that_fails",
    "realtime/tenants/turn_slots.py _running": "test_turn_of_a_token_session_that_fails",
    "realtime/transport/backlog.py size_bytes": SYNC + "it ends with its connection",
    "realtime/transport/stream_queues.py _tasks": TASKS,
}
"""The release of each acquisition, by file and attribute."""


def name_of(node: ast.expr) -> str | None:
    """Return the attribute that an expression refers to, also an item of it."""
    match node:
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
        case _:
            return None


def acquired_and_released(tree: ast.Module) -> set[str]:
    """Return the attributes that a file adds to, or counts up, and also removes from."""
    acquired: set[str | None] = set()
    released: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target=target, op=ast.Add()):
                acquired.add(name_of(target))
            case ast.AugAssign(target=target, op=ast.Sub()):
                released.add(name_of(target))
            case ast.Call(func=ast.Attribute(value=table, attr="add")):
                acquired.add(name_of(table))
            case ast.Attribute(value=table, attr=method) if method in RELEASES:
                released.add(name_of(table))
            case ast.Delete(targets=targets):
                released.update(map(name_of, targets))
            case _:
                pass
    return {name for name in acquired & released if name is not None}


def test_each_acquisition_names_its_release() -> None:
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if CLIENT_LIBRARY not in path.parents
        for name in acquired_and_released(ast.parse(path.read_text("utf-8")))
    }
    assert sorted(found - {*RELEASED_BY}) == [], "name what releases it"
    assert sorted({*RELEASED_BY} - found) == []


def test_named_tests_exist() -> None:
    source = (ROOT / "tests/realtime/test_releases.py").read_text("utf-8")
    tests = {*re.findall(r"^async def (test_\w+)", source, re.MULTILINE)}
    assert {name for name in RELEASED_BY.values() if name.startswith("test_")} - tests == set()
