"""Tests of clients and of the page that are expected to fail on a real server, and why."""

_SCHEMAS_ALONE = "llama-server enforces JSON schemas alone: forced and strict calls are refused"


def _flows(client: str, reason: str, *names: str) -> dict[str, str]:
    """The tests of flows of a client, and those of their transcripts."""
    tests = ("test_flow_succeeds", "test_transcript_matches_the_recorded_one")
    return {f"test_{client}.py::{test}[{name}]": reason for name in names for test in tests}


_OF_BOTH = {
    **_flows("openai_sdk", "the time of its device is not known", "usage_says_where_the_time_went"),
    "test_command.py::test_broken_model_folder_is_a_one_line_error[*.safetensors]": (
        "the weights in the folder are not read"
    ),
}
_LLAMA_SERVER_CLIENTS = {
    **_flows(
        "openai_sdk",
        _SCHEMAS_ALONE,
        "a_call_is_required",
        "a_named_tool_is_called",
        "a_chosen_tool_that_goes_takes_the_choice_along",
        "at_most_one_call",
        "a_strict_schema_is_followed_however_hot",
        "a_calls_kv_stays_warm",
        "a_strict_tool_is_called_where_the_model_likes",
        "steering_waits_for_what_a_call_gives",
    ),
    **_flows("openai_node", _SCHEMAS_ALONE, "steering_waits_for_what_a_call_gives"),
    "test_openai_sdk.py::test_flow_succeeds[what_cannot_steer_comes_back]": _SCHEMAS_ALONE,
    "test_openai_node.py::test_flow_succeeds[what_cannot_steer_comes_back]": _SCHEMAS_ALONE,
    "test_anthropic_sdk.py::test_flow_succeeds[a_tool_and_its_result]": _SCHEMAS_ALONE,
    **_OF_BOTH,
}
_BLOCKS = "vLLM caches whole blocks, here of 32 tokens"
_SPACES = "vLLM draws JSON with a space after comma and colon"
_VLLM_CLIENTS = {
    **_flows(
        "openai_sdk",
        _BLOCKS,
        "a_fork_goes_on_from_an_item",
        "a_response_over_http",
        "a_stored_response_goes_on_over_another_connection",
        "a_warm_up_is_prefilled",
        "responses_beside_the_conversation_share_its_kv",
        "responses_go_on_from_each_other",
        "ten_turns_reuse_what_was_said",
    ),
    "test_openai_sdk.py::test_flow_succeeds[a_calls_kv_stays_warm]": _BLOCKS,
    "test_openai_sdk.py::test_flow_succeeds[a_chat_completion]": _BLOCKS,
    "test_openai_sdk.py::test_flow_succeeds[a_response_calls_a_tool]": _BLOCKS,
    **_flows(
        "openai_node",
        _BLOCKS,
        "a_response_over_http",
        "a_warm_up_is_prefilled",
        "responses_go_on_from_each_other",
        "the_second_turn_reuses_the_first",
    ),
    "test_anthropic_sdk.py::test_flow_succeeds[a_history_with_a_system_prompt]": _BLOCKS,
    "test_openai_sdk.py::test_transcript_matches_the_recorded_one[a_named_tool_is_called]": _SPACES,
    **{
        f"test_{client}.py::test_transcript_matches_the_recorded_one"
        "[steering_waits_for_what_a_call_gives]": _SPACES
        for client in ("openai_sdk", "openai_node")
    },
    "test_openai_sdk.py::test_flow_succeeds[json_mode_says_an_object]": (
        f"{_SPACES}, with which the bundled model ends none"
    ),
    "test_openai_sdk.py::test_transcript_matches_the_recorded_one"
    "[a_session_is_looked_at_and_ended]": "the place of a session's KV is not known",
    "test_returning.py::test_response_survives_a_killed_server": (
        "what follows a loss is not drawn with the same seed"
    ),
    **_OF_BOTH,
}
_VLLM_PAGE = {
    "conversation.test.ts::sends text while it is typed, and prefills it before it is committed": (
        _BLOCKS
    ),
}
EXPECTED: dict[str, dict[str, dict[str, str]]] = {
    "llama-server": {"clients": _LLAMA_SERVER_CLIENTS, "page": {}},
    "vllm": {"clients": _VLLM_CLIENTS, "page": _VLLM_PAGE},
}
"""Reason by test, for each kind of server and part."""
