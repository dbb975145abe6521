"""Conversations under the chat templates of real families: whatever was added, dropped or changed,
the prompt of an answer is what rendering the whole would give."""

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
from tests.support.checkpoints import FAMILIES, template_of

NO_TOOLS = {"chatml", "llama2", "gemma", "counting"}
NO_SYSTEM = {"gemma"}
TOOL = Tool(name="get_weather", parameters='{"type": "object"}')


def user(n: int, text: str) -> MessageItem:
    return MessageItem(id=f"u{n}", role="user", parts=(ContentPart("input_text", f"{text} {n}?"),))


def said(n: int, text: str) -> MessageItem:
    return MessageItem(
        id=f"a{n}", role="assistant", parts=(ContentPart("output_text", f"{text} {n}."),)
    )


def turn(n: int, text: str, *, calls: bool) -> list[Item]:
    """One question and what answers it."""
    items: list[Item] = [user(n, text)]
    if calls:
        call_id = deterministic_id_factory(f"answer {n}")("call")
        items.append(
            FunctionCallItem(id=f"c{n}", call_id=call_id, name="get_weather", arguments="{}")
        )
        items.append(FunctionCallOutputItem(id=f"o{n}", call_id=call_id, output=f"sun {n}"))
    return [*items, said(n, text)]


def plain(conversation: Conversation) -> list[ChatMessage]:
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


def assert_whole(template: ChatTemplate, conversation: Conversation) -> None:
    """The prompt is the whole, rendered at once."""
    asked, header = conversation.render_header()
    tools = [render_tool(tool) for tool in conversation.tools]
    whole = template.render(plain(conversation), tools, add_generation_prompt=True)
    assert asked.ids() + header == whole


TEXTS = st.sampled_from(
    ["hello", "<think>\nhm\n</think>\n\nwell", "über 😀", " spaces  ", "[INST]"]
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_conversation_is_the_whole_at_every_question(name: str, data: st.DataObject) -> None:
    template = template_of(name)
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
                assert_whole(template, conversation)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_edits_of_the_past_give_the_whole_too(name: str, data: st.DataObject) -> None:
    template = template_of(name)
    conversation = Conversation.start(template, GenerationSettings())
    for n in range(4):
        conversation = conversation.with_items(turn(n, data.draw(TEXTS), calls=False))
    gone = data.draw(st.integers(0, 3))
    conversation = conversation.delete_item(f"a{gone}").delete_item(f"u{gone}")
    conversation = conversation.add_item(user(9, "and now"))
    assert_whole(template, conversation)
    assert_whole(template, conversation.delete_item("u9"))
    if name not in NO_SYSTEM:
        tools = () if name in NO_TOOLS else (TOOL,)
        changed = GenerationSettings(instructions="be brief", tools=tools)
        assert_whole(template, conversation.with_settings(changed))
        assert_whole(
            template, conversation.with_settings(changed).with_settings(GenerationSettings())
        )


def test_what_a_later_question_changed_is_changed_back_without_it() -> None:
    template = template_of("qwen3")
    thought = "<think>\nhm\n</think>\n\nwell"
    before = Conversation.start(template, GenerationSettings()).with_items(
        [user(0, "hello"), said(0, thought), said(1, thought)]
    )
    asked = before.add_item(user(1, "and now"))
    assert asked.ids()[: before.length] != before.ids(), "old reasoning is dropped"
    assert asked.delete_item("u1").ids() == before.ids()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("instructions", ["", "be brief"])
def test_an_answer_to_nothing_still_sees_the_tools(name: str, instructions: str) -> None:
    tools = () if name in NO_TOOLS else (TOOL,)
    template = template_of(name)
    empty = Conversation.start(template, GenerationSettings(instructions=instructions, tools=tools))
    asked, header = empty.render_header()
    assert (asked.ids(), header) == (empty.ids(), template.encode_header(None))
