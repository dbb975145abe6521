"""The real OpenAI SDK for Python against a real server: one test per flow of `flows`."""

import ast
from pathlib import Path

import pytest

from tests.clients import transcripts
from tests.clients.conftest import FlowResult
from tests.clients.error_rows import errors_of
from tests.clients.parallel_rows import PARALLEL

SOURCES = sorted((Path(__file__).parent / "flows").glob("*.py"))
BUNDLED_ONLY = {
    "a_call_is_required",
    "a_calls_kv_stays_warm",
    "a_chat_completion_calls_a_tool",
    "a_name_is_recalled_ten_turns_later",
    "a_named_tool_is_called",
    "a_response_calls_a_tool",
    "a_strict_schema_is_followed_however_hot",
    "a_strict_tool_is_called_where_the_model_likes",
    "a_tool_is_called_and_its_result_used",
    "at_most_one_call",
    "five_hundred_turns_just_go_on",
    "steering_waits_for_what_a_call_gives",
    "the_retention_ratio_says_what_stays",
    "what_cannot_steer_comes_back",
}


def _is_flow(function: ast.AsyncFunctionDef) -> bool:
    return "flow" in map(ast.unparse, function.decorator_list)


def names() -> list[str]:
    """Return the names of all flows, read from their source; the SDK is not installed here."""
    found: list[str] = []
    for node in (node for source in SOURCES for node in ast.parse(source.read_text()).body):
        if isinstance(node, ast.AsyncFunctionDef) and _is_flow(node):
            found.append(node.name)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "BAD":
            assert isinstance(node.value, ast.Dict)
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            found += [f"bad_input_{key}" for key in keys]
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_flow_succeeds(name: str, flows: dict[str, FlowResult], model: str) -> None:
    if model != "demo" and name in BUNDLED_ONLY:
        pytest.skip("only the bundled model passes this flow")
    assert flows[name]["problem"] is None, flows[name]["problem"]


NOT_RECORDED = {
    "a_completion_of_raw_text",
    "a_wrong_key",
    "a_wrong_key_for_responses",
    "five_hundred_turns_just_go_on",
    "json_mode_says_an_object",
    "lanes_have_a_bound",
    "log_probabilities_are_reported",
    "what_cannot_steer_comes_back",
}
"""Flows without frames, with too many, or with frames that differ from run to run."""
STREAMS = {"lanes_beside_each_other", "responses_beside_the_conversation_share_its_kv"}
"""Flows with concurrent responses."""
HIGH_TEMPERATURE = {"a_strict_schema_is_followed_however_hot", "at_most_one_call"}
"""Flows at a high temperature, whose calls may differ from one machine to the next."""
RECORDED = [name for name in names() if name not in NOT_RECORDED]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RECORDED)
def test_transcript_matches_the_recorded_one(
    name: str, flows: dict[str, FlowResult], model: str, record: bool
) -> None:
    if model != "demo":
        pytest.skip("the recorded transcripts are of the bundled model")
    transcript = flows[name]["transcript"]
    if name in STREAMS:
        transcript = transcripts.by_stream(transcript)
    if name in HIGH_TEMPERATURE:
        transcript = transcripts.mask_calls(transcript)
    transcripts.check("python", name, transcript, record=record)


def test_every_flow_is_run(flows: dict[str, FlowResult]) -> None:
    assert sorted(flows) == sorted(names())
    recorded = {path.stem for path in (transcripts.GOLDEN / "python").iterdir()}
    assert recorded == {*RECORDED, *errors_of("python").values(), *PARALLEL}
