"""Conversations are the concatenation of their spans: whatever is edited, the ids are those of a
conversation that was written down that way at once, and what was sampled stays as it was drawn."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import ChatTemplate, Message, Text
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.protocol.items import ROOT, CallItem, CallOutputItem, Item, MessageItem, Part
from continuo.realtime.protocol.settings import Settings, Tool

SAMPLED = (11, 12, 13, 0)
"""Letters, and the id that ends a message."""


@pytest.fixture(scope="module")
def template(chatty: Path) -> ChatTemplate:
    template = Text(str(chatty)).template
    assert template is not None
    return template


def user(name: str, text: str = "hello") -> MessageItem:
    return MessageItem(id=name, role="user", parts=(Part("input_text", text),))


def said(name: str, text: str = "yes") -> MessageItem:
    return MessageItem(id=name, role="assistant", parts=(Part("output_text", text),))


def call(name: str) -> CallItem:
    return CallItem(id=name, call_id=f"call_{name}", name="look", arguments='{"at": 1}')


def result(name: str) -> CallOutputItem:
    return CallOutputItem(id=name, call_id=f"call_{name}", output="seen")


def names(conversation: Conversation) -> list[str]:
    return [item.id for item in conversation.items()]


def test_ids_are_those_of_the_full_rendering(template: ChatTemplate) -> None:
    settings = Settings(instructions="be kind", tools=(Tool(name="look"),))
    conversation = Conversation.start(template, settings)
    conversation = conversation.with_items([user("a"), said("b"), user("c", "who are you?")])
    messages = [
        Message(role="system", content="be kind"),
        Message(role="user", content="hello"),
        Message(role="assistant", content="yes"),
        Message(role="user", content="who are you?"),
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    whole = template.render(messages, [tool], add_generation_prompt=True)
    asked, header = conversation.asked()
    assert asked.ids() == conversation.ids()
    assert conversation.ids() + header == whole
    assert conversation.length == len(conversation.ids())


def test_calls_belong_to_the_message_before_them(template: ChatTemplate) -> None:
    start = Conversation.start(template, Settings())
    parts = start.with_items([user("a"), said("b"), call("c"), call("d"), result("c")])
    assert [len(span.items) for span in parts.spans] == [1, 3, 1]
    assert len(start.with_items([user("a"), call("c"), said("b")]).spans) == 3


def answered(conversation: Conversation, name: str) -> Conversation:
    return conversation.open(name).settle(name, (said(f"{name}.0"),), SAMPLED)


def test_sampled_ids_stay_as_they_were_drawn(template: ChatTemplate) -> None:
    conversation = answered(Conversation.start(template, Settings()).add(user("a")), "r")
    header = Conversation.start(template, Settings()).add(user("a")).asked()[1]
    expected = [*header, *SAMPLED, *template.ending(SAMPLED)]
    assert list(conversation.spans[1].ids) == expected
    changed = conversation.configured(Settings(instructions="be brief")).add(user("b"), ROOT)
    kept = next(span for span in changed.spans if span.answer == "r")
    assert list(kept.ids) == expected
    assert "".join(names(changed)) == "bar.0"


def test_an_answer_in_the_making_keeps_its_place(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, Settings()).add(user("a")).open("r")
    conversation = conversation.add(user("b"))
    assert names(conversation) == ["a", "b"]
    shown = conversation.show("r", (said("r.0"),))
    assert names(shown) == ["a", "r.0", "b"]
    assert shown.previous("r.0") == "a"
    assert shown.previous("b") == "r.0"
    assert shown.is_open("r.0")
    settled = shown.settle("r", (said("r.0"),), SAMPLED)
    assert not settled.is_open("r.0")
    direct = answered(Conversation.start(template, Settings()).add(user("a")), "r").add(user("b"))
    assert settled.ids() == direct.ids()


def test_an_answer_without_items_leaves_no_trace(template: ChatTemplate) -> None:
    before = Conversation.start(template, Settings()).add(user("a"))
    after = before.open("r").add(user("b")).settle("r", (), SAMPLED)
    assert after.ids() == before.add(user("b")).ids()


def test_dropping_part_of_an_answer_renders_the_rest(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, Settings()).add(user("a")).open("r")
    conversation = conversation.settle("r", (said("b"), call("c")), SAMPLED)
    rest = conversation.drop("c")
    assert (
        rest.ids()
        == Conversation.start(template, Settings()).with_items([user("a"), said("b")]).ids()
    )


def test_what_is_not_there_is_a_key_error(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, Settings()).add(user("a"))
    for edit in (
        lambda: conversation.drop("x"),
        lambda: conversation.add(user("b"), "x"),
        lambda: conversation.previous("x"),
    ):
        with pytest.raises(KeyError):
            edit()
    assert conversation.find("x") is None


def fresh_ids(conversation: Conversation) -> list[int]:
    """The same history, written down span by span in order."""
    settings = Settings(instructions=conversation.instructions, tools=conversation.tools)
    plain = Conversation.start(conversation.template, settings)
    for span in conversation.spans:
        if span.sampled is None:
            plain = plain.with_items(span.items)
        else:
            assert span.answer is not None
            plain = plain.open(span.answer).settle(span.answer, span.items, span.sampled)
    return plain.ids()


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["user", "said", "call", "result", "answer", "drop", "configure"]),
        st.integers(0, 5),
    ),
    max_size=14,
)


@given(EDITS)
def test_any_edits_give_the_ids_of_a_fresh_conversation(
    template: ChatTemplate, edits: list[tuple[str, int]]
) -> None:
    conversation = Conversation.start(template, Settings())
    makers = {"user": user, "said": said, "call": call, "result": result}
    for n, (what, where) in enumerate(edits):
        here = names(conversation)
        if what == "drop":
            if here:
                conversation = conversation.drop(here[where % len(here)])
        elif what == "configure":
            conversation = conversation.configured(Settings(instructions="x" * where))
        elif what == "answer":
            conversation = answered(conversation, f"r{n}")
        else:
            item: Item = makers[what](f"i{n}")
            after = [None, ROOT, *here][where % (2 + len(here))]
            conversation = conversation.add(item, after)
            assert conversation.find(item.id) == item
            previous = conversation.previous(item.id)
            assert previous == (
                (here[-1] if here else None) if after is None else None if after == ROOT else after
            )
    assert len(set(names(conversation))) == len(names(conversation))
    assert conversation.ids() == fresh_ids(conversation)


def test_conversations_are_values(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, Settings()).add(user("a"))
    before = conversation.ids()
    conversation.add(user("b"))
    conversation.drop("a")
    with pytest.raises(AttributeError):
        conversation.spans = ()  # type: ignore[misc]  # read-only, which is tested
    assert conversation.ids() == before
    assert msgspec.structs.replace(conversation).ids() == before
