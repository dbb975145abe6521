"""Tests of the documents: docs/protocol.md agrees with the code, and every test and flow named in
evidence/conformance.md exists."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import msgspec.inspect
import pytest

from continuo.realtime import limits
from continuo.realtime.protocol import chat_api, realtime_api, responses_api
from continuo.realtime.protocol.chat_api.replies import Completion, CompletionChunk, Error
from continuo.realtime.protocol.realtime_api.server_events import SessionOut
from continuo.realtime.protocol.responses_api.server_events import ResponseOut
from continuo.realtime.server import replies
from continuo.realtime.server.http.model_routes import ModelList
from continuo.realtime.server.http.session_routes import ClientSecretIn
from continuo.realtime.server.http.stats_routes import ServerStats
from continuo.realtime.session.status import SessionStatus as StatusOfSession
from tests.frozen import names

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/protocol.md").read_text()
CONFORMANCE = (ROOT / "evidence/conformance.md").read_text()

# ---------------------------------------------------------------- conformance.md


def test_every_test_named_in_conformance_exists() -> None:
    source = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+", CONFORMANCE))
    assert len(named) > 20
    assert [name for name in sorted(named) if f"def {name}(" not in source] == []


def test_every_flow_named_in_conformance_exists() -> None:
    files = (ROOT / "tests/clients/flows").glob("*.py")
    source = "".join(file.read_text() for file in files)
    italic = re.findall(r"\*(\w+)\*", CONFORMANCE)
    named = {name for name in italic if not name.startswith("bad_input")}
    assert len(named) > 20
    assert [name for name in sorted(named) if f"async def {name}(" not in source] == []


# ---------------------------------------------------------------- examples of protocol.md


class SessionStatus(StatusOfSession, frozen=True, kw_only=True):
    id: str
    object: str


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    object: str
    data: list[SessionStatus]
    has_more: bool


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    deleted: bool


class MintedSecret(msgspec.Struct, frozen=True, kw_only=True):
    value: str
    expires_at: int
    session: SessionOut


SENT: dict[str, Callable[[str], object]] = {
    "realtime.client": realtime_api.decode_frame,
    "responses.client": responses_api.decode_frame,
    "responses.body": lambda text: responses_api.decode_body(text.encode()),
    "chat.body": lambda text: chat_api.decode_body(text.encode()),
    "client_secrets.body": lambda text: msgspec.json.decode(text, type=ClientSecretIn),
}
"""How the server decodes what clients send, by the kind of example."""

RECEIVED: dict[str, Any] = {
    "realtime.server": realtime_api.ServerEvent,
    "responses.server": responses_api.ServerEvent,
    "responses.object": ResponseOut,
    "chat.completion": Completion,
    "chat.chunk": CompletionChunk,
    "chat.error": Error,
    "client_secrets.answer": MintedSecret,
    "sessions.status": SessionStatus,
    "sessions.list": SessionList,
    "sessions.deleted": Deleted,
    "models.list": ModelList,
    "stats": ServerStats,
}
"""The types of what the server sends, by the kind of example."""


def examples() -> Iterator[tuple[str, str]]:
    """The kind and the text of each example of the reference."""
    for language, kind, body in re.findall(r"^```(\w+) (\S+)\n(.*?)^```", REFERENCE, re.M | re.S):
        yield kind, body.partition("data: ")[2] if language == "sse" else body


EXAMPLES = list(examples())


def test_every_example_has_a_kind() -> None:
    assert len(EXAMPLES) > 80
    assert REFERENCE.count("```") == 2 * len(EXAMPLES)
    assert {kind for kind, _ in EXAMPLES} == {*SENT, *RECEIVED, "http.error"}


@pytest.mark.parametrize(("kind", "text"), [one for one in EXAMPLES if one[0] in SENT])
def test_client_examples_are_decoded_completely(kind: str, text: str) -> None:
    """Every field of the example is one that the server reads."""
    decoded = json.loads(msgspec.json.encode(SENT[kind](text)))
    assert list(unread(json.loads(text), decoded)) == []


@pytest.mark.parametrize(("kind", "text"), [one for one in EXAMPLES if one[0] in RECEIVED])
def test_server_examples_have_all_fields(kind: str, text: str) -> None:
    """The example has all fields that the server writes, and no others."""
    event = msgspec.json.decode(text, type=RECEIVED[kind])
    assert json.loads(msgspec.json.encode(event)) == json.loads(text)


def test_http_error_example_is_that_of_the_server() -> None:
    (text,) = (text for kind, text in EXAMPLES if kind == "http.error")
    error = json.loads(text)["error"]
    response = replies.error_response(404, error["code"], error["message"], error["param"])
    assert json.loads(bytes(response.body)) == json.loads(text)


def unread(sent: Any, decoded: Any, path: str = "") -> Iterator[str]:
    """Paths of `sent` that are not in `decoded` with the same value.

    The server ignores the `type` of calls in a chat message.
    """
    match sent, decoded:
        case dict(), dict():
            for key, value in sent.items():
                if key in decoded:
                    yield from unread(value, decoded[key], f"{path}.{key}")
                elif (key, value) != ("type", "function"):
                    yield f"{path}.{key}"
        case list(), list():
            for number, (one, other) in enumerate(zip(sent, decoded, strict=True)):
                yield from unread(one, other, f"{path}[{number}]")
        case _:
            if sent != decoded:
                yield path


# ---------------------------------------------------------------- completeness

UNIONS = {
    "realtime.client": realtime_api.ClientEvent,
    "realtime.server": realtime_api.ServerEvent,
    "responses.client": responses_api.ResponseCreate
    | responses_api.ResponseSteer
    | responses_api.ResponseCancel,
    "responses.server": responses_api.ServerEvent,
}


@pytest.mark.parametrize("kind", UNIONS)
def test_every_event_has_an_example_in_the_reference(kind: str) -> None:
    types = {event.__struct_config__.tag for event in get_args(UNIONS[kind])}
    shown = {json.loads(text)["type"] for of, text in EXAMPLES if of == kind}
    assert shown == types


INTERNAL_CODES = {"link_refused", "model_error", "stale_fence", "too_long"}
"""Codes of the engine; the gateway maps them to codes of its own, or does not start."""
NO_CODES = {"client_cancelled", "no_engine", "no_store"}
"""Frozen with the codes, but a reason and values of `/health/ready`."""


def test_every_error_code_is_in_the_reference() -> None:
    tables = "\n".join(re.findall(r"^\| `.*", section("Error codes"), re.M))
    listed = set(re.findall(r"`([a-z_]+)`", tables)) | {"invalid_request_error"}
    frozen = {*names.frozen()["error codes"], *names.frozen()["engine error codes"]}
    parts = {code for code in frozen if code.startswith(("above_", "below_"))}
    codes = frozen - parts - INTERNAL_CODES - NO_CODES
    assert codes - listed == set()
    assert all(any(code.endswith(part) for code in listed) for part in parts)


def test_every_error_code_of_the_reference_exists() -> None:
    known = {*names.frozen()["error codes"], *names.frozen()["engine error codes"]}
    for row in re.findall(r"^\| (`.*?) \|", section("Error codes"), re.M):
        for code in re.findall(r"`([a-z_]+)`", row):
            assert code in known or code.partition("_")[2] in known, code


def test_close_code_table_is_complete() -> None:
    rows = re.findall(r"^\| (\d{4}) \|.*\| (yes|no)\b.*\|$", section("Close codes"), re.M)
    table = {code: "reconnect" if retry == "yes" else "stop" for code, retry in rows}
    assert table.pop("1002") == "stop", "sent by the WebSocket library"
    assert table == names.frozen()["close codes"]


def section(title: str) -> str:
    _, _, rest = REFERENCE.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def test_links_within_the_reference_have_a_target() -> None:
    headings = re.findall(r"^#+ (.*)$", REFERENCE, re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
    assert set(re.findall(r"\(#([^)]+)\)", REFERENCE)) - anchors == set()


# ---------------------------------------------------------------- bounds

BOUNDS = ("ge", "gt", "le", "lt", "max_length")
CLIENT_TYPES = {
    "Realtime": UNIONS["realtime.client"],
    "Responses": UNIONS["responses.client"],
    "Chat completions": chat_api.ChatCompletionRequest,
    "Sessions and client secrets over HTTP": ClientSecretIn,
}
"""The types of client requests, by the section that has their tables."""
IN_OTHER_ROWS = {"type", "function", "json_schema", "format", "verbosity", "mode", "schema"}
"""Fields without a row of their own, named in other rows."""


def fields() -> set[tuple[str, str, tuple[str, ...]]]:
    """Every field that clients send: its section, its name, its bounds as written on the page."""
    return {
        (title, field.encode_name, tuple(sorted(map(written, bounds(field.type)))))
        for title, types in CLIENT_TYPES.items()
        for struct in structs(msgspec.inspect.type_info(types))
        for field in struct.fields
    }


def structs(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.StructType]:
    """The structs of a type: itself, those that it contains, and those of their fields."""
    if isinstance(kind, msgspec.inspect.StructType):
        yield kind
        inner = [field.type for field in kind.fields]
    else:
        inner = parts(kind)
    yield from (struct for one in inner for struct in structs(one))


def parts(kind: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return types
        case msgspec.inspect.ListType(item_type=item):
            return (item,)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return (key, value)
        case _:
            return ()


def bounds(kind: msgspec.inspect.Type) -> Iterator[float]:
    found = (getattr(kind, bound, None) for bound in BOUNDS)
    yield from (bound for bound in found if bound is not None)
    yield from (bound for part in parts(kind) for bound in bounds(part))


def written(bound: float) -> str:
    large = {2**53: "2^53", 2**63 - 1: "2^63 - 1"}
    return large.get(int(bound), f"{bound:,g}" if bound < 1000 else f"{int(bound):,}")


@pytest.mark.parametrize(("title", "field", "numbers"), sorted(fields()))
def test_every_field_has_its_bounds_in_the_reference(
    title: str, field: str, numbers: tuple[str, ...]
) -> None:
    """The settings of a client secret are those of a Realtime session."""
    tables = section("Conventions") + section(title)
    if title.startswith("Sessions"):
        tables += section("Realtime")
    rows = re.findall(rf"^\|[^|]*`{field}`.*$", tables, re.M)
    assert rows or field in IN_OTHER_ROWS, "no table has this field"
    assert field in IN_OTHER_ROWS or any(
        all(contains(row, number) for number in numbers) for row in rows
    )


def contains(row: str, number: str) -> bool:
    return re.search(rf"(?<![\d,.^]){re.escape(number)}(?![\d^]|[.,]\d)", row) is not None


UNDOCUMENTED = {"off_loop_chars_min", "close_timeout_s", "sweep_interval_s"}
"""Limits without an effect visible to clients."""


def test_limits_of_the_reference_are_those_of_the_server() -> None:
    rows = re.findall(r"<!-- (\w+) --> \| ([\d,]+)", REFERENCE)
    table = {name: float(value.replace(",", "")) for name, value in rows}
    defaults = msgspec.structs.asdict(limits.Limits())
    constants = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert table == {name: {**constants, **defaults}[name] for name in table}
    assert defaults.keys() - table.keys() == UNDOCUMENTED
