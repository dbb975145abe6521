"""Reasoning in sessions of the Realtime API: off unless a client asks for it, and never part of the
text. Where the template leaves it out later, only its answer is computed again.

The device draws a scripted text."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import family_folder, family_text
from tests.support.clients import JsonEvent, RealtimeClient, open_realtime_session
from tests.support.engines import EngineHarness, running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import RunningServer, serve_harness

THOUGHT, ANSWER = "Rome is warm.\nSo yes.", "It is sunny there, as always."
OUTPUT = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
pytestmark = pytest.mark.slow


class Scripted:
    def __init__(
        self, harness: EngineHarness, server: RunningServer, device: ScriptedRunner
    ) -> None:
        self.harness = harness
        self.server = server
        self.device = device


@contextlib.asynccontextmanager
async def scripted_server(name: str, *texts: str) -> AsyncIterator[Scripted]:
    text = family_text(name)
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, texts)
    settings = GatewaySettings(served_model_name=("demo",))
    async with (
        running_engine(family_folder(name), lambda: device) as harness,
        serve_harness(harness, settings) as server,
    ):
        yield Scripted(harness, server, device)


async def configure(client: RealtimeClient, **session: Any) -> JsonEvent:
    await client.send("session.update", session={"type": "realtime", **session})
    return (await client.wait_for("session.updated"))["session"]


async def respond(client: RealtimeClient, **response: Any) -> tuple[list[JsonEvent], JsonEvent]:
    """Create a response. Returns its events, and the final response."""
    await client.send("response.create", response=response)
    events = await client.receive_until("response.done")
    return events, events[-1]["response"]


async def test_sessions_do_not_reason_unless_asked_to() -> None:
    async with (
        scripted_server("qwen3_0_6b", ANSWER) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        assert "reasoning" not in client.session
        await client.add_message("The weather?")
        await respond(client)
        text = family_text("qwen3_0_6b")
        assert text.template is not None
        header = text.template.for_effort("none").encode_header("user")
        ids, count = scripted.device.read_ids, len(header)
        assert any(ids[at : at + count] == header for at in range(len(ids)))


@pytest.mark.parametrize("included", [False, True])
async def test_reasoning_is_not_spoken(included: bool) -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        include = ["response.reasoning_text"] if included else []
        session = await configure(client, reasoning={"effort": "high"}, include=include)
        assert session["reasoning"] == {"effort": "high"}
        await client.add_message("The weather?", "question")
        events, response = await respond(client)
        (message,) = response["output"]
        assert message["content"] == [{"type": "output_text", "text": ANSWER}]
        spoken = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(spoken) == ANSWER
        assert {e["output_index"] for e in events if "output_index" in e} == {0}
        added = next(e for e in events if e["type"] == "conversation.item.added")
        assert added["previous_item_id"] == "question"
        details = response["usage"]["output_token_details"]
        assert 0 < details["reasoning_tokens"] < details["text_tokens"]
        thought = [e for e in events if e["type"].startswith("response.reasoning_text")]
        assert bool(thought) == included
        if included:
            assert "".join(e.get("delta", "") for e in thought) == THOUGHT
            assert thought[-1]["text"] == THOUGHT
            assert len({e["event_id"] for e in events}) == len(events)


async def test_effort_of_one_response_leaves_the_session_as_it_is() -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT, ANSWER, ANSWER) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        await client.add_message("The weather?")
        _, response = await respond(client, reasoning={"effort": "low"})
        assert response["usage"]["output_token_details"]["reasoning_tokens"] > 0
        await client.add_message("And now?")
        _, response = await respond(client)
        assert "reasoning_tokens" not in response["usage"]["output_token_details"]
        await check_prompt(scripted, client)


async def test_options_of_the_template_are_those_of_a_session_or_of_a_response() -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT, ANSWER, OUTPUT) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        session = await configure(
            client, chat_template_kwargs={"enable_thinking": True, "thinking_budget": 30}
        )
        assert session["reasoning"] == {"effort": "medium", "max_tokens": 30}
        await client.add_message("The weather?")
        _, response = await respond(client)
        assert response["usage"]["output_token_details"]["reasoning_tokens"] > 0
        await client.add_message("And now?")
        _, response = await respond(client, chat_template_kwargs={"thinking": False})
        assert "reasoning_tokens" not in response["usage"]["output_token_details"]
        await client.add_message("And then?")
        _, response = await respond(client, chat_template_kwargs={"thinking_budget": 2})
        assert 0 < response["usage"]["output_token_details"]["reasoning_tokens"] <= 2 + 2
        await client.send(
            "response.create",
            response={"enable_thinking": True, "chat_template_kwargs": {"thinking": False}},
        )
        error = (await client.wait_for("error"))["error"]
        assert error["param"] == "response.chat_template_kwargs.thinking"
        session = await configure(client, chat_template_kwargs=None)
        assert session["reasoning"]["max_tokens"] == 30, "null changes nothing"


async def check_prompt(scripted: Scripted, client: RealtimeClient) -> None:
    """Check that the engine's log of the session is what one fresh prefill would read."""
    entry = scripted.server.registry.open_sessions.get(client.session_id)
    assert entry is not None
    conversation = entry.session.conversation
    again = conversation.retokenize()
    spans = [span for span in conversation.spans if span.sampled_ids is None]
    fresh = {span.items[0].id: span.ids for span in again.spans}
    assert all(span.ids == fresh[span.items[0].id] for span in spans)


