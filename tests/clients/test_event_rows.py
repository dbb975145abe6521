"""Each event of the Realtime API, and of the Responses API over a WebSocket, seen on the wire of
both SDKs: one test a row."""

import pytest

from tests.clients.realtime_rows import REALTIME
from tests.clients.response_rows import RESPONSES
from tests.clients.rows import CLIENTS, has, says

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
    for line in seen:
        assert all(line.event.get(name, "…") for name in ("event_id", "sequence_number"))
        for path in APIS[api].server_events[kind]:
            assert has(line.event, path.split(".")), f"{path} of {line.event}"


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
