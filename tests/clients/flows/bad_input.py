"""Flows of invalid frames: an error names the field, and the connection stays usable."""
# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from websockets.exceptions import ConnectionClosed

from tests.clients.flows.connections import FLOWS, Client, flow, user

BAD: dict[str, tuple[str, str, str | None]] = {
    "not_json": ('{"event_id": "bad", "type": ', "invalid_json", None),
    "not_an_object": ('["event_id", "bad"]', "invalid_type", None),
    "unknown_event": ('{"event_id": "bad", "type": "session.destroy"}', "invalid_value", "type"),
    "no_type": ('{"event_id": "bad"}', "missing_required_parameter", "type"),
    "missing_field": (
        '{"event_id": "bad", "type": "conversation.item.create"}',
        "missing_required_parameter",
        "item",
    ),
    "missing_field_inside": (
        '{"event_id": "bad", "type": "session.update", "session": {}}',
        "missing_required_parameter",
        "session.type",
    ),
    "wrong_type": (
        '{"event_id": "bad", "type": "session.update", '
        '"session": {"type": "realtime", "instructions": 7}}',
        "invalid_type",
        "session.instructions",
    ),
    "temperature_above": (
        '{"event_id": "bad", "type": "response.create", "response": {"temperature": 2.5}}',
        "decimal_above_max_value",
        "response.temperature",
    ),
    "top_p_zero": (
        '{"event_id": "bad", "type": "response.create", "response": {"top_p": 0}}',
        "decimal_below_min_value",
        "response.top_p",
    ),
    "no_tokens": (
        '{"event_id": "bad", "type": "response.create", "response": {"max_output_tokens": 0}}',
        "integer_below_min_value",
        "response.max_output_tokens",
    ),
    "image": (
        '{"event_id": "bad", "type": "conversation.item.create", "item": {"type": "message", '
        '"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}}',
        "invalid_value",
        "item.content[0].type",
    ),
    "too_deep": (
        '{"event_id": "bad", "type": "response.cancel", "x": ' + "[" * 50_000,
        "invalid_json",
        None,
    ),
    "too_large": (
        json.dumps({"event_id": "bad", "type": "response.cancel", "x": "x" * 1_100_000}),
        "frame_too_large",
        None,
    ),
    "over_the_context": (
        json.dumps(
            {
                "event_id": "bad",
                "type": "conversation.item.create",
                "item": user("all work and no play " * 2_000),
            }
        ),
        "context_length_exceeded",
        "item",
    ),
    "instructions_over_the_context": (
        json.dumps(
            {
                "event_id": "bad",
                "type": "session.update",
                "session": {"type": "realtime", "instructions": "all work and no play " * 2_000},
            }
        ),
        "context_length_exceeded",
        "session.instructions",
    ),
}


def bad_input(frame: str, code: str, param: str | None) -> Callable[[Client], Awaitable[None]]:
    async def run(client: Client) -> None:
        async with client.connect_realtime() as connection:
            await connection.add_message("hello")
            await connection.send_raw(frame)
            error = (await connection.expect("error"))["error"]
            assert (error["code"], error["param"]) == (code, param), error
            if code != "invalid_type" or param is not None:
                assert error["event_id"] == "bad", error
            await connection.check_usable()

    return run


for name, (frame, code, param) in BAD.items():
    FLOWS[f"bad_input_{name}"] = bad_input(frame, code, param)


@flow
async def a_frame_over_twice_the_limit_closes(client: Client) -> None:
    async with client.connect_realtime() as connection:
        with suppress(ConnectionClosed):  # the server closes before the frame is sent
            await connection.send_raw("x" * 2_200_000)
        assert await connection.close_code() == 1009


@flow
async def frames_that_are_never_json_close(client: Client) -> None:
    async with client.connect_realtime() as connection:
        for _ in range(32):
            await connection.send_raw("hello?")
        await connection.expect(*["error"] * 32)
        assert await connection.close_code() == 1007