@pytest.mark.parametrize("text_end", [0, 5, len(ANSWER)])
async def test_truncation_counts_spoken_text_alone(text_end: int) -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT, ANSWER) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        await configure(client, reasoning={"effort": "high"})
        await client.add_message("The weather?" * 10)
        _, response = await respond(client)
        message = response["output"][0]["id"]
        await client.send(
            "conversation.item.truncate", item_id=message, content_index=0, text_end=text_end
        )
        await client.wait_for("conversation.item.truncated")
        await client.send("conversation.item.retrieve", item_id=message)
        item = (await client.wait_for("conversation.item.retrieved"))["item"]
        assert item["content"][0]["text"] == ANSWER[:text_end]
        await client.send(
            "conversation.item.truncate", item_id=message, content_index=0, text_end=99
        )
        error = await client.wait_for("error")
        assert error["error"]["param"] == "text_end"
        await client.add_message("And now?")
        await respond(client)
        await check_prompt(scripted, client)


async def test_deleted_answer_takes_its_reasoning_along() -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT, ANSWER) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        await configure(client, reasoning={"effort": "high"})
        await client.add_message("The weather?")
        _, response = await respond(client)
        await client.send("conversation.item.delete", item_id=response["output"][0]["id"])
        await client.wait_for("conversation.item.deleted")
        entry = scripted.server.registry.open_sessions.get(client.session_id)
        assert entry is not None
        assert len(list(entry.session.conversation.items_with_reasoning())) == 1


class Committed(msgspec.Struct):
    """The cost of a user message and its response."""

    read: str
    """The text that the device read: what was prefilled, and the ids drawn."""
    rewind: dict[str, int] | None
    usage: JsonEvent


async def commit_message(scripted: Scripted, client: RealtimeClient) -> Committed:
    """Commit a user message, and generate one token in response."""
    before = len(scripted.device.read_ids)
    await client.send_message("And now?")
    added = await client.wait_for("conversation.item.added")
    await client.wait_for("conversation.item.done")
    _, response = await respond(client, max_output_tokens=1)
    read = family_text(
        "qwen3_0_6b"
    )._tokenizer.decode(  # pyright: ignore[reportPrivateUsage]
        scripted.device.read_ids[before:], skip_special=False
    )
    return Committed(read, added.get("rewind"), response["usage"])


GENERATED = ("", "<think>", "<think><|im_end|>", "<think><|im_end|>\n")
"""Texts that the device may have read of a response of one token when the count is taken."""
RESUMED = pytest.mark.parametrize("how", ["connected", "resumed", "taken over"])


@RESUMED
async def test_old_reasoning_costs_a_rewind_to_the_start_of_its_answer(how: str) -> None:
    """A commit prefills the answer without its reasoning, the message and the header, and nothing
    before the answer, whichever gateway serves the session."""
    question = "What is the weather in Rome?"
    async with contextlib.AsyncExitStack() as stack:
        scripted = await stack.enter_async_context(scripted_server("qwen3_0_6b", OUTPUT, OUTPUT))
        client = await stack.enter_async_context(open_realtime_session(scripted.server.url))
        await configure(client, reasoning={"effort": "high"})
        await client.add_message(question * 10)
        _, response = await respond(client)
        if how == "resumed":
            await client.socket.close()
            await client.resume(scripted.server.url)
            await client.wait_for("session.updated")
        elif how == "taken over":
            settings = GatewaySettings(served_model_name=("demo",))
            other = await stack.enter_async_context(serve_harness(scripted.harness, settings))
            await client.resume(other.url)
            await client.wait_for("session.updated")
        first = await commit_message(scripted, client)
        header, kept = "<|im_start|>assistant\n", response["usage"]["input_tokens"]
        added = "<|im_start|>user\nAnd now?<|im_end|>\n"
        prefilled = f"{ANSWER}<|im_end|>\n{added}"
        assert first.read.startswith(f"{prefilled}{header}")
        assert first.read.removeprefix(f"{prefilled}{header}") in GENERATED
        text = family_text("qwen3_0_6b")
        assert first.rewind == {
            "kept_tokens": kept,
            "prefill_tokens": len(text.encode(prefilled)),
        }
        assert first.usage["input_tokens"] == kept + len(text.encode(prefilled + header))
        again = await commit_message(scripted, client)
        assert again.rewind is None, "the answer is computed again once"
        assert again.read.removeprefix(f"{added}{header}") in GENERATED


@pytest.mark.parametrize("after", ["response.created", "response.output_text.delta"])
async def test_resume_replays_spoken_text_alone(after: str) -> None:
    async with (
        scripted_server("qwen3_0_6b", OUTPUT) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        await configure(client, reasoning={"effort": "high"})
        await client.add_message("The weather?")
        await client.send("response.create")
        await client.wait_for(after)
        await client.socket.close()
        await client.resume(scripted.server.url)
        await client.wait_for("response.done")
        (text,) = client.response_texts.values()
        assert text == ANSWER


async def test_what_the_template_cannot_switch_is_refused_by_name() -> None:
    async with (
        scripted_server("gpt_oss", ANSWER) as scripted,
        open_realtime_session(scripted.server.url) as client,
    ):
        await client.send(
            "session.update", session={"type": "realtime", "reasoning": {"effort": "none"}}
        )
        error = (await client.wait_for("error"))["error"]
        assert (error["code"], error["param"]) == ("unsupported_value", "session.reasoning.effort")
