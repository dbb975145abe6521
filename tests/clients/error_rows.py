"""The rows of conformance.md about failures, each with the flow that covers it."""

ERRORS = {
    "error 400 previous_response_not_found": "a_response_nobody_knows",
    "error 400 websocket_connection_limit_reached": "a_connection_at_its_end",
    "error 429": "a_tenant_at_its_limit",
    "error 500": "a_fault_of_the_server",
    "response.failed": "a_response_that_fails",
    "response.done failed": "a_turn_that_fails",
    "chat completion 500": "a_chat_completion_that_fails",
    "upgrade 426": "a_way_that_carries_no_websockets",
    "upgrade 401": "a_key_that_is_wrong",
    "upgrade 404": "a_path_that_is_wrong",
    "upgrade 503": "a_server_that_is_not_ready",
    "TCP abort": "a_connection_that_is_cut",
}
_PYTHON_ONLY = {"response.done failed"}
"""openai-node connects to Realtime only over TLS, which these servers do not have."""


def errors_of(client: str) -> dict[str, str]:
    """Return the rows that this client covers, with their flows."""
    only = set[str]() if client == "python" else _PYTHON_ONLY
    return {row: flow for row, flow in ERRORS.items() if row not in only}
