"""What client events mean: partial settings, nulls, and what cannot be read."""

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

NOW = GenerationSettings(
    instructions="be kind",
    tools=(Tool(name="look"),),
    max_output_tokens=7,
    sampling=Sampling(temperature=0.5, top_k=9, seed=3, stop=("x",)),
)
DEFAULT = GenerationSettings(sampling=Sampling(temperature=0.1))


def ask(
    event: dict[str, object], now: GenerationSettings = NOW, fresh: str = "fresh"
) -> ConversationCommand | IgnoredAudioEvent | CloseRequest:
    frame = json.dumps(event)
    return decode_command(decode_frame(frame), now, DEFAULT, lambda prefix: f"{prefix}_{fresh}")


def update(now: GenerationSettings = NOW, /, **session: object) -> GenerationSettings:
    asked = ask({"type": "session.update", "session": {"type": "realtime", **session}}, now)
    assert isinstance(asked, ConfigureSession)
    return asked.settings


def respond(now: GenerationSettings = NOW, /, **response: object) -> CreateSessionResponse:
    asked = ask({"type": "response.create", "response": response}, now)
    assert isinstance(asked, CreateSessionResponse)
    return asked


def add(**item: object) -> Item:
    asked = ask({"type": "conversation.item.create", "item": item})
    assert isinstance(asked, AddItem)
    return asked.item


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


def test_what_is_not_said_stays() -> None:
    settings = update()
    assert (settings.instructions, settings.tools) == (NOW.instructions, NOW.tools)
    assert (settings.max_output_tokens, settings.sampling) == (7, NOW.sampling)


def test_null_in_an_update_is_the_default() -> None:
    settings = update(**NULLS)
    assert (settings.instructions, settings.tools) == ("", ())
    assert (settings.max_output_tokens, settings.sampling) == (None, DEFAULT.sampling)


def test_null_in_a_response_is_what_the_session_has() -> None:
    settings = respond(**NULLS, metadata=None, input=None, conversation=None).settings
    assert (settings.instructions, settings.tools) == (NOW.instructions, NOW.tools)
    assert (settings.max_output_tokens, settings.sampling) == (7, NOW.sampling)
    assert respond() == respond(**NULLS)
    assert ask({"type": "response.create"}) == respond()


def test_ignore_eos_of_session_and_response() -> None:
    assert update(ignore_eos=True).sampling.ignore_eos is True
    assert respond(ignore_eos=True).settings.sampling.ignore_eos is True
    assert respond().settings.sampling.ignore_eos is False


def test_empty_clears() -> None:
    settings = update(instructions="", tools=[], stop=[])
    assert (settings.instructions, settings.tools, settings.sampling.stop) == ("", (), ())


def test_every_sampling_key_arrives() -> None:
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


def test_max_output_tokens_inf_is_no_bound() -> None:
    assert update(max_output_tokens="inf").max_output_tokens is None
    assert update(max_output_tokens=3).max_output_tokens == 3


