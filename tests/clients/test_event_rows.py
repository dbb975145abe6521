"""Each event of the Realtime API, and of the Responses API over a WebSocket, seen on the wire of
both SDKs: one test a row."""

import pytest

from tests.clients.realtime_rows import REALTIME
from tests.clients.response_rows import RESPONSES
from tests.clients.rows import CLIENTS, Found, find, says

APIS = {"realtime": REALTIME, "responses": RESPONSES}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("api", "kind"),
    [(api, kind) for api, rows in APIS.items() for kind in rows.client_events],
)
def test_client_event(api: str, kind: str, client: str) -> None:
    wanted = set(APIS[api].client_events[kind])
    replies = [set[str]().union(*map(says, later)) for later in APIS[api].of(client).behind(kind)]
    assert replies, f"no client has said {kind}"
    assert any(wanted <= replied for replied in replies)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("api", "kind"),
    [(api, kind) for api, rows in APIS.items() for kind in rows.server_events],
)
def test_server_event(api: str, kind: str, client: str) -> None:
    seen = APIS[api].of(client).said("S", kind)
    assert seen, f"the server has not said {kind}"
    for path in APIS[api].server_events[kind]:
        found = {find(line.event, path): line.event for line in seen}
        assert "missing" not in found, f"{path} of {found['missing']}"
        assert "there" in found, f"{path} is null each time"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", APIS)
def test_nothing_else_is_said(api: str, client: str) -> None:
    """Beside these rows, and what answers an addition."""
    rows = APIS[api]
    answers = {name for replies in rows.client_events.values() for name in replies}
    said = {
        line.kind
        for lines in rows.of(client).connections
        for line in lines
        if line.side == "S" and line.event
    }
    assert said - {*rows.server_events, *answers} == set()


@pytest.mark.parametrize(
    ("event", "path", "found"),
    [
        ({"a": {"b": 0}}, "a.b", "there"),
        ({"a": {}}, "a.b", "missing"),
        ({"a": {}}, "a.b?", "missing"),
        ({"a": None}, "a.b", "missing"),
        ({"a": {"b": None}}, "a.b", "missing"),
        ({"a": None}, "a?.b", "null"),
        ({"a": {"b": None}}, "a.b?", "null"),
        ({"a": {"b": None}}, "a.b: null", "there"),
        ({"a": {"b": 0}}, "a.b: null", "missing"),
        ({"a": None}, "a.b: null", "missing"),
    ],
)
def test_null_is_allowed_where_it_is_named(event: object, path: str, found: Found) -> None:
    assert find(event, path) == found
