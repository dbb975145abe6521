"""Clients of the Realtime API by other makers, and those of its beta version, against a real
server."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, NODE, ROOT, SDK, Server
from tests.support.clients import connect_realtime

pytestmark = pytest.mark.timeout(300)

MASTRA_FRAMES: list[dict[str, Any]] = [
    {
        "type": "session.update",
        "session": {
            "instructions": "Be brief.",
            "tools": [],
            "input_audio_transcription": {"model": "whisper-1"},
            "voice": "alloy",
        },
    },
    {
        "type": "response.create",
        "response": {"instructions": "Repeat the following text: Hello there"},
    },
]
"""Frames of @mastra/voice-openai-realtime 0.11.12, as recorded: its settings, and a text to repeat.
Its peer @mastra/core is 300 MB, too much to install for a test."""


def run_client(*command: str | Path, cwd: Path = ROOT) -> Any:
    """Run a client. Returns what it prints as JSON."""
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("announces_by_subprotocol", [True, False])
def test_voice_clients_of_node_get_answers_and_see_errors(
    node: list[str], server: Server, model: str, announces_by_subprotocol: bool
) -> None:
    """With the WebSocket of browsers, openai-realtime-api announces the beta by a subprotocol, else
    by a header."""
    if model != "demo":
        pytest.skip("only the bundled model is certain to call the tool")
    command = node if announces_by_subprotocol else node[:1]
    url = server.url.replace("http", "ws", 1) + "/realtime"
    results = run_client(*command, "voice_clients.mjs", KEY, url, cwd=NODE)
    for found in results.values():
        assert all(text.strip() for text in found["texts"])
        assert found["calls"] == [{"city": "Paris"}]
    assert len(results["realtimeApi"]["texts"]) == 3
    assert results["realtimeApi"]["errors"] == [
        "audio_not_supported",
        "input_audio_buffer_commit_empty",
    ]
    assert len(results["mastraVoice"]["texts"]) == 4
    assert results["mastraVoice"]["errors"] == ["invalid_value", "audio_not_supported"]


def test_beta_client_of_openai_python_gets_an_answer(server: Server) -> None:
    text, deltas = run_client(SDK, "-m", "tests.clients.beta_client", KEY, server.url)
    assert text == deltas != ""


async def test_mastra_of_the_beta_gets_an_answer(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "OpenAI-Beta": "realtime=v1"}
    url = server.url.replace("http", "ws", 1) + "/realtime?model=demo"
    async with connect_realtime(url, headers) as client:
        await client.expect("session.created")
        for frame in MASTRA_FRAMES:
            await client.send(**frame)
        events = await client.receive_until("response.done")
        text = "".join(event["delta"] for event in events if event["type"] == "response.text.delta")
        assert text
        assert not [event for event in events if event["type"] == "error"]
