"""Conversations under the chat templates of real model families: after any edits, the prompt of a
response equals one full rendering."""

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo.engine import ChatMessage, ChatTemplate, ToolCall
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import render_tool
from continuo.realtime.ids import deterministic_id_factory
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests.support.checkpoints import PUBLISHED, TRANSCRIBED, family_template

NO_TOOLS = {"odd_calls"}
NO_HEADER_AT_FIRST = {"deepseek_v3_1", "deepseek_v3_2", "granite3_3"}
"""The assistant's header depends on a message of the user before it."""
NO_SYSTEM = {"gemma"}
TOOL = Tool(name="get_weather", parameters='{"type": "object"}')


def every_family(*, but: Collection[str] = ()) -> pytest.MarkDecorator:
    """Parametrize a test by the names of families. Those with published templates are slow."""
    published = [
        pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED if name not in but
    ]
    return pytest.mark.parametrize(
        "name", [*(name for name in TRANSCRIBED if name not in but), *published]
    )


def user(n: int, text: str) -> MessageItem:
    return MessageItem(id=f"u{n}", role="user", parts=(ContentPart("input_text", f"{text} {n}?"),))


def assistant(n: int, text: str) -> MessageItem:
    return MessageItem(
        id=f"a{n}", role="assistant", parts=(ContentPart("output_text", f"{text} {n}."),)
    )


def turn(n: int, text: str, *, calls: bool) -> list[Item]:
    """The items of a turn: a question, with `calls` a tool call and its output, and an answer."""
    items: list[Item] = [user(n, text)]
    if calls:
        call_id = deterministic_id_factory(f"answer {n}")("call")
        items.append(
            FunctionCallItem(id=f"c{n}", call_id=call_id, name="get_weather", arguments="{}")
        )
        items.append(FunctionCallOutputItem(id=f"o{n}", call_id=call_id, output=f"sun {n}"))
    return [*items, assistant(n, text)]


def chat_messages(conversation: Conversation) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if conversation.instructions:
        messages.append(ChatMessage(role="system", content=conversation.instructions))
    for item in conversation.items():
        match item:
            case MessageItem(role=role, parts=parts):
                messages.append(ChatMessage(role=role, content=parts[0].text))
            case FunctionCallItem(name=name, arguments=arguments, call_id=call_id):
                call = ToolCall(name=name, arguments=arguments, id=call_id)
                messages.append(ChatMessage(role="assistant", tool_calls=(call,)))
            case FunctionCallOutputItem(output=output, call_id=call_id):
                messages.append(ChatMessage(role="tool", content=output, tool_call_id=call_id))
    return messages


def assert_full_rendering(template: ChatTemplate, conversation: Conversation) -> None:
    """Check that the prompt equals one full rendering of the conversation."""
    prompt, header = conversation.render_header()
    tools = [render_tool(tool) for tool in conversation.tools]
    whole = template.render(chat_messages(conversation), tools, add_generation_prompt=True)
    assert prompt.ids() + header == whole


TEXTS = st.sampled_from(
    ["hello", "<think>\nhm\n</think>\n\nwell", "über 😀", " spaces  ", "[INST]"]
)


@every_family()
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_prompt_equals_the_full_rendering_at_every_turn(name: str, data: st.DataObject) -> None:
    template = family_template(name)
    with_tools = name not in NO_TOOLS
    system = "" if name in NO_SYSTEM else data.draw(st.sampled_from(["", "be kind"]))
    tools = (TOOL,) if with_tools and data.draw(st.booleans()) else ()
    conversation = Conversation.start(
        template, GenerationSettings(instructions=system, tools=tools)
    )
    for n in range(data.draw(st.integers(1, 4))):
        calls = with_tools and data.draw(st.booleans())
        for item in turn(n, data.draw(TEXTS), calls=calls):
            conversation = conversation.add_item(item)
            if item.id[0] in "uo":
                assert_full_rendering(template, conversation)


@every_family()
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_prompt_equals_the_full_rendering_after_edits(name: str, data: st.DataObject) -> None:
    template = family_template(name)
    conversation = Conversation.start(template, GenerationSettings())
    for n in range(4):
        conversation = conversation.with_items(turn(n, data.draw(TEXTS), calls=False))
    deleted = data.draw(st.integers(0, 3))
    conversation = conversation.delete_item(f"a{deleted}").delete_item(f"u{deleted}")
    conversation = conversation.add_item(user(9, "and now"))
    assert_full_rendering(template, conversation)
    assert_full_rendering(template, conversation.delete_item("u9"))
    if name not in NO_SYSTEM:
        tools = () if name in NO_TOOLS else (TOOL,)
        changed = GenerationSettings(instructions="be brief", tools=tools)
        assert_full_rendering(template, conversation.with_settings(changed))
        assert_full_rendering(
            template, conversation.with_settings(changed).with_settings(GenerationSettings())
        )


def test_deleting_a_message_restores_the_rendering_before_it() -> None:
    template = family_template("qwen3")
    thought = "<think>\nhm\n</think>\n\nwell"
    before = Conversation.start(template, GenerationSettings()).with_items(
        [user(0, "hello"), assistant(0, thought), assistant(1, thought)]
    )
    after = before.add_item(user(1, "and now"))
    assert after.ids()[: before.length] != before.ids(), "the template kept old reasoning"
    assert after.delete_item("u1").ids() == before.ids()


@every_family(but=NO_HEADER_AT_FIRST)
@pytest.mark.parametrize("instructions", ["", "be brief"])
def test_prompt_of_an_empty_conversation_contains_the_tools(name: str, instructions: str) -> None:
    tools = () if name in NO_TOOLS else (TOOL,)
    template = family_template(name)
    empty = Conversation.start(template, GenerationSettings(instructions=instructions, tools=tools))
    prompt, header = empty.render_header()
    assert (prompt.ids(), header) == (empty.ids(), template.encode_header(None))
