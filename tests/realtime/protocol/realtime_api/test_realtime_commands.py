"""Realtime client events to commands: partial settings, nulls, and content that is refused."""

import json

import msgspec
import pytest

from continuo.engine import Sampling
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import (
    AddItem,
    ConfigureSession,
    ConversationCommand,
    CreateSessionResponse,
)
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    MessageItem,
)
from continuo.realtime.protocol.realtime_api import (
    CloseRequest,
    IgnoredAudioEvent,
    decode_command,
    decode_frame,
)
from continuo.realtime.protocol.realtime_api.extras import Extras
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice

CURRENT = GenerationSettings(
    instructions="be kind",
    tools=(Tool(name="look"),),
    max_output_tokens=7,
    sampling=Sampling(temperature=0.5, top_k=9, seed=3, stop=("x",)),
)
DEFAULT = GenerationSettings(sampling=Sampling(temperature=0.1))


def decode(
    event: dict[str, object], current: GenerationSettings = CURRENT, fresh: str = "fresh"
) -> ConversationCommand | IgnoredAudioEvent | CloseRequest:
    frame = json.dumps(event)
    return decode_command(decode_frame(frame), current, DEFAULT, lambda prefix: f"{prefix}_{fresh}")


def update(current: GenerationSettings = CURRENT, /, **session: object) -> GenerationSettings:
    command = decode(
        {"type": "session.update", "session": {"type": "realtime", **session}}, current
    )
    assert isinstance(command, ConfigureSession)
    return command.settings


def respond(current: GenerationSettings = CURRENT, /, **response: object) -> CreateSessionResponse:
    command = decode({"type": "response.create", "response": response}, current)
    assert isinstance(command, CreateSessionResponse)
    return command


def add(**item: object) -> Item:
    command = decode({"type": "conversation.item.create", "item": item})
    assert isinstance(command, AddItem)
    return command.item


NULLS: dict[str, object] = {
    "instructions": None,
    "tools": None,
    "tool_choice": None,
    "max_output_tokens": None,
    "temperature": None,
    "top_k": None,
    "seed": None,
    "stop": None,
    "ignore_eos": None,
    "parallel_tool_calls": None,
}


def test_omitted_settings_stay_unchanged() -> None:
    settings = update()
    assert (settings.instructions, settings.tools) == (CURRENT.instructions, CURRENT.tools)
    assert (settings.max_output_tokens, settings.sampling) == (7, CURRENT.sampling)


def test_null_in_an_update_restores_the_default() -> None:
    settings = update(**NULLS)
    assert (settings.instructions, settings.tools) == ("", ())
    assert (settings.max_output_tokens, settings.sampling) == (None, DEFAULT.sampling)


def test_null_in_a_response_means_the_setting_of_the_session() -> None:
    settings = respond(**NULLS, metadata=None, input=None, conversation=None).settings
    assert (settings.instructions, settings.tools) == (CURRENT.instructions, CURRENT.tools)
    assert (settings.max_output_tokens, settings.sampling) == (7, CURRENT.sampling)
    assert respond() == respond(**NULLS)
    assert decode({"type": "response.create"}) == respond()


def test_ignore_eos_is_set_by_session_and_response() -> None:
    assert update(ignore_eos=True).sampling.ignore_eos is True
    assert respond(ignore_eos=True).settings.sampling.ignore_eos is True
    assert respond().settings.sampling.ignore_eos is False


def test_empty_values_clear_settings() -> None:
    settings = update(instructions="", tools=[], stop=[])
    assert (settings.instructions, settings.tools, settings.sampling.stop) == ("", (), ())


def test_every_sampling_parameter_is_decoded() -> None:
    sampling = update(
        temperature=1,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=0,
        stop="end",
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
    ).sampling
    assert sampling == Sampling(
        temperature=1,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=0,
        stop=("end",),
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
    )


def test_max_output_tokens_inf_means_unlimited() -> None:
    assert update(max_output_tokens="inf").max_output_tokens is None
    assert update(max_output_tokens=3).max_output_tokens == 3