def test_other_kinds_of_tools_are_left_out() -> None:
    mcp = {"type": "mcp", "server_label": "x", "require_approval": "never"}
    function = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    (tool,) = update(tools=[mcp, function]).tools
    assert (tool.name, tool.parameters) == ("look", '{"type":"object"}')


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"tools": [{"type": "function"}]}, "session.tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "fly"}}, "session.tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "session.tool_choice.name"),
    ],
)
def test_tools_that_do_not_add_up(wish: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        update(**wish)
    assert caught.value.param == param
    assert param in caught.value.message


def test_a_tool_may_be_chosen() -> None:
    choice = {"type": "function", "name": "look"}
    assert update(tool_choice=choice).tool_choice == ToolChoice("function", "look")
    assert update(tool_choice="required").tool_choice == ToolChoice("required")


@pytest.mark.parametrize("choice", [{"type": "mcp", "server_label": "x"}, {"type": "file_search"}])
def test_a_choice_among_tools_that_are_left_out_is_none(choice: dict[str, object]) -> None:
    mcp = {"type": "mcp", "server_label": "x", "require_approval": "never"}
    assert update(tools=[mcp], tool_choice=choice).tool_choice == ToolChoice()
    assert respond(tool_choice=choice).settings.tool_choice == ToolChoice()


LISTEN = {"type": "function", "name": "listen"}


@pytest.mark.parametrize("tools", [[LISTEN], [], None])
def test_a_chosen_tool_that_goes_takes_the_choice_along(tools: object) -> None:
    chosen = msgspec.structs.replace(NOW, tool_choice=ToolChoice("function", "look"))
    assert update(chosen).tool_choice == chosen.tool_choice
    assert update(chosen, tools=tools).tool_choice == ToolChoice()
    again = update(chosen, tools=[LISTEN, {"type": "function", "name": "look"}])
    assert again.tool_choice == chosen.tool_choice


def test_a_response_with_tools_of_its_own_leaves_out_a_choice_of_the_sessions() -> None:
    chosen = msgspec.structs.replace(NOW, tool_choice=ToolChoice("function", "look"))
    assert respond(chosen).settings.tool_choice == chosen.tool_choice
    for wish in ({"tools": [LISTEN]}, {"tools": [LISTEN], "tool_choice": None}, {"tools": []}):
        assert respond(chosen, **wish).settings.tool_choice == ToolChoice()


def test_a_call_may_be_required_of_tools_to_come() -> None:
    now = update(GenerationSettings(), tool_choice="required")
    assert now.tool_choice == ToolChoice("required")
    assert respond(now, tools=[LISTEN]).settings.tool_choice == ToolChoice("required")


@pytest.mark.parametrize("audio", [None, 5, {"output": 5}, {"output": {"voice": {"id": "v"}}}])
def test_whatever_audio_says_is_accepted(audio: object) -> None:
    assert Extras.from_settings(update(audio=audio)).voice == "alloy"
    assert Extras.from_settings(update(audio={"output": {"voice": "marin"}})).voice == "marin"


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("kind", ["input_text", "output_text", "text"])
def test_any_spelling_of_text_is_text(role: str, kind: str) -> None:
    item = add(type="message", role=role, content=[{"type": kind, "text": "hi"}])
    assert isinstance(item, MessageItem)
    assert item.id == "item_fresh"
    expected = "output_text" if role == "assistant" else "input_text"
    assert item.parts == (ContentPart(expected, "hi"),)


def test_audio_counts_by_its_transcript() -> None:
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
def test_parts_that_cannot_be_read(part: dict[str, object], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        add(type="message", role="user", content=[part])
    assert caught.value.param == param
    assert param.rpartition(".")[0] in caught.value.message


def test_calls_and_results_keep_the_clients_ids() -> None:
    call = add(type="function_call", id="i", call_id="c", name="look", arguments="{}")
    assert call == FunctionCallItem(id="i", call_id="c", name="look", arguments="{}")
    result = add(type="function_call_output", call_id="c", output="seen")
    assert result == FunctionCallOutputItem(id="item_fresh", call_id="c", output="seen")


def test_a_call_without_a_call_id_is_the_same_call_each_time() -> None:
    item = {"type": "function_call", "id": "i", "name": "look", "arguments": "{}"}
    asked = [
        ask({"type": "conversation.item.create", "item": {**item, **more}}, fresh=fresh)
        for fresh, more in (("1", {}), ("2", {}), ("3", {"id": "j"}), ("4", {"id": None}))
    ]
    calls = [one.item for one in asked if isinstance(one, AddItem)]
    names = [call.call_id for call in calls if isinstance(call, FunctionCallItem)]
    assert calls[0] == calls[1]
    assert [name.startswith("call_") for name in names] == [True] * 4
    assert len(set(names)) == 3, "other calls have other ids"


def test_a_response_apart_with_a_context_of_its_own() -> None:
    message = {"type": "message", "role": "user", "content": []}
    asked = respond(
        conversation="none",
        input=[{"type": "item_reference", "id": "i"}, message],
        metadata={"a": "b"},
    )
    assert asked.is_out_of_band
    assert asked.metadata == {"a": "b"}
    assert asked.context == (
        ItemReference("i"),
        MessageItem(id="item_fresh", role="user", parts=()),
    )
    assert respond(input=[]).context == ()
    assert not respond(conversation="auto").is_out_of_band
    assert respond(conversation="auto") == respond(conversation=None) == respond()
    assert respond(conversation="conv_1") == CreateSessionResponse(
        settings=NOW, conversation_id="conv_1"
    )


def test_audio_buffers() -> None:
    assert ask({"type": "input_audio_buffer.append", "audio": "AAAA"}) == IgnoredAudioEvent()
    assert ask({"type": "output_audio_buffer.clear"}) == IgnoredAudioEvent()
    assert ask({"type": "input_audio_buffer.clear"}) == IgnoredAudioEvent(is_clear=True)
    with pytest.raises(Refusal) as caught:
        ask({"type": "input_audio_buffer.commit"})
    assert caught.value.code == "input_audio_buffer_commit_empty"
