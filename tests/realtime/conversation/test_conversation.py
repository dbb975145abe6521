"""Tests of `Conversation`: the ids after any edits equal those of the same history rendered anew,
and sampled ids stay as they were drawn."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import ChatMessage, ChatTemplate, ModelText
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.protocol.items import (
    ROOT,
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)
from continuo.realtime.protocol.settings import GenerationSettings, Tool

SAMPLED = (11, 12, 13, 0)
"""Letters, and the id that ends a message."""


@pytest.fixture(scope="module")
def template(chat_model: Path) -> ChatTemplate:
    template = ModelText(str(chat_model)).template
    assert template is not None
    return template


def user(name: str, text: str = "hello") -> MessageItem:
    return MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))


def assistant(name: str, text: str = "yes") -> MessageItem:
    return MessageItem(id=name, role="assistant", parts=(ContentPart("output_text", text),))


def call(name: str) -> FunctionCallItem:
    return FunctionCallItem(id=name, call_id=f"call_{name}", name="look", arguments='{"at": 1}')


def result(name: str) -> FunctionCallOutputItem:
    return FunctionCallOutputItem(id=name, call_id=f"call_{name}", output="seen")


def names(conversation: Conversation) -> list[str]:
    return [item.id for item in conversation.items()]


def test_ids_of_spans_equal_one_full_rendering(template: ChatTemplate) -> None:
    settings = GenerationSettings(instructions="be kind", tools=(Tool(name="look"),))
    conversation = Conversation.start(template, settings)
    conversation = conversation.with_items([user("a"), assistant("b"), user("c", "who are you?")])
    messages = [
        ChatMessage(role="system", content="be kind"),
        ChatMessage(role="user", content="hello"),
        ChatMessage(role="assistant", content="yes"),
        ChatMessage(role="user", content="who are you?"),
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    whole = template.render(messages, [tool], add_generation_prompt=True)
    prompt, header = conversation.render_header()
    assert prompt.ids() == conversation.ids()
    assert conversation.ids() + header == whole
    assert conversation.length == len(conversation.ids())


def test_calls_are_in_the_span_of_the_message_before_them(template: ChatTemplate) -> None:
    start = Conversation.start(template, GenerationSettings())
    parts = start.with_items([user("a"), assistant("b"), call("c"), call("d"), result("c")])
    assert [len(span.items) for span in parts.spans] == [1, 3, 1]
    assert len(start.with_items([user("a"), call("c"), assistant("b")]).spans) == 3


def with_response(conversation: Conversation, name: str) -> Conversation:
    return conversation.open_response(name).commit_response(
        name, (assistant(f"{name}.0"),), SAMPLED
    )


def test_sampled_ids_stay_as_they_were_drawn(template: ChatTemplate) -> None:
    conversation = with_response(
        Conversation.start(template, GenerationSettings()).add_item(user("a")), "r"
    )
    header = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).render_header()[1]
    )
    expected = [*header, *SAMPLED, *template.encode_ending(SAMPLED)]
    assert list(conversation.spans[1].ids) == expected
    changed = conversation.with_settings(GenerationSettings(instructions="be brief")).add_item(
        user("b"), ROOT
    )
    kept = next(span for span in changed.spans if span.response_id == "r")
    assert list(kept.ids) == expected
    assert "".join(names(changed)) == "bar.0"


def test_open_response_keeps_its_place(template: ChatTemplate) -> None:
    conversation = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).open_response("r")
    )
    conversation = conversation.add_item(user("b"))
    assert names(conversation) == ["a", "b"]
    updated = conversation.update_open_response("r", (assistant("r.0"),))
    assert names(updated) == ["a", "r.0", "b"]
    assert updated.previous_item_id("r.0") == "a"
    assert updated.previous_item_id("b") == "r.0"
    assert updated.is_in_open_response("r.0")
    committed = updated.commit_response("r", (assistant("r.0"),), SAMPLED)
    assert not committed.is_in_open_response("r.0")
    direct = with_response(
        Conversation.start(template, GenerationSettings()).add_item(user("a")), "r"
    ).add_item(user("b"))
    assert committed.ids() == direct.ids()


def test_response_without_items_leaves_no_trace(template: ChatTemplate) -> None:
    before = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    after = before.open_response("r").add_item(user("b")).commit_response("r", (), SAMPLED)
    assert after.ids() == before.add_item(user("b")).ids()


def test_deleting_one_item_of_a_response_renders_the_others_again(template: ChatTemplate) -> None:
    conversation = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).open_response("r")
    )
    conversation = conversation.commit_response("r", (assistant("b"), call("c")), SAMPLED)
    rest = conversation.delete_item("c")
    assert (
        rest.ids()
        == Conversation.start(template, GenerationSettings())
        .with_items([user("a"), assistant("b")])
        .ids()
    )


def test_unknown_item_id_raises_key_error(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    for edit in (
        lambda: conversation.delete_item("x"),
        lambda: conversation.add_item(user("b"), "x"),
        lambda: conversation.previous_item_id("x"),
    ):
        with pytest.raises(KeyError):
            edit()
    assert conversation.find("x") is None


def fresh_ids(conversation: Conversation) -> list[int]:
    """The ids of the same history, rendered span by span in order."""
    settings = GenerationSettings(instructions=conversation.instructions, tools=conversation.tools)
    plain = Conversation.start(conversation.template, settings)
    for span in conversation.spans:
        if span.sampled_ids is None:
            plain = plain.with_items(span.items)
        else:
            assert span.response_id is not None
            plain = plain.open_response(span.response_id).commit_response(
                span.response_id, span.items, span.sampled_ids
            )
    return plain.ids()


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "call", "result", "response", "delete", "configure"]),
        st.integers(0, 5),
    ),
    max_size=14,
)


@given(EDITS)
def test_any_edits_give_the_ids_of_a_fresh_rendering(
    template: ChatTemplate, edits: list[tuple[str, int]]
) -> None:
    conversation = Conversation.start(template, GenerationSettings())
    makers = {"user": user, "assistant": assistant, "call": call, "result": result}
    for n, (kind, position) in enumerate(edits):
        ids = names(conversation)
        if kind == "delete":
            if ids:
                conversation = conversation.delete_item(ids[position % len(ids)])
        elif kind == "configure":
            conversation = conversation.with_settings(
                GenerationSettings(instructions="x" * position)
            )
        elif kind == "response":
            conversation = with_response(conversation, f"r{n}")
        else:
            item: Item = makers[kind](f"i{n}")
            after = [None, ROOT, *ids][position % (2 + len(ids))]
            conversation = conversation.add_item(item, after)
            assert conversation.find(item.id) == item
            previous = conversation.previous_item_id(item.id)
            assert previous == (
                (ids[-1] if ids else None) if after is None else None if after == ROOT else after
            )
    assert len(set(names(conversation))) == len(names(conversation))
    assert conversation.ids() == fresh_ids(conversation)


def test_conversations_are_immutable(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    before = conversation.ids()
    conversation.add_item(user("b"))
    conversation.delete_item("a")
    with pytest.raises(AttributeError):
        conversation.spans = ()  # type: ignore[misc]  # read-only, which is tested
    assert conversation.ids() == before
    assert msgspec.structs.replace(conversation).ids() == before