def test_unsupported_kinds_of_tools_are_ignored() -> None:
    mcp = {"type": "mcp", "server_label": "x", "require_approval": "never"}
    function = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    (tool,) = update(tools=[mcp, function]).tools
    assert (tool.name, tool.parameters) == ("look", '{"type":"object"}')


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"tools": [{"type": "function"}]}, "session.tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "fly"}}, "session.tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "session.tool_choice.name"),
    ],
)
def test_inconsistent_tools_are_refused(settings: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        update(**settings)
    assert caught.value.param == param
    assert param in caught.value.message


def test_tool_choice_accepts_a_function_name() -> None:
    choice = {"type": "function", "name": "look"}
    assert update(tool_choice=choice).tool_choice == ToolChoice("function", "look")
    assert update(tool_choice="required").tool_choice == ToolChoice("required")


@pytest.mark.parametrize("choice", [{"type": "mcp", "server_label": "x"}, {"type": "file_search"}])
def test_choice_of_an_ignored_tool_becomes_auto(choice: dict[str, object]) -> None:
    mcp = {"type": "mcp", "server_label": "x", "require_approval": "never"}
    assert update(tools=[mcp], tool_choice=choice).tool_choice == ToolChoice()
    assert respond(tool_choice=choice).settings.tool_choice == ToolChoice()


LISTEN = {"type": "function", "name": "listen"}


@pytest.mark.parametrize("tools", [[LISTEN], [], None])
def test_removing_the_chosen_tool_resets_the_choice(tools: object) -> None:
    chosen = msgspec.structs.replace(CURRENT, tool_choice=ToolChoice("function", "look"))
    assert update(chosen).tool_choice == chosen.tool_choice
    assert update(chosen, tools=tools).tool_choice == ToolChoice()
    kept = update(chosen, tools=[LISTEN, {"type": "function", "name": "look"}])
    assert kept.tool_choice == chosen.tool_choice


def test_response_with_its_own_tools_ignores_the_choice_of_the_session() -> None:
    chosen = msgspec.structs.replace(CURRENT, tool_choice=ToolChoice("function", "look"))
    assert respond(chosen).settings.tool_choice == chosen.tool_choice
    for overrides in ({"tools": [LISTEN]}, {"tools": [LISTEN], "tool_choice": None}, {"tools": []}):
        assert respond(chosen, **overrides).settings.tool_choice == ToolChoice()


def test_required_tool_choice_is_kept_without_tools() -> None:
    current = update(GenerationSettings(), tool_choice="required")
    assert current.tool_choice == ToolChoice("required")
    assert respond(current, tools=[LISTEN]).settings.tool_choice == ToolChoice("required")


@pytest.mark.parametrize("audio", [None, 5, {"output": 5}, {"output": {"voice": {"id": "v"}}}])
def test_any_audio_settings_are_accepted(audio: object) -> None:
    assert Extras.from_settings(update(audio=audio)).voice == "alloy"
    assert Extras.from_settings(update(audio={"output": {"voice": "marin"}})).voice == "marin"


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("kind", ["input_text", "output_text", "text"])
def test_text_parts_are_accepted_under_any_text_type(role: str, kind: str) -> None:
    item = add(type="message", role=role, content=[{"type": kind, "text": "hi"}])
    assert isinstance(item, MessageItem)
    assert item.id == "item_fresh"
    expected = "output_text" if role == "assistant" else "input_text"
    assert item.parts == (ContentPart(expected, "hi"),)


def test_audio_part_becomes_its_transcript() -> None:
    part = {"type": "input_audio", "audio": "AAAA", "transcript": "hi"}
    item = add(type="message", role="user", content=[part])
    assert isinstance(item, MessageItem)
    assert item.parts == (ContentPart("input_audio", "hi"),)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_text"}, "item.content[0].text"),
        ({"type": "input_audio", "audio": "AAAA"}, "item.content[0].transcript"),
        ({"type": "input_image", "image_url": "data:"}, "item.content[0].type"),
    ],
)
def test_unsupported_content_parts_are_refused(part: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        add(type="message", role="user", content=[part])
    assert caught.value.param == param
    assert param.rpartition(".")[0] in caught.value.message


def test_calls_and_outputs_keep_the_ids_of_the_client() -> None:
    call = add(type="function_call", id="i", call_id="c", name="look", arguments="{}")
    assert call == FunctionCallItem(id="i", call_id="c", name="look", arguments="{}")
    result = add(type="function_call_output", call_id="c", output="seen")
    assert result == FunctionCallOutputItem(id="item_fresh", call_id="c", output="seen")


def test_call_without_a_call_id_gets_a_deterministic_one() -> None:
    item = {"type": "function_call", "id": "i", "name": "look", "arguments": "{}"}
    commands = [
        decode({"type": "conversation.item.create", "item": {**item, **more}}, fresh=fresh)
        for fresh, more in (("1", {}), ("2", {}), ("3", {"id": "j"}), ("4", {"id": None}))
    ]
    calls = [command.item for command in commands if isinstance(command, AddItem)]
    names = [call.call_id for call in calls if isinstance(call, FunctionCallItem)]
    assert calls[0] == calls[1]
    assert [name.startswith("call_") for name in names] == [True] * 4
    assert len(set(names)) == 3, "different calls share an id"


def test_out_of_band_response_with_its_own_input() -> None:
    message = {"type": "message", "role": "user", "content": []}
    command = respond(
        conversation="none",
        input=[{"type": "item_reference", "id": "i"}, message],
        metadata={"a": "b"},
    )
    assert command.is_out_of_band
    assert command.metadata == {"a": "b"}
    assert command.context == (
        ItemReference("i"),
        MessageItem(id="item_fresh", role="user", parts=()),
    )
    assert respond(input=[]).context == ()
    assert not respond(conversation="auto").is_out_of_band
    assert respond(conversation="auto") == respond(conversation=None) == respond()
    assert respond(conversation="conv_1") == CreateSessionResponse(
        settings=CURRENT, conversation_id="conv_1"
    )


def test_audio_buffer_events_are_ignored_or_refused() -> None:
    assert decode({"type": "input_audio_buffer.append", "audio": "AAAA"}) == IgnoredAudioEvent(
        "append"
    )
    assert decode({"type": "output_audio_buffer.clear"}) == IgnoredAudioEvent("output_clear")
    assert decode({"type": "input_audio_buffer.clear"}) == IgnoredAudioEvent("clear")
    with pytest.raises(Refusal) as caught:
        decode({"type": "input_audio_buffer.commit"})
    assert caught.value.code == "input_audio_buffer_commit_empty"
