"""Events of the Realtime API and of the Responses API over a WebSocket, in the transcripts of both
SDKs: one test per row of conformance.md."""

import pytest

from tests.clients.realtime_rows import REALTIME
from tests.clients.response_rows import RESPONSES
from tests.clients.rows import CLIENTS, Found, event_names, find

APIS = {"realtime": REALTIME, "responses": RESPONSES}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("api", "kind"),
    [(api, kind) for api, rows in APIS.items() for kind in rows.client_events],
)
def test_client_event_is_sent_and_answered(api: str, kind: str, client: str) -> None:
    wanted = set(APIS[api].client_events[kind])
    replies = [
        set[str]().union(*map(event_names, later))
        for later in APIS[api].of(client).replies_after(kind)
    ]
    assert replies, f"no client has sent {kind}"
    assert any(wanted <= replied for replied in replies)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("api", "kind"),
    [(api, kind) for api, rows in APIS.items() for kind in rows.server_events],
)
def test_server_event_has_its_fields(api: str, kind: str, client: str) -> None:
    lines = APIS[api].of(client).lines("S", kind)
    assert lines, f"the server has not sent {kind}"
    for path in APIS[api].server_events[kind]:
        found = {find(line.event, path): line.event for line in lines}
        assert "missing" not in found, f"{path} of {found['missing']}"
        assert "there" in found, f"{path} is always null"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("api", APIS)
def test_server_sends_no_event_outside_the_tables(api: str, client: str) -> None:
    """Besides these rows, the server sends only replies to extension events."""
    rows = APIS[api]
    answers = {name for replies in rows.client_events.values() for name in replies}
    sent = {
        line.kind
        for lines in rows.of(client).connections
        for line in lines
        if line.side == "S" and line.event
    }
    assert sent - {*rows.server_events, *answers} == set()


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
def test_find_allows_null_only_where_the_path_does(event: object, path: str, found: Found) -> None:
    assert find(event, path) == found
